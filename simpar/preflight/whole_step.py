"""The whole step of a launch of reinforcement learning: generation, passes, updates and new weights.

Launches say all of it but the lengths of texts. Without these, all have the longest that is allowed, and the steps of
shorter prompts and of shorter responses are told beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from simpar.architectures.training import Training
from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.frameworks.reader import WHOLE_STEPS
from simpar.frameworks.target import ImportedStep
from simpar.hardware.catalogue import load_cluster
from simpar.posttraining.simulate import as_section, make_setting, simulate_setting

if TYPE_CHECKING:
    from simpar.frameworks.rollout_side import RolloutSide
    from simpar.hardware.cluster import Cluster
    from simpar.plan.plan import Plan
    from simpar.planner.problem import Problem
    from simpar.posttraining.answer import PostTrainingResult
    from simpar.preflight.check import TextFlags
    from simpar.preflight.given import ParsedLaunch

PART = 4
"""Beside texts of the longest length, those whose mean is such a part of it are tried, with it as their p99."""
FLAGS = {"prompt": "--prompts", "response": "--responses"}
ALLOWED = "TOKENS, MEAN,P99 in tokens, or a file with one length a line"


@dataclass(frozen=True)
class WholeStep:
    """The simulated step, what the text leaves open with the answer for another value of it, and what is left out.

    ``answers`` are words of the text that the step answers.
    """

    result: PostTrainingResult
    supposed: Mapping[str, PostTrainingResult]
    notes: tuple[str, ...]
    answers: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain data, in SI units."""
        others = {words: other.to_dict() for words, other in self.supposed.items()}
        return {"step": self.result.to_dict(), "others": others, "notes": list(self.notes)}


def whole_step(given: ParsedLaunch, problem: Problem, plan: Plan, hardware: str, flags: TextFlags) -> WholeStep:
    """Simulate the step that a launch says, with the lengths of flags. Raises UserError where it cannot be."""
    imported = given.found
    if not isinstance(imported, ImportedStep):
        raise UserError(f"{given.where}: --rl: no rollout of reinforcement learning is read; allowed: {WHOLE_STEPS}")
    side = imported.rollout
    if side.refused:
        raise UserError(f"--rl: {side.refused}")
    told = {name: _lengths(getattr(flags, f"{name}s"), FLAGS[name]) for name in FLAGS}
    longest = dict(zip(FLAGS, side.longest, strict=True))
    full: dict[str, dict[str, Any]] = {name: told[name] or {"fixed": size} for name, size in longest.items()}
    simulated = partial(_simulated, side, problem, plan, hardware)
    result = simulated(full)
    others = {}
    for name, most in longest.items():
        if told[name] is None and (mean := most // PART):
            words = f"{name}s of {mean} tokens on average, of which 1 in 100 is longer than {most}"
            others[words] = simulated({**full, name: {"mean": mean, "p99": most}})
    notes = (*side.notes, *_assumed(told, longest), *result.figures.assumed)
    return WholeStep(result, others, notes, side.answers)


def _assumed(told: Mapping[str, Any], longest: Mapping[str, int]) -> Iterator[str]:
    for name, size in longest.items():
        if told[name] is None:
            yield f"every {name} is taken to have {size} tokens, the longest allowed ({FLAGS[name]} {ALLOWED})"


def _lengths(text: str | None, flag: str) -> dict[str, Any] | None:
    """A distribution in words: of one length, of a mean and a 99th percentile, or of a file."""
    if text is None:
        return None
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        return {"file": text}
    sizes = [int(part) for part in parts]
    if len(sizes) > 2 or min(sizes) < 1:
        raise UserError(f"{flag} {text}: allowed: {ALLOWED}")
    return {"fixed": sizes[0]} if len(sizes) == 1 else {"mean": sizes[0], "p99": sizes[1]}


def _simulated(
    side: RolloutSide, problem: Problem, plan: Plan, hardware: str, lengths: Mapping[str, Any]
) -> PostTrainingResult:
    """The step with these lengths; one that has fixed lengths repeats itself."""
    cluster = problem.cluster
    training = Training(seq_len=sum(side.longest), global_batch=problem.training.global_batch)
    pool = _pool(hardware, side.apart) if side.apart else None
    section = side.of_batch(problem.training.global_batch)
    values: dict[str, Any] = {**section, "lengths": {**section.get("lengths", {}), **lengths}}
    if pool is not None:
        values["rollout"] = {**values["rollout"], "nodes": pool.nodes}
    if not values.get("synchrony", {}).get("steps_off") and all("fixed" in each for each in lengths.values()):
        values["steps"] = 1
    setup = (problem.graph, cluster, plan, training, as_section(values))
    return simulate_setting(make_setting(*setup, stack=problem.stack, pool=pool))


def _pool(hardware: str, apart: tuple[int, int]) -> Cluster:
    """The devices that only generate: parts of nodes, or whole ones, of the hardware that trains."""
    devices, each = apart
    if devices % each:
        raise UserError(f"--rl: {devices} devices that only generate, {each} of a node: allowed: whole nodes")
    return load_cluster(hardware, devices // each, devices)
