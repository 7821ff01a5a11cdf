"""The values that a plan may have on a model and a cluster, one choice at a time, and the changes they require.

Every value is checked as :mod:`simpar.plan.check` checks plans. If it is not legal with the rest of the plan, a few
changes of other choices are tried (one chunk per rank, one sequence per microbatch, ...), and the value is offered with
the first of them that makes it legal. Values that stay illegal are listed with the rule they break.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Any, get_args

from simpar.cost.kernels import KernelModel
from simpar.errors import UserError
from simpar.layout.defaults import resolve
from simpar.neighbours import RECOMPUTE
from simpar.plan.check import check
from simpar.plan.choices import value_of
from simpar.plan.choices.context_parallel import LEAST_PIECE
from simpar.plan.choices.offload import Home
from simpar.plan.choices.pipeline import CUSTOM
from simpar.plan.choices.target import Target
from simpar.plan.optimizers import OPTIMIZERS
from simpar.plan.plan import Plan
from simpar.plan.schedules import SCHEDULES, natural_vpp, usual_schedule
from simpar.precisions import PRECISIONS
from simpar.program.resolve.checkpointing import check_optimal
from simpar.simulation import balanced, check_drives
from simpar.ui.state import Asked, changed

MOST_TP, MOST_MICRO_BATCH, MOST_CHUNKS = 64, 64, 16
"""The largest values that are offered; larger ones, and smaller context pieces than searches use, need a file."""
SPACED, CHUNKED = usual_schedule(), usual_schedule(chunks=2)
"""The usual schedule with one chunk per rank, which takes any number of microbatches, and that with several."""
Change = dict[str, Any]


@dataclass(frozen=True)
class Value:
    """A value of a choice: its ``change`` of the plan, and ``also``, the other changes it requires, in words."""

    value: Any
    change: Change
    also: str = ""


@dataclass(frozen=True)
class Choice:
    """A choice with its current value, its legal values in order, and its refused values with the rules they break."""

    name: str
    now: Any
    values: tuple[Value, ...]
    refused: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def choices(asked: Asked) -> list[Choice]:
    """Every choice of the plan; none if stages have devices of their own or the actions come from a table."""
    plan = asked.plan
    if plan.pipeline.stages or plan.schedule == CUSTOM:
        return []
    known = _Verdicts(asked)
    resolved = resolve(plan, asked.stack)
    return [
        _choice(known, name, value_of(resolved, name), domain) for name, domain in _domains(asked).items()
    ]


class _Verdicts:
    """Whether changes of a plan are legal, each checked once."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.target = Target(
            asked.graph,
            asked.scenario.training,
            asked.cluster.world_size,
            asked.cluster.profile.devices_per_node,
        )

    def __call__(self, change: Change) -> str | None:
        """The rule that a change breaks; None if it is legal."""
        try:
            plan = changed(self.asked.scenario, change).plan
            stack, cluster = self.asked.stack, self.asked.cluster
            checked = check(balanced(resolve(plan, stack), self.asked.graph, stack), self.target)
            check_drives(checked, cluster)
            check_optimal(checked, cluster)
        except UserError as error:
            return str(error)
        return None


def _choice(known: _Verdicts, name: str, now: Any, domain: Iterable[Any]) -> Choice:
    values, refused = [], {}
    for value in domain:
        change = _change(known.asked.plan, name, value)
        broken = None if value == now else known(change)
        found = Value(value, change) if broken is None else _mended(known, name, value)
        if found is not None:
            values.append(found)
        else:
            refused[str(value)] = str(broken)
    return Choice(name, now, tuple(values), refused)


def _mended(known: _Verdicts, name: str, value: Any) -> Value | None:
    """The value with the first other changes that make it legal."""
    plan = known.asked.plan
    for more in (*_fewer_chunks(plan, name, value), *_mends(plan)):
        if name in more:
            continue
        change = {**more, **_change(known.asked.plan, name, value)}
        if known(change) is None:
            words = (f"{key.replace('_', '-')} {each}" for key, each in more.items() if each is not None)
            return Value(value, change, ", ".join(words))
    return None


