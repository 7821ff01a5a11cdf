"""Laws of the kernel model: monotone, below peak, bound by memory, quantised, vectorised."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simpar.architectures.catalogue import load_model
from simpar.architectures.graph import AttentionPattern
from simpar.architectures.training import Training
from simpar.cost.kernels import KernelModel
from simpar.cost.operators import operator_times
from simpar.errors import UserError
from simpar.files import bundled
from simpar.hardware.catalogue import load_cluster
from simpar.hardware.device import Device, Power, load_device
from simpar.layout.layout import Layout
from simpar.layout.sharding import rank_dims
from simpar.plan.plan import Plan
from simpar.precisions import PRECISIONS
from simpar.simulation import simulate
from simpar.stacks.stack import Fusion, load_stack
from simpar.units import MS, PETA, TERA

MODEL = KernelModel(load_device("h100-sxm-80gb"))
SIZE = st.integers(1, 20_000)


@given(SIZE, SIZE, SIZE)
def test_gemm_never_beats_the_device(m: int, n: int, k: int) -> None:
    """No product runs above peak or moves its operands faster than memory."""
    time = float(MODEL.gemm_time_s(m, n, k))
    assert time >= 2.0 * m * n * k / MODEL.peak("bf16")
    assert time >= 2.0 * (m * k + k * n + m * n) / MODEL.device.memory_bandwidth


@given(SIZE, SIZE, SIZE, st.sampled_from([0, 1, 2]), st.integers(2, 5))
def test_more_work_takes_no_less_time(m: int, n: int, k: int, axis: int, factor: int) -> None:
    """Growing any dimension never makes a product faster."""
    grown = [m, n, k]
    grown[axis] *= factor
    assert MODEL.gemm_time_s(*grown) >= MODEL.gemm_time_s(m, n, k) * (1 - 1e-12)


def test_vectorised_equals_scalar() -> None:
    """Arrays of shapes give what each shape gives alone."""
    m, n, k = np.array([128, 4096, 8192]), np.array([4096, 4096, 128]), np.array([4096, 512, 8192])
    together = MODEL.gemm_time_s(m, n, k)
    alone = [float(MODEL.gemm_time_s(*shape)) for shape in zip(m, n, k, strict=True)]
    assert together.tolist() == alone


PLAIN = {
    "gemm_efficiency": 1.0, "gemm_efficiency_fp8": 1.0, "gemm_prologue_k": 0.0, "gemm_wave_overlap": 0.0,
    "gemm_wgrad_loss": 0.0, "memory_efficiency": 1.0, "kernel_latency_us": 0.0, "attention_half_seq": 0.0,
    "attention_tail": 0.0, "attention_score_dim": 0.0, "attention_forward_efficiency": 1.0,
    "attention_backward_efficiency": 1.0,
}  # fmt: skip


def by_hand(num_sms: int = 1, **kernels: float) -> KernelModel:
    """A device of 1e12 FLOP/s (8 bits: 2e12) and 1e12 bytes/s, all of which kernels reach, unless changed."""
    peaks = {"bf16": TERA, "fp8": 2 * TERA}
    device = Device(
        name="by hand", peak_flop_per_s=peaks, memory_bytes=1e12, memory_bandwidth=TERA, num_sms=num_sms,
        kernels={**PLAIN, **kernels},
    )  # fmt: skip
    return KernelModel(device)


@pytest.mark.parametrize(
    ("rows", "columns", "share"), [(256, 128, 1.0), (128, 256, 1.0), (128, 128, 0.9), (128, 64, 0.8), (64, 64, 0.7)]
)
def test_every_tile_computes_its_own_size(rows: int, columns: int, share: float) -> None:
    """2 x rows x columns x k FLOP on one multiprocessor; every halving of the tile loses a tenth."""
    found = by_hand().gemm_time_s(rows, columns, 4096)
    assert found == pytest.approx(2 * rows * columns * 4096 / 1e12 / share, rel=1e-12)


def test_a_wave_on_several_multiprocessors() -> None:
    """A wave is a tile on each of four: 2 rows columns k x 4 FLOP, whether or not there are as many tiles.

    22 tiles are five waves and a half: they pay for six, less the share of the last one's idle part that overlaps. Four
    tiles of 128 x 64, at 0.4 of the rate, are one wave where one of 256 x 128 would leave three multiprocessors idle.
    """
    wave_s = 2 * 256 * 128 * 4096 * 4 / 1e12
    whole, part = (by_hand(4, gemm_small_tile_loss=0.3, gemm_wave_overlap=share) for share in (0.0, 0.5))
    assert whole.gemm_time_s(256 * 22, 128, 4096) == pytest.approx(6 * wave_s, rel=1e-12)
    assert part.gemm_time_s(256 * 22, 128, 4096) == pytest.approx(5.75 * wave_s, rel=1e-12)
    assert whole.gemm_time_s(256, 128, 4096) == pytest.approx(wave_s / 4 / 0.4, rel=1e-12)
    # the prologue counts as 1,024 more elements of k
    assert by_hand(gemm_prologue_k=1024.0).gemm_time_s(256, 128, 4096) == pytest.approx(2 * 256 * 128 * 5120 / 1e12)


def test_thin_products_move_their_matrices() -> None:
    """1,024 x 2 x 1,024: 2 bytes of both operands and of the result, or 8 where it is read and added in fp32."""
    model, ends = by_hand(), 2 * 2 * 2 * 1024
    assert model.gemm_time_s(1024, 1024, 2, accumulate=True) == pytest.approx((ends + 8 * 2**20) / 1e12, rel=1e-12)
    assert model.gemm_time_s(1024, 1024, 0.5) == pytest.approx((ends / 4 + 2 * 2**20) / 1e12, rel=1e-12)


def test_rates_that_a_profile_leaves_out() -> None:
    """8-bit products have the clock of 16-bit ones; FlashAttention-2 is as fast as the fastest kernels."""
    model = by_hand(sustained_clock=0.8)
    assert replace(model, precision="fp8").rate("fp8") == pytest.approx(0.8 * 2e12)
    shape = (2, 512, 16, 64)
    for backward, flop in ((False, 2**30), (True, 2.5 * 2**30)):
        for other in (model, replace(model, attention="flash2")):
            time = other.attention_time_s(shape, context=512, seen=256, backward=backward)
            assert time == pytest.approx(flop / 0.8e12, rel=1e-12)
    twice = replace(model, attention_rate=2.0).attention_time_s(shape, context=512, seen=256, backward=False)
    assert twice == pytest.approx(2**30 / 1.6e12, rel=1e-12)


def test_flash_kernels_move_their_operands() -> None:
    """128 queries of 8 heads of 64 and 256 keys of 2: 2 x (64 + 32) KiB forward, twice that backward; 16 keys seen."""
    model, shape, moved_bytes = by_hand(memory_efficiency=0.01), (1, 128, 8, 64), 2 * 64 * (128 * 8 + 256 * 2)
    for backward, passes in ((False, 2), (True, 4)):
        for drops in (False, True):
            took_s = model.attention_time_s(shape, context=256, seen=16, kv_heads=2, backward=backward, drops=drops)
            assert took_s == pytest.approx(passes * moved_bytes / 1e10, rel=1e-12)


def test_dropout_adds_integer_operations_of_every_score() -> None:
    """5 forward and 8.5 backward, 64 a clock and multiprocessor; without a clock a quarter of the fp32 peak."""
    device = by_hand(sustained_clock=0.5).device
    power = Power(limit=100.0, idle=1.0, boost_clock=1e9)
    shape, scores = (2, 512, 16, 64), 2 * 512 * 16 * 256
    for told, rate in ((power, device.num_sms * 64e9), (None, device.peak_flop_per_s.get("fp32", 1e12 / 16) / 4)):
        model = KernelModel(device.model_copy(update={"power": told}))
        for backward, operations in ((False, 5.0), (True, 8.5)):
            times = [
                model.attention_time_s(shape, context=512, seen=256, backward=backward, drops=drops)
                for drops in (False, True)
            ]
            assert times[1] - times[0] == pytest.approx(operations * scores / (0.5 * rate), rel=1e-9)


def test_dropout_of_attention_takes_longer_on_every_device() -> None:
    """A quarter more forward at head dim 128 on A100, and nothing where no score is dropped."""
    a100 = KernelModel(load_device("a100-sxm-80gb"))
    once, dropped = (
        a100.attention_time_s((1, 4096, 24, 128), context=4096, seen=2048, backward=False, drops=drops)
        for drops in (False, True)
    )
    assert 1.2 < dropped / once < 1.3
    for name in bundled("devices"):
        model = KernelModel(load_device(name), precision="fp32" if name == "cpu-laptop" else "bf16")
        if "bf16" in model.device.peak_flop_per_s:
            times = [
                model.attention_time_s((1, 512, 8, 64), context=512, seen=256, backward=True, drops=drops)
                for drops in (False, True)
            ]
            assert times[0] < times[1] < 3 * times[0], name


@pytest.mark.parametrize(
    ("mask", "context", "seen", "longest"),
    [
        (AttentionPattern(), 512, 256, 2), (AttentionPattern(causal=False), 512, 512, 1),
        (AttentionPattern(window=64), 512, 64 - 64 * 64 / 1024, 2),
        (AttentionPattern(causal=False, document=128), 128, 128, 1),
    ],
)  # fmt: skip
def test_the_longest_block_row_ends_last(mask: AttentionPattern, context: int, seen: float, longest: int) -> None:
    """128 blocks of 128 queries on one multiprocessor: a tail of 0.5 is half of the longest row, 0.5 longest / 128."""
    assert mask.mean_keys(512) == seen
    time = by_hand(attention_tail=0.5).attention_time_s((2, 512, 16, 64), context=context, seen=seen, backward=False)
    assert time == pytest.approx(4 * 2 * 512 * 16 * 64 * seen * (1 + 0.5 * longest / 128) / 1e12, rel=1e-12)


def test_waves_quantise() -> None:
    """One tile more than a full wave costs visibly more than the share of its work."""
    model = KernelModel(load_device("h100-sxm-80gb").model_copy(update={"kernels": {"gemm_wave_overlap": 0.0}}))
    full = 132 * 128  # tiles of 128 rows x 256 columns on 132 SMs
    step = model.gemm_time_s(full + 1, 256, 4096) / model.gemm_time_s(full, 256, 4096)
    assert step > 1.3


@pytest.mark.parametrize(
    ("device", "low", "high"), [("a100-sxm-80gb", 200e12, 312e12), ("h100-sxm-80gb", 550e12, 989e12)]
)
def test_large_gemm_in_a_known_range(device: str, low: float, high: float) -> None:
    """An 8192-cube runs where public benchmarks put it."""
    model = KernelModel(load_device(device), sustained=False)
    assert low < 2 * 8192**3 / float(model.gemm_time_s(8192, 8192, 8192)) < high


def test_backward_of_attention_is_two_and_a_half_forwards() -> None:
    """With equal efficiencies the backward takes 2.5 times the forward's arithmetic."""
    equal = {"attention_forward_efficiency": 0.5, "attention_backward_efficiency": 0.5, "kernel_latency_us": 0.0}
    model = KernelModel(MODEL.device.model_copy(update={"kernels": equal}))
    shape = (1, 8192, 32, 128)
    times = [model.attention_time_s(shape, context=8192, seen=4096, backward=b) for b in (False, True)]
    assert times[1] / times[0] == pytest.approx(2.5)


