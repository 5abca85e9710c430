"""S8: tokens are long, are guessed slowly on every server, and stand in no list of processes."""

from __future__ import annotations

from pathlib import Path

import pytest
import requests

from holdfast.cli.options import TokenOptions, never_on_command_line
from holdfast.collect import endpoint
from holdfast.contracts.errors import BadInput
from tests.security.conftest import TOKEN, Serve

PATHS = ("/v1/models", "/api/overview")  # of a model's server and of the control room


def test_wrong_tokens_of_an_address_are_slowed_down_and_the_right_one_passes(serve: Serve) -> None:
    with serve() as url:
        path = next(path for path in PATHS if requests.get(f"{url}{path}", timeout=30).status_code == 401)
        wrong = [
            requests.get(f"{url}{path}", headers={"Authorization": f"Bearer hf_{guess}"}, timeout=30)
            for guess in range(12)
        ]
        assert [one.status_code for one in wrong][-6:] == [429] * 6 and int(wrong[-1].headers["Retry-After"]) >= 1
        right = {"Authorization": f"Bearer {TOKEN}"}
        assert requests.get(f"{url}{path}", headers=right, timeout=30).status_code in (200, 404, 502)


@pytest.mark.parametrize("token", ["abc", "a" * 19, ""])
def test_a_short_token_is_refused_before_anything_listens(token: str) -> None:
    with pytest.raises(BadInput, match="and needs 20|cannot stand in a header"):
        endpoint.listen("127.0.0.1", 0, token=token)


def test_a_token_on_the_command_line_is_refused_with_the_way_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match=r"--token: .* \(ps\); put the token into HOLDFAST_TOKEN, or into a file"):
        TokenOptions(token=TOKEN).read()
    with pytest.raises(BadInput, match="HOLDFAST_TOWN_ADMIN"):
        never_on_command_line(TOKEN, "--admin", "HOLDFAST_TOWN_ADMIN")
    monkeypatch.setenv("HOLDFAST_TOKEN", TOKEN)
    assert TokenOptions().read() == TOKEN
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}2\n")
    file.chmod(0o644)
    with pytest.raises(BadInput, match="others can read it; chmod 600"):
        TokenOptions(token_file=file).read()
    file.chmod(0o600)
    assert TokenOptions(token_file=file).read() == f"{TOKEN}2"
