"""Tables of measured kernels: matrix products and attention by shape, device and dtype.

Columns: ``op, gpu_type, dtype, batch, m, n, k`` of products, ``n_heads, seq_len, head_dim, causal, direction`` of
attention, and ``time_us`` or ``tflops``. ``device`` names a device profile in place of ``gpu_type``; ``v_head_dim`` is
that of values, if it differs; with ``flop_count`` full the rate of a causal kernel counts masked FLOP too; with
``in_step`` true a kernel was timed inside training steps.
"""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from simpar.cost.kernels import KernelModel
from simpar.dataclass import dataclass
from simpar.hardware.device import Device, load_device
from simpar.units import TERA, US
from simpar.validation.cells import Row, Unmodelled, measurement, read_word, text
from simpar.validation.devices import device_of, hardware_of

COLUMNS = ("op", "gpu_type", "m", "n", "k")
PRODUCTS = ("matmul", "group_matmul")
LAUNCH_BOUND_S = 150 * US  # shorter framework calls measure the host
THROTTLED_S = 0.03  # longer kernels run at the power-limited clock
_DTYPES = {**dict.fromkeys(("bf16", "bfloat16", "fp16", "float16"), "bf16"), **dict.fromkeys(("fp8", "float8"), "fp8")}
"""dtypes of products, and what is modelled in their place: 16 bits are alike."""
_DIRECTIONS = {"fwd": "fwd", "bwd": "bwd", "fwd+bwd": "both"}
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


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
    if reason := text(row, "not_modelled"):
        raise Unmodelled(reason)
    device = text(row, "device") or device_of(hardware_of(row)).name
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
        "a rate beyond the device's peak" if exceeds_peak(each, load_device(each.device)) else float(value)
        for each, value in zip(kernels, result, strict=True)
    ]


def exceeds_peak(each: Kernel, device: Device) -> bool:
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
    m, n, k = (float(size or 0) for size in sizes)
    batch = measurement(row, "batch") or 1.0
    dtype = read_word(row, "dtype", _DTYPES, "bf16")
    accumulate = read_word(row, "accumulate", _BOOLEANS, text(row, "direction") == "bwd_grad_w")
    time = _measured_s(row, 2 * batch * m * n * k)
    return Kernel(text(row, "source"), device, "wgrad" if accumulate else "gemm", dtype, time, (m, n, k, batch))


def _attention(row: Row, device: str) -> Kernel:
    seq, heads, head_dim = (measurement(row, name) for name in ("seq_len", "n_heads", "head_dim"))
    if not (seq and heads and head_dim):
        raise Unmodelled("shape not published")
    batch = measurement(row, "batch") or max(1.0, 16384 / seq)
    whole = read_word(row, "flop_count", {"full": True, "seen": False}, False)
    causal = read_word(row, "causal", _BOOLEANS, False)
    head_dims = (head_dim, measurement(row, "v_head_dim") or head_dim)
    width = sum(head_dims) / 2
    flop = 4 * batch * seq**2 * heads * width * (0.5 if causal and not whole else 1.0)
    direction = read_word(row, "direction", _DIRECTIONS, "fwd")
    time = _measured_s(row, flop * {"fwd": 1.0, "bwd": 2.5, "both": 3.5}[direction])
    if time < LAUNCH_BOUND_S:
        raise Unmodelled("bound by its launch")
    if time > THROTTLED_S:
        raise Unmodelled("long enough to run at a throttled clock")
    op = f"{text(row, 'op')}:{direction}"
    shape = (batch, seq, heads, width)
    in_step = read_word(row, "in_step", _BOOLEANS, False)
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