@given(st.integers(128, 65536), st.integers(64, 4096))
def test_masks_and_windows_save_time(seq: int, window: int) -> None:
    """A causal kernel is no slower than a full one, a window no slower than all keys."""

    def time(*, causal: bool, window: int | None) -> float:
        seen = AttentionPattern(causal=causal, window=window).mean_keys(seq)
        return float(MODEL.attention_time_s((1, seq, 8, 128), context=seq, seen=seen, backward=False))

    assert time(causal=True, window=None) <= time(causal=False, window=None)
    assert time(causal=True, window=window) <= time(causal=True, window=None)


@given(st.integers(1, 512), st.integers(1, 600))
def test_mean_keys_counts_the_mask(seq: int, window: int) -> None:
    """The mean number of keys is the share of ones in the mask, up to the diagonal's half key."""
    distance = np.arange(seq)[:, None] - np.arange(seq)
    seen = (distance >= 0) & (distance < window)
    exact = seen.sum() / seq
    assert AttentionPattern(window=window).mean_keys(seq) == pytest.approx(exact, abs=0.5)
    chunk = np.arange(seq) // window
    own = (distance >= 0) & (chunk[:, None] == chunk)
    if seq % window == 0:
        assert AttentionPattern(window=window, chunked=True).mean_keys(seq) == pytest.approx(own.sum() / seq, abs=0.5)


