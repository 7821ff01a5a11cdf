"""A replica's memory and iterations: closed forms of bytes and FLOP, and what cannot be served."""

from functools import cache

import numpy as np
import pytest

import simpar
from simpar.architectures.flops import matmul_flop_per_token
from simpar.errors import UserError
from simpar.hardware.device import load_device
from simpar.plan.post_training import Rollout
from simpar.posttraining.engine import ServingEngine
from simpar.posttraining.iterations import SCALE, Piece


@cache
def engine(model="llama-3-8b", context=8192, hardware="dgx-h100", nodes=2, **choices):
    """A replica on H100."""
    choices = {name: dict(value) if isinstance(value, tuple) else value for name, value in choices.items()}
    return ServingEngine.of(simpar.Model(model), simpar.Cluster(hardware, nodes), Rollout(**choices), context)


def with_kernels(served, **parameters):
    """The replica on a device with other kernels; bandwidth and latency may be given, too."""
    from dataclasses import replace

    device = load_device("h100-sxm-80gb")
    fields = {name: parameters.pop(name) for name in ("memory_bandwidth",) if name in parameters}
    device = device.model_copy(update={**fields, "kernels": {**device.kernels, **parameters}})
    kernels = replace(served.kernels, device=device)
    return replace(served, job=replace(served.job, kernels=kernels))


def test_weights_and_cache_are_those_of_the_model():
    """Llama 3 8B: two bytes a parameter; keys and values of 8 heads of 128 in 32 layers, 2 x 8 x 128 x 2 x 32 bytes."""
    whole, halves = engine(), engine(tp=2)
    assert whole.weights_bytes == 2 * simpar.Model("llama-3-8b").num_parameters()
    assert whole.token_bytes == 2 * 8 * 128 * 2 * 32
    assert halves.token_bytes == whole.token_bytes / 2
    assert engine(tp=2, engine=(("cache_dtype", "fp8"),)).token_bytes == whole.token_bytes / 4
    assert halves.weights_bytes == pytest.approx(whole.weights_bytes / 2, rel=2e-4)  # norms are whole on every rank


def test_heads_that_are_fewer_than_ranks_are_copied():
    """8 key-value heads on 16 ranks are one on each."""
    assert engine("llama-3-70b", tp=16).token_bytes == engine("llama-3-70b", tp=8).token_bytes


def test_latents_are_on_every_rank():
    """DeepSeek-V3 keeps 512 + 64 values a token and layer, in 61 layers without that of multi-token prediction."""
    assert engine("deepseek-v3", tp=16, precision="fp8").token_bytes == 576 * 2 * 61
    assert engine("deepseek-v3", tp=4, precision="fp8", ep=16).token_bytes == 576 * 2 * 61


def test_a_pipeline_divides_layers():
    """Two stages hold half of the cache and at most half of the layers with one table."""
    two = engine("llama-3-70b", tp=4, pp=2)
    assert two.token_bytes == engine("llama-3-70b", tp=4).token_bytes / 2
    table = 128256 * 8192 * 2 / 4
    assert two.weights_bytes == pytest.approx(engine("llama-3-70b", tp=4).weights_bytes / 2, abs=table)


def test_decoding_reads_all_weights_once():
    """With nothing but memory to wait for, one sequence takes the bytes of weights over the bandwidth.

    The token table is looked up, not read; activations of one row are a thousandth.
    """
    fast = with_kernels(engine(), gemm_efficiency=1e6, kernel_latency_us=0.0, memory_efficiency=1.0)
    read = fast.weights_bytes - 128256 * 4096 * 2
    seconds = float(fast.rows_s(np.array([1]), np.array([1]))[0])
    assert seconds == pytest.approx(read / fast.kernels.device.memory_bandwidth, rel=2e-3)


def test_a_cached_key_is_read_once():
    """The rate is that of the bytes of a token in the cache, which memory bounds for heads in groups of four."""
    served = engine()
    (_,), (rate,) = served.rates
    assert rate / SCALE == pytest.approx(1e9 * served.token_bytes / served.kernels.bandwidth, rel=1e-6)
    (_,), (other,) = engine(tp=2).rates
    assert other == pytest.approx(rate / 2, rel=1e-6)


