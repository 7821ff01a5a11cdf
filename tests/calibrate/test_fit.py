"""Fits find the numbers that made the samples; profiles survive the way to a file and back."""

from pathlib import Path

import pytest

from simpar.calibrate import fit
from simpar.calibrate.fit import FittedMachine, Samples
from simpar.calibrate.profile import KnownFacts, build, write
from simpar.calibrate.request import Sample, quick
from simpar.cost.collectives.choice import collective_time_s
from simpar.cost.optimizers import optimizer_time_s
from simpar.hardware.catalogue import load_cluster
from simpar.hardware.cluster import Cluster
from simpar.hardware.device import load_device
from simpar.plan.choices.numerics import DecidedNumerics
from simpar.profiles import as_written, yaml_text
from simpar.runtime.job import Machine as Where
from simpar.stacks.stack import load_stack

TRUE = {
    "gemm_efficiency": 0.8, "gemm_prologue_k": 40.0, "gemm_wave_overlap": 1.0, "gemm_small_tile_loss": 0.0,
    "attention_forward_efficiency": 0.3, "attention_backward_efficiency": 0.2, "attention_half_seq": 60.0,
    "memory_efficiency": 1.0, "kernel_latency_us": 2.0, "gemm_wgrad_loss": 0.0,
}  # fmt: skip
PASSES = dict.fromkeys(fit.PASS_KINDS, (3.0, 7.0)) | {"add": (3.0, 3.0)}
CAPACITY = 1.5
FACTS = KnownFacts("here", "a machine", 8e9, {})


@pytest.fixture(scope="module")
def truth():
    """A machine whose every number is known, as samples would be if they had no noise."""
    device = load_device("cpu-laptop").model_copy(update={"kernels": TRUE, "memory_bandwidth": 2e10})
    stack = load_stack("simpar")
    launch = stack.launch.model_copy(update={"host_time_per_kernel_s": 0.0, "optimizer_passes": 0.5})
    numerics = stack.numerics.model_copy(update={"sum_bytes": 0.0})  # in the factor on whole steps of a CPU
    return FittedMachine(device, stack.model_copy(update={"passes": PASSES, "launch": launch, "numerics": numerics}))


@pytest.fixture(scope="module")
def samples(truth):
    """What a perfect stopwatch would find on that machine with two ranks."""
    request = quick(2, Where(), "nowhere")
    empty = Samples(request, ())
    kernels, found = truth.kernels(), []
    found += [
        Sample(kind="product", name="product", shape=shape, seconds=float(kernels.gemm_time_s(*shape)))
        for shape in request.products
    ]
    for count in request.streams:
        seconds = float(kernels.memory_time_s(12 * count))
        found.append(Sample(kind="stream", name="add", shape=(count,), seconds=seconds))
    found.append(Sample(kind="stream", name="issue", shape=(1,), seconds=1e-6))
    for count in request.parameters:
        seconds = float(optimizer_time_s(count, DecidedNumerics(), kernels, truth.stack))
        found.append(Sample(kind="optimizer", name="adamw", shape=(count,), seconds=seconds))
    for number, times in enumerate(truth.operator_times(empty)):
        for time in times.values():
            ways = {"forward": time.forward_s, "backward": time.backward_input_s + time.backward_weight_s}
            found += [
                Sample(kind="operator", name=time.name, shape=(number,), direction=way, seconds=float(seconds))
                for way, seconds in ways.items()
                if seconds
            ]
    found += messages(request)
    step = {"kind": "step", "name": "step", "shape": (0,)}
    found += [Sample(**step, seconds=0.1), Sample(**step, seconds=0.1 * 2 / CAPACITY, beside=2)]
    return Samples(request, tuple(found))


def messages(request):
    """Collectives of a pair over 8 GB/s of which rings reach a quarter, gathers half as much again."""
    known = {"base_us": 50.0, "port_hop_us": 20.0, "port_efficiency": 0.25, "gather_share": 1.5, "scatter_share": 0.5}
    cluster = load_cluster("laptop-cpu-4")
    values = {**fit.FIXED, "ll_efficiency": 1.0, "ll128_efficiency": 1.0, **known}
    cluster = Cluster(cluster.profile.model_copy(update={"collectives": values}), 1)
    return [
        Sample(
            kind="collective", name=op, shape=(2, size), load=0.7,
            seconds=float(collective_time_s(op, size, (1, 2), cluster)),
        )
        for op in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send")
        for size in request.messages
    ]  # fmt: skip


@pytest.fixture(scope="module")
def found(samples):
    """The profiles that are fitted to those samples."""
    return build(samples, FACTS)


def test_fits_find_what_made_the_samples(samples, found):
    """Without noise every kernel, pass, collective and capacity is predicted to within a percent."""
    errors = {each.part: each.p90 for each in found.quality}
    assert errors.pop("whole steps of one process") < 0.01
    assert max(errors.values()) < 0.02, errors
    assert found.stack.passes["norm"] == pytest.approx((3.0, 7.0), rel=0.05)
    assert found.stack.launch.optimizer_passes == pytest.approx(0.5, rel=0.05)
    host = found.cluster.host
    assert host.compute_capacity == pytest.approx(CAPACITY, rel=0.01)
    assert host.collective_load == pytest.approx(0.7)
    assert f"{len(samples.every)} samples on 2 rank(s)" in found.cluster.provenance


def test_profiles_come_back_from_their_files(samples, found, tmp_path):
    """What is written is read as the same profile, device inside, quantities with units; twice the same bytes."""
    cluster, stack = write(found, tmp_path / "here.yaml")
    first = cluster.read_bytes(), stack.read_bytes()
    read = load_cluster(str(cluster)).profile
    assert read.device.kernels == found.cluster.device.kernels
    assert read.collectives == found.cluster.collectives
    assert read.host.memory_bytes == pytest.approx(found.cluster.host.memory_bytes, rel=1e-5)
    assert load_stack(str(stack)).passes == found.stack.passes
    write(build(samples, FACTS), tmp_path / "here.yaml")
    assert (cluster.read_bytes(), stack.read_bytes()) == first


@pytest.mark.parametrize("name", ["dgx-h100", "laptop-cpu-4", "tpu-v4-pod", "meta-llama3-h100"])
def test_shipped_clusters_survive_writing(name, tmp_path):
    """Every quantity of a shipped profile keeps its value when written with a unit."""
    profile = load_cluster(name).profile
    path = Path(tmp_path / "copy.yaml")
    path.write_text(yaml_text(as_written(profile)))
    again = load_cluster(str(path)).profile
    assert again.scale_up.bandwidth == pytest.approx(profile.scale_up.bandwidth, rel=1e-5)
    assert again.host.memory_bytes == pytest.approx(profile.host.memory_bytes, rel=1e-5)
    assert again.collectives == profile.collectives