def _fewer_chunks(plan: Plan, name: str, value: Any) -> Iterator[Change]:
    """With more pipeline ranks, proportionally fewer chunks on each."""
    if name == "pp" and plan.pipeline.vpp > 1 and (chunks := plan.pipeline.vpp * plan.mesh.pp // value) > 1:
        yield {"vpp": chunks}


def _mends(plan: Plan) -> Iterator[Change]:
    """Changes of other choices that make room, the smallest first."""
    one_chunk: Change = (
        {"schedule": SPACED, "vpp": 1} if plan.pipeline.vpp > 1 or plan.schedule != SPACED else {}
    )
    one_sequence: Change = {"micro_batch": 1} if plan.micro_batch > 1 else {}
    one_part: Change = {"cp": 1} if plan.mesh.cp > 1 else {}
    fewer_experts: Change = {"ep": plan.mesh.ep // 2} if plan.mesh.ep > 1 else {}
    fewer_stages: Change = {"pp": plan.mesh.pp // 2} if plan.mesh.pp > 1 else {}
    singles = (one_sequence, one_chunk, fewer_stages, one_part, fewer_experts)
    yield from (each for each in singles if each)
    if one_sequence and one_chunk:
        yield {**one_sequence, **one_chunk}
    if fewer_stages and one_chunk:
        yield {**fewer_stages, **one_chunk}


def _change(plan: Plan, name: str, value: Any) -> Change:
    """The flat keys of a value, with those that belong to the same choice."""
    if name == "schedule":
        return {"schedule": value, "vpp": natural_vpp(value)}
    if name == "vpp" and plan.schedule in (SPACED, CHUNKED):
        return {"vpp": value, "schedule": CHUNKED if value > 1 else SPACED}
    if name == "pp" and value == 1:
        return {"pp": 1, "vpp": 1, "schedule": None}
    return {name: value}


def _domains(asked: Asked) -> dict[str, list[Any]]:
    """The values to check by choice, including the current one."""
    plan, world = asked.plan, asked.cluster.world_size
    layers, dims = len(asked.graph.layers), asked.graph.dims
    each = divisors(asked.scenario.training.global_batch)
    found: dict[str, list[Any]] = {
        "tp": _up_to(divisors(world), MOST_TP),
        "pp": _up_to(divisors(world), layers + 2),
        "cp": _up_to(divisors(world), max(1, 2 * asked.scenario.training.seq_len // LEAST_PIECE)),
        "ep": divisors(int(dims["experts"])) if asked.graph.is_mixture else [1],
        "micro_batch": _up_to(each, MOST_MICRO_BATCH),
        "vpp": list(range(1, min((layers + 2) // plan.mesh.pp, MOST_CHUNKS) + 1)),
        "schedule": list(SCHEDULES) if plan.mesh.pp > 1 else [plan.schedule],
        "zero": [0, 1, 2, 3],
        "recompute": list(RECOMPUTE),
        "precision": _precisions(asked),
        "sequence_parallel": [False, True],
        "optimizer": list(OPTIMIZERS),
        "offload_optimizer": list(get_args(Home)),
    }
    resolved = resolve(plan, asked.stack)
    for name, values in found.items():
        now = value_of(resolved, name)
        if now not in values:
            values.append(now)
            if all(isinstance(value, int) for value in values):
                values.sort()
    return found


def _precisions(asked: Asked) -> list[str]:
    """Precisions in which every device can compute."""

    def computes(precision: str) -> bool:
        attention = asked.stack.fusion.attention
        try:
            for device in asked.cluster.devices:
                rate = asked.stack.fusion.rate_on(device.name)
                KernelModel(device, precision, attention, attention_rate=rate).peak(precision)
        except UserError:
            return False
        return True

    return [precision for precision in PRECISIONS if computes(precision)]


@cache
def divisors(number: int) -> list[int]:
    """All divisors, ascending."""
    small = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})


def _up_to(values: Iterable[int], most: int) -> list[int]:
    return [value for value in values if value <= most]
