"""Offload: transfers at the rate of their links, shared links contend, memory moves to the host, published runs."""

import numpy as np
import pytest
from hypothesis import strategies as st

import simpar
from simpar.architectures.hf_config import read
from simpar.engine import choose_engine
from simpar.errors import UserError
from simpar.hardware.catalogue import load_cluster
from simpar.hardware.cluster import make_cluster
from simpar.simulation import lower_job, make_job
from simpar.units import NS_PER_S
from tests.gate import assert_law, some

TRAINING = simpar.Training(seq_len=1024, global_batch=64)
H100 = simpar.Cluster("dgx-h100")


def one_of(name, **host):
    """A single device of a profile, with its host's links changed."""
    profile = load_cluster(name).profile
    changes = {"devices_per_switch": 1, **host}
    parts = {"devices_per_node": 1, "host": profile.host.model_copy(update=changes)}
    return make_cluster(profile.model_copy(update=parts), 1)


def with_host(name, **host):
    """One node of a profile with its host's links changed."""
    profile = load_cluster(name).profile
    return make_cluster(profile.model_copy(update={"host": profile.host.model_copy(update=host)}), 1)


def step(model="gpt2-xl", cluster=H100, training=TRAINING, **plan):
    """One simulated step, of one microbatch on a node of eight unless said otherwise."""
    plan = {"micro_batch": 8, **plan}
    return simpar.simulate(model, cluster, simpar.Plan(**plan), training, with_timeline=False)


def gpt(layers, hidden):
    """A GPT of the ZeRO-Offload paper."""
    config = {
        "model_type": "gpt2", "resid_pdrop": 0.0, "attn_pdrop": 0.0, "embd_pdrop": 0.0,
        "n_embd": hidden, "n_layer": layers, "n_head": hidden // 128, "n_positions": 1024,
        "vocab_size": 50257,
    }  # fmt: skip
    return read(config, name=f"gpt-{layers}x{hidden}")


def offloaded(model, cluster, **plan):
    """A step as ZeRO-Offload runs it: fp16, checkpoints of whole layers, batch of 512 sequences."""
    plan = {"precision": "fp16", "recompute": "full", "grad_dtype": "bf16", "stack": "deepspeed-21", **plan}
    return step(model, cluster, simpar.Training(seq_len=1024, global_batch=512), **plan)


def test_update_on_the_host_streams_thirty_bytes_a_parameter():
    """AdamW on the processors takes 30 bytes x parameters / (share x bandwidth of host memory), whole node together."""
    host, count = H100.profile.host, simpar.Model("gpt2-xl").num_parameters()
    expected = 30 * count / (host.update_efficiency * host.memory_bandwidth)
    result = step(zero=2, offload_optimizer="cpu")
    upload = 2 * count / 8 / host.pcie_bandwidth
    assert result.time_breakdown_s.offload == pytest.approx(expected + upload, rel=0.05)


def test_states_leave_the_device_and_arrive_at_the_host():
    """12 bytes a parameter of states, and gradients, go; the host of a node holds 12 + 4 a parameter."""
    here, away = step(zero=2), step(zero=2, offload_optimizer="cpu")
    count = simpar.Model("gpt2-xl").num_parameters()
    assert here.memory.host is None
    assert away.memory.stages[0].optimizer_states_bytes == 0
    assert here.memory.stages[0].optimizer_states_bytes == pytest.approx(12 * count / 8, rel=1e-3)
    assert away.memory.host.optimizer_states == pytest.approx(12 * count, rel=1e-3)
    assert away.memory.host.gradients == pytest.approx(4 * count, rel=1e-3)
    assert away.memory.host.used == pytest.approx(16 * count, rel=1e-3)


