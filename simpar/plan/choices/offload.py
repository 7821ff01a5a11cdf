"""Choices about what lives on the host."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
from pydantic import Field

from simpar.dataclass import dataclass
from simpar.plan.choices.choice import Choice, Columns, Moves, OptionalAxis, has_value, in_section, replace_with
from simpar.plan.choices.data_parallel import KEEPS_STATES, SENT, STATES
from simpar.plan.choices.memory import select_undecided
from simpar.plan.choices.section import Section
from simpar.plan.choices.target import Workload
from simpar.units import Flags

if TYPE_CHECKING:
    from simpar.plan.plan import Plan

Home = Literal["none", "cpu", "nvme"]


class Offload(Section):
    """What lives on the host instead of the device, and is brought when it is needed.

    ``offload_optimizer`` "cpu" keeps optimizer states in host memory and updates on the processors [ZeRO-Offload, Ren
    et al. 2021, arXiv 2101.06840], "nvme" keeps them on drives [ZeRO-Infinity, Rajbhandari et al. 2021, arXiv
    2104.07857]; ``offload_ratio`` of the parameters is updated there, the others on the device at the same time
    (Twin-Flow of ZeRO-Offload++). ``offload_gradients`` sends them as they are made and keeps none on the device
    (default: where states are offloaded, nothing else needs them there, and the stack does not keep them there).
    ``offload_delayed`` updates with the gradients of the step before, beside the passes of this one.
    ``offload_parameters`` brings the weights of a block for every pass; ``offload_activations`` is the share of saved
    activations that waits on the host.
    """

    offload_optimizer: Home = "none"
    offload_ratio: float = Field(default=1.0, gt=0, le=1, allow_inf_nan=False)
    offload_gradients: bool | None = None
    offload_delayed: bool = False
    offload_parameters: Home = "none"
    offload_activations: float = Field(default=0.0, ge=0, le=1, allow_inf_nan=False)

    @property
    def ratio(self) -> float:
        """Share of the parameters that is updated on the host."""
        return self.offload_ratio if self.offload_optimizer != "none" else 0.0

    @property
    def is_used(self) -> bool:
        """Whether anything is offloaded."""
        away = (self.offload_optimizer, self.offload_parameters) != ("none", "none")
        return away or self.offload_activations > 0


@dataclass(frozen=True, kw_only=True)
class DecidedOffload:
    """What lives on the host; ``offload_gradients`` is None where no optimizer states do."""

    offload_optimizer: Home = "none"
    offload_ratio: float = 1.0
    offload_gradients: bool | None = None
    offload_delayed: bool = False
    offload_parameters: Home = "none"
    offload_activations: float = 0.0

    @property
    def host_share(self) -> float:
        """Share of the parameters that is updated on the host."""
        return self.offload_ratio if self.offload_optimizer != "none" else 0.0

    @property
    def offloads(self) -> bool:
        """Whether anything is offloaded."""
        away = (self.offload_optimizer, self.offload_parameters) != ("none", "none")
        return away or self.offload_activations > 0


def _states_away(rows: Columns) -> Flags:
    """Rows whose optimizer states are on the host."""
    return np.asarray(~has_value(rows, "offload_optimizer", "none"))


def _waits_or_is_chosen(rows: Columns) -> Flags:
    """Rows whose layers are not chosen one by one while activations wait on the host."""
    return np.asarray(~select_undecided(rows) | (rows["offload_activations"] == 0))


def _other_home(plan: Plan, _: Workload) -> Iterable[Home]:
    """Host memory for optimizer states on the device, and the device for states that alone are in host memory."""
    away, alone = plan.offload, Offload(offload_optimizer="cpu")
    if away.offload_optimizer == "none":
        return ("cpu",)
    return ("none",) if away == alone.model_copy(update={"offload_gradients": away.offload_gradients}) else ()


def _saves(home: Home | float) -> bool:
    """Whether a place other than the device, or a share of what is elsewhere, saves memory."""
    return home not in ("none", 0.0)


CHOICES = in_section(
    "offload",
    Choice(
        "offload_optimizer",
        reopens=("offload_gradients",),
        axis=OptionalAxis(STATES, rules=(KEEPS_STATES,), label="states on {}", after="reshard_after_forward"),
        moves=Moves(
            _other_home,
            menu=lambda *_: get_args(Home),
            replacements=lambda _: ({"offload_optimizer": "none", "offload_parameters": "none"},),
            saves=_saves,
            after="zero",
        ),
    ),
    Choice(
        "offload_ratio",
        axis=OptionalAxis(STATES, _states_away, after="offload_optimizer"),
        moves=Moves(replacements=replace_with("offload_ratio", 1.0)),
    ),
    Choice(
        "offload_gradients",
        axis=OptionalAxis(STATES, _states_away, rules=(KEEPS_STATES,), label=None, after="offload_delayed"),
    ),
    Choice(
        "offload_delayed",
        axis=OptionalAxis(SENT, _states_away, after="offload_ratio"),
        moves=Moves(replacements=replace_with("offload_delayed", False)),
    ),
    Choice(
        "offload_parameters",
        axis=OptionalAxis(STATES, rules=(KEEPS_STATES,), label="parameters on {}", after="offload_gradients"),
        moves=Moves(
            replacements=lambda _: ({"offload_parameters": "none", "offload_optimizer": "none"},), saves=_saves
        ),
    ),
    Choice(
        "offload_activations",
        axis=OptionalAxis(STATES, legal=_waits_or_is_chosen, rules=(KEEPS_STATES,), after="offload_parameters"),
        moves=Moves(replacements=replace_with("offload_activations", 0.0), saves=_saves),
    ),
)
