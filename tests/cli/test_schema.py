"""Everything that leaves the process has a published schema."""

from __future__ import annotations

import json

import jsonschema
import pytest

from holdfast.cli.store import REPORTS, SETTINGS
from holdfast.contracts.records import PUBLISHED, schema
from holdfast.contracts.settings import OptimizeSettings
from tests.cli.conftest import Cli

NAMES = sorted([*PUBLISHED, *REPORTS, SETTINGS])


def test_without_a_name_they_are_listed(cli: Cli) -> None:
    assert cli("schema").lines == NAMES
    assert cli("schema", "--json").json == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_name_has_a_valid_schema(cli: Cli, name: str) -> None:
    document = cli("schema", name).json
    jsonschema.Draft202012Validator.check_schema(document)
    assert document["type"] == "object"


def test_a_records_schema_is_the_contracts(cli: Cli) -> None:
    assert cli("schema", "rollout").json == schema(PUBLISHED["rollout"])


def test_the_settings_schema_fits_what_settings_write(cli: Cli) -> None:
    document = cli("schema", SETTINGS).json
    settings = OptimizeSettings.model_validate({"optimize": ["hello"]})
    jsonschema.validate(json.loads(json.dumps(settings.record())), document)
    assert list(document["properties"])[:2] == ["optimize", "validate"]


def test_an_unknown_name_is_refused_with_the_nearest(cli: Cli) -> None:
    ran = cli("schema", "rolout")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == "holdfast: error: schema 'rolout': is not published; did you mean rollout?\n"
    ran = cli("schema", "zzz")
    assert ran.err == "holdfast: error: schema 'zzz': is not published; 'holdfast schema' lists the names\n"
