"""Training over nodes of two kinds: every stage at its device's speed, memory of every device, exact folding."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from simpar.architectures.catalogue import load_model
from simpar.architectures.graph import ModelGraph
from simpar.architectures.hf_config import read
from simpar.architectures.training import Training
from simpar.cost.memory.allocator import memory_risk
from simpar.engine import choose_engine
from simpar.errors import UserError
from simpar.files import bundled, load
from simpar.hardware.catalogue import load_cluster, make_mixed
from simpar.hardware.cluster import Cluster
from simpar.hardware.profile import MixedProfile
from simpar.plan.plan import Plan
from simpar.program.footprint import footprints
from simpar.program.perturbation import Perturbation
from simpar.report.html.data import page_data
from simpar.report.result import Result
from simpar.report.terminal import memory_rows
from simpar.simulation import lower_job, make_job, simulate
from simpar.stacks.stack import load_stack
from tests.gate import some

UNFOLDED = Perturbation(fold=False)
"""Every rank on its own, no duration changed."""
MIXED = (("dgx-a100-80gb", 1), ("dgx-h100", 1))


def cluster_of(*groups: tuple[str, int]) -> Cluster:
    """Groups of (profile, nodes)."""
    named = [{"hardware": name, "nodes": nodes} for name, nodes in groups]
    return make_mixed(MixedProfile.model_validate({"name": "mix", "groups": named}))


def chain(layers: int) -> ModelGraph:
    """Wide layers between a small embedding and a small head: the ends hardly count."""
    return read(
        {
            "model_type": "llama", "vocab_size": 512, "hidden_size": 4096, "intermediate_size": 16384,
            "num_hidden_layers": layers, "num_attention_heads": 32, "num_key_value_heads": 32,
        },
        name="chain",
    )  # fmt: skip


def slowed(folder: Path, factor: float) -> str:
    """A profile of one-device nodes whose device is ``factor`` times slower in everything."""
    device = load(bundled("devices")["h100-sxm-80gb"]).data
    device["peak_flop_per_s"] = dict.fromkeys(("bf16", "fp32"), f"{989 / factor} TFLOP/s")
    device["memory_bandwidth"] = f"{3352 / factor} GB/s"
    device["kernels"]["kernel_latency_us"] *= factor
    device["name"] = f"h100/{factor}"
    (folder / f"device-{factor}.yaml").write_text(json.dumps(device))
    cluster = load(bundled("clusters")["hgx-h100"]).data | {"devices_per_node": 1}
    cluster["scale_out"]["nics_per_node"] = 1
    (folder / f"cluster-{factor}.yaml").write_text(json.dumps(cluster | {"device": f"device-{factor}.yaml"}))
    return str(folder / f"cluster-{factor}.yaml")


def step_s(graph: ModelGraph, cluster: Cluster, layers: tuple[int, ...] | None = None, **plan: object) -> float:
    """Seconds of a step of sixteen sequences."""
    values = {"pp": len(layers) if layers else 1, "layers": layers, "micro_batch": 1, **plan}
    training = Training(seq_len=2048, global_batch=16)
    return simulate(graph, cluster, Plan(**values), training, with_timeline=False).step_time_s


@pytest.mark.parametrize("factor", some([2.0, 3.0], 1))
def test_the_best_cut_follows_the_speeds(tmp_path: Path, factor: float) -> None:
    """Two stages at speeds 1 : f share L layers as L/(f+1) : Lf/(f+1), found by trying every cut."""
    layers = 12
    slow, fast = slowed(tmp_path, factor), slowed(tmp_path, 1.0)
    graph, cluster = chain(layers), cluster_of((slow, 1), (fast, 1))
    alone = [step_s(graph, load_cluster(name)) for name in (slow, fast)]
    assert alone[0] / alone[1] == pytest.approx(factor, rel=0.03)
    times = {first: step_s(graph, cluster, (first, layers - first)) for first in range(1, layers)}
    best = min(times, key=lambda first: times[first])
    assert best == round(layers / (factor + 1))
    # 16 microbatches at the slower stage's time, and one more pass through the other
    per_layer = alone[0] / 16 / layers
    shares = [per_layer * best, per_layer / factor * (layers - best)]
    assert times[best] == pytest.approx(sum(shares) + 15 * max(shares), rel=0.05)


@pytest.mark.parametrize(
    "plan",
    some(
        [
            Plan(tp=2, pp=2, micro_batch=1, zero=1, layers=(10, 22)),
            Plan(tp=2, zero=3, micro_batch=1),
            Plan(tp=4, pp=2, micro_batch=1, zero=1, rank_order="tp-cp-pp-dp"),
            Plan(pp=4, micro_batch=1, zero=1, layers=(6, 6, 10, 10)),
            Plan(tp=2, cp=2, pp=2, zero=1, micro_batch=1),
        ],
        2,
    ),
)
def test_folded_equals_unfolded(plan: Plan) -> None:
    """Only equal ranks are folded: every rank on its own gives the same step, to the nanosecond."""
    graph, cluster, training = (load_model("llama-3-8b"), cluster_of(*MIXED), Training(seq_len=4096, global_batch=8))
    job = make_job(graph, cluster, plan, training)
    found = {}
    for name, perturbation in (("folded", Perturbation()), ("unfolded", UNFOLDED)):
        lowered = lower_job(job, cluster, perturbation)
        timing = choose_engine("auto", lowered.program)(lowered.program)
        assert (lowered.quotient.num_classes == cluster.world_size) == (name == "unfolded")
        ends = np.zeros(lowered.quotient.num_classes, dtype=np.int64)
        np.maximum.at(ends, lowered.program.ops.class_id, timing.finish_ns)
        found[name] = ends[lowered.quotient.class_of_rank]
    assert (found["folded"] == found["unfolded"]).all()


def test_stages_of_their_own_on_groups_equal_the_uniform_plan() -> None:
    """The same layout said as stages with meshes takes the same time."""
    graph, cluster, training = (load_model("llama-3-8b"), cluster_of(*MIXED), Training(seq_len=4096, global_batch=32))
    uniform = simulate(graph, cluster, Plan(tp=2, pp=2, zero=1, micro_batch=1, layers=(10, 22)), training)
    stages = [{"layers": 10, "first_device": 0, "mesh": [4, 2]}, {"layers": 22, "first_device": 8, "mesh": [4, 2]}]
    plan = Plan.model_validate({"micro_batch": 4, "zero": 1, "pipeline": {"stages": stages}})
    own = simulate(graph, cluster, plan, training)
    assert own.step_time_s == uniform.step_time_s


def test_memory_is_that_of_every_device() -> None:
    """Twenty-two layers fit on the 80 GB devices and not on those of 40 GB, whatever the order of the groups."""
    graph, training = load_model("llama-3-8b"), Training(seq_len=4096, global_batch=32)

    def result(layers: tuple[int, ...]) -> Result:
        cluster = cluster_of(("dgx-a100-40gb", 1), ("dgx-h100", 1))
        return simulate(graph, cluster, Plan(pp=2, tp=1, zero=1, micro_batch=1, layers=layers), training)

    good, bad = result((8, 24)), result((24, 8))
    assert good.fits
    assert not bad.fits
    assert bad.memory.capacity_bytes < good.memory.stages[1].peak_bytes


def test_the_report_names_the_devices_of_stages() -> None:
    """What is tightest is a share of its own device, though others hold more bytes; stages say what they run on."""
    cluster = cluster_of(("dgx-a100-40gb", 1), ("dgx-h100", 1))
    plan = Plan(pp=2, tp=1, zero=1, micro_batch=1, layers=(11, 21))
    found = simulate(load_model("llama-3-8b"), cluster, plan, Training(seq_len=4096, global_batch=32))
    small, large = found.memory.stages
    assert small.peak_bytes < large.peak_bytes
    assert small.peak_bytes / small.capacity_bytes > large.peak_bytes / large.capacity_bytes
    assert (small.device, large.device) == ("a100-sxm-40gb", "h100-sxm-80gb")
    assert found.memory.capacity_bytes == small.capacity_bytes == found.memory.capacity_of(0)
    (words,) = [line for line in found.why.binds if line.startswith("memory")]
    assert words.startswith("memory is tightest on stage 0 (a100-sxm-40gb)")
    assert [cells[-1] for _, cells in memory_rows(found.memory.stages)] == [small.device, large.device]
    rows = page_data(found)["memory"]["stages"]
    assert sum(bar["share"] for bar in rows[1]["bars"]) == pytest.approx(large.peak_bytes / large.capacity_bytes)
    assert rows[0]["capacity_share"] == pytest.approx(small.capacity_bytes / large.capacity_bytes)


def test_utilisation_counts_all_peaks() -> None:
    """MFU is over the sum of the devices' peaks; price and energy are sums over groups."""
    graph, training = load_model("llama-3-8b"), Training(seq_len=4096, global_batch=32)
    found = simulate(graph, cluster_of(*MIXED), Plan(tp=2, pp=2, zero=1, layers=(10, 22)), training)
    peak = sum(8 * device.peak_flop_per_s["bf16"] for device in cluster_of(*MIXED).devices)
    assert found.mfu == pytest.approx(found.speed.model_flops_per_step / found.step_time_s / peak)
    groups = found.setup.cluster["groups"]
    assert [group["nodes"] for group in groups] == [1, 1]


