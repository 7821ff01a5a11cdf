"""From samples to parameters: least squares on the logarithm of time, with few physical parameters. No torch here.

The parameters are those that the simulator reads, and fits use the very functions it predicts with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from simpar.architectures.graph import Block
from simpar.calibrate.request import CalibrationRequest, Sample
from simpar.cost.collectives.choice import collective_time_s
from simpar.cost.kernels import KernelModel
from simpar.cost.operators import operator_times
from simpar.cost.optimizers import optimizer_time_s
from simpar.cost.products import SUMS, OperatorTime, sum_s
from simpar.dataclass import dataclass
from simpar.hardware.cluster import Cluster
from simpar.hardware.device import Device
from simpar.layout.layout import Layout
from simpar.layout.sharding import RankDims, rank_dims
from simpar.plan.choices.numerics import DecidedNumerics
from simpar.stacks.stack import Stack
from simpar.units import MS, US, Floats

PASS_KINDS = ("norm", "rope", "gated_activation", "activation", "add", "dropout", "embedding", "loss")
PRODUCTS: dict[str, tuple[float, float, float]] = {  # start, least, most
    "gemm_efficiency": (0.9, 0.05, 2.0), "gemm_prologue_k": (8.0, 0.0, 2000.0),
}  # fmt: skip
TILES = {"gemm_wave_overlap": (0.3, 0.0, 1.0), "gemm_small_tile_loss": (0.1, 0.0, 0.3)}
ATTENTION = {
    "attention_forward_efficiency": (0.4, 0.01, 1.0), "attention_backward_efficiency": (0.4, 0.01, 1.0),
    "attention_half_seq": (100.0, 0.0, 4000.0),
}  # fmt: skip
COLLECTIVES = {
    "base_us": (100.0, 0.1, 20_000.0), "port_hop_us": (50.0, 0.0, 20_000.0), "port_efficiency": (0.3, 0.005, 1.0),
    "gather_share": (1.0, 0.1, 10.0), "scatter_share": (1.0, 0.1, 10.0), "exchange_efficiency": (0.3, 0.005, 1.0),
    "send_efficiency": (0.6, 0.005, 1.0), "port_scale_loss": (0.1, 0.0, 0.9),
}  # fmt: skip
ISSUED = {"host_us": (10.0, 0.0, 500.0), "factor": (1.0, 0.5, 3.0), "once_ms": (1.0, 0.0, 1000.0)}
EXPERTS = {"experts": (1.5, 0.3, 10.0)}
_TOGETHER = ("collective", "wrapper")
FIXED = {"pair_loss": 0.0, "ll_hop_factor": 1.0, "ll128_hop_factor": 1.0, "send_us": 0.0, "near_peer_us": 0.0}


@dataclass(frozen=True)
class Samples:
    """All samples of a machine, and the request."""

    request: CalibrationRequest
    every: tuple[Sample, ...]

    def of(self, kind: str, name: str | None = None) -> list[Sample]:
        """Samples of a kind and, if given, a name."""
        return [each for each in self.every if each.kind == kind and name in (None, each.name)]

    @cached_property
    def walks(self) -> list[tuple[Block, RankDims]]:
        """For every walk, its operators as one block, and their dims."""
        result = []
        for walk in self.request.walks:
            graph, layout = walk.graph(), Layout(micro_batch=walk.batch)
            layer = graph.blocks[graph.layers[0]]
            every = (*graph.embedding.operators, *layer.operators, *graph.head.operators)
            result.append((replace(layer, operators=every), rank_dims(graph, layout, walk.training)))
        return result

    @cached_property
    def operators(self) -> list[tuple[Sample, str]]:
        """Samples of operators with their kind."""
        kinds = [{op.name: op.kind for op in block.operators} for block, _ in self.walks]
        return [(each, kinds[each.shape[0]][each.name]) for each in self.of("operator")]


@dataclass(frozen=True)
class Quality:
    """How well a part of the model fits: number of samples, median and 90th percentile of the absolute error."""

    part: str
    count: int
    median: float
    p90: float

    @staticmethod
    def of(part: str, predicted: Iterable[float], measured: Iterable[float]) -> Quality:
        """The quality from relative errors of predictions."""
        error = np.abs(np.array(list(predicted)) / np.array(list(measured)) - 1)
        return Quality(part, len(error), float(np.median(error)), float(np.percentile(error, 90)))


@dataclass(frozen=True)
class FittedMachine:
    """A device and a stack under construction, with their kernel costs."""

    device: Device
    stack: Stack
    precision: str = "fp32"

    def kernels(self, precision: str | None = None) -> KernelModel:
        """The kernel model, the same for short benchmarks and long steps: a calibration has one clock."""
        return KernelModel(self.device, precision or self.precision, self.stack.fusion.attention)

    def with_kernels(self, values: Mapping[str, float]) -> FittedMachine:
        """The machine with other kernel parameters."""
        kernels = {**self.device.kernels, **values}
        return replace(self, device=self.device.model_copy(update={"kernels": kernels}))

    def operator_times(self, samples: Samples) -> list[dict[str, OperatorTime]]:
        """For every walk, the times of its operators by name."""
        kernels = self.kernels()
        return [
            {time.name: time for time in operator_times(block.operators, dims, kernels, self.stack)}
            for block, dims in samples.walks
        ]

    def predicted(self, samples: Samples, wanted: Sequence[Sample]) -> Floats:
        """Predicted seconds of samples of operators."""
        times = self.operator_times(samples)
        return np.array([_direction(times[each.shape[0]][each.name], each.direction) for each in wanted])


def _direction(time: OperatorTime, direction: str) -> float:
    return float(time.forward_s if direction == "forward" else time.backward_input_s + time.backward_weight_s)


def solve(
    bounds: Mapping[str, tuple[float, float, float]],
    predict: Callable[[dict[str, float]], Floats],
    measured: Sequence[float],
    *,
    differences: float | None = None,
) -> dict[str, float]:
    """Parameters within (start, least, most) that best predict the measured seconds, with outliers weighted less.

    Derivatives are taken over the share ``differences`` of a parameter, by default the smallest possible.
    """
    names, goal = list(bounds), np.log(np.asarray(measured))
    start, least, most = (np.array(column) for column in zip(*bounds.values(), strict=True))

    def residuals(values: Floats) -> Floats:
        seconds = np.maximum(predict(_named(names, values)), np.finfo(float).tiny)
        return np.asarray(np.log(seconds) - goal, dtype=np.float64)

    solution = least_squares(
        residuals,
        start,
        bounds=(least, most),
        x_scale=np.maximum(np.abs(start), 0.1),
        loss="soft_l1",
        f_scale=0.1,
        diff_step=None if differences is None else np.full(len(names), differences),
    )
    return {name: round_value(value) for name, value in _named(names, solution.x).items()}


def _named(names: Sequence[str], values: Floats) -> dict[str, float]:
    return {name: float(value) for name, value in zip(names, values, strict=True)}


def round_value(value: float) -> float:
    """A value rounded to four significant digits, so that the profile has exactly what was fitted."""
    return float(f"{value:.4g}")


def products(samples: Samples, machine: FittedMachine) -> tuple[FittedMachine, list[Quality]]:
    """Rates of products; dtypes other than the usual one get the peak at which they fit with the same shares."""
    plain, matmuls = samples.of("product"), [each for each, kind in samples.operators if kind == "matmul"]
    own = [each for each in plain if each.dtype == machine.precision]
    bounds = {**PRODUCTS, **(TILES if machine.device.kind == "gpu" else {})}

    def predict(values: dict[str, float]) -> Floats:
        tried = machine.with_kernels(values)
        alone = [float(tried.kernels().gemm_time_s(*each.shape)) for each in own]
        return np.concatenate([alone, tried.predicted(samples, matmuls)])

    measured = [each.seconds for each in (*own, *matmuls)]
    best = solve(bounds, predict, measured)
    quality = [Quality.of("products", predict(best), measured)]
    machine = _with_whole_peak(machine.with_kernels(best))
    for dtype in sorted({each.dtype for each in plain} - {machine.precision}):
        mine = [each for each in plain if each.dtype == dtype]
        machine = _with_peak(machine, dtype, mine)
        times = [float(machine.kernels(dtype).gemm_time_s(*each.shape)) for each in mine]
        quality.append(Quality.of(f"products in {dtype}", times, [each.seconds for each in mine]))
    return machine, quality


def _with_whole_peak(machine: FittedMachine) -> FittedMachine:
    """The machine with a peak raised so that no product exceeds it, including the cost of partial waves."""
    beyond = machine.device.kernels["gemm_efficiency"]
    if beyond <= 1:
        return machine
    peaks = {dtype: round_value(peak * beyond) for dtype, peak in machine.device.peak_flop_per_s.items()}
    device = machine.device.model_copy(update={"peak_flop_per_s": peaks})
    return replace(machine, device=device).with_kernels({"gemm_efficiency": 1.0})


def _with_peak(machine: FittedMachine, dtype: str, mine: Sequence[Sample]) -> FittedMachine:
    """The machine with the peak of a dtype at which the median product takes as long as measured."""
    peaks = {**machine.device.peak_flop_per_s}
    peaks[dtype] = max(2.0 * np.prod(each.shape) / each.seconds for each in mine)
    for _ in range(8):
        tried = replace(machine, device=machine.device.model_copy(update={"peak_flop_per_s": peaks}))
        times = [float(tried.kernels(dtype).gemm_time_s(*each.shape)) for each in mine]
        peaks = {**peaks, dtype: peaks[dtype] * float(np.median(np.array(times) / [e.seconds for e in mine]))}
    return replace(machine, device=machine.device.model_copy(update={"peak_flop_per_s": peaks}))


def attention(samples: Samples, machine: FittedMachine) -> tuple[FittedMachine, list[Quality]]:
    """Rates of attention forward and backward, and the length at which it reaches half of them."""
    result = [each for each, kind in samples.operators if kind == "attention"]
    measured = [each.seconds for each in result]

    def predict(values: dict[str, float]) -> Floats:
        return machine.with_kernels(values).predicted(samples, result)

    best = solve(ATTENTION, predict, measured)
    return machine.with_kernels(best), [Quality.of("attention", predict(best), measured)]


def passes(samples: Samples, machine: FittedMachine) -> tuple[FittedMachine, list[Quality]]:
    """Memory passes of every memory-bound kind of operator in each direction, from the median over its sizes."""
    ones = dict.fromkeys(PASS_KINDS, (1.0, 1.0))
    unit = replace(machine, stack=machine.stack.model_copy(update={"passes": ones})).operator_times(samples)
    none = dict.fromkeys(PASS_KINDS, (1e-12, 1e-12))
    base = replace(machine, stack=machine.stack.model_copy(update={"passes": none})).operator_times(samples)
    ratios: dict[tuple[str, str], list[float]] = {}
    counted: list[Sample] = []
    for each, kind in samples.operators:
        at, name, way = each.shape[0], each.name, each.direction
        if kind in PASS_KINDS and unit[at][name].forward_kernels:
            latency_s = _direction(base[at][name], way)
            one_s = _direction(unit[at][name], way) - latency_s
            ratios.setdefault((kind, way), []).append(max(each.seconds - latency_s, 0.01 * one_s) / one_s)
            counted += [each] * (kind != "add" or way == "forward")
    middle = {key: round_value(np.median(values)) for key, values in ratios.items()}
    kinds = sorted({kind for kind, _ in middle})
    # autograd passes the gradient of a sum on unchanged; where a stream branches, it adds two gradients
    ways = {kind: (middle[kind, "forward"], middle[kind, "forward" if kind == "add" else "backward"]) for kind in kinds}
    machine = replace(machine, stack=machine.stack.model_copy(update={"passes": ways}))
    predicted = machine.predicted(samples, counted)
    return machine, [Quality.of("memory-bound operators", predicted, [each.seconds for each in counted])]


def updates(samples: Samples, machine: FittedMachine) -> tuple[FittedMachine, list[Quality]]:
    """Memory passes of the optimizer over its states."""
    measured, kernels = samples.of("optimizer"), machine.kernels()

    def seconds(passes: float) -> Floats:
        stack = _with_launch(machine, optimizer_passes=passes).stack
        return np.array(
            [float(optimizer_time_s(each.shape[0], DecidedNumerics(), kernels, stack)) for each in measured]
        )

    least = np.finfo(float).tiny
    beyond = np.array([each.seconds for each in measured]) - seconds(least)
    ratio = round_value(float(np.median(np.maximum(beyond, US) / (seconds(1.0) - seconds(least)))))
    machine = _with_launch(machine, optimizer_passes=ratio)
    return machine, [Quality.of("optimizer", seconds(ratio), [each.seconds for each in measured])]


def gradients(samples: Samples, machine: FittedMachine) -> tuple[FittedMachine, list[Quality]]:
    """Bytes per element that the sum of a weight gradient moves, between its product and the gradient sum."""
    measured, kernels = samples.of("gradient"), machine.kernels()
    if not measured:
        return machine, []

    def seconds(size: float) -> Floats:
        return np.array([len(SUMS) * float(sum_s(size, each.shape[0], kernels)) for each in measured])

    beyond = np.array([each.seconds for each in measured]) - seconds(0.0)
    size = round_value(float(np.median(np.maximum(beyond, 0.0) / (seconds(1.0) - seconds(0.0)))))
    numerics = machine.stack.numerics.model_copy(update={"sum_bytes": size})
    machine = replace(machine, stack=machine.stack.model_copy(update={"numerics": numerics}))
    return machine, [Quality.of("sums of gradients", seconds(size), [each.seconds for each in measured])]


def _with_launch(machine: FittedMachine, **values: float) -> FittedMachine:
    launch = machine.stack.launch.model_copy(update=values)
    return replace(machine, stack=machine.stack.model_copy(update={"launch": launch}))


def steps(
    samples: Samples, machine: FittedMachine, simulated: Callable[[FittedMachine, int], float]
) -> tuple[FittedMachine, list[Quality]]:
    """The time of whole steps beyond their listed kernels: a factor on kernels, and a time per step.

    If a host issues work to a device, also the host time per kernel, on which steps of small kernels wait, and a factor
    on the kernels of experts, from steps of mixtures. ``simulated`` gives the predicted seconds of a step of the
    request on a machine.
    """
    result = [each for each in samples.of("step") if each.beside == 1]
    measured = [each.seconds for each in result]
    if machine.device.kind == "gpu" and len(result) > len(ISSUED):
        mixtures = any(samples.request.steps[each.shape[0]].graph().is_mixture for each in result)
        machine = _issued(result, machine, simulated, ISSUED | (EXPERTS if mixtures else {}))
    else:
        machine = _slowed(result, machine, simulated)
    return machine, [
        Quality.of("whole steps of one process", [simulated(machine, e.shape[0]) for e in result], measured)
    ]


def _issued(
    steps: Sequence[Sample],
    machine: FittedMachine,
    simulated: Callable[[FittedMachine, int], float],
    bounds: Mapping[str, tuple[float, float, float]],
) -> FittedMachine:
    """Host time per kernel, factor on kernels, factor on experts' kernels, and time per step, fitted together."""

    def tried(values: Mapping[str, float]) -> FittedMachine:
        launched = _with_launch(
            machine, host_time_per_kernel_s=values["host_us"] * US, kernel_overhead=values["factor"],
            step_overhead_s=values["once_ms"] * MS,
        )  # fmt: skip
        if "experts" not in values:
            return launched
        habits = launched.stack.experts.model_copy(update={"overhead": values["experts"]})
        return replace(launched, stack=launched.stack.model_copy(update={"experts": habits}))

    def predict(values: dict[str, float]) -> Floats:
        return np.array([simulated(tried(values), each.shape[0]) for each in steps])

    found_s = [each.seconds for each in steps]
    return tried(solve(bounds, predict, found_s, differences=0.01))  # simulated time is in whole nanoseconds


