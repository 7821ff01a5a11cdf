"""A forward and a backward of DualPipe against the published trace of one, by kind of kernel.

github.com/deepseek-ai/profile-data, train.json (2025): four layers of DeepSeek-V3 each way, experts over 64 H800, no
tensor parallelism, routing forced to balance, messages between stages left out. Sequences of 4,096 tokens as its
README says, one a microbatch: attention has 32 tiles of 128 queries for 128 heads and one sequence, casts have 4,096
rows. Products run on 112 of 132 multiprocessors.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import pytest

from simpar.cost.operators import WEIGHTS_IN_BLOCKS
from simpar.hardware.catalogue import load_cluster
from simpar.models.catalogue import load_model
from simpar.models.graph import Block, Operator, evaluate
from simpar.models.recompute import operators as recomputed
from simpar.models.training import Training
from simpar.plan.check import schedule_of
from simpar.plan.plan import Plan
from simpar.plan.sharding import rank_dims
from simpar.program.blocks.phases import COMPUTE
from simpar.program.blocks.rank_view import Job
from simpar.program.lower import lower
from simpar.program.structure.pairs import PAIR
from simpar.program.structure.templates import Node
from simpar.simulation import make_job
from simpar.units import MS, NS_PER_S

SPAN_S = 129.0 * MS
DENSE_S, GROUPED_S, WEIGHTS_S = 18.84 * MS, 22.93 * MS, 32.76 * MS
"""Products of blocks forward and backward to inputs, of experts, and those of the gradients of weights."""
CASTS_S = (13.76 + 1.82) * MS
"""Casts and transposes beside other kernels; 1.08 ms more run among the exchanges."""
EXPOSED_S = 4.2 * MS
"""Exchanges while no kernel runs."""
LAYERS = 4


@dataclass(frozen=True)
class Pair:
    """The pair as simpar has it, and the job that it is of."""

    job: Job
    node: Node

    @property
    def block(self) -> Block:
        """The layer that it has four of."""
        return self.job.graph.blocks[self.job.graph.layers[0]]

    def products_s(self, op: Operator) -> tuple[float, float]:
        """Seconds of an operator's products that all passes take: of activations, and of weights."""
        dims = rank_dims(self.job.graph, self.job.plan, self.job.training).of(op)
        rows, n, k = (float(evaluate(size, dims)) for size in (op.rows, op.columns, op.contraction))
        several = float(dims["experts"]) if op.kind == "grouped_matmul" else 1.0
        kernels, m = self.job.kernels, rows / several
        forwards = 1 + (op.name in recomputed(self.job.plan.memory.recompute))
        activations_s = forwards * kernels.gemm_time_s(m, n, k, batch=several)
        activations_s = activations_s + kernels.gemm_time_s(m, k, n, batch=several)
        weights_s = kernels.gemm_time_s(k, n, m, batch=several, accumulate=True)
        in_blocks = WEIGHTS_IN_BLOCKS[kernels.precision]
        times = LAYERS * self.slowdown
        return times * float(activations_s), times * float(in_blocks * weights_s)

    @property
    def slowdown(self) -> float:
        """How many times longer kernels take than alone: what the stack adds, and what exchanges hold."""
        kernels = [
            (step.duration_s, float(finish - start) / NS_PER_S)
            for _, segment in self.node.segments
            for step, start, finish in zip(segment.steps, segment.start_ns, segment.finish_ns, strict=True)
            if step.stream == COMPUTE
        ]
        return sum(took for _, took in kernels) / sum(float(alone) for alone, _ in kernels)

    def spent_s(self, *kinds: str) -> float:
        """Seconds of all kernels of operators of some kinds."""
        names = {op.name for op in self.block.operators if op.kind in kinds}
        return sum(
            float(finish - start) / NS_PER_S
            for _, segment in self.node.segments
            for step, start, finish in zip(segment.steps, segment.start_ns, segment.finish_ns, strict=True)
            if step.stream == COMPUTE and step.name in names
        )


@lru_cache(maxsize=1)
def pair() -> Pair:
    """Four layers each way on 64 H800, in a V of two ranks with the settings of the report."""
    whole = load_model("deepseek-v3")
    graph = replace(whole, layers=(whole.layers[-2],) * 4 * LAYERS)
    cluster, training = load_cluster("hgx-h800", 16), Training(seq_len=4096, global_batch=512)
    plan = Plan(
        pp=2, vpp=2, ep=64, schedule="dualpipev", micro_batch=1, zero=1, ep_overlap=True, token_dispatch="per_node",
        recompute="modules:layernorm+mla_up_proj+moe_act", precision="fp8_blockwise",
    )  # fmt: skip
    job = make_job(graph, cluster, plan, training, "hai-llm")
    entry = lower(job, cluster, schedule_of(job.plan, training), contention=False)
    nodes = (node for each in entry.actions for template in each.templates for node in template.nodes)
    return Pair(entry.job, next(node for node in nodes if node.kind == PAIR and len(node.segments) == LAYERS))


def test_a_pair_takes_as_long_as_traced() -> None:
    """129.0 ms from the first kernel to the last."""
    assert pair().node.duration_ns / NS_PER_S == pytest.approx(SPAN_S, rel=0.1)


def test_products_take_as_long_as_traced() -> None:
    """All of them 74.5 ms, and each of the three kinds of kernel."""
    found = pair()
    products = {op: found.products_s(op) for op in found.block.operators if "matmul" in op.kind}
    dense = sum(both[0] for op, both in products.items() if op.kind == "matmul")
    grouped = sum(both[0] for op, both in products.items() if op.kind == "grouped_matmul")
    weights = sum(both[1] for both in products.values())
    assert dense == pytest.approx(DENSE_S, rel=0.1)
    assert grouped == pytest.approx(GROUPED_S, rel=0.1)
    assert weights == pytest.approx(WEIGHTS_S, rel=0.1)
    assert dense + grouped + weights == pytest.approx(DENSE_S + GROUPED_S + WEIGHTS_S, rel=0.1)


def test_casts_take_as_long_as_traced() -> None:
    """15.6 ms of casts in rows, casts in columns and transposed weights: what product steps take beyond products."""
    found = pair()
    products_s = sum(sum(found.products_s(op)) for op in found.block.operators if "matmul" in op.kind)
    assert found.spent_s("matmul", "grouped_matmul") - products_s == pytest.approx(CASTS_S, rel=0.1)


def test_exchanges_are_hidden_but_for_a_few_milliseconds() -> None:
    """4.2 ms were exposed, most of them where ranks waited for each other's counts; here none are."""
    waits = sum(segment.parts_ns.get("ep", 0) for _, segment in pair().node.segments) / NS_PER_S
    assert abs(waits - EXPOSED_S) < 0.05 * SPAN_S