@pytest.mark.parametrize(("stack", "each", "fetched"), [("torchtune", 8, 2), ("fsdp", 16, 4), ("deepspeed", 20, 2)])
def test_hosts_keep_and_send_what_the_stack_stores(stack, each, fetched):
    """torchtune: parameter, gradient and two moments in bf16; FSDP's mixed precision: in fp32, cast on the device.

    DeepSpeed: 2 of parameters, 12 of states, 4 of gradients and 2 of their partitions as they arrive.
    """
    plan = {"zero": 3, "offload_optimizer": "cpu", "offload_parameters": "cpu", "stack": stack, "micro_batch": 1}
    cluster = with_host("dgx-h100", pcie_bandwidth=1e9, switch_bandwidth=1e12, memory_bandwidth=1e14)
    result = step(training=simpar.Training(seq_len=256, global_batch=8), cluster=cluster, **plan)
    count = simpar.Model("gpt2-xl").num_parameters()
    assert result.memory.host.used == pytest.approx(each * count, rel=1e-3)
    # fetched for forward and backward
    least = 2 * fetched * count / 8 / 1e9
    assert least < result.communication["offload"].busy_s < 1.6 * least


@pytest.mark.parametrize("ratio", some([0.1, 0.4, 0.8], [0.4]))
def test_twin_flow_splits_states_and_time(ratio):
    """The share on the host decides its time and memory; the device updates the rest meanwhile."""
    whole, part = (step(zero=2, offload_optimizer="cpu", offload_ratio=r) for r in (1.0, ratio))
    none = step(zero=2)
    kept, freed = part.memory.stages[0].optimizer_states_bytes, none.memory.stages[0].optimizer_states_bytes
    assert kept == pytest.approx((1 - ratio) * freed, rel=1e-6)
    assert part.time_breakdown_s.offload == pytest.approx(ratio * whole.time_breakdown_s.offload, rel=0.15)
    assert none.step_time_s < part.step_time_s < whole.step_time_s


def test_a_delayed_update_hides_behind_the_passes():
    """With the gradients of the step before, the update runs beside the passes and only what is longer shows."""
    training = simpar.Training(seq_len=1024, global_batch=512)
    plans = [{"zero": 1, "offload_optimizer": "cpu", "offload_delayed": late, "micro_batch": 4} for late in (0, 1)]
    waiting, hidden = (step(training=training, **plan) for plan in plans)
    assert hidden.time_breakdown_s.offload < 0.2 * waiting.time_breakdown_s.offload
    assert hidden.step_time_s < waiting.step_time_s


def test_two_devices_behind_one_switch_contend():
    """Parameters of two devices take twice as long over one uplink as over two; alone neither matters."""
    plan = {"zero": 3, "offload_parameters": "cpu", "offload_optimizer": "cpu"}
    fast = {"memory_bandwidth": 1e13, "pcie_bandwidth": 1e9, "switch_bandwidth": 1e9}
    apart, together = (step(cluster=with_host("dgx-h100", devices_per_switch=size, **fast), **plan) for size in (1, 2))
    busy = [result.communication["offload"].busy_s for result in (apart, together)]
    assert busy[1] == pytest.approx(2 * busy[0], rel=0.02)
    assert together.step_time_s > 1.5 * apart.step_time_s


def test_only_the_neighbour_behind_the_switch_disturbs():
    """A degraded uplink slows the two devices behind it and unfolds exactly those that it must."""
    plan = simpar.Plan(zero=3, offload_parameters="cpu", offload_optimizer="cpu")
    cluster = with_host("dgx-h100", devices_per_switch=2, switch_bandwidth=60e9)
    slow = cluster.with_degraded({"switch_down[1]": 0.1})
    usual, disturbed = (simpar.simulate("gpt2-xl", c, plan, TRAINING) for c in (cluster, slow))
    assert usual.setup.fold["classes"] == 1
    assert disturbed.setup.fold["classes"] == 2
    assert disturbed.step_time_s > usual.step_time_s


