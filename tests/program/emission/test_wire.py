"""What data parallelism sends: its dtype scales bytes and time, narrow ones pay for quantising, buffers stay wide."""

import pytest

import simpar
from simpar.errors import UserError
from simpar.program.blocks.phases import CollectiveUse
from simpar.program.emission.traffic import QuotientNetwork
from simpar.program.structure.synchronisation import Synchronisation
from simpar.scenario import load_scenario
from simpar.simulation import lower_job, make_job

TRAINING = simpar.Training(seq_len=1024, global_batch=64)
ARGUMENTS = {"cluster.hardware": "dgx-h100", "cluster.nodes": 2, "training.seq_len": 1024, "training.global_batch": 64}


def step(**plan):
    """GPT-2 on two nodes of eight H100."""
    return simpar.simulate("gpt2", simpar.Cluster("dgx-h100", nodes=2), simpar.Plan(**plan), TRAINING)


@pytest.mark.parametrize(("dtype", "width"), [("fp32", 4), ("bf16", 2), ("fp8", 1), ("int4", 0.5)])
def test_gradients_are_sent_at_their_width(dtype, width):
    """Bytes of the all-reduce are parameters times the width of the dtype."""
    model, cluster = simpar.Model("llama-3-8b"), simpar.Cluster("dgx-h100", nodes=2)
    result = simpar.simulate(model, cluster, simpar.Plan(reduce_dtype=dtype), TRAINING)
    sent = result.communication["dp"].bytes_per_rank
    assert sent == pytest.approx(width * model.num_parameters(), rel=1e-3)


def test_narrower_gradients_never_take_longer_on_the_wire():
    """From fp32 to int4 the reduction is busy for less time, quantising included."""
    busy = [step(reduce_dtype=dtype).communication["dp"].busy_s for dtype in ("fp32", "bf16", "fp8", "int4")]
    assert busy[0] > busy[1] > busy[2] > busy[3]


def test_the_stack_decides_what_the_plan_leaves_open():
    """No dtype means the stack's: fp32 reduction and bf16 gathers for Megatron."""
    assert step(zero=1).to_json() != step(zero=1, reduce_dtype="bf16").to_json()
    assert step(zero=1).step_time_s == step(zero=1, reduce_dtype="fp32", gather_dtype="bf16").step_time_s


def test_parameters_are_gathered_narrow_and_held_wide():
    """ZeRO-3 with 8-bit gathers sends half the bytes of a gather and holds the same buffers."""
    wide, narrow = step(zero=3), step(zero=3, gather_dtype="int8")
    assert narrow.communication["dp"].bytes_per_rank < wide.communication["dp"].bytes_per_rank
    assert narrow.memory.peak_memory_bytes == wide.memory.peak_memory_bytes


def test_reports_say_what_is_sent():
    """The dtypes that the plan asks for stand behind the algorithms; those of the stack go without saying."""
    said = step(zero=3, reduce_dtype="int4", gather_dtype="int8").communication["dp"].algorithm
    assert "reduce_scatter" in said
    assert {words.rpartition(" in ")[2] for words in said.split(", ")} == {"int4", "int8"}
    assert " in " not in step(zero=3).communication["dp"].algorithm


@pytest.mark.parametrize(("dtype", "narrow"), [("bf16", None), ("fp8", 1.0), ("int4", 0.5)])
def test_quantising_is_passes_over_memory(dtype, narrow):
    """Per byte sent: two passes that touch the wide and the narrow value, at memory bandwidth; none at 16 bits."""
    job = make_job("gpt2", simpar.Cluster("dgx-h100"), simpar.Plan(reduce_dtype=dtype), TRAINING)
    costs = Synchronisation.of(job).quantise_s_per_byte
    wide = 4.0 if job.layout.grad_dtype == "fp32" else 2.0
    expected = 0.0 if narrow is None else 2 * (wide + narrow) / narrow / job.kernels.bandwidth
    assert costs["all_reduce"] == costs["reduce_scatter"] == pytest.approx(expected)
    assert costs["all_gather"] == 0


def test_quantising_lengthens_reductions_of_gradients_and_nothing_else():
    """The network prices the same bytes of copies longer by bytes x seconds a byte, those of blocks as before."""
    cluster = simpar.Cluster("dgx-h100", nodes=2)
    job = make_job("gpt2", cluster, simpar.Plan(tp=4, reduce_dtype="fp8"), TRAINING)
    network = lower_job(job, cluster).maker.network
    plain = QuotientNetwork(cluster.in_training, network.kinds, network.quotient, network.streams_of_kind)
    size = 64e6
    extra_ns = Synchronisation.of(job).quantise_s_per_byte["all_reduce"] * size * 1e9
    longer = [n.solo_ns(0, CollectiveUse("dp", "all_reduce", size)) for n in (network, plain)]
    same = [n.solo_ns(0, CollectiveUse("tp", "all_gather", size)) for n in (network, plain)]
    assert longer[0] - longer[1] == pytest.approx(extra_ns, abs=2)
    assert extra_ns > 0
    assert same[0] == same[1]


def test_switches_reduce_where_they_are_told_to():
    """NVLS and SHARP are choices of the cluster: the algorithm follows, and neither makes a reduction slower."""
    cluster = simpar.Cluster("dgx-h100", nodes=2)
    found = {
        name: simpar.simulate("gpt2", chosen, simpar.Plan(), TRAINING).communication["dp"]
        for name, chosen in (
            ("plain", cluster.reducing(nvls=False, sharp=False)), ("sharp", cluster.reducing(sharp=True)),
        )
    }  # fmt: skip
    assert "nvls" not in found["plain"].algorithm
    assert "sharp" in found["sharp"].algorithm
    assert found["sharp"].busy_s < found["plain"].busy_s


def test_switches_that_are_not_there_cannot_reduce():
    """The message names the fabric that the profile has."""
    with pytest.raises(UserError, match=r"cluster.sharp = true: the network of gcp-a3-mega is tcpxo"):
        simpar.Cluster("gcp-a3-mega", nodes=2).reducing(sharp=True)
    with pytest.raises(UserError, match=r"cluster.nvls = true: the scale-up fabric of .* is pcie"):
        simpar.Cluster("a100-pcie-8").reducing(nvls=True)


def test_choices_are_keys_of_a_scenario_and_stand_in_the_result():
    """--set cluster.sharp=true and plan.reduce_dtype=fp8 do what the Python calls do."""
    scenario = load_scenario(None, {"model": "gpt2", **ARGUMENTS}, ["cluster.sharp=true", "plan.reduce_dtype=fp8"])
    result = simpar.simulate(**scenario.inputs())
    assert result.setup.cluster["sharp"] is True
    assert result.setup.plan["numerics"]["reduce_dtype"] == "fp8"
    assert "sharp" in result.communication["dp"].algorithm


def test_small_buckets_pay_latency_again_and_again():
    """The same bytes in more pieces keep the wire busy for longer."""
    busy = [step(bucket_bytes=size).communication["dp"].busy_s for size in ("1 MB", "16 MB", "10 GB")]
    assert busy[0] > busy[1] > busy[2]
