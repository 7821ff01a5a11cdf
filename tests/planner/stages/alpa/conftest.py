"""Small stages to shard in every way."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

import simpar
from simpar.architectures.catalogue import load_model
from simpar.architectures.graph import Block
from simpar.planner.stages.alpa.build import Chain, build_graph
from simpar.planner.stages.alpa.operators import Metric
from simpar.planner.stages.alpa.roles import Pricer
from simpar.program.emission.collective_prices import Prices
from simpar.simulation import make_job

TRAINING = simpar.Training(seq_len=2048, global_batch=64)
THREE = {"attention": ("qkv", "attention", "o_proj"), "mlp": ("mlp_norm", "mlp_up", "mlp_down")}


def three_operators(name):
    """Three operators of a Llama layer as a block of their own."""
    layer = load_model("llama-3-8b").blocks["layer"]
    ops, before = [], "input"
    for each in THREE[name]:
        op = layer.operator(each)
        saves = tuple(key for key in ("lse",) if key in op.saves)
        columns = op.columns
        if each == "mlp_up":
            columns = ((1, ("ffn",)),)  # without the gate's product between them
        ops.append(replace(op, inputs=(before,), saves=(before, *saves), columns=columns))
        before = each
    return Block(name, tuple(ops))


def graph_of(block, mesh, *, micro_batch=8):
    """Choices of a block that is repeated twice on a mesh of H100s."""
    cluster = simpar.Cluster("dgx-h100", nodes=max(1, int(np.prod(mesh)) // 8))
    job = make_job("llama-3-8b", cluster, simpar.Plan(zero=1), replace_batch(cluster))
    job = replace(job, layout=replace(job.layout, micro_batch=micro_batch), training=TRAINING)
    chain = Chain((block, block), "embedding")
    return build_graph(job, Pricer(Prices.of_job(job, cluster.in_training), mesh), chain)


def replace_batch(cluster):
    """A training whose batch any layout divides."""
    return TRAINING.model_copy(update={"global_batch": cluster.world_size})


def every_assignment(graph):
    """All choices of all variables."""
    return product(*(range(len(variable)) for variable in graph.variables))


def value_of(graph, assignment, weights):
    """The weighted metrics of an assignment, infinite where a change is impossible: the sum as it is defined."""
    total = 0.0
    for term in graph.unary:
        total += graph.counts[term.block] * (weights @ term.metrics[:, assignment[term.variable]])
    for tensor in graph.tensors:
        written = tensor.writes[assignment[tensor.writer]]
        for state in {int(codes[assignment[variable]]) for variable, codes in tensor.readings}:
            total += graph.counts[tensor.block] * weights[Metric.PASS] * tensor.pass_s[written, state]
    return total


@pytest.fixture(scope="session")
def small_graph():
    """Builder: ``small_graph(name of three operators, mesh, **options)``."""
    return lambda name, mesh, **options: graph_of(three_operators(name), mesh, **options)


@pytest.fixture(scope="session")
def assignments():
    """Builder: all assignments of a graph."""
    return every_assignment


@pytest.fixture(scope="session")
def value():
    """Builder: ``value(graph, assignment, weights)``, the sum as it is defined."""
    return value_of
