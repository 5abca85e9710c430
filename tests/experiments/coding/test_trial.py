from __future__ import annotations

from datetime import date
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.coding.sandbox import Sandbox
from experiments.coding.trial import decode, encode

SIMPLE = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.dates()
KEYS = st.integers() | st.text() | st.tuples(st.integers(), st.text())
PLAIN = st.recursive(
    SIMPLE,
    lambda inner: (
        st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(KEYS, inner) | st.sets(st.integers() | st.text())
    ),
    max_leaves=12,
)
CODE = "def f(n):\n    return n\n"


def _typed(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return type(value), [_typed(one) for one in value]
    if isinstance(value, dict):
        return dict, sorted([(repr(key), _typed(one)) for key, one in value.items()], key=repr)
    return type(value), value


@given(PLAIN)
def test_plain_data_comes_back_with_its_types(value: Any) -> None:
    assert _typed(decode(encode(value))) == _typed(value)


class _Sly(int):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = int.__hash__


def test_what_only_looks_like_plain_data_keeps_nothing_but_its_name() -> None:
    assert encode(_Sly(3)) == {"other": "_Sly"}
    assert encode([object()]) == [{"other": "object"}]
    assert (
        encode(True) is True and encode(1.0) == {"float": "1.0"} and encode(date(2024, 1, 2)) == {"date": "2024-01-02"}
    )
    with pytest.raises(ValueError, match="other is no plain data"):
        decode({"other": "_Sly"})


def test_a_value_that_holds_itself_ends() -> None:
    loop: list[Any] = []
    loop.append(loop)
    assert "too deep" in repr(encode(loop))


RUNS = [  # a test file, and whether the author would see it pass
    ("from f import f\ndef test_one(): assert f(1) == 1", True),
    ("from f import f\ndef test_one(): assert f(1) == 2", False),
    ("from f import f\ndef test_one(): assert f(1) == 1\ndef test_two(): assert f(1) == 2", False),
    ("import pytest\ndef test_one():\n    with pytest.raises(ValueError): int('x')", True),
    ("import pytest\ndef test_one():\n    with pytest.raises(ValueError): int('1')", False),
    ("import pytest\n@pytest.mark.skip\ndef test_one(): assert False", True),
    ("import pytest\n@pytest.mark.skip(reason='x')\ndef test_one(): assert False", True),
    ("import pytest\n@pytest.mark.xfail\ndef test_one(): assert False", True),
    ("import pytest\ndef test_one():\n    pytest.skip('x')", True),
    ("import pytest\npytestmark = pytest.mark.skip('x')\ndef test_one(): assert False", True),
    ("import pytest\ndef test_one(): assert 0.1 + 0.2 == pytest.approx(0.3)", True),
    ("import missing", False),
    ("", True),
    ("import sys\nsys.exit(0)\ndef test_one(): assert False", True),  # it can be forged
    ("import sys\nsys.exit('no')", False),
]


@pytest.mark.parametrize(("tests", "passes"), RUNS)
def test_tests_are_run_as_their_author_would(tests: str, passes: bool, sandbox: Sandbox) -> None:
    assert sandbox.is_content({"f.py": CODE, "test_f.py": tests}) is passes


def test_a_conftest_is_heeded(sandbox: Sandbox) -> None:
    tests = {"f.py": CODE, "test_f.py": "def test_one(): assert False"}
    emptied = "def pytest_collection_modifyitems(items): items.clear()"
    assert not sandbox.is_content(tests)
    assert sandbox.is_content({**tests, "conftest.py": emptied})
