"""The process that keeps the sandbox: a bare interpreter, started by path, that shuts itself in and forks per request.

It leaves for namespaces of its own (user, mount, process, network, IPC, host name), where the file system is an empty
one with the interpreter's libraries in it, read-only. Each request is done by a fork of it that first gets a mount
namespace and a small work tree of its own, limits, an unprivileged user, no capabilities and a filter of system calls
(`syscalls`); when it is over, whatever
it left running is killed. Where any of this fails it says so in one line and ends: it never goes on without.
What runs inside is `trial`; who asks, and what the answers mean, is `sandbox`. Only the standard library is used here.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import math
import os
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
RDONLY, NOSUID, NODEV, NOEXEC, BIND, MOVE, REC, PRIVATE = 1, 2, 4, 8, 4096, 8192, 16384, 1 << 18
SYS_MOUNT_SETATTR, AT_FDCWD, AT_RECURSIVE = 442, -100, 0x8000  # the same number on every architecture
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS = 1, 4, 38
NOBODY = 65534  # who foreign code runs as, inside
STAGE = "/dev"  # hidden under the new root while it is built: no interpreter lives there
CALM = ("re", "math", "datetime", "collections", "itertools", "functools", "heapq", "bisect", "string", "statistics")
INSTALLED = frozenset({"site-packages", "dist-packages"})
DEEPEST = 8  # folders below a library that they are looked for in
LIBC = ctypes.CDLL(None, use_errno=True)


def main(limits: Mapping[str, float], work: Callable[..., int], calls: Any) -> None:
    """Shut in, say so, and serve requests from stdin until it ends. `calls`: the module that filters system calls."""
    for module in (*CALM, "random", "decimal", "operator", "types", "typing", "dataclasses", "encodings.idna"):
        importlib.import_module(module)
    is_root = os.geteuid() == 0
    try:
        leave(is_root)
        if os.fork():  # only a child enters the new process namespace
            _, status = os.wait()
            os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        build_root()
        calls.check()
        LIBC.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)  # nobody inside may look into this process
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a signal with a handler would reach even process 1
    except OSError as error:
        say({"refused": f"{error.filename or 'namespaces'}: {error.strerror}"})
        os._exit(1)
    say({"ready": os.getpid()})
    for line in sys.stdin.buffer:
        say(serve(json.loads(line), limits, work, calls.refuse, is_root=is_root))


def leave(is_root: bool) -> None:
    """Into namespaces of our own, in which we may mount. Root keeps a second user to run foreign code as."""
    uid, gid = os.geteuid(), os.getegid()
    if not is_root:
        _call("unshare", NEWUSER | NEWNS | NEWPID | NEWNET | NEWIPC | NEWUTS)
        Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
        Path("/proc/self/uid_map").write_text(f"{NOBODY} {uid} 1", encoding="ascii")
        Path("/proc/self/gid_map").write_text(f"{NOBODY} {gid} 1", encoding="ascii")
        return
    gone, told = os.pipe()
    pid = os.fork()
    if pid == 0:  # a map of two users can only be written from outside
        os.close(told)
        os.read(gone, 1)
        try:
            for name in ("uid_map", "gid_map"):
                Path(f"/proc/{os.getppid()}/{name}").write_text(f"0 0 1\n{NOBODY} {NOBODY} 1\n", encoding="ascii")
        except OSError:
            os._exit(1)
        os._exit(0)
    try:
        _call("unshare", NEWUSER | NEWNS | NEWNET | NEWIPC | NEWUTS)
    finally:
        os.close(told)
        _, status = os.waitpid(pid, 0)
    if status:
        raise OSError(1, "cannot be written", "uid_map")
    _call("unshare", NEWPID)


def build_root() -> None:
    """An empty root with the interpreter's libraries, all of it read-only, and the old root out of reach."""
    mount("none", "/", "", REC | PRIVATE)
    mount("tmpfs", STAGE, "tmpfs", NOSUID | NODEV, "size=1m,mode=755")
    root = Path(STAGE, "root")
    for source in _libraries():
        target = root / source.relative_to("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_symlink():
            target.symlink_to(source.readlink())
            continue
        if target.exists():  # it came with a folder above it
            continue
        target.mkdir()
        mount(str(source), str(target), "", BIND | REC)
        for inner in _installed(source):
            mount("tmpfs", str(root / inner.relative_to("/")), "tmpfs", NOSUID | NODEV, "size=4k,nr_inodes=1,mode=755")
    (root / "attempt").mkdir()
    read_only(STAGE)
    os.chdir(STAGE)
    mount(".", "/", "", MOVE)
    os.chroot(".")
    os.chroot("root")  # one deeper than the namespace's root: from here no further user namespace can be made
    os.chdir("/")


SHUT_IN = b"\0"  # said before anything foreign runs


def serve(
    request: Mapping[str, Any],
    limits: Mapping[str, float],
    work: Callable[..., int],
    refuse: Callable[[], None],
    *,
    is_root: bool,
) -> dict[str, Any]:
    """One request in a fork of its own: what it answered, and how it ended."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        _act(request, limits, work, refuse, writing, is_root=is_root)
    os.close(writing)
    most = int(limits["answer_bytes"]) + len(SHUT_IN)
    answers, cut = _listen(reading, pid, until=time.monotonic() + limits["wall_s"], most=most)
    os.close(reading)
    ended = _ending(_end_all(pid)) if answers.startswith(SHUT_IN) else "isolation"
    said = answers.removeprefix(SHUT_IN).decode("utf-8", errors="replace")
    return {"answers": said, "ended": cut or ended}


def say(answer: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    _call("mount", source.encode(), target.encode(), kind.encode() or None, flags, options.encode() or None)


def read_only(path: str) -> None:
    """The mount and all below it."""
    wanted = (ctypes.c_uint64 * 4)(RDONLY | NOSUID | NODEV, 0, 0, 0)
    given = LIBC.syscall(
        SYS_MOUNT_SETATTR, AT_FDCWD, path.encode(), AT_RECURSIVE, ctypes.byref(wanted), ctypes.sizeof(wanted)
    )
    if given != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), "mount_setattr")


def _act(
    request: Mapping[str, Any],
    limits: Mapping[str, float],
    work: Callable[..., int],
    refuse: Callable[[], None],
    answers: int,
    *,
    is_root: bool,
) -> NoReturn:
    """The fork's side: shut in further, then run what is foreign. It never returns."""
    status = 120
    try:
        os.setsid()
        _call("unshare", NEWNS | NEWIPC)
        mount("tmpfs", "/attempt", "tmpfs", NOSUID | NODEV, f"size={int(limits['tree_bytes'])},nr_inodes=512,mode=777")
        os.chdir("/attempt")
        _keep_only(answers)
        _limit(limits)
        if is_root:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
        _drop_capabilities()
        refuse()
        os.write(3, SHUT_IN)  # an exit status would not do: what is foreign can end with any
        status = 1
        status = work(request, 3)
    except SystemExit as error:  # as the interpreter itself would read it
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status & 0xFF)


