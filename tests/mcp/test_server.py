"""The protocol as its own SDK's client speaks it: over standard input and output, and over HTTP on this machine."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from simpar import cli
from simpar.errors import UserError
from simpar.mcp.server import Desk

mcp = pytest.importorskip("mcp", reason="the Model Context Protocol's SDK is not installed")
anyio = pytest.importorskip("anyio")
JOB = {
    "model": "gpt2",
    "cluster": {"hardware": "laptop-cpu-4"},
    "training": {"seq_len": 128, "global_batch": 8},
    "plan": {"mesh": {"pp": 2}},
}
TIED = {
    "scenario": {
        "model": "gpt3-1.3b",
        "cluster": {"hardware": "dgx-a100-80gb"},
        "training": {"seq_len": 2048, "global_batch": 64},
    },
    "fixed": {"cp": 1, "micro_batch": [1, 2], "pp": [1, 2], "zero": 1, "recompute": "none", "schedule": "1f1b"},
}
"""A small search whose best layouts no prediction tells apart."""
HARD = {
    "model": "deepseek-v3",
    "cluster": {"hardware": "dgx-h100", "nodes": 64},
    "training": {"seq_len": 4096, "global_batch": 4096},
}
"""A search that nobody waits for."""


def command(folder: Any, *more: str) -> list[str]:
    """The server as a client starts it."""
    return ["-m", "simpar", "mcp", "--folder", str(folder), *more]


def run_apart(conversation: Callable[[], Any]) -> Any:
    """What a conversation comes to, in a thread of its own: a browser of other tests has the loop of this one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(anyio.run, conversation).result()


def workers() -> list[int]:
    """The workers of calls that run on this machine."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", encoding="utf-8") as file:
                words = file.read()
        except OSError:
            continue
        if "simpar.mcp.worker" in words:
            found.append(int(pid))
    return found


async def talk(client: Any) -> None:
    """One conversation: what there is, an answer, a refusal, and progress."""
    listed = await client.list_tools()
    assert {tool.name for tool in listed.tools} >= {"simulate", "search", "check", "compare", "explain", "learn"}
    reports: list[str] = []

    async def heard(_done: float, _total: float | None, words: str | None) -> None:
        reports.append(str(words))

    answer = await client.call_tool("simulate", {"scenario": JOB}, progress_callback=heard)
    assert not answer.is_error
    assert answer.structured_content["step_time_s"] > 0
    assert reports[0] == "starting"
    takes = next(tool for tool in listed.tools if tool.name == "search").input_schema["properties"]["suggest"]
    assert {"type": "integer", "minimum": 1} in takes["anyOf"]
    searched = await client.call_tool("search", {**TIED, "suggest": 1, "suggest_to": "runs.csv"})
    assert searched.structured_content["suggestions"][0]["plan"]["mesh"]
    wrong = await client.call_tool("search", {**TIED, "suggest": "three"})
    assert wrong.is_error
    assert "suggest" in wrong.content[0].text
    refused = await client.call_tool("simulate", {"scenario": "/etc/hostname"})
    assert refused.is_error
    assert "refused; allowed: shipped names, and files below" in refused.content[0].text


def test_over_standard_input_and_output(tmp_path):
    """The server is started by its client, as coding agents do; a call that is cancelled leaves no process."""
    from mcp.client.stdio import StdioServerParameters

    async def converse() -> None:
        started = StdioServerParameters(command=sys.executable, args=command(tmp_path), env=dict(os.environ))
        async with mcp.Client(started) as client:
            await talk(client)
            before = set(workers())
            async with anyio.create_task_group() as group:
                group.start_soon(client.call_tool, "search", {"scenario": HARD})
                while not set(workers()) - before:
                    await anyio.sleep(0.1)
                mine = set(workers()) - before
                group.cancel_scope.cancel()
            with anyio.fail_after(30):
                while mine & set(workers()):
                    await anyio.sleep(0.1)

    run_apart(converse)


@pytest.mark.slow
def test_over_http_on_this_machine_only(tmp_path):
    """The address that it prints answers; a request that names another host does not."""
    process = subprocess.Popen(
        [sys.executable, *command(tmp_path, "--http", "0")], stderr=subprocess.PIPE, text=True, env=dict(os.environ)
    )
    try:
        address = next(line for line in process.stderr if "http://" in line).split()[2]
        assert address.startswith("http://127.0.0.1:")

        async def converse() -> None:
            async with mcp.Client(address) as client:
                await talk(client)

        run_apart(converse)
        port = int(address.rpartition(":")[2].partition("/")[0])
        with socket.create_connection(("127.0.0.1", port)) as raw:
            raw.sendall(
                b"POST /mcp HTTP/1.1\r\nHost: evil.example\r\nContent-Type: application/json\r\n"
                b"Content-Length: 2\r\nConnection: close\r\n\r\n{}"
            )
            assert raw.recv(64).startswith(b"HTTP/1.1 421")
    finally:
        process.terminate()
        process.wait(20)


@pytest.mark.slow
def test_a_search_ends_at_its_limit_with_the_best_so_far(tmp_path):
    """Not certified, and said so."""
    from mcp.client.stdio import StdioServerParameters

    async def converse() -> Any:
        started = StdioServerParameters(
            command=sys.executable, args=command(tmp_path, "--time-limit", "12"), env=dict(os.environ)
        )
        async with mcp.Client(started) as client:
            return await client.call_tool("search", {"scenario": HARD})

    begin = time.monotonic()
    answer = run_apart(converse)
    assert time.monotonic() - begin < 12 + 45
    if answer.is_error:  # a slow machine finds none in time, and says that
        assert "time" in answer.content[0].text or "stopped" in answer.content[0].text
    else:
        assert answer.structured_content["stopped_early"] is True
        assert answer.structured_content["certified_optimal"] is False


def test_bad_flags_are_one_line(tmp_path, capsys):
    """A folder that is none, a limit and a port that cannot be."""
    for flags in (["--folder", str(tmp_path / "no")], ["--time-limit", "0"], ["--http", "70000"]):
        assert cli.run(["mcp", *flags]) == 2
        assert flags[0] in capsys.readouterr().err
    with pytest.raises(UserError, match="allowed: 1 to 3600 seconds"):
        Desk(tmp_path, 1e9)