def test_unfused_attention_pays_for_scores() -> None:
    """Materialised scores make attention memory-bound and slower."""
    shape = (4, 2048, 16, 128)
    fused, unfused = (
        KernelModel(MODEL.device, attention=kind).attention_time_s(shape, context=2048, seen=1024, backward=False)
        for kind in ("flash", "unfused")
    )
    assert unfused > 2 * fused


def test_unknown_parameter_is_named() -> None:
    """A profile cannot carry a number that the model does not know."""
    device = MODEL.device.model_copy(update={"kernels": {"speed": 2.0}})
    with pytest.raises(UserError, match="unknown kernel parameter speed"):
        _ = KernelModel(device).parameters


def test_precision_the_device_lacks() -> None:
    """An A100 has no 8-bit floats; the message lists what it has."""
    with pytest.raises(UserError, match=r"no fp8 arithmetic; allowed precision: .*bf16"):
        KernelModel(load_device("a100-sxm-80gb")).peak("fp8")


@pytest.mark.parametrize("precision", ["nvfp4", "mxfp4"])
def test_four_bits(precision: str) -> None:
    """Long products run at the fp4 peak times the share of 8-bit ones; thin ones move half a byte and scales."""
    device = load_device("b200-sxm")
    fours, eights = (KernelModel(device, name) for name in (precision, "fp8"))
    assert fours.peak(precision) == 2 * eights.peak("fp8") == 9 * PETA
    large = 1 << 17
    ratio = float(eights.gemm_time_s(large, large, large) / fours.gemm_time_s(large, large, large))
    assert ratio == pytest.approx(2, rel=1e-3)
    m, n = 8, 1 << 16
    moved = {"nvfp4": 9 / 16, "mxfp4": 17 / 32}[precision] * (m * n + n * n) + 2 * m * n
    assert fours.gemm_time_s(m, n, n) == pytest.approx(fours.latency_s + moved / fours.bandwidth)
    measured = device.model_copy(update={"kernels": {**device.kernels, "gemm_efficiency_fp4": 0.5}})
    slow = KernelModel(measured, precision).gemm_time_s(large, large, large)
    share = device.kernels["gemm_efficiency_fp8"]
    assert slow / fours.gemm_time_s(large, large, large) == pytest.approx(share / 0.5, rel=1e-3)