def test_replicas_that_step_alone_need_equal_nodes() -> None:
    """What is not modelled over several kinds of nodes is refused."""
    with pytest.raises(UserError, match="step together"):
        simulate(
            load_model("llama-3-8b"), cluster_of(*MIXED), Plan(sync="local-sgd", sync_every=8, zero=0, tp=8),
            Training(seq_len=4096, global_batch=32),
        )  # fmt: skip


def test_the_interval_of_memory_is_that_of_the_reported_rank():
    """A nearly full small device beside a large one that holds more: peak and interval are the small one's."""
    cluster = cluster_of(("rtx-3090-8", 1), ("dgx-a100-80gb", 1))
    plan = Plan(pp=2, tp=4, micro_batch=4, zero=1, pipeline={"layers": [9, 19]})
    found = simulate("llama-3.2-3b", cluster, plan, Training(seq_len=4096, global_batch=64))
    low, high = found.certainty.reserved_memory_interval_bytes
    assert low <= found.memory.peak_reserved_bytes <= high <= found.memory.capacity_bytes
    assert found.memory.capacity_bytes == cluster.parts[0].device.memory_bytes


def test_links_of_other_nodes_say_nothing_of_communicators():
    """A rank's uncertainty is that of its own nodes, whose links decide how many channels communicators open."""
    stack = load_stack("megatron")
    cluster = cluster_of(("rtx-3090-8", 1), ("dgx-a100-80gb", 1))
    slow, fast = (memory_risk(stack, part) for part in cluster.parts)
    assert slow.communicators < fast.communicators
    training = Training(seq_len=4096, global_batch=64)
    job = make_job("llama-3.2-3b", cluster, Plan(pp=2, tp=4), training)
    lowered = lower_job(job, cluster)
    timing = choose_engine("auto", lowered.program)(lowered.program)
    held = footprints(lowered, timing, cluster)
    assert {one.capacity_bytes: one.risk for one in held} == {
        part.device.memory_bytes: risk for part, risk in zip(cluster.parts, (slow, fast), strict=True)
    }
    assert memory_risk(stack, cluster) == slow, "a bound of searches, which may be no larger than any"
