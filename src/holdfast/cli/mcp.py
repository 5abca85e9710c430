"""`holdfast mcp`: the tools of `operate.mcp` over stdin and stdout, for programs that speak the protocol."""

from __future__ import annotations

import os
import sys
import time

from holdfast.cli.options import DEFAULT_STORE, Project, StoreAt

TOKEN = "HOLDFAST_TOKEN"  # in the environment, never on a command line, where others could read it
EPILOG = f"""It speaks the Model Context Protocol on stdin and stdout; a client starts it, as "command": "holdfast",
"args": ["mcp", "--store", "FILE"]. Without a token it only looks; with an operator's token in {TOKEN} it takes orders
too: pause, resume, cancel, roll back."""


def mcp(store: StoreAt = DEFAULT_STORE, project: Project = "default") -> None:
    """Answer programs that speak MCP: judge, compare, evaluate a diff, look up runs, decisions and budgets."""
    import asyncio
    from functools import partial
    from importlib.metadata import version

    from holdfast.cli.options import needing

    with needing("mcp"):
        import mcp.server.stdio  # noqa: F401
    from holdfast.operate.mcp import ToolFunctions, looking, ordering, serve, server

    desk = ToolFunctions(store, project, clock=time.time)
    if sys.stdin.isatty():
        print("it speaks MCP on stdin, which a client would start and hold; Ctrl-C ends it", file=sys.stderr)
    token = os.environ.get(TOKEN)
    note = partial(desk.note, token)
    made = server(looking(desk), lambda: ordering(desk, token), version=version("holdfast"), note=note)
    asyncio.run(serve(made))