def test_four_bits_need_a_device_that_has_them() -> None:
    """Hopper does not; one line says what it has."""
    with pytest.raises(UserError, match=r"device h100-sxm-80gb: no nvfp4 arithmetic; allowed precision: .*fp8"):
        KernelModel(load_device("h100-sxm-80gb")).peak("nvfp4")


@pytest.mark.parametrize(
    ("precision", "moved"),
    [
        ("nvfp4", 2 + 2 + 2 + 2 * 9 / 16),
        ("mxfp4", 2 + 2 * 17 / 32),
        ("mxfp8", 2 + 2 * 33 / 32),
        ("fp8_blockwise", 2 + 2 * 132 / 128),
    ],
)
def test_casts_in_blocks(precision: str, moved: float) -> None:
    """Read once, written in rows and columns; NVFP4 looks for the largest value, and reads again to rotate columns."""
    found = PRECISIONS[precision]
    assert found.scales
    assert found.cast_bytes * found.scales.cast_rate == pytest.approx(moved)


def test_scales_of_blocks_need_a_device_that_has_them() -> None:
    """Hopper has 8-bit products, but no blocks of them; Blackwell runs both at one peak."""
    with pytest.raises(UserError, match=r"device h100-sxm-80gb: no mxfp8 arithmetic"):
        KernelModel(load_device("h100-sxm-80gb")).peak("mxfp8")
    assert KernelModel(load_device("b200-sxm")).peak("mxfp8") == 4.5 * PETA


