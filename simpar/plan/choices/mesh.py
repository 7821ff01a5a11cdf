"""Choices of the mesh: degrees of parallelism and the order of ranks."""

from __future__ import annotations

from typing import Any

import numpy as np

from simpar.plan.choices.choice import (
    BLOCKS,
    MEMORY,
    REPLICAS,
    SHAPE,
    Axis,
    Choice,
    Columns,
    Flag,
    OptionalAxis,
    Question,
    deciding,
    divisors,
    in_section,
)
from simpar.plan.choices.context_parallel import context_degrees, context_fits
from simpar.plan.choices.experts import KEEPS_EXPERTS
from simpar.plan.choices.tensor_parallel import tensor_degrees, tensor_fits
from simpar.units import Flags

DEFAULT_ORDER = "tp-cp-dp-pp"
ORDERS = (DEFAULT_ORDER, "tp-cp-pp-dp")


def split_order(order: Any) -> Any:
    """Axes of a rank order such as "tp-cp-ep-dp-pp"; ep is no axis of its own."""
    names = order.split("-") if isinstance(order, str) else order
    return tuple(name for name in names if name != "ep") if isinstance(names, list | tuple) else names


def _pipeline_degrees(problem: Question) -> list[int]:
    return divisors(problem.cluster.world_size, len(problem.graph.layers) + 2)


def _pipeline_fits(rows: Columns) -> Flags:
    whole = rows.problem.cluster.world_size % (rows["tp"] * rows["cp"] * rows["pp"]) == 0
    return np.asarray(whole & (rows.problem.training.global_batch % np.maximum(rows["dp"], 1) == 0))


def _expert_degrees(problem: Question) -> list[int]:
    return divisors(problem.graph.dims["experts"]) if problem.graph.is_mixture else [1]


def _experts_fit(rows: Columns) -> Flags:
    """Rows whose experts divide over ranks of one stage."""
    return np.asarray((rows["ep"] == 1) | (rows["tp"] * rows["width"] % rows["ep"] == 0))


def _order_matters(rows: Columns) -> Flags:
    """Rows in which data and pipeline ranks share domains; identical whole domains may be swapped.

    An export target may support only one of the orders.
    """
    problem = rows.problem
    cluster, differ = problem.cluster, problem.perturbation
    alike = not (cluster.leaves_bind or cluster.scaling or differ.slow_ranks or differ.jitter_sigma > 0)
    alike = alike and problem.held_to is None
    whole = (rows["tp"] * rows["cp"] % cluster.domain_size == 0) & alike
    return np.asarray((rows.code["order"] == 0) | ((rows["width"] > 1) & (rows["pp"] > 1) & ~whole))


_EVERYTHING = deciding(MEMORY, BLOCKS, REPLICAS)
CHOICES = in_section(
    "mesh",
    Choice(
        "tp",
        synonyms=("tensor_parallel_size", "tensor_model_parallel_size", "tensor_parallel_degree"),
        flag=Flag(int, "Tensor-parallel degree"),
        reopens=("dp", "offload_gradients"),
        idle_at_one="sequence_parallel",
        axis=Axis(_EVERYTHING, tensor_degrees, tensor_fits),
    ),
    Choice(
        "cp",
        synonyms=("context_parallel_size", "context_parallel_degree"),
        flag=Flag(int, "Context-parallel degree"),
        reopens=("dp", "offload_gradients"),
        axis=Axis(_EVERYTHING, context_degrees, context_fits, after="tp"),
    ),
    Choice(
        "dp",
        synonyms=("data_parallel_size", "data_parallel_degree"),
        flag=Flag(int, "Data-parallel degree (default: follows from the world size)"),
        is_held=False,
    ),
    Choice(
        "pp",
        synonyms=("pipeline_parallel_size", "pipeline_model_parallel_size", "pipeline_parallel_degree"),
        flag=Flag(int, "Pipeline-parallel degree"),
        reopens=("dp", "layers", "offload_gradients"),
        idle_at_one="schedule",
        axis=Axis(deciding(MEMORY, SHAPE, REPLICAS), _pipeline_degrees, _pipeline_fits, after="cp"),
    ),
    Choice(
        "ep",
        synonyms=("expert_parallel_size", "expert_model_parallel_size", "expert_parallel_degree"),
        flag=Flag(int, "Expert-parallel degree"),
        axis=Axis(_EVERYTHING, _expert_degrees, _experts_fit, after="pp"),
    ),
    Choice(
        "etp",
        synonyms=("expert_tensor_parallel_size", "expert_tensor_parallel_degree"),
        axis=OptionalAxis(
            _EVERYTHING, lambda rows: np.asarray(rows["tp"] > 1), rules=(KEEPS_EXPERTS,), after="ulysses"
        ),
    ),
    Choice(
        "order",
        key="rank_order",
        read=lambda plan: "-".join(plan.mesh.order),
        axis=Axis(deciding(REPLICAS), lambda _: ORDERS, _order_matters, after="overlap_param_gather"),
    ),
)
