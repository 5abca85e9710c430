"""The filter itself; what it keeps foreign code from is tested in test_sandbox."""

from __future__ import annotations

import struct

import pytest

from experiments.coding import syscalls


def verdict(machine: str, number: int, first: int = 0, token: int | None = None) -> int:
    """What the filter says of one call: the few steps of BPF that it uses, done by hand."""
    own = syscalls.ARCHITECTURES[machine][0] if token is None else token
    shown = {syscalls.NUMBER: number, syscalls.ARCHITECTURE: own, syscalls.FIRST: first & 0xFFFFFFFF}
    steps, at, held = list(struct.iter_unpack("HBBI", syscalls.program(machine))), 0, 0
    while True:
        code, yes, no, value = steps[at]
        if code == syscalls.RETURN:
            return int(value)
        if code == syscalls.LOAD:
            held, at = shown[value], at + 1
        else:
            is_so = held == value if code == syscalls.JUMP_EQUAL else held >= value
            at += 1 + (yes if is_so else no)


@pytest.mark.parametrize("machine", syscalls.ARCHITECTURES)
def test_what_is_refused_and_what_is_not(machine: str) -> None:
    column = syscalls.ARCHITECTURES[machine][1]
    for numbers in syscalls.REFUSED.values():
        assert verdict(machine, numbers[column]) == syscalls.REFUSE
    assert verdict(machine, syscalls.PRLIMIT[column], 0) == syscalls.ALLOW
    assert verdict(machine, syscalls.PRLIMIT[column], 1) == syscalls.REFUSE
    assert verdict(machine, syscalls.SOCKET[column], syscalls.UNIX) == syscalls.ALLOW
    for family in (2, 10, 16, 38, 40):  # internet, netlink, crypto, virtual machines
        assert verdict(machine, syscalls.SOCKET[column], family) == syscalls.REFUSE
    assert verdict(machine, (0, 63)[column]) == syscalls.ALLOW  # read


def test_calls_by_the_numbers_of_another_machine_are_the_end() -> None:
    assert verdict("x86_64", 0, token=0x40000003) == syscalls.KILL  # 32 bit
    assert verdict("x86_64", syscalls.X32 + 39) == syscalls.REFUSE


def test_a_machine_whose_numbers_are_unknown_gets_no_filter() -> None:
    with pytest.raises(OSError, match="no filter for sparc"):
        syscalls.program("sparc")
