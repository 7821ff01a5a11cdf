"""Choices of the mesh: degrees of parallelism and the order of ranks."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from simpar.plan.choices.choice import (
    AMONG,
    BLOCKS,
    JOB,
    LAYOUT,
    MEMORY,
    OPS,
    REPLICAS,
    SHAPE,
    SIZES,
    TABLE,
    TRAFFIC,
    Axis,
    Change,
    Choice,
    Columns,
    Flag,
    Moves,
    OptionalAxis,
    Question,
    Size,
    divisors,
    double_and_half,
    in_section,
    make_effects,
    replace_with,
)
from simpar.plan.choices.context_parallel import LEAST_PIECE, all_context_degrees, context_degrees, context_fits
from simpar.plan.choices.experts import KEEPS_EXPERTS, experts_fit
from simpar.plan.choices.target import Workload
from simpar.plan.choices.tensor_parallel import tensor_degrees, tensor_fits
from simpar.units import Flags

if TYPE_CHECKING:
    from simpar.plan.plan import Plan

MAX_TP = 64
"""The largest tensor-parallel degree of menus."""
DEFAULT_ORDER = "tp-cp-dp-pp"
ORDERS = (DEFAULT_ORDER, "tp-cp-pp-dp")
CommunicationKind = Literal["tp", "pp", "dp", "cp", "ep"]
COMMUNICATION: tuple[str, ...] = get_args(CommunicationKind)
"""Kinds of communication, by the degree of parallelism that needs it."""
PIPELINE = "pp"
"""The axis of pipeline stages, and the communication between them: messages; all other kinds are collectives."""
COMMUNICATION_NAMES = {
    "tp": "tensor-parallel collective", "pp": "pipeline message", "dp": "data-parallel collective",
    "cp": "context-parallel collective", "ep": "expert-parallel collective",
}  # fmt: skip
INSIDE_BLOCKS = tuple(kind for kind in COMMUNICATION if kind not in ("pp", "dp"))
"""Kinds of communication that happen inside the passes of a block."""
LABELLED = ("tp", "cp", "ep", "pp", "dp")
"""Degrees of parallelism as labels name them: ranks that exchange most come first."""


def split_order(order: Any) -> Any:
    """Axes of a rank order such as "tp-cp-ep-dp-pp"; ep is no axis of its own."""
    names = order.split("-") if isinstance(order, str) else order
    return tuple(name for name in names if name != "ep") if isinstance(names, list | tuple) else names


def _inside_domains(problem: Question) -> list[int]:
    """Tensor-parallel degrees inside a scale-up domain."""
    return [tp for tp in tensor_degrees(problem) if tp <= problem.cluster.domain_size]


def _pipeline_degrees(problem: Question) -> list[int]:
    return divisors(problem.cluster.world_size, len(problem.graph.layers) + 2)


def _pipeline_fits(rows: Columns) -> Flags:
    whole = rows.problem.cluster.world_size % (rows["tp"] * rows["cp"] * rows["pp"]) == 0
    return np.asarray(whole & (rows.problem.training.global_batch % np.maximum(rows["dp"], 1) == 0))


def _expert_degrees(problem: Question) -> list[int]:
    return divisors(problem.graph.dims["experts"]) if problem.graph.is_mixture else [1]


def _order_matters(rows: Columns) -> Flags:
    """Rows in which replicas and pipeline ranks share domains; identical whole domains may be swapped.

    An export target may support only one of the orders.
    """
    problem = rows.problem
    cluster, differ = problem.cluster, problem.perturbation
    alike = not (cluster.leaves_bind or cluster.scaling or differ.slow_ranks or differ.jitter_sigma > 0)
    alike = alike and problem.export_target is None
    whole = (rows["tp"] * rows["cp"] % cluster.domain_size == 0) & alike
    return np.asarray((rows.code["order"] == 0) | ((rows["dp"] > 1) & (rows["pp"] > 1) & ~whole))


def _with_its_ranks(plan: Plan, name: str, **others: Any) -> tuple[Change]:
    """The plan with one rank of an axis, whose ranks become data parallel."""
    return ({name: 1, "dp": plan.mesh.replicas * plan.get(name), **others},)


def _pipelines(plan: Plan, pp: int) -> Iterator[Change]:
    """A pipeline of ``pp`` ranks: one rank has no chunks, and more ranks may have proportionally fewer."""
    vpp = plan.pipeline.vpp
    yield {"pp": pp, "vpp": 1} if pp == 1 and vpp > 1 else {"pp": pp}
    if vpp > 1 and (fewer := vpp * plan.mesh.pp // pp) > 1:
        yield {"pp": pp, "vpp": fewer}


def _experts(facts: Workload) -> int:
    return int(facts.graph.dims["experts"]) if facts.graph.is_mixture else 1


_EVERYTHING = make_effects(MEMORY, BLOCKS, REPLICAS, TRAFFIC, AMONG)
_SIZED = _EVERYTHING | {OPS}
CHOICES = in_section(
    "mesh",
    Choice(
        "tp",
        is_exported=True,
        is_column=True,
        synonyms=("tensor_parallel_size", "tensor_model_parallel_size", "tensor_parallel_degree"),
        flag=Flag(int, "Tensor-parallel degree"),
        reopens=("dp", "offload_gradients"),
        idle_at_one="sequence_parallel",
        measured="tensor-parallel degree",
        axis=Axis(_SIZED | {SIZES}, tensor_degrees, tensor_fits, untuned=_inside_domains),
        moves=Moves(
            lambda plan, _: double_and_half(plan.mesh.tp),
            size=Size(lambda *_: MAX_TP, lambda facts: facts.world_size),
            replacements=lambda plan: _with_its_ranks(plan, "tp", sequence_parallel=None),
            after="micro_batch",
        ),
    ),
    Choice(
        "cp",
        is_exported=True,
        is_column=True,
        synonyms=("context_parallel_size", "context_parallel_degree"),
        flag=Flag(int, "Context-parallel degree"),
        reopens=("dp", "offload_gradients"),
        measured="context-parallel degree",
        any_degree=True,
        axis=Axis(
            _SIZED, context_degrees, context_fits, after="tp", possible=all_context_degrees, untuned=lambda _: (1,)
        ),
        moves=Moves(
            lambda plan, _: double_and_half(plan.mesh.cp) if plan.mesh.cp > 1 else (),
            size=Size(
                lambda _, facts: max(1, 2 * facts.training.seq_len // LEAST_PIECE), lambda facts: facts.world_size
            ),
            room=lambda plan: {"cp": 1} if plan.mesh.cp > 1 else {},
            replacements=lambda plan: _with_its_ranks(plan, "cp"),
            after="pp",
        ),
    ),
    Choice(
        "dp",
        is_exported=True,
        is_column=True,
        synonyms=("data_parallel_size", "data_parallel_degree"),
        flag=Flag(int, "Data-parallel degree (default: follows from the world size)"),
        measured="data-parallel degree; blank: what is left of n_gpus",
        is_held=False,
        made_for=(LAYOUT, JOB),
    ),
    Choice(
        "pp",
        is_exported=True,
        is_column=True,
        synonyms=("pipeline_parallel_size", "pipeline_model_parallel_size", "pipeline_parallel_degree"),
        flag=Flag(int, "Pipeline-parallel degree"),
        reopens=("dp", "layers", "offload_gradients"),
        idle_at_one="schedule",
        measured="pipeline-parallel degree",
        any_degree=True,
        axis=Axis(
            make_effects(MEMORY, SHAPE, REPLICAS, OPS, TRAFFIC, TABLE, AMONG),
            _pipeline_degrees,
            _pipeline_fits,
            after="cp",
        ),
        moves=Moves(
            lambda plan, _: () if plan.pipeline.actions else double_and_half(plan.mesh.pp),
            size=Size(lambda _, facts: len(facts.graph.layers) + 2, lambda facts: facts.world_size),
            change=_pipelines,
            room=lambda plan: {"pp": plan.mesh.pp // 2} if plan.mesh.pp > 1 else {},
            replacements=lambda plan: _with_its_ranks(plan, "pp", vpp=1, schedule=None, layers=None, actions=None),
            after="tp",
        ),
    ),
    Choice(
        "ep",
        is_exported=True,
        is_column=True,
        synonyms=("expert_parallel_size", "expert_model_parallel_size", "expert_parallel_degree"),
        flag=Flag(int, "Expert-parallel degree"),
        measured="expert-parallel degree; blank: 1",
        any_degree=True,
        axis=Axis(_EVERYTHING | {SIZES}, _expert_degrees, experts_fit, after="pp"),
        moves=Moves(
            lambda plan, _: double_and_half(plan.mesh.ep) if plan.mesh.ep > 1 else (),
            size=Size(lambda _, facts: _experts(facts), _experts),
            room=lambda plan: {"ep": plan.mesh.ep // 2} if plan.mesh.ep > 1 else {},
            replacements=replace_with("ep", 1),
            after="cp",
        ),
    ),
    Choice(
        "etp",
        is_exported=True,
        synonyms=("expert_tensor_parallel_size", "expert_tensor_parallel_degree"),
        axis=OptionalAxis(
            make_effects(MEMORY, BLOCKS, REPLICAS, SIZES, AMONG),
            lambda rows: np.asarray(rows["tp"] > 1),
            rules=(KEEPS_EXPERTS,),
            after="ulysses",
        ),
    ),
    Choice(
        "order",
        is_exported=True,
        key="rank_order",
        read=lambda plan: "-".join(plan.mesh.order),
        axis=Axis(
            make_effects(REPLICAS, AMONG),
            lambda _: ORDERS,
            _order_matters,
            after="overlap_param_gather",
            possible=lambda _: ["-".join(order) for order in permutations(split_order(DEFAULT_ORDER))],
            untuned=lambda _: (DEFAULT_ORDER,),
        ),
        moves=Moves(replacements=replace_with("rank_order", DEFAULT_ORDER)),
    ),
)
DEGREES = tuple(choice.name for choice in CHOICES if choice.is_column)
"""The degrees of parallelism, in the order of the mesh, experts last."""
