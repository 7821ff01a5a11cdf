"""Parameters of stacks, devices and clusters that whole runs show: names, values, bounds, and spreads of profiles.

A spread is how far a stack or a cluster that nobody has measured may differ. For parameters that were fitted to runs it
is the spread found there (``spreads.json``, benchmarks/fit_runs.py), for all others the root mean square difference of
shipped profiles from their median.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from simpar import files
from simpar.cost.collectives.parameters import PARAMETERS
from simpar.cost.kernels import variants
from simpar.dataclass import dataclass
from simpar.hardware.catalogue import load_cluster
from simpar.hardware.device import Device, load_device
from simpar.hardware.intervals import interval_of
from simpar.hardware.profile import ClusterProfile
from simpar.plan.choices.mesh import PIPELINE
from simpar.precisions import PRECISIONS
from simpar.stacks.stack import Stack, load_stack
from simpar.uncertainty.table import load_error_table
from simpar.units import GIB, MIB, MS, NS, US
from simpar.validation.predict import ParameterOverrides, change_stack, cluster_of
from simpar.validation.rows import Case

Name = tuple[str, str, str]
"""Kind of profile ("device", "stack" or "cluster"), the profile, and the parameter's dotted key in it."""
NINE_IN_TEN = 1.645
BOARDS = 0.03
"""How far clocks of boards of one device differ at least, as a share."""
LEAST_SPREAD = 0.1
"""The least spread, as a share of a parameter's usual value: a few profiles may agree by chance."""


@dataclass(frozen=True)
class Parameter:
    """A parameter in SI units: its bounds, the step for its slope, and the least spread of profiles."""

    low: float
    high: float
    step: float
    least_spread: float = 0.0


CLOCK = Parameter(0.3, 1.0, 0.03)
"""Of GPUs: long steps run no faster than short benchmarks, which run at the boost clock where power allows it."""
OTHER_CLOCK = replace(CLOCK, low=0.05, high=1.3)
"""Of devices whose shares of peak nobody timed at a known clock: TPUs, and CPUs."""
CLOCKS = (*reversed(max((variants("sustained_clock", name) for name in PRECISIONS), key=len)),)
ATTENTION = "fusion.attention_rate"
STACK = {
    "launch.host_time_per_kernel_s": Parameter(0.0, 100 * US, 4 * US),
    "launch.kernel_overhead": Parameter(0.7, 2.5, 0.04),
    "launch.step_overhead_s": Parameter(0.0, 0.5, 5 * MS),
    "launch.host_time_per_collective_s": Parameter(0.0, 1 * MS, 20 * US),
    "launch.message_s": Parameter(0.0, 10 * MS, 0.3 * MS),
    "overlap.compute_slowdown_while_comm": Parameter(1.0, 1.6, 0.03),
    ATTENTION: Parameter(0.3, 1.5, 0.03),
}
EXPERTS = {
    "experts.overhead": Parameter(0.8, 2.5, 0.05),
    "experts.sync_s": Parameter(0.0, 5 * MS, 0.05 * MS),
    "experts.row_s": Parameter(0.0, 20 * NS, 0.5 * NS),
    "experts.exchange_host_s": Parameter(0.0, 5 * MS, 0.1 * MS),
}
SHARDS = {
    "launch.shard_copy_s": Parameter(0.0, 50 * US, 0.5 * US),
    "launch.host_time_per_module_s": Parameter(0.0, 5 * MS, 0.03 * MS, 0.1 * MS),
    "launch.host_time_per_unit_s": Parameter(0.0, 10 * MS, 0.1 * MS, 0.3 * MS),
}
"""Parameters of stacks that copy gathered shards tensor by tensor, where most gather flat buffers, and of hooks in
Python: a module with a few parameters takes some tens of calls, at worst one that waits for a message."""
ARRAYS = {"launch.host_time_per_array_s": Parameter(0.0, 2 * MS, 0.02 * MS, 0.05 * MS)}
"""Parameters of stacks that update arrays one by one: some tens of operations each at most."""
DISPATCH = "launch.dispatch_s"
ON_CPU = {DISPATCH: Parameter(0.0, 20 * MS, 0.2 * MS, 1 * MS)}
"""Parameters for which the host is the device; no shipped profile was measured on a CPU."""
CAPACITY, SHARED = "host.compute_capacity", Parameter(1.0, 1.0, 0.25, 1.0)
"""How many devices of a host work at full speed at a time, at most all of them."""
MEMORY = {
    "memory.extra_saved": Parameter(0.0, 64.0, 1.0, 6.0),
    "memory.logit_bytes": Parameter(0.5, 20.0, 0.5),
    "memory.logit_saved_bytes": Parameter(0.0, 12.0, 0.5),
    "memory.bucket_bytes": Parameter(0.0, 8.0, 0.5),
    "memory.allocator.workspace_bytes": Parameter(0.0, 16 * GIB, 64 * MIB),
}
"""Parameters of a stack's memory, whichever kind of peak was measured.

By the habits that profiles name, what a stack saves of a layer of Llama 3 8B differs by 6 bytes per token and hidden
feature; what no profile names may differ by as much.
"""
RESERVED = {
    "memory.allocator.fragmentation": Parameter(0.0, 0.6, 0.02),
    "memory.allocator.churn": Parameter(0.0, 0.6, 0.02),
    "memory.allocator.held_outputs": Parameter(0.0, 200.0, 5.0),
}
"""What an allocator reserves beyond tensors, per transient byte."""
_ONLY_WITH = {"launch.host_time_per_collective_s": "tp", "launch.message_s": PIPELINE, DISPATCH: "tp"}
"""Axes without which a parameter has no effect."""
CLUSTER = ("collectives.port_efficiency", "collectives.nic_efficiency")
SHARE = Parameter(0.1, 1.0, 0.03)


