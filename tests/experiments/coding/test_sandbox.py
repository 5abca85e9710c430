"""Attacks: what foreign code tries, and what comes of it. None may pass, and none may spoil the next request."""

from __future__ import annotations

import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.coding import sandbox as module
from experiments.coding import sandbox_supervisor, syscalls
from experiments.coding.functions import answer
from experiments.coding.sandbox import NoSandbox, Sandbox, SandboxAnswer, SandboxLimits, SandboxVerdict, is_same
from experiments.coding.trial import decode, encode
from holdfast.contracts.errors import BadInput, Fault
from tests.experiments.coding.scene import SOURCE, least_task

HIDDEN = least_task().hidden
RIGHT = {"least.py": SOURCE}


def body(text: str, head: str = "") -> dict[str, str]:
    """A function that does this instead."""
    lines = "".join(f"    {line}\n" for line in text.splitlines())
    return {"least.py": f"{head}\ndef least(a, b):\n{lines}"}


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    try:
        made = Sandbox(SandboxLimits(cpu_s=0.5, wall_s=40.0)).__enter__()
    except NoSandbox as error:
        pytest.skip(str(error))
    yield made
    made.close()


def test_right_code_passes_and_wrong_code_says_where(box: Sandbox) -> None:
    assert box.judge(RIGHT, HIDDEN) == SandboxVerdict(wrong=(), calls=4, ended="exit 0")
    assert box.judge({"least.py": SOURCE.replace("<", ">")}, HIDDEN).wrong == (0, 1, 3)


LOOKS = "[o for o in gc.get_objects() if type(o).__name__ == 'Answer'][0]"
FORGERIES = [  # none of these computes the answer
    ("exit at import", {"least.py": "import sys\nsys.exit(0)"}),
    ("exit in the call", body("import sys; sys.exit(0)")),
    ("exit at once", body("import os; os._exit(0)")),
    ("exit like a lost wall", body("import os; os._exit(120)")),
    ("equal to everything", body("return Any()", "class Any:\n    def __eq__(self, other): return True\n")),
    ("a number equal to everything", body("return N(9)", "class N(int):\n    __eq__ = lambda s, o: True\n")),
    ("its type lies", body("return T()", "class T:\n    __class__ = int\n    def __eq__(self, o): return True\n")),
    ("builtins patched", body("return 1", "import builtins\nbuiltins.type = lambda x: int\nbuiltins.min = max\n")),
    ("json patched", body("return 1", "import json\njson.dumps = lambda x: '[0, \"value\", 1]'\n")),
    ("answers written by hand", body("import os; os.write(3, b'[0, \"value\", 1]\\n'); return 1")),
    ("the answers of all calls at once", body("import os\nos.write(3, b'[0, \"value\", 1]\\n' * 4)\nos._exit(0)")),
    ("garbage", body("import os; os.write(3, b'\\xff\\n{[\\n'); return a")),
    ("closed pipe", body("import os; os.close(3); return a if a < b else b")),
    ("looks for the answers", body(f"import gc\nreturn {LOOKS}")),
    ("raises what counts as an error", body("raise KeyError")),
    ("nothing there", {"other.py": SOURCE}),
    ("no code at all", {"least.py": "def least(a, b:"}),
]


@pytest.mark.parametrize(("files"), [files for _, files in FORGERIES], ids=[name for name, _ in FORGERIES])
def test_a_verdict_cannot_be_forged(files: dict[str, str], box: Sandbox) -> None:
    assert not box.judge(files, HIDDEN).is_passed
    assert box.judge(RIGHT, HIDDEN).is_passed


LIMITED = [  # what is tried, how it may end
    ("an endless loop", body("while True: pass"), {"cpu"}),
    ("an endless loop that stops the clock", body("import signal; signal.setitimer(2, 0)\nwhile True: pass"), {"cpu"}),
    ("too much said", body("import os\nwhile True: os.write(3, b'x' * 65536)"), {"too much said"}),
]


@pytest.mark.parametrize(("files", "ends"), [case[1:] for case in LIMITED], ids=[case[0] for case in LIMITED])
def test_what_takes_too_much_is_ended(files: dict[str, str], ends: set[str], box: Sandbox) -> None:
    verdict = box.judge(files, HIDDEN)
    assert verdict.ended in ends and verdict.wrong == (0, 1, 2, 3)
    assert box.judge(RIGHT, HIDDEN).is_passed