def _slowed(
    steps: Sequence[Sample], machine: FittedMachine, simulated: Callable[[FittedMachine, int], float]
) -> FittedMachine:
    """Factor on kernels and time per step; a step is linear in both."""
    measured = np.array([each.seconds for each in steps])
    one, two = (
        np.array([simulated(_with_launch(machine, kernel_overhead=f, step_overhead_s=0.0), e.shape[0]) for e in steps])
        for f in (1.0, 2.0)
    )
    kernels, rest = two - one, 2 * one - two  # step = factor kernels + rest + time per step
    factor, once_s = float(np.median((measured - rest) / kernels)), 0.0
    if len(steps) > 1:
        design = np.stack([kernels / measured, 1 / measured], axis=1)
        slope, constant = np.linalg.lstsq(design, 1 - rest / measured, rcond=None)[0]
        factor, once_s = (float(slope), float(constant)) if constant > 0 and slope > 0 else (factor, 0.0)
    return _with_launch(machine, kernel_overhead=round_value(factor), step_overhead_s=round_value(once_s))


def capacity(samples: Samples) -> tuple[float, list[Quality]]:
    """The number of processes that the cores run at full speed, from steps side by side."""
    shared = [each for each in samples.of("step") if each.beside > 1]
    alone = {each.shape[0]: each.seconds for each in samples.of("step") if each.beside == 1}
    slowdown = np.array([each.seconds / alone[each.shape[0]] for each in shared])
    beside = np.array([each.beside for each in shared], dtype=float)
    tried = np.linspace(1.0, beside.max(), 1 + 100 * int(beside.max()))
    errors = [np.sum((np.log(np.maximum(beside / each, 1.0)) - np.log(slowdown)) ** 2) for each in tried]
    best = round_value(tried[int(np.argmin(errors))])
    return best, [Quality.of("steps beside each other", np.maximum(beside / best, 1.0), slowdown)]