def parameter(key: str) -> Parameter:
    """Bounds and step of a key; rates of attention by device count as one parameter."""
    if key in CLOCKS:
        return CLOCK
    known = {
        **STACK,
        **EXPERTS,
        **SHARDS,
        **ARRAYS,
        **ON_CPU,
        **MEMORY,
        **RESERVED,
        **dict.fromkeys(CLUSTER, SHARE),
        CAPACITY: SHARED,
    }
    return known[ATTENTION if key.startswith(ATTENTION) else key]


def bounds_of(name: Name) -> Parameter:
    """Bounds and step of a parameter of one profile: what its kind of part can be."""
    kind, part, key = name
    if kind == "device" and load_device(part).kind != "gpu":
        return OTHER_CLOCK
    return parameter(key)


def names_of(case: Case, tuning: ParameterOverrides) -> Iterator[Name]:
    """Parameters that the step of a case may depend on."""
    device, precision = cluster_of(case, tuning).device, str(case.plan["precision"])
    for key in reversed(variants(CLOCKS[0], precision)):
        yield "device", device.name, key
    stack, rare = load_stack(case.stack), {**(SHARDS if case.plan.get("zero") else {}), **ARRAYS}
    kinds = (
        STACK, {key: rare[key] for key in rare if _of_stack(stack, key)}, EXPERTS if case.graph.is_mixture else {},
        ON_CPU if device.kind == "cpu" else {},
    )  # fmt: skip
    for key in (key for kind in kinds for key in kind):
        if case.plan.get(_ONLY_WITH.get(key, ""), 2) != 1:
            yield "stack", case.stack, f"{key}.{device.name}" if key == ATTENTION else key
    if case.num_devices > 1:
        yield "cluster", case.hardware, "collectives.port_efficiency"
        if device.kind == "cpu":
            yield "cluster", case.hardware, CAPACITY
    if case.num_devices > case.devices_per_node:
        for key in CLUSTER[1:]:
            yield "cluster", case.hardware, key


