"""Programs in processes of their own that import nothing again: forked from a server which has imported everything.

To start `holdfast` takes two to ten seconds of processor time, nearly all for imports, and the tests start it a hundred
times. A process from here has its own pid, arguments, environment, folder, pipes and end. What a test of the start
itself looks at (what is imported, terminals) is started cold, by `subprocess`.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from tests.store.children import unmeasured

ROOT = Path(__file__).resolve().parents[1]
LIBRARIES = ("openai", "scipy.stats", "torch._dynamo", "transformers.models.auto.tokenization_auto")
MOST = 1 << 20  # bytes of a request: arguments, folder, environment


class Warm(subprocess.Popen[str]):
    """`subprocess.Popen` of `[script, …]` or `["-m", module, …]`, whose process the server forks."""

    libraries: tuple[str, ...] = ()  # what the server has imported; unless named, Holdfast and all that it uses

    def _execute_child(self, args: Sequence[str], *given: Any) -> None:
        cwd, env, pipes = given[4], given[5], given[9:15]
        self._ends, told = os.pipe()  # where the server writes how it ended
        fds = [own if pipe == -1 else pipe for own, pipe in enumerate((pipes[0], pipes[3], pipes[5]))]
        request = {"words": list(args), "cwd": str(cwd or Path.cwd()), "env": dict(os.environ if env is None else env)}
        request["is_session"] = bool(given[20])
        try:
            server = _server(self.libraries)
            socket.send_fds(server, [json.dumps(request).encode()], [*fds, told])
            self.pid = int(server.recv(64))
        finally:
            os.close(told)
            self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]
        self._child_created = True

    def _wait(self, timeout: float | None) -> int:
        if self.returncode is None:
            if not select.select([self._ends], [], [], timeout)[0]:
                assert timeout is not None
                raise subprocess.TimeoutExpired(self.args, timeout)
            self.returncode = int(os.read(self._ends, 64))
            os.close(self._ends)
        return int(self.returncode)

    def _internal_poll(self, **ignored: Any) -> int | None:
        try:
            return self._wait(0)
        except subprocess.TimeoutExpired:
            return None


def ran(
    words: Sequence[str], *, timeout_s: float, input: str | None = None, **how: Any
) -> subprocess.CompletedProcess[str]:
    """`subprocess.run` of the same."""
    pipe = subprocess.PIPE
    given = subprocess.DEVNULL if input is None else pipe
    with Warm(words, stdin=given, stdout=pipe, stderr=pipe, text=True, **how) as child:
        try:
            out, err = child.communicate(input, timeout=timeout_s)
        except BaseException:
            child.kill()
            raise
    return subprocess.CompletedProcess(words, child.returncode, out, err)


@cache
def _server(libraries: tuple[str, ...]) -> socket.socket:
    """The way to a server, which ends with this process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for one in (ours, theirs):
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MOST)
    command, quiet = [sys.executable, "-m", "tests.warm", str(theirs.fileno()), *libraries], subprocess.DEVNULL
    path = os.pathsep.join([str(ROOT), *(word for word in sys.path if word)])
    how: dict[str, Any] = {"env": unmeasured() | {"PYTHONPATH": path}, "pass_fds": [theirs.fileno()]}
    subprocess.Popen(command, cwd=ROOT, stdin=quiet, stdout=quiet, start_new_session=True, **how)
    theirs.close()
    return ours


def _everything() -> Iterator[str]:
    import holdfast

    for module in pkgutil.walk_packages(holdfast.__path__, "holdfast."):
        if not module.name.endswith("__main__") and ".migrations" not in module.name:
            yield module.name
    yield from LIBRARIES


def _import(names: Iterable[str]) -> None:
    for name in names:
        with suppress(ModuleNotFoundError):  # of a library that is for a GPU
            importlib.import_module(name)
    assert threading.active_count() == 1, "what has threads cannot be forked"
    gc.collect()
    gc.freeze()


def _serve(asked: socket.socket) -> dict[str, Any]:
    """Forks a process for each request, and tells how it ended; returns in such a process, with its request."""
    ends, woken = dict[int, int](), os.pipe()
    for pipe in woken:
        os.set_blocking(pipe, False)
    signal.set_wakeup_fd(woken[1])
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        readable = select.select([asked, woken[0]], [], [])[0]
        if woken[0] in readable:
            os.read(woken[0], 4096)
            while ends and (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
                end = ends.pop(ended[0])
                os.write(end, str(os.waitstatus_to_exitcode(ended[1])).encode())
                os.close(end)
        if asked not in readable:
            continue
        message, fds, *_ = socket.recv_fds(asked, MOST, 4)
        if not message:
            os._exit(0)
        if pid := os.fork():
            ends[pid] = fds.pop()
            asked.send(str(pid).encode())
            for fd in fds:
                os.close(fd)
            continue
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for fd in (asked.detach(), *woken, fds.pop(), *ends.values()):
            os.close(fd)
        for own, fd in enumerate(fds):
            os.dup2(fd, own)
            os.close(fd)
        request: dict[str, Any] = json.loads(message)
        return request


def _become(request: dict[str, Any]) -> None:
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    if request["is_session"]:
        os.setsid()
    tempfile.tempdir = None
    time.tzset()
    path = request["env"].get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [word for word in path if word] + [word for word in sys.path if word not in path]
    words = request["words"]
    if words[0] == "-m":
        sys.argv, sys.path[:0] = ["", *words[2:]], [request["cwd"]]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[:0] = words, [str(Path(words[0]).parent)]
        runpy.run_path(words[0], run_name="__main__")


def _end(code: object) -> None:
    """As Python ends, but that nothing is taken apart: half a second for memory which is the server's too."""
    if not isinstance(code, int | None):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit((code or 0) & 0xFF)


if __name__ == "__main__":
    _import(sys.argv[2:] or _everything())
    try:
        _become(_serve(socket.socket(fileno=int(sys.argv[1]))))
    except SystemExit as ended:
        _end(ended.code)
    _end(0)
