"""What devices and whole nodes draw: devices by the kind of kernel that runs, hosts by parts, fans, conversion.

All figures are means over a step. A device draws its idle power and, depending on what runs, a share of the rest up to
its limit. A node draws the power of its devices, processors, memory, switches, network cards and drives, of fans that
carry all of this heat away, and what its supplies lose. What no data sheet says is fitted to measured nodes
(benchmarks/fit_power.py).
"""

from collections.abc import Collection

import numpy as np

from simpar.architectures.graph import ModelGraph
from simpar.hardware.device import Power
from simpar.hardware.profile import Host
from simpar.units import Numbers, floats

PRODUCTS, STREAMING, WAITING = 1.193, 0.608, 0.185
"""Shares of limit - idle that a device asks for: in products, in kernels bound by its memory, and while none of these
runs (collectives and gaps). The limit holds for the mean: after waiting, products run above it for a moment."""
PROCESSORS = 0.556
"""Share of their limits that the processors of a host draw in training: they launch kernels and read data."""
TENSOR_CORES = ("matmul", "grouped_matmul", "router", "attention")
"""Kinds of operators that are products; all others stream through memory."""


def streaming_operators(graph: ModelGraph) -> Collection[str]:
    """Names of the operators of a model whose kernels are bound by memory."""
    every = [op for block in graph.blocks.values() for op in block.operators]
    products = {op.name for op in every if op.kind in TENSOR_CORES}
    return {op.name for op in every} - products


def device_w(power: Power, products: Numbers, streaming: Numbers) -> Numbers:
    """Watts of a device that runs products and memory-bound kernels for these shares of a step, and waits for the rest.

    The result lies between idle and limit; shares are numbers or arrays.
    """
    waiting = 1.0 - products - streaming
    asked = PRODUCTS * products + STREAMING * streaming + WAITING * waiting
    return floats(power.idle + np.minimum(asked, 1.0) * (power.limit - power.idle))


def dynamic_power_share(*, streaming: bool) -> float:
    """Share of limit - idle that a kernel asks for beyond waiting: memory-bound (``streaming``) or a product."""
    return (STREAMING if streaming else PRODUCTS) - WAITING


def input_w(host: Host, devices_w: float, nodes: int = 1) -> float:
    """Watts that ``nodes`` nodes take from the mains, where all their devices together draw ``devices_w``."""
    power = host.power
    parts = power.memory + power.switches + power.network + power.drives + power.other
    inside = devices_w + nodes * (PROCESSORS * power.processors + parts)
    return inside * (1.0 + power.fans) / power.supply_efficiency
