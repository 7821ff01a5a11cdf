"""The answer is the best plan by its whole step, whatever shorter steps promised."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from simpar.plan.plan import Plan
from simpar.search.alpa import answer
from simpar.search.alpa.answer import UNIFORM, Found, _settled


def test_promises_of_short_steps_are_kept_or_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who comes first on a promise is run in full, and stays first only if it still is."""
    whole = {2: 1.20, 4: 1.05, 8: 1.10}
    ran: list[int] = []

    def run(_problem: object, plan: Plan) -> SimpleNamespace:
        ran.append(plan.micro_batch)
        return SimpleNamespace(step_time_s=whole[plan.micro_batch])

    monkeypatch.setattr(answer, "exact", run)
    known = [
        Found(1.00, 0.0, Plan(micro_batch=2), "cut"), Found(1.05, 0.0, Plan(micro_batch=4), UNIFORM),
        Found(1.10, 0.0, Plan(micro_batch=8), "cut"),
    ]  # fmt: skip
    ranked, result = _settled(None, known)  # type: ignore[arg-type]
    assert [found.plan.micro_batch for found in ranked] == [4, 8, 2]
    assert result.step_time_s == ranked[0].step_time_s == 1.05
    assert ran == [2, 4]
