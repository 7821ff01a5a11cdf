"""The values that a plan may have on a model and a cluster, one choice at a time, and the changes they require.

Every value of a menu (:mod:`simpar.layout.moves`) is checked as :mod:`simpar.layout.check` checks plans. If it is not
legal with the rest of the plan, a few changes of other choices are tried (one chunk per rank, one sequence per
microbatch, ...), and the value is offered with the first of them that makes it legal. Values that stay illegal are
listed with the rule they break.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, field
from typing import Any

from simpar.cost.kernels import KernelModel
from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.layout.decide import decide
from simpar.layout.deciders import resolve
from simpar.layout.moves import changes_making_room, changes_to, menus
from simpar.plan.choices import value_of
from simpar.plan.choices.choice import Change
from simpar.plan.choices.pipeline import CUSTOM
from simpar.plan.choices.target import Workload
from simpar.program.resolve.checkpointing import check_optimal
from simpar.simulation import check_drives
from simpar.ui.state import ResolvedRequest, apply_change


@dataclass(frozen=True)
class Value:
    """A value of a choice: its ``change`` of the plan, and ``also``, the other changes it requires, in words."""

    value: Any
    change: Change
    also: str = ""


@dataclass(frozen=True)
class MenuChoice:
    """A choice with its current value, its legal values in order, and its refused values with the rules they break."""

    name: str
    now: Any
    values: tuple[Value, ...]
    refused: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def choices(asked: ResolvedRequest) -> list[MenuChoice]:
    """Every choice of the plan; none if stages have devices of their own or the actions come from a table."""
    plan = asked.plan
    if plan.pipeline.stages or plan.schedule == CUSTOM:
        return []
    try:
        verdicts = _Verdicts(asked)
    except UserError:  # responses do not fill updates: said beside, and no plan would do
        return []
    resolved = resolve(plan, asked.stack)
    return [
        _choice(verdicts, name, value_of(resolved, name), values)
        for name, values in menus(resolved, verdicts.target).items()
    ]


class _Verdicts:
    """Whether changes of a plan are legal, each checked once."""

    def __init__(self, asked: ResolvedRequest) -> None:
        self.asked = asked
        self.target = Workload(
            asked.graph, asked.update, asked.cluster.world_size, asked.cluster.profile.devices_per_node
        )

    def __call__(self, change: Change) -> str | None:
        """The rule that a change breaks; None if it is legal."""
        try:
            plan = apply_change(self.asked.scenario, change).plan
            stack, cluster = self.asked.stack, self.asked.cluster
            layout = decide(plan, self.target, stack)
            check_drives(layout, cluster)
            check_optimal(layout, cluster)
            if "precision" in change:
                self._refuse_precision(layout.precision)
        except UserError as error:
            return str(error)
        return None

    def _refuse_precision(self, precision: str) -> None:
        """Raise UserError for a precision in which not every device can compute."""
        fusion = self.asked.stack.fusion
        for device in self.asked.cluster.devices:
            rate = fusion.rate_on(device.name)
            KernelModel(device, precision, fusion.attention, attention_rate=rate).peak(precision)


def _choice(verdicts: _Verdicts, name: str, now: Any, values: Iterable[Any]) -> MenuChoice:
    legal, refused = [], {}
    for value in values:
        change, *longer = changes_to(verdicts.asked.plan, name, value)
        broken = None if value == now else verdicts(change)
        offered = Value(value, change) if broken is None else _mended(verdicts, change, longer, value)
        if offered is not None:
            legal.append(offered)
        else:
            refused[str(value)] = str(broken)
    return MenuChoice(name, now, tuple(legal), refused)


def _mended(verdicts: _Verdicts, change: Change, longer: list[Change], value: Any) -> Value | None:
    """The value with the first changes of other choices that make it legal."""
    for whole in (*longer, *changes_making_room(verdicts.asked.plan, change)):
        if verdicts(whole) is None:
            also = {key: each for key, each in whole.items() if key not in change and each is not None}
            words = ", ".join(f"{key.replace('_', '-')} {each}" for key, each in also.items())
            return Value(value, whole, words)
    return None