def test_products_in_blocks_cast_both_operands_and_lay_out_their_scales() -> None:
    """Two kernels for scales before each of three products, a cast of the input, one of the gradient; routers none."""
    graph, plan = load_model("mixtral-8x7b"), Plan(micro_batch=2)
    training, device = Training(seq_len=4096, global_batch=16), load_device("b200-sxm")
    block, dims = graph.blocks[graph.layers[0]], rank_dims(graph, Layout.of(plan), training)
    own, tensor, half = (
        {
            each.name: each
            for each in operator_times(block.operators, dims, KernelModel(device, name), load_stack("nemo"))
        }
        for name in ("mxfp8", "fp8", "bf16")
    )
    model, rows, hidden = KernelModel(device, "mxfp8"), 2 * 4096, 4096
    assert (own["o_proj"].forward_kernels, own["o_proj"].backward_kernels) == (4, 7)
    product_s = model.gemm_time_s(rows, hidden, hidden)
    cast_s = model.memory_time_s(rows * hidden * (2 + 2 * 33 / 32) / 0.75)
    assert own["o_proj"].forward_s == pytest.approx(float(product_s + cast_s + 2 * model.latency_s))
    assert own["router"] == half["router"] == tensor["router"]


@pytest.mark.parametrize(("trained", "backward"), [(True, 42.0), (False, 38.0)])
def test_norms_operator_by_operator_move_every_intermediate(trained: bool, backward: float) -> None:
    """In fp32 between narrow ends: 18 passes of two bytes forward; backward four more where weights are trained."""
    graph, plan, device = load_model("llama-2-7b"), Plan(), load_device("h100-sxm-80gb")
    norm = next(op for op in graph.blocks[graph.layers[0]].operators if op.kind == "norm")
    weights = tuple(replace(weight, trainable=trained) for weight in norm.weights)
    dims, model = (rank_dims(graph, Layout.of(plan), Training(seq_len=4096, global_batch=16)), KernelModel(device))
    stack = load_stack("fsdp")
    eager = stack.model_copy(update={"fusion": stack.fusion.model_copy(update={"norm": False})})
    (found,) = operator_times([replace(norm, weights=weights)], dims, model, eager)
    moved = 4096**2 * model.activation_bytes
    assert (found.forward_kernels, found.backward_kernels) == (8, 16)
    assert found.forward_s == pytest.approx(float(model.memory_time_s(18 * moved, kernels=8)))
    assert found.backward_input_s == pytest.approx(float(model.memory_time_s(backward * moved, kernels=8)))


@pytest.mark.parametrize(("stack", "kernels"), [("megatron", (2, 3)), ("hai-llm", (2, 5))])
def test_casts_in_long_blocks(stack: str, kernels: tuple[int, int]) -> None:
    """Of blocks of 128, which Hopper has too: rows and columns at once, or columns in their own time."""
    graph, plan, device = load_model("llama-2-7b"), Plan(), load_device("h100-sxm-80gb")
    dims = rank_dims(graph, Layout.of(plan), Training(seq_len=4096, global_batch=16))
    model, size = KernelModel(device, "fp8_blockwise"), 4096.0
    times = operator_times(graph.blocks[graph.layers[0]].operators, dims, model, load_stack(stack))
    found = next(each for each in times if each.name == "o_proj")
    assert (found.forward_kernels, found.backward_kernels) == kernels
    apart, narrow = stack == "hai-llm", 132 / 128
    moved = size**2 * (2 + narrow * (1 if apart else 2)) / 0.6
    product_s = float(model.gemm_time_s(size, size, size))
    weights_s = 1.54 * float(model.gemm_time_s(size, size, size, accumulate=True))
    assert found.forward_s == pytest.approx(product_s + float(model.memory_time_s(moved)))
    turned = 2 * narrow * size**2 * apart
    assert found.backward_input_s == pytest.approx(product_s + float(model.memory_time_s(moved + turned)))
    later = size**2 * (2 + 3 * narrow) / 0.6 if apart else 0.0
    assert found.backward_weight_s == pytest.approx(weights_s + float(model.memory_time_s(later, kernels=2 * apart)))


