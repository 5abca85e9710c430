"""The model gateway: one small server in each process, with an address for each attempt's own clients.

`http://127.0.0.1:PORT/a/TOKEN/v1` answers OpenAI's chat completions and responses and Anthropic's messages. It listens
from the first use of an address, and imports the server at the first call: most agents need neither.
"""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.collect.agent import Access, TokenRegistry
from holdfast.contracts.errors import Fault

if TYPE_CHECKING:
    import uvicorn

BACKLOG = 2048  # connections that wait while the server is imported
STOP_S = 5.0
HOST = "127.0.0.1"
PROXIES = ("http_proxy", "https_proxy", "all_proxy")


class ModelGateway:
    """The server of one process. Safe to use from any thread."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._register = clock, TokenRegistry()
        self._lock = threading.Lock()
        self._listening: socket.socket | None = None
        self._wake: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._server: uvicorn.Server | None = None
        self._is_stopped = False

    def access(self) -> Access:
        """The access of one attempt."""
        return Access(self._register, self.address)

    def address(self) -> str:
        """The server's address; it listens from now on."""
        with self._lock:
            if self._is_stopped:
                raise Fault("model gateway", why="has been stopped")
            if self._listening is None:
                _bypass_network_proxies()
                self._listening = socket.create_server((HOST, 0), backlog=BACKLOG)
                self._wake, waking = socket.socketpair()
                serve = (self._listening, waking)
                self._thread = threading.Thread(target=self._serve, args=serve, name="holdfast-gateway", daemon=True)
                self._thread.start()
            return f"http://{HOST}:{self._listening.getsockname()[1]}"

    def stop(self) -> None:
        """Ends the server, if it runs. Calls under way are dropped."""
        with self._lock:
            self._is_stopped = True
            if self._server is not None:
                self._server.should_exit = True
            if self._wake is not None:
                self._wake.close()
        if self._thread is not None:
            self._thread.join(STOP_S)

    def _serve(self, listening: socket.socket, waking: socket.socket) -> None:
        """Waits for the first call, then serves until `stop`."""
        ready = select.poll()
        for one in (listening, waking):
            ready.register(one, select.POLLIN)
        ready.poll()
        waking.close()
        with listening:
            if self._is_stopped:
                return
            from holdfast.collect.endpoint import server
            from holdfast.collect.gateway_app import GatewayApp

            with self._lock:
                if self._is_stopped:
                    return
                self._server = server(GatewayApp(self._register, self._clock))
            self._server.run(sockets=[listening])


def _bypass_network_proxies() -> None:
    """Adds our host to no_proxy: else clients would send their calls to the network's proxy."""
    if not any(os.environ.get(name) or os.environ.get(name.upper()) for name in PROXIES):
        return
    for name in ("no_proxy", "NO_PROXY"):
        hosts = [host for host in os.environ.get(name, "").split(",") if host]
        if HOST not in hosts:
            os.environ[name] = ",".join([*hosts, HOST])
