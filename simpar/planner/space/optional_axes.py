"""Axes that are searched on request: they change training, or would multiply the space of every search.

By default they are as the plan says. ``--fix axis=value,value`` offers several values. Each is tried where it changes
anything and the rules of :mod:`simpar.plan.check` allow it; other rows have the neutral value, the default of a Plan.
To add an axis, add an entry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypedDict, Unpack

import numpy as np

from simpar.layout.defaults import resolve
from simpar.models.recompute import FULL, modes
from simpar.plan import flat
from simpar.plan.check import Target, keeps_rules
from simpar.plan.optimizers import OPTIMIZERS
from simpar.plan.plan import Plan
from simpar.plan.sync import SCHEMES, decided
from simpar.planner.problem import Problem
from simpar.planner.space.axes import (
    AXES,
    AXIS_NAMES,
    BLOCKS,
    MEMORY,
    REPLICAS,
    Axis,
    both_ends,
    deciding,
    everything,
    fully_sharded,
    gathers,
    shares,
    undecided,
    value_of,
)
from simpar.planner.space.jobs import counted
from simpar.planner.space.table import Mask, Rows, numbered
from simpar.simulation import may_be_tuned

OWN_WIDTH = tuple(each.name for each in OPTIMIZERS.values() if each.has_own_width)
"""Optimizers whose states have a bit width of their own."""
CONTEXT = ("tp", "cp", "sequence_parallel", "cp_method", "cp_balance", "ulysses")
EXPERTS = ("tp", "cp", "pp", "ep", "sequence_parallel", "etp", "sync", "servers")
STATES = (
    "tp", "cp", "pp", "ep", "zero", "hsdp", "optimizer", "sync", "servers", "offload_optimizer", "offload_ratio",
    "offload_gradients", "offload_delayed", "offload_parameters", "offload_activations",
)  # fmt: skip
EARLY = (
    "cp", "pp", "dp", "schedule", "zero", "hsdp", "recompute", "recompute_early", "reshard_after_forward",
    "offload_optimizer", "offload_parameters", "offload_activations", "ep_overlap", "tp",
)  # fmt: skip


@dataclass(frozen=True)
class Requested(Axis):
    """An axis that has the plan's value unless values are asked for.

    ``companions`` are values of other axes that its values require. ``said`` is the template by which a list of
    candidates names a value: empty for its key and the value, None if it is not named because the layout or the stack
    says it. ``is_decided``: the stack decides it, and it is named only if it was asked for.
    """

    companions: Mapping[str, Any] = field(default_factory=dict)
    said: str | None = ""
    is_decided: bool = False

    @property
    def neutral(self) -> Any:
        """The value of rows in which the axis changes nothing."""
        return value_of(Plan(), self.name)


class More(TypedDict, total=False):
    """Optional fields of a requested axis."""

    companions: Mapping[str, Any]
    said: str | None
    is_decided: bool


def on_request(
    name: str,
    decides: frozenset[str],
    matters: Callable[[Rows], Mask] = everything,
    legal: Callable[[Rows], Mask] = everything,
    **more: Unpack[More],
) -> Requested:
    """An axis with the requested values, or else the plan's; ``matters`` marks the rows in which values differ."""

    def keep(rows: Rows) -> Mask:
        told, differs = rows.code[name] > 0, matters(rows)
        kept = np.flatnonzero(told == differs)
        asked = kept[told[kept]]
        found = np.zeros(rows.count, dtype=bool)
        found[kept] = True
        found[asked] = legal(rows.some(asked)) if len(asked) else True
        return found

    return Requested(name, decides, partial(_planned, name=name), keep, **more)


def _planned(problem: Problem, *, name: str) -> Sequence[Any]:
    """The plan's value, if it is not the default."""
    found = value_of(problem.base, name)
    return () if found == value_of(Plan(), name) else (found,)


def lawful(rows: Rows, names: Sequence[str], rules: Sequence[str]) -> Mask:
    """Rows whose plans keep some rules, checked once per combination of the axes ``names`` that decide them."""
    problem = rows.problem
    cluster = problem.cluster
    target = Target(problem.graph, problem.training, cluster.world_size, cluster.profile.devices_per_node)
    first, which = numbered(rows.number(names))
    keeps = np.zeros(len(first), dtype=bool)
    for at, row in enumerate(first.tolist()):
        plan = resolve(counted(rows, row), problem.stack)
        data = decided(plan.data_parallel, cluster.nodes)
        decided_plan = plan.model_copy(update={"data_parallel": data})
        keeps[at] = not (plan.tuning.is_used and not may_be_tuned(decided_plan))
        keeps[at] &= keeps_rules(decided_plan, target, *rules)
    return np.asarray(keeps[which])


_context_kept = partial(lawful, names=CONTEXT, rules=("context",))
_experts_kept = partial(lawful, names=EXPERTS, rules=("experts",))
_states_kept = partial(lawful, names=STATES, rules=("data", "offload", "optimizer"))


def _has(rows: Rows, name: str, *values: Any) -> Mask:
    """Rows whose value on an axis (or the plan's, if it is not an axis) is one of ``values``."""
    if name in rows.domain:
        return rows.one_of(name, *values)
    return np.full(rows.count, value_of(rows.problem.base, name) in values)


def _takes(rows: Rows, what: str, never: Any = None) -> Mask:
    """Rows whose synchronisation scheme has a period, a bound or servers (``what``)."""
    return _has(rows, "sync", *(name for name, one in SCHEMES.items() if getattr(one, what) != never))


def _apart(rows: Rows) -> Mask:
    """Rows whose replicas step on their own and exchange parameters."""
    return np.asarray(~_has(rows, "sync", "bsp") | ~_has(rows, "servers", None))