def test_prompts_take_the_flop_of_their_products():
    """Kernels at their peak, memory without limit: 2 FLOP a parameter and token, and those of the head once."""
    served = with_kernels(
        engine(), gemm_efficiency=1.0, gemm_prologue_k=0.0, gemm_wave_overlap=1.0, gemm_small_tile_loss=0.0,
        sustained_clock=1.0, kernel_latency_us=0.0, memory_bandwidth=1e30,
    )  # fmt: skip
    tokens, graph = 8192, served.graph
    head = 2.0 * 128256 * 4096
    flop = (matmul_flop_per_token(graph, 8192) - head) * tokens + head * 256  # tiles of 256 rows
    seconds = float(served.rows_s(np.array([tokens]), np.array([256]))[0])
    assert seconds * 989.4e12 == pytest.approx(flop, rel=0.01)


def test_a_prompt_in_pieces_attends_to_what_is_before():
    """Two halves see the pairs of the whole, and no fewer tokens are computed."""
    served = engine()
    whole = served.with_prompts_ns(0, [Piece(4096, 0)])
    halves = served.with_prompts_ns(0, [Piece(2048, 0)]) + served.with_prompts_ns(0, [Piece(2048, 2048)])
    assert whole < halves < 1.2 * whole


def test_mixtures_read_the_experts_that_are_touched():
    """One token of Mixtral reads 2 of 8 experts, many tokens all: 1 - (1 - 2/8)^T of them."""
    served = with_kernels(
        engine("mixtral-8x7b", tp=2), gemm_efficiency=1e6, kernel_latency_us=0.0, memory_efficiency=1.0
    )
    one, many = (float(s) for s in served.rows_s(np.array([1, 256]), np.array([1, 256])))
    experts = 32 * 8 * 3 * 4096 * 14336 / 2 * 2
    read = served.weights_bytes - 32000 * 4096 * 2 / 2
    bandwidth = served.kernels.device.memory_bandwidth
    collectives = 65 * 2 * 20e-6
    assert one == pytest.approx((read - experts * 6 / 8) / bandwidth, abs=collectives)
    assert many > read / bandwidth


def test_wider_replicas_are_faster_until_collectives_bind():
    """Tensor parallelism divides what is read, and adds two collectives a layer."""
    times = [int(engine(tp=tp).times.base_ns[1]) for tp in (1, 2, 4, 8)]
    assert times[0] > times[1] > times[2]
    assert times[0] / times[3] < 4


def test_host_bound_engines_gain_from_graphs():
    """Without a captured iteration every kernel is launched by the host."""
    launched = engine("qwen2.5-0.5b", engine=(("graphs", False),))
    assert launched.times.base_ns[1] > 1.2 * engine("qwen2.5-0.5b").times.base_ns[1]


@pytest.mark.parametrize(
    ("choices", "said"),
    [
        ({"model": "llama-3-70b"}, r"a device has 0 B for the cache beside 131 GiB of weights .* allowed: more tp"),
        ({"model": "qwen2.5-0.5b", "tp": 4}, "post_training.rollout.tp = 4: does not divide the attention heads 14"),
        ({"model": "llama-3-8b", "ep": 2}, "has no experts; allowed: 1"),
        (
            {"model": "llama-4-scout", "tp": 8},
            "layers layer_moe_chunk_8192 decode in a way that is not modelled; allowed",
        ),
        ({"model": "llama-3.2-11b-vision"}, "layers cross_layer decode in a way that is not modelled; allowed"),
        ({"model": "ernie-4.5-vl-28b-a3b"}, "visual tokens have experts of their own; allowed"),
        ({"model": "llama-3-8b", "tp": 8, "pp": 4}, "a replica of 32 devices: allowed"),
    ],
)
def test_what_cannot_be_served_is_refused(choices, said):
    """In one line."""
    with pytest.raises(UserError, match=said):
        _ = engine(**choices).limits


def test_tuned_experts_are_faster_in_prompts_alone():
    """Decoding reads weights either way; 8,192 tokens of prompts read less through the cache in large tiles."""
    usual, tuned = engine("mixtral-8x7b", tp=2), engine("mixtral-8x7b", tp=2, engine=(("tuned_experts", True),))
    few, many = np.array([4]), np.array([8192])
    assert tuned.rows_s(few, few)[0] == pytest.approx(usual.rows_s(few, few)[0], rel=0.1)
    assert tuned.rows_s(many, few)[0] < 0.75 * usual.rows_s(many, few)[0]
