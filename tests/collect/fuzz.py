"""Schemathesis against a running server, by the document that the server gives of itself: a bounded number of tries.

What no tool can guess, such as the name of a model or an attempt that runs, is told to half of the good requests.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import (
    content_type_conformance,
    negative_data_rejection,
    not_a_server_error,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from holdfast.collect.openapi import EVENTS

CHECKS: list[Any] = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
    unsupported_method,
]
Seen = dict[str, Counter[int]]  # by operation: how often each status


def fuzz(
    url: str,
    *,
    tries: int,
    headers: Mapping[str, str],
    known: Mapping[str, Any] | None = None,
    after: Callable[[str], object] = lambda label: None,
) -> Seen:
    """So many good and so many bad requests of each operation. A status that is not told by its number is a failure.

    `known` are fields of a body, headers and parameters of a path; `after` is called after each operation.
    """
    document = requests.get(f"{url}/openapi.json", headers=dict(headers), timeout=60.0).json()
    seen: Seen = {}
    for operation in _operations(_shortened(document), url):
        _try(
            operation, GenerationMode.POSITIVE, tries, headers, known or {}, seen.setdefault(operation.label, Counter())
        )
        after(operation.label)
    for operation in _operations(document, url):
        _try(operation, GenerationMode.NEGATIVE, tries, headers, {}, seen[operation.label])
        after(operation.label)
    return seen


def _operations(document: dict[str, Any], url: str) -> list[Any]:
    for path in document["paths"].values():
        for operation in path.values():
            for answer in operation["responses"].values():
                # It is of the whole stream, and Schemathesis would hold each event of it to that.
                answer.get("content", {}).get(EVENTS, {}).pop("schema", None)
    schema = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=url)
    return [found.ok() for found in schema.get_all_operations()]


def _try(
    operation: Any, mode: Any, tries: int, headers: Mapping[str, str], known: Mapping[str, Any], seen: Counter[int]
) -> None:
    chance = random.Random(7)
    told = {int(status) for status in operation.definition.raw["responses"] if status.isdecimal()}

    def one(case: Any) -> None:
        if chance.random() < 0.5:
            _tell(case, known)
        answer = case.call(headers=dict(headers), timeout=60.0)
        seen[answer.status_code] += 1
        assert answer.status_code in told, f"{operation.label}: {answer.status_code} {answer.text[:300]}"
        case.validate_response(answer, checks=CHECKS)

    bounded = settings(
        max_examples=tries,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    try:
        bounded(given(case=operation.as_strategy(generation_mode=mode))(one))()
    except Unsatisfiable:
        assert mode is GenerationMode.NEGATIVE  # there is nothing that could be wrong with it


def _shortened(document: dict[str, Any]) -> dict[str, Any]:
    """With lists of a few in what is asked: that making up long ones takes long proves nothing."""
    copy: dict[str, Any] = json.loads(json.dumps(document))
    for path in copy["paths"].values():
        for operation in path.values():
            _shorten(operation.get("requestBody"))
    return copy


def _shorten(schema: Any) -> None:
    for one in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        _shorten(one)
    if isinstance(schema, dict) and "items" in schema:
        schema.setdefault("maxItems", 3)


def _tell(case: Any, known: Mapping[str, Any]) -> None:
    for name, value in known.items():
        for part in (case.path_parameters, case.headers, case.body):
            if isinstance(part, Mapping) and name in part:
                part[name] = value
