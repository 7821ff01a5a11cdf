"""Choices about mixtures of experts."""

from dataclasses import replace
from typing import Literal

import numpy as np
from pydantic import Field

from simpar.architectures.graph import ModelGraph
from simpar.dataclass import dataclass
from simpar.plan.choices.choice import (
    AMONG,
    BLOCKS,
    MEMORY,
    Choice,
    Columns,
    Moves,
    OptionalAxis,
    Rules,
    in_section,
    make_effects,
    replace_with,
)
from simpar.plan.choices.section import Section
from simpar.plan.choices.target import Refusals, format_divisors, refuse, select_kept
from simpar.units import Counts, Flags


class Experts(Section):
    """Mixture of experts: how tokens spread over experts, and what runs beside their exchange.

    ``capacity_factor`` pads (and drops) to that many times the mean; without it nothing is dropped.
    ``expert_imbalance`` is the standard deviation of the experts' loads over their mean (0: forced balance); under the
    ``expert_distribution`` "power_law" it is the exponent, and loads are spread as in measured routing.
    ``expert_load`` "expected" gives every rank the expected load of the fullest one; "sampled" draws each rank's load
    from the seed. ``ep_overlap`` runs the exchange of one microbatch beside the compute of another (passes that run in
    pairs, as in DualPipe, have each other for that, with or without it). ``shared_expert_overlap`` runs the products of
    shared experts beside the exchange of their own microbatch.
    ``token_dispatch`` "per_expert" sends a copy of a token to each of its experts, "per_rank" one to each rank that
    holds some of them, "per_node" one to each scale-up domain that does, forwarded inside it (DeepEP, HybridEP).
    """

    capacity_factor: float | None = Field(default=None, gt=0, le=64, allow_inf_nan=False)
    expert_imbalance: float = Field(default=0.0, ge=0, le=16, allow_inf_nan=False)
    expert_distribution: Literal["normal", "power_law"] = "normal"
    expert_load: Literal["expected", "sampled"] = "expected"
    ep_overlap: bool | None = None
    token_dispatch: Literal["per_expert", "per_rank", "per_node"] = "per_expert"
    shared_expert_overlap: bool | None = None


@dataclass(frozen=True, kw_only=True)
class DecidedExperts:
    """How tokens spread over experts, and what runs beside their exchange."""

    capacity_factor: float | None = None
    expert_imbalance: float = 0.0
    expert_distribution: Literal["normal", "power_law"] = "normal"
    expert_load: Literal["expected", "sampled"] = "expected"
    ep_overlap: bool | None = None
    token_dispatch: Literal["per_expert", "per_rank", "per_node"] = "per_expert"
    shared_expert_overlap: bool | None = None


def expert_refusals(ep: Counts, graph: ModelGraph) -> Refusals:
    """The rules of expert-parallel degrees on the experts of a model."""
    if not graph.is_mixture:
        yield ep > 1, lambda: f"plan.ep = {ep}: {graph.name} has no experts; allowed: 1"
        return
    experts = graph.dims["experts"]
    yield (
        experts % ep != 0,
        lambda: f"plan.ep = {ep}: does not divide the {experts} experts; allowed: {format_divisors(experts)}",
    )


def experts_fit(rows: Columns) -> Flags:
    """Rows whose experts divide over ranks of one stage. Raises UserError with the reason if the model allows none."""
    graph, ep = rows.problem.graph, rows["ep"]
    divides = select_kept(expert_refusals(ep, graph))
    if rows.count and not divides.any():
        for degree in rows.domain["ep"]:
            refuse(expert_refusals(degree, graph))
    return np.asarray(divides & ((ep == 1) | (rows["tp"] * rows["width"] % ep == 0)))


def _exchanges(rows: Columns) -> Flags:
    """Rows in which tokens go to experts of other ranks."""
    return np.asarray(rows["ep"] > 1)


def _has_company(rows: Columns) -> Flags:
    """Rows in which an exchange has shared experts to run beside it."""
    return np.asarray(_exchanges(rows) & bool(rows.problem.graph.dims.get("shared_ffn")))


KEEPS_EXPERTS = Rules(("experts",), reads=("tp", "cp", "pp", "ep", "sequence_parallel", "etp", "sync", "servers"))
_KEEPS_OVERLAPS = replace(KEEPS_EXPERTS, reads=(*KEEPS_EXPERTS.reads, "ep_overlap", "shared_expert_overlap"))
CHOICES = in_section(
    "experts",
    Choice(
        "capacity_factor",
        is_exported=True,
        axis=OptionalAxis(
            make_effects(MEMORY, BLOCKS),
            lambda rows: np.full(rows.count, rows.problem.graph.is_mixture),
            label="capacity {}",
            after="etp",
        ),
        moves=Moves(replacements=replace_with("capacity_factor", None)),
    ),
    Choice("expert_imbalance", is_exported=True),
    Choice("expert_distribution", is_exported=True),
    Choice("expert_load", is_exported=True, is_held=False),
    Choice(
        "ep_overlap",
        is_exported=True,
        axis=OptionalAxis(make_effects(BLOCKS), _exchanges, after="capacity_factor"),
        moves=Moves(replacements=replace_with("ep_overlap", False)),
    ),
    Choice(
        "token_dispatch",
        is_exported=True,
        axis=OptionalAxis(make_effects(BLOCKS, AMONG), _exchanges, after="ep_overlap"),
        moves=Moves(replacements=replace_with("token_dispatch", "per_expert")),
    ),
    Choice(
        "shared_expert_overlap",
        axis=OptionalAxis(make_effects(BLOCKS), _has_company, rules=(_KEEPS_OVERLAPS,), after="token_dispatch"),
        moves=Moves(replacements=replace_with("shared_expert_overlap", False)),
    ),
)