@pytest.mark.parametrize(("dtype", "each"), [("nf4", 4.127 / 8), ("bf16", 2)])
def test_frozen_weights_are_on_the_host_as_they_are_stored(dtype, each):
    """Adapters beside weights that come from the host: matrices of layers in 4.127 or 16 bits, the rest in 16.

    Llama-3 8B has 6,979,321,856 values in matrices of layers, 1,050,673,152 in two tables and 266,240 in norms.
    """
    plan = {"zero": 3, "lora_rank": 8, "frozen_dtype": dtype, "recompute": "full", "stack": "megatron"}
    away = {"offload_optimizer": "cpu", "offload_parameters": "cpu"}
    here, there = (step("llama-3-8b", **plan, **moved) for moved in ({}, away))
    whole, adapters = 6_979_321_856 * each + 2 * (1_050_673_152 + 266_240), 20_971_520
    assert there.memory.host.parameters == pytest.approx(whole + 2 * adapters, rel=1e-3)
    released = here.memory.static_memory_bytes - there.memory.static_memory_bytes
    assert released == pytest.approx((whole + 14 * adapters) / 8, rel=1e-3)  # 2 of a weight and 12 of states leave
    link = H100.profile.host.pcie_bandwidth
    assert there.communication["offload"].busy_s > whole / 8 / link


def update_s(cluster, **plan):
    """Seconds from the first to the last tile of the update on the host."""
    job = make_job("gpt2-xl", cluster, simpar.Plan(micro_batch=8, **plan), TRAINING)
    program = lower_job(job, cluster).program
    timing = choose_engine("auto", program)(program)
    tiles = np.array([program.labels[label].name == "update on host" for label in program.ops.label])
    return (timing.finish_ns[tiles].max() - timing.start_ns[tiles].min()) / NS_PER_S


def test_all_devices_of_a_node_share_its_memory():
    """Eight devices with an eighth of the parameters each update as long as one with all: 30 bytes over the memory."""
    host, count = H100.profile.host, simpar.Model("gpt2-xl").num_parameters()
    expected = 30 * count / (host.update_efficiency * host.memory_bandwidth)
    alone = update_s(one_of("dgx-h100"), offload_optimizer="cpu")
    beside = update_s(H100, zero=2, offload_optimizer="cpu")
    # copies of updated parameters read the same memory meanwhile
    assert alone == pytest.approx(expected, rel=0.04)
    assert beside == pytest.approx(alone, rel=0.02)


def test_drives_are_the_bottleneck_of_zero_infinity():
    """States of 12 bytes a parameter are read and written in every step at the rate of the node's drives."""
    profile, count = H100.profile.host, simpar.Model("gpt2-xl").num_parameters()
    result = step(zero=3, offload_optimizer="nvme", offload_parameters="cpu")
    least = 12 * count / profile.nvme_bandwidth
    assert result.time_breakdown_s.offload > least
    assert result.memory.host.nvme == pytest.approx(12 * count, rel=1e-3)
    assert result.memory.host.optimizer_states == 0


def test_offloaded_activations_leave_between_forward_and_backward():
    """What goes to the host is not on the device at its peak; the time shows only where the link is too slow."""
    cluster = one_of("dgx-h100", pcie_bandwidth=500e9, memory_bandwidth=5e12, switch_bandwidth=500e9)
    plans = [{"micro_batch": 8, "offload_activations": share} for share in (0.0, 0.5, 1.0)]
    peaks = [step(cluster=cluster, **plan) for plan in plans]
    held = [result.memory.stages[0].activations_bytes for result in peaks]
    assert held[0] > held[1] > held[2]
    assert held[2] < 0.25 * held[0]
    assert peaks[2].step_time_s == pytest.approx(peaks[0].step_time_s, rel=0.01)
    assert step(cluster=one_of("dgx-h100"), **plans[2]).step_time_s > 1.05 * peaks[0].step_time_s
    assert peaks[2].memory.host.activations > 0.8 * held[0]


def test_host_memory_must_hold_what_it_gets():
    """A small host does not fit, whatever the device has."""
    small = with_host("dgx-h100", memory_bytes=8e9)
    result = step(cluster=small, zero=2, offload_optimizer="cpu")
    assert not result.fits
    assert not result.memory.host.fits
    assert any("does not fit" in line for line in result.why.binds)
    assert step(zero=2, offload_optimizer="cpu").fits


