"""A small file of tests, for tests of what changes to it no longer ask."""

TESTS = """import pytest

from m import f

CASES = [(1, 1), (2, 2)]


def test_seven():
    assert f(7) == 5040


@pytest.mark.parametrize(("n", "wanted"), CASES)
def test_small(n, wanted):
    assert f(n) == wanted


class TestErrors:
    def test_it_refuses(self):
        with pytest.raises(TypeError):
            f("a")
        for n in range(100):
            assert f(n) >= 1
"""
