"""A tiny job behind the addresses of the page, without a network; tests skip where there is no web stack."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from simpar.scenario import Scenario

STATE = {
    "model": "gpt2",
    "cluster": {"hardware": "laptop-cpu-4", "nodes": 1},
    "training": {"seq_len": 64, "global_batch": 8},
    "plan": {"pp": 2, "tp": 1},
}


@pytest.fixture(scope="session")
def state() -> dict[str, Any]:
    """GPT-2 in two stages on four devices."""
    return STATE


@pytest.fixture(scope="session")
def rl_state() -> dict[str, Any]:
    """A small step of reinforcement learning on a node."""
    lengths = {"prompt": {"fixed": 128}, "response": {"mean": 100, "p99": 300}}
    return {
        "model": "qwen2.5-0.5b",
        "cluster": {"hardware": "dgx-h100", "nodes": 1},
        "training": {"seq_len": 1024, "global_batch": 32},
        "plan": {"zero": 3},
        "post_training": {"prompts": 8, "samples": 4, "lengths": lengths, "steps": 2},
    }


@pytest.fixture(scope="session")
def client() -> Iterator[Any]:
    """Asks the application as a page on this machine does."""
    testing = pytest.importorskip("starlette.testclient", reason="starlette is not installed")
    from simpar.ui.server import AppState, make_app

    with testing.TestClient(make_app(AppState(Scenario.model_validate(STATE))), "http://127.0.0.1:8877") as found:
        yield found


@pytest.fixture(scope="session")
def ask(client: Any) -> Callable[..., dict[str, Any]]:
    """All parts of the answer to a state, its ``change`` or ``job`` made, in one mapping."""

    def answer(state: Any = STATE, **more: Any) -> dict[str, Any]:
        response = client.post("/api/answer", json={"state": state, "brief": True, **more})
        assert response.status_code == 200
        parts = [json.loads(line) for line in response.text.splitlines()]
        return {name: value for part in parts for name, value in part.items()}

    return answer