def test_ten_billion_parameters_on_one_v100():
    """ZeRO-Offload, arXiv 2101.06840, abstract: 10B parameters at 40 TFLOP/s on one V100, only with offload."""
    cluster = one_of("dgx-2-v100")
    result = offloaded(gpt(50, 4096), cluster, micro_batch=8, offload_optimizer="cpu")
    assert result.fits
    assert result.speed.tflops_per_device == pytest.approx(40.0, rel=0.1)
    assert not offloaded(gpt(50, 4096), cluster, micro_batch=8).fits


@pytest.mark.slow
def test_largest_models_on_one_v100():
    """The same abstract: 13B parameters fit with offload; without it the largest is 1.4B."""
    cluster = one_of("dgx-2-v100")
    assert offloaded(gpt(64, 4096), cluster, micro_batch=2, offload_optimizer="cpu").fits
    assert not offloaded(gpt(80, 4096), cluster, micro_batch=1, offload_optimizer="cpu").fits
    assert offloaded(gpt(24, 2048), cluster, micro_batch=1).fits
    assert not offloaded(gpt(40, 2048), cluster, micro_batch=1).fits


@pytest.mark.parametrize("examples", some([5, 40], 1))
def test_engines_agree_under_offload(examples):
    """Every op starts and ends at the same nanosecond in the reference and the compiled engine; memory returns."""
    assert_law(
        assert_agreeing,
        examples,
        tp=st.sampled_from([1, 2]),
        pp=st.sampled_from([1, 2]),
        zero=st.sampled_from([1, 2, 3]),
        share=st.sampled_from([0.0, 0.5, 1.0]),
        home=st.sampled_from(["cpu", "nvme"]),
    )


def assert_agreeing(tp, pp, zero, share, home):
    """Under one plan."""
    plan = simpar.Plan(tp=tp, pp=pp, zero=zero, offload_optimizer=home, offload_activations=share)
    job = make_job("gpt2", H100, plan, simpar.Training(seq_len=1024, global_batch=16))
    program = lower_job(job, H100).program
    slow, fast = (choose_engine(name, program)(program) for name in ("reference", "event"))
    assert (slow.start_ns == fast.start_ns).all()
    assert (slow.finish_ns == fast.finish_ns).all()
    assert program.memory.delta_bytes.sum() == 0


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ({"offload_ratio": 0.5}, "offload_optimizer"),
        ({"offload_delayed": True}, "offload_optimizer"),
        ({"zero": 1, "offload_optimizer": "cpu", "offload_gradients": True}, "zero 2 or 3"),
        ({"zero": 2, "offload_parameters": "cpu"}, "zero 3"),
        ({"zero": 3, "offload_parameters": "cpu", "offload_optimizer": "cpu", "offload_ratio": 0.5}, "offload_ratio 1"),
        ({"sync": "local-sgd", "offload_optimizer": "cpu"}, "sync bsp"),
    ],
)
def test_what_does_not_go_together_says_so(plan, words):
    """One line that names the field, its value and what is allowed."""
    with pytest.raises(UserError, match=words):
        step(**plan)


def test_drives_must_exist():
    """A profile without drives refuses them."""
    with pytest.raises(UserError, match="no drives"):
        step(cluster=simpar.Cluster("dgx-v100"), precision="fp16", zero=3, offload_optimizer="nvme")


@pytest.mark.parametrize(("stack", "kept"), [("megatron", 4.0), ("deepspeed", 0.0)])
def test_gradients_of_one_replica_stay_where_the_stack_keeps_them(stack, kept):
    """Megatron's optimizer on the host reads its fp32 gradient buffer on the device; ZeRO-Offload sends gradients."""
    plan = {"tp": 8, "zero": 1, "micro_batch": 1, "offload_optimizer": "cpu", "stack": stack}
    (stage,) = simpar.simulate("llama-3-8b", "dgx-h100", plan, {"seq_len": 512, "global_batch": 2}).memory.stages
    parameters = simpar.Model("llama-3-8b").num_parameters() / 8
    workspaces = 0.15e9  # of libraries, for gathered rows, and empty gradients
    assert 0 <= stage.gradients_bytes - kept * parameters < workspaces
