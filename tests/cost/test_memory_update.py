"""What the optimizer's update holds, by figures computed by hand."""

import pytest

import simpar
from simpar.architectures.catalogue import load_model
from simpar.errors import UserError
from simpar.hardware.catalogue import load_cluster
from simpar.hardware.cluster import make_cluster
from simpar.units import GIB

LLAMA = load_model("llama-7b")
PARAMETERS = LLAMA.num_parameters()
SHARD = PARAMETERS / 8
V100 = ("llama-7b", "dgx-v100")
TRAINING = {"seq_len": 1024, "global_batch": 8}


def fullest(cluster="dgx-v100", **plan):
    """The memory of the only stage, of eight devices with one sequence each."""
    plan = {"micro_batch": 1, "precision": "fp16", "recompute": "full", "stack": "deepspeed", **plan}
    (stage,) = simpar.simulate("llama-7b", cluster, plan, TRAINING).memory.stages
    return stage


@pytest.mark.parametrize(
    ("kernels", "beside"),
    [
        ("fused", (2 + 4) * SHARD),  # copying: gradients joined, and in fp32, beside those that are kept
        ("foreach", (2 + 4) * SHARD),  # stepping has no more: the copy and one root, without those that were kept
        ("single", (4 + 2 * 4 - 2) * SHARD),  # the copy, a root and a quotient
    ],
)
def test_zero_2_of_deepspeed(kernels, beside):
    """Parameters 2, gradients of the share 2, states 12, and what the update adds; a run had 28.28 GiB + 3.14 more."""
    stage = fullest(zero=2, optimizer_kernels=kernels)
    assert stage.peak_op == "the optimizer's update"
    workspace = 64 * 2**20
    expected = 2 * PARAMETERS + (2 + 12) * SHARD + beside + workspace
    assert stage.peak_bytes - stage.overhead_bytes == pytest.approx(expected, rel=1e-4)
    if kernels == "single":
        assert expected == pytest.approx(31.44 * GIB, rel=1e-3)  # of 31.75


def test_update_of_a_published_run_may_not_fit():
    """Eight V100 of 32 GB ran out of memory in the update."""
    plan = {"micro_batch": 1, "precision": "fp16", "recompute": "full", "stack": "deepspeed", "zero": 2}
    assert simpar.simulate(*V100, plan, TRAINING).certainty.fit_probability < 0.8
    single = simpar.simulate(*V100, plan | {"optimizer_kernels": "single"}, TRAINING).memory
    assert not single.fits


def test_zero_3_updates_groups_of_a_billion():
    """Llama 2 13B on eight devices has 1.6e9 parameters a rank: 6 bytes of 1e9 of them beside 2 + 2 + 12 of all."""
    training = {"seq_len": 128, "global_batch": 8}
    plan = {"micro_batch": 1, "recompute": "full", "stack": "deepspeed", "zero": 3, "optimizer_kernels": "fused"}
    (stage,) = simpar.simulate("llama-2-13b", "hgx-h200", plan, training).memory.stages
    expected = 16 * load_model("llama-2-13b").num_parameters() / 8 + 6 * 1e9 + 64 * 2**20
    assert stage.peak_bytes - stage.overhead_bytes == pytest.approx(expected, rel=1e-3)


def test_temporaries_of_torch_s_adam():
    """fp32 states of a rank under FSDP: foreach makes a root of all of them, single two arrays like the token table."""
    training = {"seq_len": 128, "global_batch": 8}
    peaks = {}
    for kernels in ("fused", "foreach", "single"):
        plan = {"micro_batch": 1, "recompute": "full", "stack": "fsdp", "zero": 3, "optimizer_kernels": kernels}
        (stage,) = simpar.simulate("llama-7b", "dgx-h100", plan, training).memory.stages
        peaks[kernels] = stage.peak_bytes - stage.overhead_bytes - 64 * 2**20
    assert peaks["foreach"] == pytest.approx((16 + 4) * SHARD, rel=1e-3)
    assert peaks["single"] < peaks["foreach"]  # two fp32 arrays of 32,000 x 4,096 / 8 are less than activations
    assert peaks["single"] == peaks["fused"]


def test_update_apart_takes_more_passes():
    """20 reads and writes of a value in fp32 instead of 7, beside 38 - 28 bytes that any update moves."""
    times = {
        kernels: simpar.simulate(*V100, {"stack": "fsdp", "zero": 3, "optimizer_kernels": kernels}, TRAINING)
        for kernels in ("fused", "foreach")
    }
    fused, foreach = (times[kernels].time_breakdown_s.optimizer for kernels in ("fused", "foreach"))
    assert foreach / fused == pytest.approx((38 + 13 * 4) / 38, rel=0.01)


def test_update_in_the_backward_keeps_gradients_of_a_block():
    """Pure bf16 torchtune: 2 bytes of the largest block, which is a layer, instead of 2 of all parameters."""
    training = {"seq_len": 128, "global_batch": 1}
    plan = {"micro_batch": 1, "recompute": "full", "stack": "torchtune"}
    h100 = make_cluster(load_cluster("dgx-h100").profile.model_copy(update={"devices_per_node": 1}), 1)
    later, beside = (
        simpar.simulate("llama-7b", h100, plan | {"update_in_backward": value}, training).memory.stages[0]
        for value in (None, True)
    )
    layer = 4 * 4096**2 + 3 * 4096 * 11008 + 2 * 4096
    assert later.gradients_bytes - beside.gradients_bytes == pytest.approx(2 * (PARAMETERS - layer), rel=1e-6)


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ({"micro_batch": 1, "stack": "fsdp", "zero": 3}, "one microbatch a rank and step"),
        ({"micro_batch": 2, "stack": "megatron", "zero": 1}, "kind fsdp, or zero 0"),
        ({"micro_batch": 2, "stack": "fsdp", "zero": 3, "offload_optimizer": "cpu"}, "without offload_optimizer"),
    ],
)
def test_update_in_the_backward_needs_whole_gradients(plan, words):
    """Sums over microbatches, flat shards and states on the host do not go with it."""
    training = {"seq_len": 128, "global_batch": 16}
    with pytest.raises(UserError, match=words):
        simpar.simulate("llama-7b", "dgx-h100", plan | {"update_in_backward": True}, training)
