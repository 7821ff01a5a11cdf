"""Predictions for an export: a plan under its target's stack, and the nearest plan that the target can express."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from simpar.errors import UserError
from simpar.export import load_target
from simpar.export.nearest import Job, Near, nearest, saving
from simpar.export.source import Source
from simpar.plan.plan import Plan
from simpar.report.result import Result
from simpar.report.words import memory_state, step_and_memory
from simpar.simulation import simulate
from simpar.stacks.stack import DEFAULT_STACK, Stack, load_stack
from simpar.units import format_seconds

NO_CLUSTER = "the plan names no cluster"


@dataclass(frozen=True)
class Foretold:
    """Whether a plan, as the target runs it, fits with the wanted probability, in words with the numbers.

    ``said`` is the note for the user, ``predicted`` the figures for the files; "" if there is nothing.
    """

    is_allowed: bool
    said: str
    predicted: str


@dataclass(frozen=True)
class NearPlan(Foretold):
    """The nearest plan that a target can express, and the text for the refusal."""

    plan: Plan
    offer: str


def numbers(result: Result) -> str:
    """Whether it fits, reserved memory and step time, in words."""
    return f"{memory_state(result, 'does not fit')}, {format_seconds(result.step_time_s)} a step"


class Foretelling:
    """Predictions for an export to one target; ``wanted`` is the least probability of fitting."""

    def __init__(self, source: Source, target: str, wanted: float) -> None:
        if not 0 < wanted < 1:
            raise UserError(f"--fit-probability {wanted:g}: allowed: above 0 and below 1")
        self.source, self.target, self.wanted = source, target, wanted

    def again(self, runs: Plan) -> Foretold:
        """Whether the plan fits with the wanted probability under the target's stack.

        ``runs`` is the plan as the target runs it. Nothing is said if the plan was made for that very stack, or if it
        is not known what it was made for. Raises UserError if it cannot be simulated there.
        """
        stack, cluster = self.source.stack, self.source.cluster
        is_same = stack is None or stack == load_stack(str(runs.stack))
        if cluster is None:
            words = (
                f"Not predicted for stack {runs.stack}: {NO_CLUSTER} for its ranks (--hardware NAME does)."
            )
            return Foretold(True, "" if is_same else words, "")
        there = self._run(runs)
        is_sure, predicted = self._is_sure(there), step_and_memory(there)
        if is_same and is_sure:
            return Foretold(True, "", predicted)
        said = f"Under {runs.stack}, the stack of {self.target}, the plan {numbers(there)}"
        if stack is not None and not is_same:
            said += f"; under {stack.name}, for which it was made, it {numbers(self._own)}"
        if there.fits and not is_sure:
            said += f"; --fit-probability {self.wanted:g} is wanted"
        return Foretold(is_sure, said, predicted)

    def nearest(self) -> NearPlan | None:
        """The nearest plan that the target can express; of those that fit, the one that keeps most memory savings.

        Among equals it is the fastest. If none of the nearest fits, more is sharded or recomputed. If that does not
        help either, the nearest plan is returned as not allowed, and among equals the one with the least memory. None
        if no change helps.
        """
        job = Job(self.source.graph, self.source.training, self.target, self.source.devices_per_node)
        found = nearest(self.source.plan, job)
        if not found:
            return None
        if self.source.cluster is None:
            said = f"{'; '.join(found[0].changes)}, not predicted: {NO_CLUSTER} (--hardware NAME does)"
            return self._near(found[0].plan, said, "", is_sure=True)
        first = timed = self._timed(found)
        sure = self._surely(timed)
        for more in saving(found, job):
            if not sure:
                timed = self._timed(more)
                sure = self._surely(timed)
        if not (sure or first):
            return None

        def order(each: tuple[Near, Result]) -> tuple[int, float]:
            kept, there = each
            return len(kept.given_up), there.step_time_s if sure else there.peak_memory_bytes

        near, result = min(sure or first, key=order)
        said = f"{'; '.join(near.changes)}: {numbers(result)} under {near.plan.stack}, {self._beside(result)}"
        if result.fits and not sure:
            said += f"; --fit-probability {self.wanted:g} is wanted"
        return self._near(near.plan, said, step_and_memory(result), is_sure=bool(sure))

    def _near(self, plan: Plan, said: str, predicted: str, *, is_sure: bool) -> NearPlan:
        """The text for a plan; predictions of a search belong to another plan and are dropped."""
        how = "--nearest exports it" if is_sure else "--nearest --force exports it anyway"
        own = self.source.plan
        plan = plan.model_copy(
            update={"stack": own.stack, "predicted": None if own.predicted is None else {}}
        )
        noted = f"Not the plan but the nearest that can be said: {said}."
        return NearPlan(is_sure, noted, predicted, plan, f"; the nearest that it can: {said} ({how})")

    def _timed(self, found: Iterable[Near]) -> list[tuple[Near, Result]]:
        """Plans with their results under their stacks in the target, without those that cannot be simulated."""
        timed = []
        for near in found:
            habit = load_target(self.target).habits(near.plan)
            there = Near(near.plan.model_copy(update={"stack": habit}), near.changes, near.given_up)
            try:
                timed.append((there, self._run(there.plan)))
            except UserError:
                continue
        return timed

    def _beside(self, result: Result) -> str:
        """How a step compares with the plan's own step."""
        stack = self.source.stack.name if self.source.stack else self.source.plan.stack or DEFAULT_STACK
        try:
            own = self._own
        except UserError as error:
            return f"and the plan itself cannot be predicted under {stack}: {error}"
        change = result.step_time_s / own.step_time_s - 1
        than = f"{abs(change):.1%} {'more' if change >= 0 else 'less'} than the plan takes"
        return f"{than}, which {numbers(own)} under {stack}"

    @cached_property
    def _own(self) -> Result:
        """The plan's result under the stack it was made for."""
        return self._run(self.source.plan, self.source.stack)

    def _run(self, plan: Plan, stack: Stack | None = None) -> Result:
        source = self.source
        if source.cluster is None:
            raise UserError(NO_CLUSTER)
        return simulate(
            source.graph,
            source.cluster,
            plan,
            source.training,
            stack=stack,
            perturbation=source.perturbation,
            with_timeline=False,
        )

    def _surely(self, timed: list[tuple[Near, Result]]) -> list[tuple[Near, Result]]:
        return [each for each in timed if self._is_sure(each[1])]

    def _is_sure(self, result: Result) -> bool:
        known = result.certainty
        return result.fits and (known is None or known.fit_probability >= self.wanted)