def value_of(name: Name, case: Case, tuning: ParameterOverrides) -> float:
    """A parameter's value in the tuning, or else in the profiles of a case."""
    kind, part, key = name
    tried = {"device": tuning.devices, "stack": tuning.stacks, "cluster": tuning.clusters}[kind]
    if key in tried.get(part, {}):
        return tried[part][key]
    if kind == "device":
        return clock_of(cluster_of(case, tuning).device, key)
    if kind == "stack":
        return _of_stack(change_stack(case.stack, {}), key)
    return _of_cluster(cluster_of(case, tuning).profile, key)


def clock_of(device: Device, key: str) -> float:
    """A clock of a device; for a narrower precision that it does not state, that of the next wider one."""
    wider = CLOCKS[CLOCKS.index(key) :: -1]
    return next((device.kernels[one] for one in wider if device.kernels.get(one)), 1.0)


def _of_stack(stack: Stack, key: str) -> float:
    if key.startswith(ATTENTION):
        return stack.fusion.rate_on(key.rpartition(".")[2])
    result: Any = stack
    for step in key.split("."):
        result = getattr(result, step)
    return float(result)


def _of_cluster(profile: ClusterProfile, key: str) -> float:
    if key == CAPACITY:
        return profile.host.compute_capacity or float(profile.devices_per_node)
    name = key.rpartition(".")[2]
    return profile.collectives.get(name, PARAMETERS[name][0])


@cache
def _fitted() -> dict[str, float]:
    """Spreads of logarithms that the fit to whole runs found, by key."""
    return dict(json.loads((Path(__file__).parent / "spreads.json").read_text()))


@lru_cache(maxsize=64)
def spread_of_part(name: Name) -> float:
    """How far a part may differ: clocks of a device as its own fit left them open, all else as any profile.

    Boards of one device differ by a few percent in clock, stacks by factors: what is slow is rather the code.
    """
    kind, part, key = name
    known = interval_of("devices", part, f"kernels.{key}") if kind == "device" else None
    usual = spread_of(kind, key)
    if known is None:
        return usual
    return min(usual, max(sum(known) / 2 * BOARDS, (known[1] - known[0]) / (2 * NINE_IN_TEN)))


@lru_cache(maxsize=64)
def spread_of(kind: str, key: str) -> float:
    """How far the shipped profiles of a kind differ in a parameter, in the parameter's unit.

    Of stacks, those that measured runs stand behind: one that was put together from its source code alone has most of
    its values from another one, and would count that one twice.
    """
    if key == CAPACITY:
        return SHARED.least_spread
    if kind == "device":
        stated = [load_device(name).kernels.get(key) for name in files.bundled("devices")]
    elif kind == "stack":
        known_stacks = {each.traits.stack for each in load_error_table().evidence}
        stated = [_of_stack(load_stack(name), key) for name in files.bundled("stacks") if name in known_stacks]
    else:
        field = key.rpartition(".")[2]
        profiles = [load_cluster(name).profile for name in files.bundled("clusters")]
        stated = [profile.collectives.get(field) for profile in profiles]
    values = np.array([value for value in stated if value is not None])
    usual = float(np.median(values))
    differ = float(np.sqrt(np.mean((values - usual) ** 2)))
    if known := _fitted().get(key):
        differ = known * float(np.median(values[values > 0]))
    return max(differ, LEAST_SPREAD * usual, parameter(key).least_spread)


def tuning_of(values: Mapping[Name, float]) -> ParameterOverrides:
    """Parameters in the form that predictions take."""
    parts: dict[str, dict[str, dict[str, float]]] = {"device": {}, "stack": {}, "cluster": {}}
    for (kind, part, key), value in values.items():
        parts[kind].setdefault(part, {})[key] = value
    return ParameterOverrides(parts["device"], parts["stack"], parts["cluster"])
