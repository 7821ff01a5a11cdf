"""The process beside the server: what it says arrives, what nobody wants ends, and it is replaced when it dies."""

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor

import pytest

from simpar.scenario import Scenario
from simpar.ui.worker_process import PROCESS_DIED_ERROR, WorkerProcess

LONG = {
    "model": "llama-3.1-405b",
    "cluster": {"hardware": "dgx-h100", "nodes": 256},
    "training": {"seq_len": 8192, "global_batch": 512},
}


@pytest.fixture
def small(state):
    """The same of a model whose neighbours are tried sooner."""
    return {**state, "model": "tiny-llama"}


def run(walk: Coroutine[None, None, None]) -> None:
    """Run it in a thread of its own: in this one the loop of playwright may be under way."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, walk).result()


async def parts_of(beside, job, state, stop_at=None):
    """All parts that a job says; it is stopped after a while where that is asked for."""
    if stop_at is not None:
        asyncio.get_running_loop().call_later(stop_at, beside.stop)
    return [part async for part in beside.run(job, Scenario.model_validate(state), {"hold": ["tp"]})]


def test_jobs_are_done_stopped_and_survived(small):
    """A look ends with the neighbours, a search that is stopped with its best so far, a dead process with a line."""
    beside = WorkerProcess(warms=False)

    async def walk():
        looked = await parts_of(beside, "look", small)
        assert [name for part in looked for name in part if name != "trying"] == ["drawn", "tried"]
        assert sum("trying" in part for part in looked) > 5
        wrong = await parts_of(beside, "look", {**small, "plan": {"tp": 3}})
        assert "does not divide" in wrong[0]["error"]

        async for _ in beside.run("look", Scenario.model_validate(small), {}):
            beside.end()  # the server ends: whoever listens is told that nothing more comes

        async for part in beside.run("look", Scenario.model_validate(small), {}):
            if "trying" in part:
                break  # nobody listens any more: what it still says is not part of the next answer
        found = (await parts_of(beside, "search", LONG, stop_at=0.2))[-1]["found"]
        assert found["stopped"]
        assert not found["certified"]
        assert found["candidates"][0]["state"]["model"] == "llama-3.1-405b"

        waiting = asyncio.ensure_future(parts_of(beside, "search", LONG))
        await asyncio.sleep(0.1)
        beside._process.kill()
        assert (await waiting)[-1] == {"error": PROCESS_DIED_ERROR}

    try:
        run(walk())
    finally:
        beside.close()


@pytest.mark.slow
def test_another_process_takes_over(small):
    """After one has died."""
    beside = WorkerProcess(warms=False)

    async def walk():
        beside.start()
        beside._process.kill()
        await asyncio.sleep(1)
        assert "drawn" in (await parts_of(beside, "look", small))[0]

    try:
        run(walk())
    finally:
        beside.close()
