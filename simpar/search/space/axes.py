"""The axes of the uniform space, as a table: what a launcher can choose, and which choices repeat another.

An axis has a domain (a few values) and a rule: a vectorised mask over rows of the space that says which of its
values are legal there and do not merely rename a plan that another row stands for. Axes are joined in the order of
the table, so that a rule sees the axes before its own. An entry also says what its axis decides, from which the keys
follow under which searches share what they compute. To add an axis, add an entry; its name is a flat key of the Plan,
or it has a path. Axes that are searched on request only are in :mod:`simpar.search.space.optional_axes`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from simpar.models.recompute import OPTIMAL, SIMPLE, every
from simpar.plan import flat
from simpar.plan.check import MAX_PASSES, Target, allows_tensor_parallel, keeps_rules, refuse_tensor_parallel
from simpar.plan.mirrored import FOLDED
from simpar.plan.plan import Plan
from simpar.plan.schedules import SCHEDULES, declared, usual_schedule
from simpar.plan.sync import apart
from simpar.search.problem import Problem
from simpar.search.space.table import Mask, Rows

DEFAULT_ORDER = "tp-cp-dp-pp"
ORDERS = (DEFAULT_ORDER, "tp-cp-pp-dp")
RECOMPUTE = (*SIMPLE, every(2))
MAX_MICRO_BATCH = 64
STATES_ASKED = ("offload", "reshard", "sync")
"""What axes on request begin with that tell ZeRO-3 from ZeRO-2 in any pipeline."""
LEAST_PIECE = 2048
"""Tokens of a sequence below which a rank's piece gets only by halving it once."""
MEMORY, BLOCKS, SHAPE, REPLICAS = "memory", "blocks", "shape", "replicas"
"""What an axis may decide: whether a plan fits; passes of a block, kernels and collectives; how stages are cut and in
which order they work; what ranks that hold the same parameters send each other, and when."""


def axis_named(name: str) -> str:
    """The axis that a key of the Plan is, or a synonym of one."""
    name = flat.SYNONYMS.get(name, name)
    return "order" if name == "rank_order" else name


@dataclass(frozen=True)
class Axis:
    """One axis: its name, its domain, which rows keep their value, and what it ``decides``.

    ``path`` is its section and field in a Plan where its name is no flat key of it.
    """

    name: str
    decides: frozenset[str]
    domain: Callable[[Problem], Sequence[Any]]
    keep: Callable[[Rows], Mask]
    path: tuple[str, str] | None = None


def divisors(number: int, most: int | None = None) -> list[int]:
    """Divisors up to ``most``, smallest first."""
    return [n for n in range(1, min(number, most or number) + 1) if number % n == 0]


def undecided(rows: Rows, which: Any = ...) -> Mask:
    """Which of some rows wait for the choice by layer that ``recompute: optimal`` stands for."""
    names = rows.domain.get("recompute", ())
    if OPTIMAL not in names:
        return np.zeros(rows.count if which is ... else len(np.atleast_1d(which)), dtype=bool)
    return np.atleast_1d(rows.code["recompute"][which] == names.index(OPTIMAL))


def everything(rows: Rows) -> Mask:
    """All rows."""
    return np.ones(rows.count, dtype=bool)


def tensor_degrees(problem: Problem) -> list[int]:
    """Degrees that divide the devices and the sizes of the model."""
    degrees, target = divisors(problem.cluster.world_size, int(problem.graph.dims["heads"])), _target(problem)
    return [tp for tp in degrees if allows_tensor_parallel(tp, target)]


def _tensor_fits(rows: Rows) -> Mask:
    """Degrees that the model allows, of those given. Raises UserError with the reason where it allows none."""
    legal = np.isin(rows["tp"], tensor_degrees(rows.problem))
    if not legal.any():
        for tp in rows.domain["tp"]:
            refuse_tensor_parallel(tp, _target(rows.problem))
    return legal


def _target(problem: Problem) -> Target:
    return Target(problem.graph, problem.training, problem.cluster.world_size, 1)