def collectives(samples: Samples, cluster: Cluster) -> tuple[Cluster, list[Quality]]:
    """Latencies and bandwidth shares of collectives on groups of every size."""
    result = samples.of("collective")
    several = len({each.shape[0] for each in result}) > 1
    bounds = COLLECTIVES if several else {k: v for k, v in COLLECTIVES.items() if k != "port_scale_loss"}
    protocols = {"ll_efficiency": 1.0, "ll128_efficiency": 1.0}

    def with_values(values: Mapping[str, float]) -> Cluster:
        profile = cluster.profile.model_copy(update={"collectives": {**FIXED, **protocols, **values}})
        return replace(cluster, profile=profile)

    def predict(values: dict[str, float]) -> Floats:
        tried = with_values(values)
        return np.array(
            [float(collective_time_s(each.name, each.shape[1], (1, each.shape[0]), tried)) for each in result]
        )

    measured = [each.seconds for each in result]
    best = solve(bounds, predict, measured)
    return with_values(best), [Quality.of("collectives", predict(best), measured)]


def wrappers(samples: Samples, machine: FittedMachine, cluster: Cluster) -> FittedMachine:
    """Copies around gathers and reductions, and dispatch of a tensor-parallel collective: the time beyond collectives.

    A sharded pass gathers twice and reduces once; a split layer has eight collectives, four in each direction.
    """
    by_name = {each.name: each for each in samples.of("wrapper")}
    if not by_name:
        return machine
    members, size = by_name["unshard"].shape
    seconds = {name: each.seconds for name, each in by_name.items()}

    def moved(op: str, size_bytes: float) -> float:
        return float(collective_time_s(op, size_bytes, (1, members), cluster))

    around_gather = seconds["unshard"] - moved("all_gather", size)
    pass_s = seconds["sharded pass"] - seconds["plain pass"]
    around_reduce = pass_s - 2 * seconds["unshard"] - moved("reduce_scatter", size)
    rows_bytes = by_name["split layer"].shape[1]
    eight = 4 * (moved("all_gather", rows_bytes) + moved("reduce_scatter", rows_bytes))
    dispatch = (seconds["split layer"] - seconds["plain layer"] / members - eight) / 8
    per_byte = machine.kernels().bandwidth / size
    return _with_launch(
        machine,
        gather_passes=round_value(max(around_gather, 0.0) * per_byte),
        reduce_passes=round_value(max(around_reduce, 0.0) * per_byte),
        dispatch_s=round_value(max(dispatch, 0.0)) if machine.device.kind == "cpu" else 0.0,
    )


