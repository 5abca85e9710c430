"""A Postgres server of the tests' own: from the binaries on the machine, in a temporary folder, ended with the tests.

Postgres refuses to run as root, so root hands the folder to the user `postgres` (or `nobody`).
"""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def binary(name: str) -> str:
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    path = str(found[-1]) if found else shutil.which(name)
    if path is None:
        raise RuntimeError(f"{name} is not on this machine: install postgresql (make services)")
    return path


@contextmanager
def postgres_server() -> Iterator[str]:
    """The URL of a fresh server; it listens on 127.0.0.1 only."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-pg-"))
    prefix: list[str] = []
    if os.getuid() == 0:
        user = next(name for name in ("postgres", "nobody") if _exists(name))
        shutil.chown(folder, user)
        prefix = ["runuser", "-u", user, "--"]
    data = folder / "data"
    port = _free_port()
    run = {"cwd": "/", "check": True, "stdout": subprocess.DEVNULL}
    made = ["-U", "holdfast", "--data-checksums", "-A", "trust", "-E", "UTF8", "--locale=C"]
    subprocess.run([*prefix, binary("initdb"), "-D", data, *made], **run)
    options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder} -c max_connections=200"
    options += " -c max_wal_size=128MB -c autovacuum=off"  # it may lie in memory, and nothing in it grows old
    control = [*prefix, binary("pg_ctl"), "-D", data, "-w", "-l", folder / "log"]
    subprocess.run([*control, "-o", options, "start"], **run)
    try:
        yield f"postgresql://holdfast@127.0.0.1:{port}/postgres"
    finally:
        subprocess.run([*control, "-m", "immediate", "stop"], **run)
        shutil.rmtree(folder, ignore_errors=True)


def _exists(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port