def _context_degrees(problem: Problem) -> list[int]:
    """Halves of any sequence, and pieces of at least so many tokens. States are carried along whole sequences.

    Where activations are what fills the memory, pieces win at any length over more recomputation or tensor ranks.
    """
    if problem.graph.has_state:
        return [1]
    return divisors(problem.training.seq_len, max(2, problem.training.seq_len // LEAST_PIECE))


def _context_fits(rows: Rows) -> Mask:
    """Sequences divide into the chunks of every rank."""
    problem, choice = rows.problem, rows.problem.base.context_parallel
    seq, asked = problem.training.seq_len, {"cp_method", "cp_balance"} & set(problem.constraints.fixed)
    chunks = 1 if asked or "contiguous" in (choice.cp_balance, problem.stack.context.balance) else 2
    return np.asarray((rows["cp"] == 1) | (seq % (rows["cp"] * chunks) == 0))


def _schedule_fits(rows: Rows) -> Mask:
    """One schedule where nothing is pipelined, or a single microbatch makes those alike that do not split backwards."""
    pp, m = rows["pp"], rows["microbatches"]
    names = rows.domain["schedule"]
    single = [at for at, name in enumerate(names) if declared(name).chunks == 1 and name not in FOLDED]
    first = np.isin(rows.code["schedule"], single[:1])
    alike = [names[at] for at in single if not (declared(names[at]).splits or declared(names[at]).sliced)]
    plain = (pp == 1) | ((m == 1) & rows.one_of("schedule", *alike))
    legal = everything(rows)
    for name in names:
        legal &= ~rows.one_of("schedule", name) | declared(name).allows(pp, m)
    found = np.where(plain, first, legal)
    for name in with_slices_of_tokens(rows):
        may = (rows["cp"] == 1) & may_be_sliced(rows.problem, name)
        found &= ~rows.one_of("schedule", name) | may
    return np.asarray(found)


def both_ends(rows: Rows) -> Mask:
    """Rows whose microbatches enter at both ends of the pipeline."""
    return rows.one_of("schedule", *FOLDED)


def with_slices_of_tokens(rows: Rows) -> list[str]:
    """Schedules of the rows that run slices of tokens."""
    return [name for name in map(str, rows.domain["schedule"]) if declared(name).sliced]


def may_be_sliced(problem: Problem, schedule: str) -> bool:
    """Whether sequences of the problem may go through a pipeline in slices."""
    plan = problem.base.with_values(schedule=schedule, layers=None, actions=None)
    return keeps_rules(plan, Target(problem.graph, problem.training, problem.cluster.world_size, 1), "slices")


def _chunks_fit(rows: Rows) -> Mask:
    """Several chunks where the schedule has them, layers spread evenly over them or nearly so."""
    layers, stages, vpp = len(rows.problem.graph.layers), rows["stages"], rows["vpp"]
    even = (layers % stages == 0) | ((layers + 2) % stages == 0) | (vpp <= 4)
    right = np.zeros(rows.count, dtype=bool)
    for name in map(str, rows.domain["schedule"]):
        each = declared(name)
        right |= rows.one_of("schedule", name) & ((vpp > 1) & even if each.any_chunks else vpp == each.chunks)
    short = stages * rows["microbatches"] <= MAX_PASSES
    return np.asarray(right & short & (stages <= layers + 2) & ((rows["pp"] > 1) | (vpp == 1)))


def _zero_fits(rows: Rows) -> Mask:
    """One stage where nobody shares anything; FSDP shards gradients at least."""
    fsdp = rows.problem.base.data_parallel.kind == "fsdp"
    least = 2 if fsdp else 0
    alone = (rows.code["zero"] == 0) | (shares(rows) & (rows["zero"] >= max(least, 1)))
    return np.asarray(np.where(rows["width"] > 1, rows["zero"] >= least, alone))


def _replicas_fit(rows: Rows) -> Mask:
    """Replicas of fully sharded states; as many replicas as ranks would shard nothing."""
    width, hsdp = rows["width"], rows["hsdp"]
    legal = (width % hsdp == 0) & (width // hsdp > 1) & (rows["zero"] == 3)
    if rows.problem.graph.is_mixture:
        legal &= rows["copies"] % hsdp == 0
    return np.asarray(np.where(hsdp == 1, ~_repeats_stage_two(rows), legal))


def _repeats_stage_two(rows: Rows) -> Mask:
    """ZeRO-3 that is ZeRO-2 by another name: pipelines gather parameters once a step and keep them either way.

    Not where anything is asked for that tells the two apart; weights that are not trained are sharded by ZeRO-3 alone.
    """
    problem, base = rows.problem, rows.problem.base
    none = np.zeros(rows.count, dtype=bool)
    if not problem.stack.overlap.once_in_pipelines or 2 not in rows.domain["zero"]:
        return none
    if base.data_parallel.kind is None and problem.stack.data_parallel != "fsdp":
        return none
    asked = any(name.startswith(STATES_ASKED) for name in problem.constraints.fixed)
    differs = base.offload.is_used or base.data_parallel.reshard_after_forward is not None or apart(base)
    if asked or differs or problem.held_to is not None or _has_frozen(problem):
        return none
    return np.asarray(fully_sharded(rows) & (rows["zero"] == 3) & (rows["pp"] > 1))


def _has_frozen(problem: Problem) -> bool:
    operators = (op for block in problem.graph.blocks.values() for op in block.operators)
    return any(not weight.trainable for op in operators for weight in op.weights)


def _sequence_fits(rows: Rows) -> Mask:
    lengths = {int(dims.get("seq", rows.problem.training.seq_len)) for dims in rows.problem.graph.scopes}
    legal = rows["tp"] > 1
    for length in sorted(lengths):
        legal = legal & (length // rows["cp"] % rows["tp"] == 0)
    needed = (rows["ep"] > 1) & (rows["tp"] > 1)  # each token comes from one rank
    return np.asarray(np.where(rows["sequence_parallel"], legal, ~needed))


def _reduce_overlap_fits(rows: Rows) -> Mask:
    """Behind the last backward only where whole gradients are kept until then: under ZeRO-2 and 3 by few stacks."""
    once = rows.problem.stack.once_a_step(fully_sharded(rows), rows["pp"])
    kept = (rows["zero"] < 2) | once
    first = rows.code["overlap_grad_reduce"] == 0  # stands for both where nothing is reduced
    return np.asarray(rows["overlap_grad_reduce"] | (kept & (shares(rows) | first)))


def shares(rows: Rows) -> Mask:
    """Where several ranks have the same parameters: replicas of the model, or of its experts among tensor ranks."""
    return np.asarray((rows["width"] > 1) | (rows["copies"] > 1))


def gathers(rows: Rows) -> Mask:
    """Where ranks hold shards of what they update."""
    return np.asarray((rows["zero"] > 0) & (np.maximum(rows["width"], rows["copies"]) > rows["hsdp"]))


def fully_sharded(rows: Rows) -> Mask:
    """Where data parallelism works block by block (FSDP) instead of in flat buckets."""
    kind = rows.problem.base.data_parallel.kind
    return rows.problem.stack.shards(rows["zero"]) if kind is None else np.full(rows.count, kind == "fsdp")


def _order_matters(rows: Rows) -> Mask:
    """Where data and pipeline ranks share domains; whole domains that are alike may change places.

    An export target may know only one of the orders.
    """
    problem = rows.problem
    cluster, differ = problem.cluster, problem.perturbation
    alike = not (cluster.leaves_bind or cluster.scaling or differ.slow_ranks or differ.jitter_sigma > 0)
    alike = alike and problem.held_to is None
    whole = (rows["tp"] * rows["cp"] % cluster.domain_size == 0) & alike
    return np.asarray((rows.code["order"] == 0) | ((rows["width"] > 1) & (rows["pp"] > 1) & ~whole))


def _schedules(problem: Problem) -> list[str]:
    """The usual one first: it stands for all of them where nothing is pipelined."""
    asked = problem.constraints.schedules
    kinds = ("by default", "when named") if asked else ("by default",)
    found = [each.name for each in SCHEDULES.values() if each.searched in kinds]
    return sorted((name for name in found if name in (asked or found)), key=usual_schedule().__ne__)


def deciding(*what: str) -> frozenset[str]:
    """What an axis decides, of MEMORY, BLOCKS, SHAPE, REPLICAS."""
    return frozenset(what)


AXES = (
    Axis("tp", deciding(MEMORY, BLOCKS, REPLICAS), tensor_degrees, _tensor_fits),
    Axis("cp", deciding(MEMORY, BLOCKS, REPLICAS), _context_degrees, _context_fits),
    Axis(
        "pp",
        deciding(MEMORY, SHAPE, REPLICAS),
        lambda problem: divisors(problem.cluster.world_size, len(problem.graph.layers) + 2),
        lambda rows: (
            (rows.problem.cluster.world_size % (rows["tp"] * rows["cp"] * rows["pp"]) == 0)
            & (rows.problem.training.global_batch % np.maximum(rows["dp"], 1) == 0)
        ),
    ),
    Axis(  # over ranks of one stage
        "ep",
        deciding(MEMORY, BLOCKS, REPLICAS),
        lambda problem: divisors(problem.graph.dims["experts"]) if problem.graph.is_mixture else [1],
        lambda rows: (rows["ep"] == 1) | (rows["tp"] * rows["width"] % rows["ep"] == 0),
    ),
    Axis(
        "micro_batch",
        deciding(MEMORY, BLOCKS),
        lambda problem: divisors(problem.training.global_batch, MAX_MICRO_BATCH),
        lambda rows: rows.problem.training.global_batch // rows["dp"] % rows["micro_batch"] == 0,
    ),
    Axis("schedule", deciding(MEMORY, SHAPE), _schedules, _schedule_fits),
    Axis(
        "vpp",
        deciding(MEMORY, SHAPE),
        lambda problem: range(1, (len(problem.graph.layers) + 2) // 2 + 1),
        _chunks_fit,
    ),
    Axis("zero", deciding(MEMORY, REPLICAS), lambda _: (0, 1, 2, 3), _zero_fits),
    Axis(
        "hsdp",
        deciding(MEMORY, REPLICAS),
        lambda problem: divisors(problem.cluster.world_size),
        _replicas_fit,
    ),
    Axis("sequence_parallel", deciding(MEMORY, BLOCKS, REPLICAS), lambda _: (False, True), _sequence_fits),
    Axis(  # a choice by layer is made for whole sequences that enter at the first rank
        "recompute",
        deciding(MEMORY, SHAPE),
        lambda _: RECOMPUTE,
        lambda rows: (
            ~rows.one_of("recompute", OPTIMAL)
            | ~rows.one_of("schedule", *with_slices_of_tokens(rows), *FOLDED)
        ),
    ),
    Axis(
        "tp_overlap",
        deciding(BLOCKS),
        lambda _: (False, True),
        lambda rows: ~rows["tp_overlap"] | rows["sequence_parallel"],
        path=("tensor_parallel", "overlap"),
    ),
    Axis("overlap_grad_reduce", deciding(REPLICAS), lambda _: (True, False), _reduce_overlap_fits),
    Axis(  # only where whole parameters are gathered once a step
        "overlap_param_gather",
        deciding(REPLICAS),
        lambda _: (True, False),
        lambda rows: (rows.code["overlap_param_gather"] == 0) | (gathers(rows) & ~fully_sharded(rows)),
    ),
    Axis("order", deciding(REPLICAS), lambda _: ORDERS, _order_matters, path=("mesh", "order")),
)
AXIS_NAMES = tuple(axis.name for axis in AXES)
MEMORY_AXES = tuple(axis for axis in AXES if MEMORY in axis.decides)
LATE_AXES = tuple(axis for axis in AXES if MEMORY not in axis.decides)
"""Axes that do not change what fits in memory: they are joined to what fits alone."""
_PATHS = {axis.name: axis.path for axis in AXES if axis.path}


def path_of(name: str) -> tuple[str, str]:
    """Section and field of an axis, or of any flat key, in a Plan; the section is empty for what stands in none."""
    return _PATHS.get(name, (flat.SECTION_OF.get(name, ""), name))


def written(name: str, value: Any) -> dict[str, Any]:
    """A value of an axis as a plan file has it."""
    if name not in _PATHS:
        return {name: value}
    section, field = _PATHS[name]
    return {section: {field: flat.axes(value)}}


def value_of(plan: Plan, name: str) -> Any:
    """What a plan has on an axis, or for any flat key, as searches name it; the usual schedule where none is given."""
    if name == "schedule":
        return plan.schedule
    section, field = path_of(name)
    found = getattr(getattr(plan, section) if section else plan, field)
    return "-".join(found) if name == "order" else found
