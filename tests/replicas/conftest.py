"""Builders of replicas: a small model on two nodes, and its simulated step with or without schemes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import simpar
from simpar.program.perturbation import Perturbation
from simpar.report.result import Result

TRAINING = {"seq_len": 1024, "global_batch": 64}


@pytest.fixture(scope="session")
def new_step() -> Callable[..., Result]:
    """``new_step(sigma=0.1, slow={0: 2.0}, sync="asp", ...)``: GPT-2 on two nodes of eight H100, 16 replicas."""

    def run(
        *,
        sigma: float = 0.0,
        slow: dict[int, float] | None = None,
        nodes: int = 2,
        tokens: int | None = None,
        **plan: Any,
    ) -> Result:
        perturbation = Perturbation(slow_ranks=slow or {}, jitter_sigma=sigma, seed=7)
        return simpar.simulate(
            "gpt2",
            simpar.Cluster("dgx-h100", nodes=nodes),
            simpar.Plan(**plan),
            simpar.Training(**TRAINING, tokens=tokens),
            perturbation=perturbation,
        )

    return run


@pytest.fixture(scope="session")
def step_of(new_step: Callable[..., Result]) -> Callable[..., Result]:
    """The same, simulated once for all tests that ask for it."""
    known: dict[str, Result] = {}

    def run(**asked: Any) -> Result:
        name = repr(sorted(asked.items()))
        if name not in known:
            known[name] = new_step(**asked)
        return known[name]

    return run