def test_the_clock_ends_what_sleeps_and_what_multiplies() -> None:
    new = "Thread(target=time.sleep, args=(60,), daemon=True).start()"
    bomb = body(f"import time\nfrom threading import Thread\nwhile True:\n    try: {new}\n    except Exception: pass")
    try:
        with Sandbox(SandboxLimits(cpu_s=0.5, wall_s=1.0)) as hasty:
            assert hasty.judge(body("import time; time.sleep(60)"), HIDDEN).ended == "time"
            assert hasty.judge(bomb, HIDDEN).ended in {"time", "cpu"}
    except NoSandbox as error:
        pytest.skip(str(error))


def tells(text: str, box: Sandbox, head: str = "") -> str:
    """What a call of such a function gives, as text."""
    files = body(f"try:\n    return str(({text}))\nexcept BaseException as e:\n    return type(e).__name__", head)
    asked = box._ask(
        {"mode": "calls", "module": "least", "function": "least", "files": files, "calls": [{"tuple": [1, 2]}]}
    )
    return str(asked["answers"])


REFUSED = [  # an attempt, the error it meets
    ("open('/least.txt', 'w')", "OSError"),  # read-only
    ("open('/usr/lib/least.txt', 'w')", "OSError"),
    ("open('/etc/passwd')", "FileNotFoundError"),  # not even there
    ("__import__('socket').create_connection(('127.0.0.1', 80), 1)", "PermissionError"),
    ("__import__('socket').create_connection(('192.0.2.1', 80), 1)", "PermissionError"),
    ("len(bytearray(1 << 30))", "MemoryError"),
    ("open('big', 'wb').write(bytes(8 << 20))", "OSError"),
    ("__import__('subprocess').run(['/bin/sh'])", "PermissionError"),
    ("__import__('os').fork()", "PermissionError"),  # each process would have the whole memory once more
    ("__import__('multiprocessing').Process(target=print).start()", "PermissionError"),
    ("__import__('os').setuid(0)", "PermissionError"),
    ("__import__('os').chroot('/attempt')", "PermissionError"),
    ("[open(f'f{n}', 'w') for n in range(999)] and 0", "OSError"),
    ("__import__('resource').prlimit(1, 7, (3, 3))", "PermissionError"),  # the supervisor's limits
    ("__import__('os').setpriority(0, 1, 19)", "PermissionError"),
    ("__import__('os').sched_setaffinity(1, {0})", "PermissionError"),
    ("__import__('os').memfd_create('x')", "PermissionError"),  # memory that no limit counts
    ("__import__('socket').socket(40, 1)", "PermissionError"),  # AF_VSOCK: past the network namespace
    ("__import__('socket').socket(38, 5)", "PermissionError"),  # AF_ALG
    ("__import__('holdfast')", "ModuleNotFoundError"),
]


@pytest.mark.parametrize(("attempt", "error"), REFUSED)
def test_what_is_outside_is_out_of_reach(attempt: str, error: str, box: Sandbox) -> None:
    assert f'"value", "{error}"' in tells(attempt, box)


def calls(text: str, box: Sandbox) -> str:
    """What a function of the C library gives, and the error it leaves."""
    head = "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n"
    return tells(f"{text}, ctypes.get_errno()", box, head)


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="numbers of system calls")
def test_neither_shared_memory_nor_keys_are_to_be_had(box: Sandbox) -> None:
    assert '"(-1, 1)"' in calls("libc.shmget(0, ctypes.c_size_t(1 << 20), 0o1600)", box)
    assert '"(-1, 1)"' in calls("libc.syscall(248, b'user', b'k', b'v', 1, -4)", box)
    assert '"(-1, 1)"' in calls("libc.syscall(0x40000000 + 39)", box)  # getpid by its other number
    assert "None" in tells("__import__('resource').setrlimit(7, (32, 32))", box)  # one's own limits may go down
    assert "socket" in tells("__import__('socket').socketpair()", box)


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="numbers of system calls")
def test_a_trial_has_its_memory_once_however_it_asks_for_a_second_process(box: Sandbox) -> None:
    sigchld, tight = 17, int(0.8 * box.limits.memory_bytes)
    for asked in (f"56, {sigchld}, 0, 0, 0, 0", "57", "58"):  # clone, fork, vfork
        assert '"(-1, 1)"' in calls(f"libc.syscall({asked})", box)
    assert '"(-1, 38)"' in calls(f"libc.syscall(435, (ctypes.c_uint64 * 11)(*[0] * 4, {sigchld}), 88)", box)  # clone3
    head = f"from concurrent.futures import ThreadPoolExecutor\ndef take(_): return bytearray({tight})\n"
    assert "MemoryError" in tells(
        "[len(p.result()) for p in [pool.submit(take, n) for n in range(2)]]", box, head + POOL
    )
    assert f"{[0, 1, 4]}" in tells("list(pool.map(lambda n: n * n, range(3)))", box, head + POOL)  # threads work


