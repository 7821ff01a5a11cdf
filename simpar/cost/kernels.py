"""Kernel times on one device: GEMM, attention and memory-bound kernels, vectorised over shapes.

Every parameter is physical, one set per device, and stands in the device's profile with its provenance; what a
profile leaves out has the default below. All functions broadcast numpy arrays and return seconds.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.hardware.device import Device
from simpar.precisions import PRECISIONS, Precision
from simpar.units import DTYPE_BYTES, US, Floats, Numbers

_TILES = np.array([(256, 128, 0), (128, 256, 0), (128, 128, 1), (128, 64, 2), (64, 64, 3)], dtype=np.float64).T
"""Tiles that a multiprocessor computes at a time: rows, columns, and how often they halve the largest tile."""

QUERY_ROWS = 128
"""Queries of a head that one thread block of flash kernels works on (backward: keys) [flash-attention, csrc]."""
HEAD_STEP = 32
"""Flash kernels are compiled for head dims that are multiples of it; others are padded [flash-attention, csrc]."""
INTEGER_LANES = 64
"""32-bit integer operations that a GPU's multiprocessor (AMD: compute unit) does in a clock, V100 to H100 and MI200 to
MI300 [CUDA C++ programming guide, throughput of arithmetic instructions; CDNA 3 white paper]."""
DROPOUT_OPS = {"forward": 5.0, "backward": 8.5}
"""Operations on a score that flash kernels drop at random. Philox makes 16 random bytes in 7 rounds of two products of
full width (half rate), two three-way xors and two sums of keys: 7 x 8 / 16 = 3.5. Forward compares and masks two at a
time, 1.5; backward carries the choice in the sign of the probabilities and selects twice, 5 [flash-attention, csrc,
philox.cuh and dropout.h]."""
PORT_BYTES = 64
"""Bytes that a multiprocessor reads from the L2 cache in a clock, V100 to H100 [NVIDIA V100 and A100 whitepapers]."""
Heads = tuple[Numbers, Numbers, Numbers, Numbers]
"""Shape of attention: batch, queries, heads and the dim of a head."""

AS_FORWARD = -1.0
"""The tail of backward kernels that have none of their own; 0 is no tail."""
DEFAULTS: dict[str, float] = {
    # share of peak that the tensor cores sustain in a long GEMM (power, issue, shared memory)
    "gemm_efficiency": 0.80,
    # the same for 8-bit floats, whose operands are also cast and scaled
    "gemm_efficiency_fp8": 0.72,
    # the same for 4-bit floats; 0: as for 8-bit ones, where nobody has measured it
    "gemm_efficiency_fp4": 0.0,
    # extra contraction depth a tile pays for filling and draining its pipeline, elements of K
    "gemm_prologue_k": 180.0,
    # share of a partial last wave that stream-K or overlapping CTAs recover
    "gemm_wave_overlap": 0.3,
    # efficiency lost by a tile half as large as 256 x 128 (operands are re-read twice as often)
    "gemm_small_tile_loss": 0.10,
    # extra time of a weight-gradient GEMM that adds into an fp32 buffer, share of the GEMM
    "gemm_wgrad_loss": 0.04,
    # share of peak of the flash-attention kernels on long sequences with head_dim 128
    "attention_forward_efficiency": 0.55,
    "attention_backward_efficiency": 0.45,
    # the same for FlashAttention-2 on devices that also have faster kernels; 0: as above
    "flash2_forward_efficiency": 0.0,
    "flash2_backward_efficiency": 0.0,
    # work of a score beside its products (exponentials), in elements of head dim; the default is FlashAttention-2's
    "attention_score_dim": 12.0,
    # least work of a score, in the same unit: exponentials bound heads of a small dim
    "attention_least_dim": 0.0,
    # length of a causal sequence at which attention runs at half its rate on long ones (pipeline fill), tokens
    "attention_half_seq": 350.0,
    # time that the last multiprocessors are busy beyond the mean, as a share of the longest block row's; the second
    # is that of backward kernels where it differs
    "attention_tail": 0.45,
    "attention_backward_tail": AS_FORWARD,
    # share of 16-bit peak in the products of a state-space scan's kernels, see docs/modeling.md
    "scan_forward_efficiency": 0.137,
    "scan_backward_efficiency": 0.036,
    # clock that power and heat leave in a long training step, relative to a short benchmark
    "sustained_clock": 1.0,
    # the same for 8-bit products, whose power differs from that of 16-bit ones; 0: as for 16-bit ones
    "sustained_clock_fp8": 0.0,
    # the same for 4-bit products; 0: as for 8-bit ones
    "sustained_clock_fp4": 0.0,
    # share of the datasheet bandwidth a streaming kernel reaches
    "memory_efficiency": 0.85,
    # fixed cost of a kernel: launch, ramp and tail
    "kernel_latency_us": 3.0,
}


def variants(parameter: str, precision: str) -> tuple[str, ...]:
    """Names of a parameter at a precision, the most specific first; where its value is 0, the next one's holds."""
    return (*(f"{parameter}_{rate}" for rate in PRECISIONS[precision].rates), parameter)


