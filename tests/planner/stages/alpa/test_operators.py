"""What roles cost an operator."""

from dataclasses import replace

import numpy as np
import pytest

import simpar
from simpar.architectures.catalogue import load_model
from simpar.planner.stages.alpa.operators import Metric, OperatorCosts
from simpar.planner.stages.alpa.roles import Pricer
from simpar.program.emission.collective_prices import Prices
from simpar.program.structure.stage_builder import StageView
from simpar.simulation import make_job

MESH = (4,)


@pytest.fixture(scope="module")
def layer():
    """A Llama layer and what its operators cost on four GPUs."""
    cluster = simpar.Cluster("dgx-h100")
    training = simpar.Training(seq_len=2048, global_batch=8)
    job = make_job("llama-3-8b", cluster, simpar.Plan(zero=1), training)
    job = replace(job, layout=replace(job.layout, micro_batch=4))
    pricer = Pricer(Prices.of_job(job, cluster.in_training), MESH)
    block = load_model("llama-3-8b").blocks["layer"]
    return block, OperatorCosts(job, pricer, StageView(job, pricer.stage, 0).dims(block)), pricer


def priced(layer, name, *, saved=True):
    """An operator under all of its choices, with their metrics."""
    block, costs, _ = layer
    op = block.operator(name)
    chosen = costs.chosen(op, *costs.choices(op))
    return chosen, costs.metrics(chosen, saved=saved)


def test_work_of_products_is_never_repeated(layer):
    """As long as an axis has something else to do; what is light may be."""
    for name, repeats in (("mlp_up", False), ("mlp_norm", True)):
        chosen, _ = priced(layer, name)
        idle = chosen.table.idle[chosen.index]
        assert (idle > 0).any() == repeats
        assert (idle == 0).any()


def test_shards_of_weights_hold_a_part(layer):
    """By columns a rank holds a quarter, by batch all of it, or a quarter that is gathered for every pass."""
    chosen, metrics = priced(layer, "mlp_up")
    by_columns = [at for at, _ in enumerate(chosen.index) if chosen.by["columns"][at] == 4]
    by_batch = np.flatnonzero((chosen.by["batch"] == 4) & ~chosen.gathered)
    gathered = np.flatnonzero((chosen.by["batch"] == 4) & chosen.gathered)
    whole, part, sharded = (metrics[Metric.STATIC, at].max() for at in (by_batch, by_columns, gathered))
    assert part < whole
    assert sharded < whole
    assert (metrics[Metric.SYNC, by_columns] == 0).all()
    assert (metrics[Metric.SYNC, by_batch] > 0).all()
    assert (metrics[Metric.EXPOSED][~chosen.gathered] == 0).all()


def test_what_is_not_kept_for_backward_saves_nothing(layer):
    """Of the same choices; all else is the same."""
    _, kept = priced(layer, "mlp_up", saved=True)
    _, thrown = priced(layer, "mlp_up", saved=False)
    assert (thrown[Metric.SAVED] == 0).all()
    assert (kept[Metric.SAVED] > 0).all()
    others = [metric for metric in Metric if metric is not Metric.SAVED]
    assert np.array_equal(kept[others], thrown[others])


def test_a_forward_is_a_part_of_a_pass(layer):
    """Kernels of the forward and of both backwards."""
    for name in ("qkv", "mlp_norm", "activation"):
        _, metrics = priced(layer, name)
        assert (metrics[Metric.FORWARD] > 0).all()
        assert (metrics[Metric.FORWARD] < metrics[Metric.PASS]).all()