POOL = "pool = ThreadPoolExecutor(2)\n"


def test_no_package_is_there_but_the_interpreter_s_own(box: Sandbox) -> None:
    found = "[r for r, d, f in os.walk('/') if r.endswith(('/site-packages', '/dist-packages')) and (d or f)]"
    assert '"[]"' in tells(found, box, "import os\n")
    assert '"True"' in tells("os.path.isdir(os.path.dirname(os.__file__))", box, "import os\n")


def test_nothing_of_the_outside_is_seen(box: Sandbox) -> None:
    shown = tells("(sorted(__import__('os').listdir('/')), dict(__import__('os').environ))", box)
    assert "attempt" in shown
    assert not any(name in shown for name in ("home", "etc", "proc", "dev", "tmp", "HOME", "PATH"))
    assert str(Path(__file__).name) not in tells("[f for _, _, f in __import__('os').walk('/attempt')]", box)


def test_files_of_one_request_are_gone_in_the_next(box: Sandbox) -> None:
    assert '"1"' in tells("open('/attempt/kept', 'w').write('x')", box)
    assert "FileNotFoundError" in tells("open('/attempt/kept')", box)


def test_nobody_stays_behind_or_harms_the_supervisor(box: Sandbox) -> None:
    stay = "import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()\nreturn a if a < b else b"
    assert box.judge(body(stay), HIDDEN).wrong == ()
    for number in (2, 9, 15):  # interrupt, kill, terminate: process 1 hears none of them
        tells(f"__import__('os').kill(1, {number})", box)
    assert '"[]"' in tells("[p for p in range(2, 30000) if p != __import__('os').getpid() and alive(p)]", box, ALIVE)
    assert box.judge(RIGHT, HIDDEN).is_passed


ALIVE = """
import os
def alive(pid):
    try:
        os.kill(pid, 0)
        return True
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
"""


def test_hundreds_are_judged_in_a_minute(box: Sandbox) -> None:
    """The quickest of some: on a busy machine all the others wait."""
    took = []
    for _ in range(20):
        started = time.monotonic()
        assert box.judge(RIGHT, HIDDEN).is_passed
        took.append(time.monotonic() - started)
    assert min(took) < 0.3  # 200 a minute


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="drops root's rights first")
def test_it_also_works_for_one_who_is_not_root() -> None:
    python = next((one for one in ("/usr/bin/python3", sys.executable) if Path(one).exists()), "")
    with TemporaryDirectory() as folder:  # tests' own folders are closed to others
        Path(folder).chmod(0o755)
        for name in ("sandbox_supervisor.py", "trial.py", "syscalls.py"):
            shutil.copy(Path(module.__file__).with_name(name), Path(folder, name))
        ran = _run_as_other(python, Path(folder, "sandbox_supervisor.py"))
    evil, good = ran.stdout.splitlines()[-2:]
    assert json.loads(evil)["answers"] == '[0, "error", "PermissionError"]\n', ran  # though both are one user
    assert good == '{"answers": "[0, \\"value\\", 0]\\n", "ended": "exit 0"}', ran


def _run_as_other(python: str, program: Path) -> subprocess.CompletedProcess[str]:
    limits = '{"wall_s": 5, "cpu_s": 1, "memory_bytes": 5e8, "tree_bytes": 4e6, "threads": 16, "answer_bytes": 1e6}'
    order = ["setpriv", "--reuid=4321", "--regid=4321", "--clear-groups", python, "-I", "-S", str(program)]
    evil = "import resource\ndef f(): return str(resource.prlimit(1, resource.RLIMIT_DATA, (1 << 20, 1 << 20)))"
    about = {"mode": "calls", "module": "m", "function": "f", "calls": [{"tuple": []}]}
    request = "".join(json.dumps({**about, "files": {"m.py": code}}) + "\n" for code in (evil, "f = int"))
    return subprocess.run([*order, limits], input=request, capture_output=True, text=True, cwd="/", timeout=60)