@dataclass(frozen=True)
class KernelModel:
    """Kernel times of a device at a precision, in seconds.

    ``attention`` names the kernel family: "flash" (the fastest that the device has), "flash2" (FlashAttention-2,
    as in PyTorch's scaled dot product), "latent" (the fastest, with heads of two widths) or "unfused". ``sustained``
    applies the clock of long steps; without it times are those of short benchmarks. ``attention_rate`` multiplies the
    speed of flash kernels. ``splits_k``: products of few rows divide their contraction among idle multiprocessors, as
    libraries do when they serve.
    """

    device: Device
    precision: str = "bf16"
    attention: str = "flash"
    sustained: bool = True
    attention_rate: float = 1.0
    splits_k: bool = False

    @cached_property
    def parameters(self) -> dict[str, float]:
        """Fitted parameters over defaults. Raises UserError for a name this model does not know."""
        unknown = sorted(set(self.device.kernels) - set(DEFAULTS))
        if unknown:
            raise UserError(
                f"device {self.device.name}: unknown kernel parameter {unknown[0]}; allowed: {', '.join(DEFAULTS)}"
            )
        return {**DEFAULTS, **self.device.kernels}

    @property
    def products(self) -> Precision:
        """What the precision means for products."""
        return PRECISIONS[self.precision]

    @property
    def activation_dtype(self) -> str:
        """Dtype of activations: 8-bit and 4-bit runs keep them in bf16 between products."""
        return self.products.handed_dtype

    @property
    def activation_bytes(self) -> float:
        """Bytes of an activation element."""
        return self.products.handed_bytes

    def peak(self, dtype: str) -> float:
        """Dense peak FLOP/s. Raises UserError where the device cannot compute in that dtype."""
        rates, known = self.device.peak_flop_per_s, PRECISIONS[dtype]
        rate = next(iter(known.rates), dtype)
        if rate not in rates or (known.needs and known.needs not in rates):
            raise UserError(f"device {self.device.name}: no {dtype} arithmetic; allowed precision: {', '.join(rates)}")
        return rates[rate]

    def rate(self, dtype: str) -> float:
        """Peak FLOP/s at the clock that kernels run at."""
        return self.peak(dtype) * self._clock(dtype)

    def _clock(self, dtype: str) -> float:
        """The clock that kernels run at, over that of the peak rates."""
        return self._measured("sustained_clock", dtype) if self.sustained else 1.0

    def _measured(self, parameter: str, dtype: str) -> float:
        """A parameter for products in a dtype: the most specific of its variants that was measured, else 0."""
        return next(filter(None, (self.parameters[name] for name in variants(parameter, dtype))), 0.0)

    @cached_property
    def bandwidth(self) -> float:
        """Sustained memory bandwidth in bytes/s."""
        return self.device.memory_bandwidth * self.parameters["memory_efficiency"]

    @cached_property
    def latency_s(self) -> float:
        """Fixed time of one kernel in seconds."""
        return self.parameters["kernel_latency_us"] * US

    def gemm_time_s(
        self, m: Numbers, n: Numbers, k: Numbers, *, batch: Numbers = 1, accumulate: bool = False
    ) -> Numbers:
        """Seconds of ``batch`` products (m x k)(k x n) at the model's precision; sizes broadcast.

        The best of a few tile shapes. Each pays for whole waves over the SMs (partly recovered) and for the prologue of
        its K loop; no product takes less than moving its operands and result through memory. ``accumulate``: the
        result is added into fp32 (weight gradients).
        """
        m, n, k, batch = (np.asarray(x, dtype=np.float64) for x in (m, n, k, batch))
        p, sms, ndim = self.parameters, self.device.num_sms, max(x.ndim for x in (m, n, k, batch))
        rows, columns, halvings = _TILES.reshape(3, -1, *(1,) * ndim)  # all tiles at once, along a first axis
        waves = batch * np.ceil(m / rows) * np.ceil(n / columns) / sms
        overlap, efficiency = p["gemm_wave_overlap"], 1.0 - p["gemm_small_tile_loss"] * halvings
        paid = (1 - overlap) * np.ceil(waves) + overlap * np.maximum(waves, 1.0)
        # a tile of which there are fewer than multiprocessors is cut into as many parts as leave none without one
        parts = np.maximum(np.floor(1.0 / waves), 1.0) if self.splits_k else 1.0
        per_wave = 2.0 * rows * columns * (k / parts + p["gemm_prologue_k"]) * sms / (self._gemm_rate * efficiency)
        best: Floats = (paid * per_wave).min(axis=0)
        if accumulate:
            best = best * (1 + self.parameters["gemm_wgrad_loss"])
        moved = self.gemm_moved_bytes(m, n, k, batch=batch, accumulate=accumulate)
        return self.latency_s + np.maximum(best, moved / self.bandwidth)

    def gemm_moved_bytes(
        self, m: Numbers, n: Numbers, k: Numbers, *, batch: Numbers = 1, accumulate: bool = False
    ) -> Numbers:
        """Bytes of the operands and the result of ``batch`` products, each read or written once."""
        result = DTYPE_BYTES["fp32"] * 2 if accumulate else self.activation_bytes
        return batch * (self.products.operand_bytes * (m * k + k * n) + result * m * n)

    def tiled_time_s(
        self, m: Numbers, n: Numbers, k: Numbers, *, batch: Numbers, tiles: Sequence[tuple[int, int]]
    ) -> Numbers:
        """Seconds of ``batch`` products in one kernel, in the best of ``tiles`` (rows, columns); sizes broadcast.

        Every thread block reads k (rows + columns) operands through its multiprocessor's port to the L2 cache, also for
        what the last tiles compute beyond m and n. The memory streams at the same time, but neither hides the other
        wholly where both take long, and the time is the root of the sum of both squares.
        """
        m, n, k, batch = (np.asarray(x, dtype=np.float64) for x in (m, n, k, batch))
        deep, narrow = k + self.parameters["gemm_prologue_k"], self.products.operand_bytes
        read = [np.ceil(m / rows) * np.ceil(n / columns) * (rows + columns) * deep * narrow for rows, columns in tiles]
        fed_s = batch * np.minimum.reduce(np.broadcast_arrays(*read)) / (PORT_BYTES * self.clocks_per_s)
        computed_s = np.maximum(fed_s, 2.0 * batch * m * n * k / self._gemm_rate)
        moved_s = self.gemm_moved_bytes(m, n, k, batch=batch) / self.bandwidth
        both_s: Floats = np.hypot(computed_s, moved_s)
        return self.latency_s + both_s

    @cached_property
    def _gemm_rate(self) -> float:
        return self.rate(self.precision) * self._measured("gemm_efficiency", self.precision)

    def head_dim(self, key_dim: Numbers, value_dim: Numbers, *, backward: bool) -> Numbers:
        """Mean dim of attention's two products: scores contract ``key_dim``, outputs have ``value_dim``."""
        if backward and self.attention in ("flash", "flash2"):  # these compute everything at the wider dim
            return np.maximum(key_dim, value_dim)
        return (np.asarray(key_dim) + value_dim) / 2

    def attention_time_s(
        self,
        shape: Heads,
        *,
        context: Numbers,
        seen: Numbers,
        backward: bool,
        kv_heads: Numbers | None = None,
        drops: bool = False,
    ) -> Numbers:
        """Seconds of core attention over ``context`` keys, of which a query sees ``seen`` on average; sizes broadcast.

        Every block of queries also pays for filling its pipeline, and the last blocks leave multiprocessors idle, which
        shows where short sequences of few heads make few blocks. ``drops``: flash kernels drop scores at random,
        between the products of a block. Unfused kernels compute masked scores too.
        """
        batch, seq, heads, head_dim = (np.asarray(x, dtype=np.float64) for x in shape)
        keys = np.asarray(context, dtype=np.float64)
        if self.attention == "unfused":
            kept = np.asarray(seen, dtype=np.float64) / keys
            return self._unfused_attention_s((batch, seq, heads, head_dim), keys, kept, backward=backward)
        moved = self.attention_moved_bytes((batch, seq, heads, head_dim), keys, kv_heads, backward=backward)
        moved_s = moved / self.bandwidth
        head_dim = HEAD_STEP * np.ceil(head_dim / HEAD_STEP)
        p, direction = self.parameters, "backward" if backward else "forward"
        second = self.attention == "flash2" and p["flash2_forward_efficiency"]
        share = p[f"{'flash2' if second else 'attention'}_{direction}_efficiency"]
        shape_of = DEFAULTS if second else p  # FlashAttention-2 is the same kernel wherever others are faster
        seen = np.asarray(seen, dtype=np.float64)
        fill = shape_of["attention_half_seq"] / 2.0 / seen
        blocks = batch * seq * heads / QUERY_ROWS
        longest = np.minimum(keys, 2.0 * seen) / seen  # a causal mask's last row is twice as long as the mean
        given = shape_of["attention_backward_tail"] if backward else AS_FORWARD
        tail = (shape_of["attention_tail"] if given == AS_FORWARD else given) * longest
        # 1 + half_seq / (2 seen) + tail (longest / seen) S / blocks
        stretched = 1.0 + fill + tail * self.device.num_sms / blocks
        # rate at head dim d over that at 128: (d / w(d)) / (128 / w(128)), w(d) = max(d + score_dim, least_dim)
        usual, own = (
            np.maximum(dim + shape_of["attention_score_dim"], shape_of["attention_least_dim"])
            for dim in (128.0, head_dim)
        )
        width = usual / 128.0 * head_dim / own
        flop = self.attention_flop((batch, seq, heads, head_dim), seen, backward=backward)
        products_s = flop * stretched / (self.rate(self.activation_dtype) * share * self.attention_rate * width)
        if not drops:
            return self.latency_s + np.maximum(products_s, moved_s)
        dropped_s = DROPOUT_OPS[direction] * batch * seq * seen * heads / (INTEGER_LANES * self.clocks_per_s)
        return self.latency_s + np.maximum(products_s + dropped_s * stretched, moved_s)

    @staticmethod
    def attention_flop(shape: Heads, seen: Numbers, *, backward: bool) -> Numbers:
        """FLOP of core attention: 4 b s a d x seen forward, 2.5 times that backward."""
        batch, seq, heads, head_dim = shape
        return 4.0 * batch * seq * seen * heads * head_dim * (2.5 if backward else 1.0)

    def attention_moved_bytes(
        self, shape: Heads, keys: Numbers, kv_heads: Numbers | None, *, backward: bool
    ) -> Numbers:
        """Bytes that flash kernels at least move: queries and outputs, keys and values, each once.

        Backward reads these and the outputs' gradient, and writes three gradients.
        """
        batch, seq, heads, head_dim = shape
        rows = batch * (seq * heads + keys * (heads if kv_heads is None else kv_heads))
        return (4.0 if backward else 2.0) * rows * head_dim * self.activation_bytes

    @cached_property
    def clocks_per_s(self) -> float:
        """Clocks of all multiprocessors together in a second, at the clock that kernels run at.

        Where no clock is told it is that of the fp32 peak, of 128 lanes with two FLOP each.
        """
        device, power = self.device, self.device.power
        if power and power.boost_clock and device.kind == "gpu":
            clocks = device.num_sms * power.boost_clock
        else:
            fp32 = device.peak_flop_per_s.get("fp32", self.peak(self.activation_dtype) / 16.0)
            clocks = fp32 / (4.0 * INTEGER_LANES)
        return clocks * self._clock(self.activation_dtype)

    def _unfused_attention_s(self, shape: Heads, keys: Numbers, kept: Numbers, *, backward: bool) -> Numbers:
        """Two batched products, and passes over the scores: softmax (with mask and scale) and dropout.

        Softmax writes all scores and reads the share ``kept`` by the mask (backward: of scores and of gradients);
        dropout reads and writes all scores and a byte of mask for each. Source: Megatron-LM's
        scaled_upper_triang_masked_softmax.
        """
        batch, seq, heads, head_dim = shape
        model = replace(self, precision=self.activation_dtype)
        scores = batch * heads * seq * keys
        products = model.gemm_time_s(seq, keys, head_dim, batch=batch * heads) + model.gemm_time_s(
            seq, head_dim, keys, batch=batch * heads
        )
        factor = 2.0 if backward else 1.0
        passes = (3.0 + factor * kept) * self.activation_bytes + 1.0
        return factor * products + scores * passes / self.bandwidth

    def memory_time_s(self, moved_bytes: Numbers, *, kernels: Numbers = 1) -> Numbers:
        """Seconds of memory-bound kernels that move ``moved_bytes`` in ``kernels`` launches."""
        return kernels * self.latency_s + np.asarray(moved_bytes, dtype=np.float64) / self.bandwidth
