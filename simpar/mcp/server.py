"""simpar's tools over the Model Context Protocol, with the protocol's maintained Python SDK (an extra).

Every call runs in a process of its own (:mod:`simpar.mcp.worker`), which ends with the call: when it is answered, when
the client cancels it, or when its time is up. Over HTTP the server listens on 127.0.0.1 only, and refuses requests
whose Host or Origin is not this machine.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import field
from pathlib import Path
from typing import Any

import simpar
from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.mcp.folder import own_places
from simpar.mcp.tools import TOOLS
from simpar.native import libraries
from simpar.units import MIB

MISSING = 'simpar mcp needs the Model Context Protocol\'s SDK: pip install ".[mcp]"'
HOST = "127.0.0.1"
PATH = "/mcp"
LIMIT_S, LONGEST_S = 120.0, 3600.0
GRACE_S = 20.0
"""A search ends at its limit, with the best so far; a process that has not answered this much later is ended."""
EVERY_S = 2.0
"""Seconds between reports of progress while a call says nothing new."""
LINE_BYTES = 64 * MIB
INSTRUCTIONS = """\
simpar predicts time and memory of distributed training, and searches layouts with a certificate.
Choose a layout with `search`; read a launch that exists with `check`; try one change with `simulate`.
Stop when certified_optimal is true and fit_probability is high enough, or when candidates are tied (their intervals
overlap): then measure the tied ones. Give measured runs to `learn` and use its profile as stack and hardware.
An error names what is wrong and what is allowed. Names come from `catalogue`; files are below the server's folder."""


def _new_folder() -> str:
    """A folder for compiled loops and other kept files, which goes with the process."""
    import atexit
    import shutil
    import tempfile

    made = tempfile.mkdtemp(prefix="simpar-mcp-")
    for library in libraries():
        library.share(Path(made))  # workers start no compiler
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


@dataclass(frozen=True)
class Desk:
    """What a server needs: the folder whose files it may open, and the longest that one call may take, in seconds.

    Workers keep compiled loops and parsed profiles in ``kept``: they may write nothing of the installation or the user.
    """

    folder: Path
    limit_s: float = LIMIT_S
    kept: str = field(default_factory=_new_folder)

    def __post_init__(self) -> None:
        if not self.folder.is_dir():
            raise UserError(f"--folder {self.folder}: is no folder")
        if not 1 <= self.limit_s <= LONGEST_S:
            raise UserError(f"--time-limit {self.limit_s:g}: allowed: 1 to {LONGEST_S:g} seconds")


def make_server(desk: Desk) -> Any:
    """The protocol's server with all tools."""
    import mcp_types as types
    from mcp.server.lowlevel import Server

    async def list_tools(_context: Any, _asked: Any) -> types.ListToolsResult:
        tools = [
            types.Tool(name=name, description=tool.description, input_schema=tool.schema())
            for name, tool in TOOLS.items()
        ]
        return types.ListToolsResult(tools=tools)

    async def call_tool(context: Any, asked: Any) -> types.CallToolResult:
        said = await run_call(desk, asked.name, asked.arguments or {}, context.session.report_progress)
        refused = said.get("refused")
        text = refused if refused is not None else json.dumps(said["answer"])
        return types.CallToolResult(
            content=[types.TextContent(type="text", text=text)],
            structured_content=None if refused is not None else said["answer"],
            is_error=refused is not None,
        )

    return Server(
        "simpar",
        version=simpar.__version__,
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


async def run_call(desk: Desk, tool: str, arguments: dict[str, Any], report: Callable[..., Any]) -> dict[str, Any]:
    """The last line of a worker: {"answer": data} or {"refused": words}. Cancelled, it ends the worker with its kin."""
    import asyncio

    command = [sys.executable, "-P", "-m", "simpar.mcp.worker", str(desk.folder)]
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=LINE_BYTES,
        start_new_session=True,
        env={**os.environ, **own_places(desk.kept)},
    )
    assert process.stdin is not None, "standard input is a pipe"
    faults = asyncio.ensure_future(_tail(process.stderr))
    try:
        process.stdin.write(json.dumps({"tool": tool, "arguments": arguments, "time_limit_s": desk.limit_s}).encode())
        process.stdin.close()
        said = await _last_line(desk, process, report)
        reason = "" if said else await faults or "it was killed (out of memory?)"
        return said or {"refused": f"{tool}: the process ended without an answer: {reason}"}
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        faults.cancel()
        await asyncio.shield(process.wait())


async def _last_line(desk: Desk, process: Any, report: Callable[..., Any]) -> dict[str, Any] | None:
    """Report what a worker says it does until it answers; None if it ends before."""
    import asyncio
    import time

    begin_s, words = time.monotonic(), "starting"
    reading = asyncio.ensure_future(process.stdout.readline())
    try:
        while (spent_s := time.monotonic() - begin_s) < desk.limit_s + GRACE_S:
            await report(round(spent_s, 1), desk.limit_s, words)
            done, _ = await asyncio.wait([reading], timeout=EVERY_S)
            if not done:
                continue
            line: dict[str, Any] | None = json.loads(reading.result()) if reading.result() else None
            if line is None or "doing" not in line:
                return line
            words = line["doing"]
            reading = asyncio.ensure_future(process.stdout.readline())
        return {"refused": f"not answered within {desk.limit_s:g} s; --time-limit of simpar mcp sets how long"}
    finally:
        reading.cancel()


async def _tail(stream: Any) -> str:
    """The last line that a worker wrote to standard error."""
    last = b""
    while line := await stream.readline():
        last = line
    return str(last.decode(errors="replace").strip())


def serve_stdio(desk: Desk) -> None:
    """Serve one client on standard input and output until it hangs up."""
    import anyio
    from mcp.server.stdio import stdio_server

    server = make_server(desk)

    async def serve() -> None:
        async with stdio_server() as (read, write):
            await server.run(read, write, server.create_initialization_options())

    anyio.run(serve)


def make_app(desk: Desk) -> Any:
    """The HTTP application, which answers this machine's clients only."""
    return make_server(desk).streamable_http_app(streamable_http_path=PATH, host=HOST)


def serve_http(desk: Desk, port: int, started: Callable[[str], object]) -> None:
    """Serve on this machine until interrupted; ``started`` gets the address. Raises UserError for a port in use."""
    import socket

    import uvicorn

    taken = socket.socket()
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        taken.bind((HOST, port))
        taken.listen()  # who reads the address may connect at once
    except OSError as error:
        raise UserError(f"--port {port}: {error.strerror}") from None
    with taken:
        started(f"http://{HOST}:{taken.getsockname()[1]}{PATH}")
        config = uvicorn.Config(make_app(desk), log_level="warning", timeout_graceful_shutdown=2)
        with suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[taken])