def bandwidth(samples: Samples) -> tuple[float, float, float]:
    """The best rate of vector addition, the share of it of the median long vector, and fixed seconds per kernel."""
    streams = sorted(samples.of("stream", "add"), key=lambda each: each.shape[0])
    moved = [3 * 4.0 * each.shape[0] for each in streams]
    rates = [size / each.seconds for size, each in zip(moved, streams, strict=True)]
    best = max(rates)
    longer = rates[len(rates) // 2 :]
    latency_s = max(streams[0].seconds - moved[0] / best, 0.0)
    return best, float(np.median(longer)) / best, latency_s


def gather_samples(ranks: Sequence[Mapping[str, Any]]) -> tuple[Sample, ...]:
    """Samples of all ranks: kernels from rank 0; for groups, the slowest rank's time and the mean load."""
    by_rank = [[Sample.model_validate(each) for each in rank["samples"]] for rank in ranks]
    alone = [each for each in by_rank[0] if each.kind not in _TOGETHER and each.beside == 1]
    shared: dict[tuple[Any, ...], list[Sample]] = {}
    for row in by_rank:
        for each in row:
            if each.kind in _TOGETHER or each.beside > 1:
                shared.setdefault((each.kind, each.name, each.shape, each.beside), []).append(each)
    together = [
        max(group, key=lambda each: each.seconds).model_copy(
            update={"load": float(np.mean([each.load for each in group]))}
        )
        for group in shared.values()
    ]
    return (*alone, *together)