def test_a_step_in_four_bits() -> None:
    """Faster than 8 bits, by less than the peaks say; activations that products keep are smaller.

    Scales of blocks cost a little in 8 bits: casts of inputs, and their own bytes.
    """
    cluster, training = load_cluster("hgx-b200", 1), Training(seq_len=4096, global_batch=16)
    found = {
        name: simulate("llama-3-8b", cluster, Plan(precision=name, zero=1), training, stack="megatron")
        for name in ("bf16", "mxfp8", "fp8", "nvfp4", "mxfp4")
    }
    times = [one.step_time_s for one in found.values()]
    assert times == sorted(times, reverse=True)
    assert times[2] < 2 * times[3]
    kept = [one.memory.stages[0].activations_bytes for one in found.values()]
    assert kept == sorted(kept, reverse=True)


def test_a_window_fills_the_pipeline_no_further_than_its_keys() -> None:
    """FLOP for FLOP a window of 128 keys is as slow as a causal row of 256, one as wide as the sequence as the mask."""
    device = load_device("gb300")
    model = KernelModel(device.model_copy(update={"kernels": {**device.kernels, "attention_tail": 0.0}}))
    half = model.parameters["attention_half_seq"]

    def per_key_s(seen: float) -> float:
        time = model.attention_time_s((4, 4096, 64, 64), context=4096, seen=seen, backward=False)
        return float(time - model.latency_s) / seen

    assert per_key_s(128) / per_key_s(2048) == pytest.approx((1 + half / 256) / (1 + half / 4096))
    assert per_key_s(4096) / per_key_s(2048) == pytest.approx((1 + half / 8192) / (1 + half / 4096))


@pytest.mark.parametrize(
    ("device", "measured"),
    [("a100-pcie-80gb", (0.214, 0.284, 0.446, 0.778, 1.484)), ("b200-sxm-throttled", (None, None, None, 0.168, 0.286))],
)
def test_few_heads_leave_multiprocessors_idle(device: str, measured: tuple[float | None, ...]) -> None:
    """Forward, causal, 4,096 tokens and 4 to 64 heads of 128: ms of SimuMax's tables of operators."""
    model = KernelModel(load_device(device), sustained=False)
    heads = np.array([4, 8, 16, 32, 64])
    times_s = model.attention_time_s((1, 4096, heads, 128), context=4096, seen=2048, backward=False)
    for found, expected in zip(np.asarray(times_s) / MS, measured, strict=True):
        assert expected is None or found == pytest.approx(expected, rel=0.12)


def test_backward_kernels_may_have_a_tail_of_their_own_or_none() -> None:
    """Without a parameter it is that of forward kernels; a parameter of 0 is no tail."""
    forward = {"attention_half_seq": 0.0, "attention_tail": 0.5, "kernel_latency_us": 0.0}

    def time_s(heads: int, **kernels: float) -> float:
        device = MODEL.device.model_copy(update={"kernels": {**forward, **kernels}})
        shape, keys = (1, 4096, heads, 128), {"context": 4096, "seen": 2048}
        return float(KernelModel(device).attention_time_s(shape, **keys, backward=True))

    few, many = 4, 64  # heads: the rate without a tail is the same
    for kernels, tail in (({}, 0.5), ({"attention_backward_tail": 0.2}, 0.2), ({"attention_backward_tail": 0.0}, 0.0)):
        stretch = [1 + tail * 2 * MODEL.device.num_sms / (heads * 4096 / 128) for heads in (few, many)]
        found = [time_s(heads, **kernels) / heads for heads in (few, many)]
        assert found[0] / found[1] == pytest.approx(stretch[0] / stretch[1])


def test_the_last_blocks_end_by_their_longest_row() -> None:
    """The tail is a share of the longest block row: twice the mean under a causal mask, and as many rows as devices."""
    alone = {"attention_half_seq": 0.0, "attention_tail": 0.5, "kernel_latency_us": 0.0}
    device = MODEL.device.model_copy(update={"kernels": alone})
    model = KernelModel(device)

    def time_s(heads: int, seen: float) -> float:
        return float(model.attention_time_s((1, 4096, heads, 128), context=4096, seen=seen, backward=False))

    blocks = 8 * 4096 / 128
    assert time_s(8, 2048) / time_s(8_000_000, 2048) * 1e6 == pytest.approx(1 + device.num_sms / blocks, rel=1e-4)
    assert time_s(8, 4096) / time_s(8_000_000, 4096) * 1e6 == pytest.approx(1 + 0.5 * device.num_sms / blocks, rel=1e-4)


