"""Tables of measured kernels: matrix products and attention by shape, device and dtype.

Columns: ``op, gpu_type, dtype, batch, m, n, k`` of products, ``n_heads, seq_len, head_dim, causal, direction`` of
attention, and ``time_us`` or ``tflops``.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simpar.cost.kernels import KernelModel
from simpar.hardware.device import Device, load_device
from simpar.units import TERA, US
from simpar.validate.cells import Row, Unmodelled, measurement, text, throttled

COLUMNS = ("op", "gpu_type", "m", "n", "k")
PRODUCTS = ("matmul", "group_matmul")
LAUNCH_BOUND_S = 150 * US  # shorter framework calls measure the host
THROTTLED_S = 0.03  # longer kernels run at the power-limited clock
DEVICES = (
    (r"a100.*pcie", "a100-pcie-80gb"), (r"a100", "a100-sxm-80gb"), (r"gh200|h200", "h200-sxm"),
    (r"h100.*pcie", "h100-pcie"), (r"h[18]00", "h100-sxm-80gb"), (r"a800", "a100-sxm-80gb"), (r"h20\b", "h20-sxm"),
    (r"gb200", "gb200"), (r"b200", "b200-sxm"), (r"gb300", "gb300"), (r"b300", "b300-sxm"),
    (r"mi300x", "mi300x"), (r"mi325x", "mi325x"), (r"mi355x", "mi355x"), (r"v100", "v100-sxm2-32gb"),
)  # fmt: skip


@dataclass(frozen=True)
class Kernel:
    """One measured kernel; the shape is (m, n, k, batch) of a product, (batch, seq, heads, head_dim) of attention.

    If keys and values have different ``head_dims``, head_dim is their mean. Kernels timed inside training steps
    (``in_step``) ran at the clock of steps.
    """

    source: str
    device: str
    op: str
    dtype: str
    time_s: float
    shape: tuple[float, ...]
    causal: bool = False
    head_dims: tuple[float, float] = (0.0, 0.0)
    in_step: bool = False


def kernel(row: Row) -> Kernel:
    """The kernel of a row. Raises Unmodelled with the reason."""
    name = text(row, "gpu_type").lower()
    device = next((profile for pattern, profile in DEVICES if re.search(pattern, name)), None)
    if device is None:
        raise Unmodelled(f"no profile for {text(row, 'gpu_type')}" if name else "gpu_type not published")
    device = "b200-sxm-throttled" if throttled(row) else device
    if text(row, "op") in PRODUCTS:
        return _product(row, device)
    if text(row, "op").startswith(("flash_attention", "cudnn_attention", "sdp_")):
        return _attention(row, device)
    raise Unmodelled(f"{text(row, 'op')}: neither a product nor dense attention")


def times_s(device: Device, kernels: Sequence[Kernel]) -> NDArray[np.float64]:
    """Predicted seconds of kernels of one device, float64[n], at the clock of a short benchmark or of steps."""
    result = np.zeros(len(kernels))
    groups: dict[tuple[str, str, bool], list[int]] = defaultdict(list)
    for index, each in enumerate(kernels):
        groups[each.dtype, each.op, each.in_step].append(index)
    for (dtype, op, in_step), mine in groups.items():
        family = "flash2" if op.startswith("flash_attention_2") else "flash"
        model = KernelModel(device, dtype, family, sustained=in_step)
        result[mine] = _times(model, op, [kernels[i] for i in mine])
    return result


def predict(kernels: Sequence[Kernel]) -> list[float | str]:
    """Predicted seconds of kernels of any devices in order, or the reason why one cannot be predicted."""
    groups: dict[str, list[int]] = defaultdict(list)
    for index, each in enumerate(kernels):
        groups[each.device].append(index)
    result = np.zeros(len(kernels))
    for name, mine in groups.items():
        result[mine] = times_s(load_device(name), [kernels[i] for i in mine])
    return [
        "a rate beyond the device's peak" if beyond_peak(each, load_device(each.device)) else float(value)
        for each, value in zip(kernels, result, strict=True)
    ]


def beyond_peak(each: Kernel, device: Device) -> bool:
    """Whether a product was measured faster than the device's dense peak, so that something else was counted."""
    flop = 2.0 * float(np.prod(each.shape)) if each.op in ("gemm", "wgrad") else 0.0
    return flop > each.time_s * device.peak_flop_per_s.get(each.dtype, np.inf)