def test_where_there_is_no_isolation_nothing_is_run(tmp_path: Path) -> None:
    refusing = tmp_path / "python"
    refusing.write_text('#!/bin/sh\necho \'{"refused": "unshare: Operation not permitted"}\'\n', encoding="utf-8")
    refusing.chmod(0o755)
    with pytest.raises(NoSandbox, match=r"unshare: Operation not permitted; .* never run without isolation"):
        Sandbox(python=str(refusing)).__enter__()
    with pytest.raises(NoSandbox, match="No such file"):
        Sandbox(python=str(tmp_path / "none")).__enter__()


def test_a_closed_sandbox_runs_nothing() -> None:
    with pytest.raises(Fault, match="sandbox: is not open"):
        Sandbox().judge(RIGHT, HIDDEN)


def test_a_supervisor_that_dies_is_a_fault_and_no_verdict() -> None:
    try:
        made = Sandbox().__enter__()
    except NoSandbox as error:
        pytest.skip(str(error))
    assert made._supervisor is not None
    made._supervisor.kill()
    made._supervisor.wait()
    with pytest.raises(Fault, match="was lost"):
        made.judge(RIGHT, HIDDEN)


@pytest.mark.parametrize("path", ["/etc/x", "../x", "a/../../x", ""])
def test_paths_outside_of_the_work_tree_are_refused(path: str, box: Sandbox) -> None:
    with pytest.raises(BadInput, match="is not inside the work tree"):
        box.judge({path: ""}, HIDDEN)


def test_limits_must_leave_something() -> None:
    with pytest.raises(BadInput, match="sandbox: cpu_s = 0: must be above 0"):
        SandboxLimits(cpu_s=0)


PAIRS = [  # given, wanted, is it the same
    (1, 1, True),
    (1, True, False),
    (1, 1.0, False),
    (0.1 + 0.2, 0.3, True),
    (float("nan"), float("nan"), True),
    (0.3, 0.31, False),
    ([1, 2], (1, 2), False),
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
    ({1, 2}, {2, 1}, True),
    (object(), object(), False),
]


@pytest.mark.parametrize(("given", "wanted", "same"), PAIRS)
def test_answers_are_compared_by_type_and_value(given: object, wanted: object, same: bool) -> None:
    assert is_same(answer(lambda: given, ()), answer(lambda: wanted, ())) is same


def test_an_error_is_not_a_value_of_its_name() -> None:
    assert not is_same(SandboxAnswer(kind="value", what="KeyError"), SandboxAnswer(kind="error", what="KeyError"))
    assert not is_same(None, SandboxAnswer(kind="value", what=None))
    number = SandboxAnswer(kind="value", what={"float": "1.0"})
    for strange in (10**400, []):
        assert not is_same(SandboxAnswer(kind="value", what={"float": strange}), number)


def test_an_ending_is_told_in_a_word() -> None:
    statuses = {0: "exit 0", 7 << 8: "exit 7", 120 << 8: "exit 120"}
    statuses |= {signal.SIGKILL: "killed", signal.SIGXCPU: "cpu", signal.SIGPROF: "cpu", signal.SIGSEGV: "signal 11"}
    assert {status: sandbox_supervisor._ending(status) for status in statuses} == statuses


def test_the_libraries_hold_the_interpreter_and_come_outer_ones_first() -> None:
    found = sandbox_supervisor._libraries()
    assert Path(sys.base_prefix, "lib") in found
    assert [len(one.parts) for one in found] == sorted(len(one.parts) for one in found)
    assert not {Path("/"), Path("/usr"), Path("/etc")} & set(found)


def test_it_needs_nothing_but_the_standard_library() -> None:
    order = [sys.executable, "-I", "-S", sandbox_supervisor.__file__, json.dumps(asdict(SandboxLimits()))]
    ran = subprocess.run(order, stdin=subprocess.DEVNULL, capture_output=True, text=True, env={}, cwd="/", timeout=60)
    said = json.loads(ran.stdout.splitlines()[0])
    assert said == {"ready": 1} or set(said) == {"refused"}
    assert not ran.stderr
    assert len(ran.stdout.splitlines()) == 1  # asked nothing, it says nothing, and ends


def test_a_call_that_fails_names_itself() -> None:
    try:
        sandbox_supervisor._call("close", -1)
    except OSError as error:
        assert (error.filename, error.strerror) == ("close", "Bad file descriptor")
    else:
        raise AssertionError("it was let through")


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