def test_backward_of_hopper_reaches_its_charts() -> None:
    """TFLOP/s of FlashAttention-3 and cuDNN backward, heads of 128, no mask [arXiv 2407.08608, figure 6]."""
    model = KernelModel(load_device("h100-sxm-80gb"), sustained=False)
    for seq, charts in ((2048, (465, 501)), (4096, (499, 542)), (8192, (518, 559)), (16384, (516, 561))):
        shape = (16384 // seq, seq, 16, 128)
        took_s = float(model.attention_time_s(shape, context=seq, seen=seq, backward=True))
        assert 2.5 * 4 * 16384 * seq * 2048 / took_s / TERA == pytest.approx(np.mean(charts), rel=0.08)


def _rate(model: KernelModel, head_dim: float) -> float:
    """Elements of heads that forward attention computes a second, of 128 queries' worth of work."""
    took_s = model.attention_time_s((1, 8192, 64, head_dim), context=8192, seen=4096, backward=False)
    return head_dim / float(took_s - model.latency_s)


@pytest.mark.parametrize(
    ("device", "narrow", "wide"), [("h100-sxm-80gb", 0.79, 1.17), ("h200-sxm", 0.79, 1.17), ("b200-sxm", 0.61, 1.13)]
)
def test_narrow_heads_are_slower_and_wide_ones_faster(device: str, narrow: float, wide: float) -> None:
    """Heads of 64 and of 256 against 128, medians of forward kernels of 16,384 tokens in AIConfigurator's database."""
    model = KernelModel(load_device(device))
    assert _rate(model, 64) / _rate(model, 128) == pytest.approx(narrow, abs=0.03)
    assert _rate(model, 256) / _rate(model, 128) == pytest.approx(wide, abs=0.03)


def test_heads_are_padded_to_multiples_of_32() -> None:
    """A head of 80 takes as long as one of 96, in kernels that are compiled for a few dims."""
    times_s = [
        float(MODEL.attention_time_s((1, 8192, 64, dim), context=8192, seen=4096, backward=False))
        for dim in (80, 96, 112, 128)
    ]
    assert times_s[0] == times_s[1] < times_s[2] == times_s[3]


def test_flash_attention_2_is_one_kernel_everywhere() -> None:
    """Where others are faster its rate depends on shapes as on devices that have nothing else."""
    second = KernelModel(load_device("h100-sxm-80gb"), attention="flash2")
    assert _rate(second, 64) / _rate(second, 128) == pytest.approx((128 + 12) / 128 * 64 / (64 + 12))


def test_backward_kernels_pay_for_the_wider_of_keys_and_values() -> None:
    """Latent attention of 192 and 128; forward, in unfused kernels and in stacks with one of their own it does not."""
    assert MODEL.head_dim(192, 128, backward=False) == 160
    assert MODEL.head_dim(192, 128, backward=True) == 192
    for exempt in ("unfused", load_stack("hai-llm").fusion.attention):
        assert replace(MODEL, attention=exempt).head_dim(192, 128, backward=True) == 160


@pytest.mark.parametrize("board", ["mi250x", "mi300x", "mi325x", "mi355x"])
def test_pytorch_s_attention_on_amd_is_a_triton_kernel(board: str) -> None:
    """AOTriton, at 0.65 of the fastest kernels both ways, beyond the launch."""
    for backward in (False, True):
        fastest, own = (KernelModel(load_device(board), attention=kernel) for kernel in ("flash", "flash2"))
        longer = [
            model.attention_time_s((1, 8192, 32, 128), context=8192, seen=4096, backward=backward) - model.latency_s
            for model in (fastest, own)
        ]
        assert longer[0] / longer[1] == pytest.approx(0.65)


def test_a_stack_s_attention_has_a_rate_of_its_own_on_a_device() -> None:
    """A kernel that is slow against its family on one device need not be on another."""
    fusion = Fusion(attention_rate={"others": 0.5, "h100-sxm-80gb": 0.8})
    assert Fusion().rate_on("a100-sxm-80gb") == 1.0
    assert (fusion.rate_on("a100-sxm-80gb"), fusion.rate_on("h100-sxm-80gb")) == (0.5, 0.8)
