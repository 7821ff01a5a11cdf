"""What is kept on the host, where an update works on it, and what is refused."""

import pytest
import torch
from torch import nn

from simpar.architectures.catalogue import load_model
from simpar.architectures.training import Training
from simpar.errors import UserError
from simpar.plan.plan import Plan
from simpar.runtime.job import RunJob
from simpar.runtime.offload import Arrivals, OnHost, SavedOnHost, Share, share_on_host
from simpar.runtime.prepare import prepare
from simpar.runtime.saved import next_step

TRAINING = Training(seq_len=64, global_batch=16)
AWAY = {"offload_optimizer": "cpu"}
PARAMETERS = {**AWAY, "offload_parameters": "cpu"}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"offload_optimizer": "nvme"}, "plan.offload_optimizer = nvme: .*allowed in a real run: none, cpu"),
        ({"zero": 3, **PARAMETERS, "offload_parameters": "nvme"}, "plan.offload_parameters = nvme"),
        ({"dp": 1, "pp": 4, "schedule": "zb-h1", **PARAMETERS}, "offload_parameters = cpu with schedule zb-h1: "),
    ],
)
def test_what_cannot_run_is_refused_with_the_reason(values, words):
    """Drives have no part in torch; fully_shard misses gradients of a split backward."""
    plan = Plan(**{"precision": "fp32", "dp": 4, **values})
    with pytest.raises(UserError, match=words):
        prepare(plan, load_model("tiny-llama"), TRAINING, 4)


def test_a_model_of_ones_own_may_be_offloaded():
    """The plan's rules hold without a graph, too."""
    assert prepare(Plan(**AWAY), None, TRAINING, 4).plan.offload.offload_gradients is False
    assert prepare(Plan(**PARAMETERS), None, TRAINING, 1).strategy.reduction == "fsdp"
    with pytest.raises(UserError, match=r"plan.offload_parameters = cpu: zero = 1"):
        prepare(Plan(zero=1, **PARAMETERS), None, TRAINING, 4)


@pytest.mark.parametrize("ratio", [0.0, 0.2, 0.5, 0.9, 1.0])
def test_the_share_on_the_host_is_met_by_whole_tensors(ratio):
    """Within half of the largest tensor; all or none at the ends."""
    sizes = [96 * 32, *[32, 32 * 32, 16 * 32, 48 * 32] * 6, 32]
    away = share_on_host(sizes, ratio)
    there = sum(size for size, goes in zip(sizes, away, strict=True) if goes)
    assert abs(there - ratio * sum(sizes)) <= max(sizes) / 2
    assert ratio > 0 or not any(away)
    assert ratio < 1 or all(away)


def test_an_update_on_the_host_works_on_a_copy():
    """States belong to the copy; the parameter gets what came out, a step late where that is planned."""
    for delayed in (False, True):
        here = nn.Parameter(torch.tensor([1.0, 2.0]))
        optimizer = OnHost([here], kind=torch.optim.SGD, delayed=delayed, lr=0.5, momentum=0.5)
        assert optimizer.copies[here].data_ptr() != here.data_ptr()
        seen = []
        for _ in range(3):
            here.grad = torch.tensor([1.0, -1.0])
            optimizer.step()
            seen.append(here[0].item())
        assert seen == ([1.0, 0.5, -0.25] if delayed else [0.5, -0.25, -1.125])
        optimizer.settle()
        assert optimizer.state[here]["momentum_buffer"].tolist() == [1.75, -1.75]


def test_gradients_add_up_on_the_host_in_fp32():
    """256 + 1 is 256 in bf16; what never came is zero."""
    arrivals, given, absent = Arrivals(), nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))
    for value in (256.0, *[1.0] * 20):
        arrivals.collect(given, torch.full((2,), value, dtype=torch.bfloat16))
    sums = arrivals.take([given, absent])
    assert sums[given].tolist() == [276.0, 276.0]
    assert sums[absent].tolist() == [0.0, 0.0, 0.0]
    assert arrivals.take([]) == {}


def test_saved_activations_wait_on_the_host():
    """All of them or half of their bytes, never the parameters; backward finds what forward saved."""
    layer = nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(8)]).double()
    x = torch.randn(4, 8, dtype=torch.float64, requires_grad=True)
    expected = torch.autograd.grad(layer(x).square().sum(), [x, *layer.parameters()])
    for ratio in (0.5, 1.0):
        share = Share(ratio)
        with SavedOnHost(layer, share):
            y = layer(x)
        with torch.no_grad():
            x.mul_(1)  # a saved x that stayed would be found changed
        found = torch.autograd.grad(y.square().sum(), [x, *layer.parameters()]) if ratio == 1 else expected
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
        assert share.seen_bytes == 16 * 4 * 8 * 8  # inputs of products and outputs of tanh
        assert share.there_bytes == ratio * share.seen_bytes


@pytest.mark.parametrize("before", [False, True])
def test_late_updates_go_on_late(tmp_path, before):
    """A checkpoint with an update under way goes on where updates are late, and only there; the line says so."""
    values = {"dp": 1, "precision": "fp32", **AWAY}
    written, wanted = (Plan(**values, offload_delayed=late) for late in (before, not before))
    manifest = {"optimizer": "adamw", "step": 3, "plan": written.model_dump(mode="json")}
    fields = {"model": "tiny-llama", "training": TRAINING, "steps": 9, "folder": str(tmp_path)}
    assert next_step(tmp_path, manifest, RunJob(plan=written, **fields)) == 3
    with pytest.raises(UserError, match=f"plan.offload_delayed = {str(before).lower()}; allowed: the same"):
        next_step(tmp_path, manifest, RunJob(plan=wanted, **fields))