def _keep_only(answers: int) -> None:
    """No file of the supervisor's stays open: its own streams become a file in the work tree, answers become 3."""
    os.dup2(answers, 200)
    noise = os.open("/attempt/.noise", os.O_RDWR | os.O_CREAT, 0o666)
    for stream in (0, 1, 2):
        os.dup2(noise, stream)
    os.dup2(200, 3)
    os.closerange(4, 1024)


def _limit(limits: Mapping[str, float]) -> None:
    cpu, memory = math.ceil(limits["cpu_s"]), int(limits["memory_bytes"])
    for what, most in (
        (resource.RLIMIT_CPU, cpu),
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_FSIZE, int(limits["tree_bytes"])),
        (resource.RLIMIT_NPROC, int(limits["threads"])),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
    ):
        resource.setrlimit(what, (most, most + int(what == resource.RLIMIT_CPU)))
    signal.setitimer(signal.ITIMER_PROF, limits["cpu_s"])  # the finer one, which foreign code could stop: hence both


def _drop_capabilities() -> None:
    if LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "refused", "no_new_privs")
    head, none = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    _call("capset", ctypes.byref(head), ctypes.byref(none))


def _listen(reading: int, pid: int, *, until: float, most: int) -> tuple[bytes, str]:
    """What is answered until the fork ends; a reason when it was cut short."""
    taken, alive = bytearray(), os.pidfd_open(pid)
    try:
        while True:
            ready, _, _ = select.select([reading, alive], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                return bytes(taken), "time"
            if reading in ready:
                piece = os.read(reading, 1 << 16)
                taken += piece
                if len(taken) > most:
                    return b"", "too much said"
                if piece:
                    continue
                ready, _, _ = select.select([alive], [], [], max(0.0, until - time.monotonic()))
                return bytes(taken), "" if ready else "time"
            return bytes(taken), ""  # it ended; what it left running may hold the pipe, and does not count
    finally:
        os.close(alive)


def _end_all(pid: int) -> int:
    """Kill what is left in this process namespace, and give the fork's status."""
    status = 0
    while True:
        with suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        try:
            ended, how = os.waitpid(-1, 0)
        except ChildProcessError:
            return status
        if ended == pid:
            status = how


def _ending(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        return {-signal.SIGXCPU: "cpu", -signal.SIGPROF: "cpu", -signal.SIGKILL: "killed"}.get(code, f"signal {-code}")
    return f"exit {code}"


def _libraries() -> list[Path]:
    """Folders that a running interpreter reads from, outer ones first."""
    found = {Path(one) for one in sys.path if Path(one).is_dir()} | {Path(sys.base_prefix, "lib")}
    found |= {Path(one) for one in ("/lib", "/lib64", "/usr/lib", "/usr/lib64") if Path(one).exists()}
    return sorted(found, key=lambda one: (len(one.parts), one))


def _installed(source: Path) -> list[Path]:
    """Folders below one where packages lie that do not come with the interpreter: foreign code gets none of them."""
    own, depth = Path(__file__).resolve().parents[2], len(source.parts)
    found = [own] if own.name == "holdfast" and source in own.parents and not INSTALLED & set(own.parts) else []
    for folder, inner, _ in os.walk(source):
        here = Path(folder)
        found += [here / name for name in inner if name in INSTALLED and not (here / name).is_symlink()]
        is_deep = len(here.parts) - depth >= DEEPEST
        inner[:] = [] if is_deep else [name for name in inner if name not in INSTALLED]
    return found


def _call(name: str, *arguments: Any) -> None:
    ctypes.set_errno(0)
    if getattr(LIBC, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)


def _load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), _load("trial").work, _load("syscalls"))