def _reduces(rows: Rows) -> Mask:
    """Rows with gradients to sum: of replicas, or of a table tied over both ends of a pipeline."""
    tied = rows.problem.graph.tied_embeddings
    return np.asarray(shares(rows) | (tied & (rows["pp"] > 1)))


def _sync_fits(rows: Rows) -> Mask:
    asked = np.zeros(rows.count, dtype=bool)
    for name, together in (("sync", "bsp"), ("servers", None)):
        asked |= ~rows.one_of(name, together) if name in rows.domain else False
    return _states_kept(rows) & _experts_kept(rows) & ~(asked & both_ends(rows))


def _away(rows: Rows) -> Mask:
    """Rows whose optimizer states are on the host."""
    return ~_has(rows, "offload_optimizer", "none")


def _pipelined_recomputation(rows: Rows) -> Mask:
    """Rows that recompute whole layers in a pipeline."""
    whole = [name for name in rows.domain["recompute"] if FULL in modes(name)]
    return np.asarray((rows["pp"] > 1) & rows.one_of("recompute", *whole))


_STATES = deciding(MEMORY, REPLICAS)
_SENT = deciding(REPLICAS)
_EVERYTHING = deciding(MEMORY, BLOCKS, REPLICAS)
_CONTEXT = deciding(MEMORY, BLOCKS)
REQUESTED = (
    on_request("precision", _EVERYTHING, said=None),
    on_request("optimizer", _STATES, said="{}"),
    on_request("moment_dtype", _STATES, lambda rows: ~_has(rows, "optimizer", *OWN_WIDTH), said="{} moments"),
    on_request("grad_dtype", _STATES, said=None, is_decided=True),
    on_request("reduce_dtype", _SENT, _reduces, said="gradients sent as {}"),
    on_request("cp_method", _CONTEXT, lambda rows: rows["cp"] > 1, _context_kept, said=None, is_decided=True),
    on_request(
        "cp_balance", _CONTEXT, lambda rows: rows["cp"] > 1, _context_kept, said=None, is_decided=True
    ),
    on_request(  # hybrids: some context ranks exchange heads, the others use the method
        "ulysses",
        _CONTEXT,
        lambda rows: (rows["cp"] > 1) & ~_has(rows, "cp_method", "ulysses"),
        _context_kept,
    ),
    on_request("etp", _EVERYTHING, lambda rows: rows["tp"] > 1, _experts_kept),
    on_request(
        "capacity_factor",
        deciding(MEMORY, BLOCKS),
        lambda rows: np.full(rows.count, rows.problem.graph.is_mixture),
        said="capacity {}",
    ),
    on_request("ep_overlap", deciding(BLOCKS), lambda rows: rows["ep"] > 1),
    on_request("token_dispatch", deciding(BLOCKS), lambda rows: rows["ep"] > 1),
    on_request("sync", _STATES, legal=_sync_fits, said="{}"),
    on_request(
        "sync_every",
        _SENT,
        lambda rows: _takes(rows, "sync_every"),
        said="every {} steps",
        companions={"sync": "local-sgd"},
    ),
    on_request("staleness", _SENT, lambda rows: _takes(rows, "staleness"), companions={"sync": "ssp"}),
    on_request(
        "servers",
        _STATES,
        lambda rows: _takes(rows, "servers", "no"),
        _sync_fits,
        said="{} servers",
        companions={"sync": "asp"},
    ),
    on_request(
        "gather_dtype", _SENT, lambda rows: gathers(rows) | _apart(rows), said="parameters sent as {}"
    ),
    on_request(
        "reshard_after_forward",
        _STATES,
        lambda rows: (rows["zero"] == 3) & fully_sharded(rows),
        said=None,
        is_decided=True,
    ),
    on_request("offload_optimizer", _STATES, legal=_states_kept, said="states on {}"),
    on_request("offload_ratio", _STATES, _away),
    on_request("offload_delayed", _SENT, _away),
    on_request("offload_gradients", _STATES, _away, _states_kept, said=None),
    on_request("offload_parameters", _STATES, legal=_states_kept, said="parameters on {}"),
    on_request(
        "offload_activations",
        _STATES,
        legal=lambda rows: _states_kept(rows) & (~undecided(rows) | (rows["offload_activations"] == 0)),
    ),
    on_request(
        "recompute_early",
        deciding(MEMORY, BLOCKS),
        _pipelined_recomputation,
        partial(lawful, names=EARLY, rules=("early",)),
        said="ahead of its backward",
    ),
    on_request(
        "bucket_bytes",
        _SENT,
        lambda rows: shares(rows) & ~fully_sharded(rows),
        said=None,
        is_decided=True,
    ),
)
REQUESTED_NAMES = tuple(axis.name for axis in REQUESTED)
ALL_NAMES = (*AXIS_NAMES, *REQUESTED_NAMES)


def names_that_decide(what: str) -> tuple[str, ...]:
    """All axes that decide MEMORY, BLOCKS, SHAPE or REPLICAS, by name."""
    return tuple(axis.name for axis in (*AXES, *REQUESTED) if what in axis.decides)


def companions(name: str) -> Mapping[str, Any]:
    """Values of other axes that a value of an axis requires."""
    return next((axis.companions for axis in REQUESTED if axis.name == name), {})


def offered(problem: Problem) -> tuple[Requested, ...]:
    """Requested axes that are asked for, or for which the base plan differs from the default."""
    asked = [flat.SYNONYMS.get(name, name) for name in problem.constraints.fixed]
    return tuple(axis for axis in REQUESTED if axis.name in asked or axis.domain(problem))