def _measured_s(row: Row, flop: float) -> float:
    time_us, rate = measurement(row, "time_us"), measurement(row, "tflops")
    if time_us:
        return time_us * US
    if not rate:
        raise Unmodelled("nothing measured (no time, no rate)")
    return flop / (rate * TERA)


def _product(row: Row, device: str) -> Kernel:
    sizes = [measurement(row, name) for name in "mnk"]
    if not all(sizes):
        raise Unmodelled("shape not published")
    if "best over" in text(row, "statistic"):
        raise Unmodelled("the best of many shapes")
    m, n, k = (float(size or 0) for size in sizes)
    batch = measurement(row, "batch") or 1.0
    dtype = _dtype(row)
    accumulate = text(row, "accumulate") == "True" or text(row, "direction") == "bwd_grad_w"
    time = _measured_s(row, 2 * batch * m * n * k)
    return Kernel(
        text(row, "source"), device, "wgrad" if accumulate else "gemm", dtype, time, (m, n, k, batch)
    )


def _dtype(row: Row) -> str:
    """fp8 or bf16 (also for fp16). Raises Unmodelled for any other dtype."""
    words = text(row, "dtype").lower()
    if words and not re.search("fp8|float8|bf16|fp16|float16", words):
        raise Unmodelled(f"dtype {words} is not modelled")
    return "fp8" if re.search("fp8|float8", words) else "bf16"


def _attention(row: Row, device: str) -> Kernel:
    seq, heads, head_dim = (measurement(row, name) for name in ("seq_len", "n_heads", "head_dim"))
    if not (seq and heads and head_dim):
        raise Unmodelled("shape not published")
    batch = measurement(row, "batch") or max(1.0, 16384 / seq)
    # rates over the unmasked FLOP of a causal kernel
    whole = "full attention FLOP" in text(row, "layout") + text(row, "causal")
    causal = whole or text(row, "causal").lower() in ("true", "1")
    value_dim = re.search(r"v_head_dim=(\d+)", text(row, "notes"))
    head_dims = (head_dim, float(value_dim.group(1)) if value_dim else head_dim)
    width = sum(head_dims) / 2
    flop = 4 * batch * seq**2 * heads * width * (0.5 if causal and not whole else 1.0)
    words = text(row, "direction")
    direction = "both" if "fwd+bwd" in words else ("bwd" if "bwd" in words else "fwd")
    time = _measured_s(row, flop * {"fwd": 1.0, "bwd": 2.5, "both": 3.5}[direction])
    if time < LAUNCH_BOUND_S:
        raise Unmodelled("bound by its launch")
    if time > THROTTLED_S:
        raise Unmodelled("long enough to run at a throttled clock")
    op = f"{text(row, 'op')}:{direction}"
    shape = (batch, seq, heads, width)
    in_step = "inside a training step" in text(row, "statistic")
    return Kernel(text(row, "source"), device, op, "bf16", time, shape, causal, head_dims, in_step)


def _times(model: KernelModel, op: str, kernels: Sequence[Kernel]) -> NDArray[np.float64]:
    columns = np.array([each.shape for each in kernels]).T
    if op in ("gemm", "wgrad"):
        m, n, k, batch = columns
        return np.asarray(model.gemm_time_s(m, n, k, batch=batch, accumulate=op == "wgrad"))
    total = np.zeros(len(kernels))
    for causal in (False, True):
        mask = np.array([each.causal == causal for each in kernels])
        b, s, a, _ = columns[:, mask]
        both = np.array([each.head_dims for each in kernels])[mask].T
        for backward in {"fwd": (False,), "bwd": (True,), "both": (False, True)}[op.split(":")[1]]:
            dim = model.head_dim(*both, backward=backward)
            total[mask] += model.attention_time_s(
                (b, s, a, dim), context=s, seen=s / 2 if causal else s, backward=backward
            )
    return total
