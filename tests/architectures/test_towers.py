"""Models of two towers: exact sizes, FLOP by rows, and uniform plans on them."""

from __future__ import annotations

import pytest

import simpar
from simpar.architectures.catalogue import load_model
from simpar.architectures.flops import attention_flop_per_token, matmul_flop_per_token, model_flop_per_token
from simpar.architectures.hf_config import read


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("t5-3b", 2_851_598_336), ("t5-11b", 11_307_321_344), ("mt5-xl", 3_742_619_648), ("mt5-xxl", 12_921_057_280)],
)
def test_encoder_decoders_have_the_published_number_of_parameters(name, parameters):
    """T5 and mT5 to the last parameter, the shared table counted once."""
    assert load_model(name).num_parameters() == parameters


def test_cross_attention_reads_the_encoder():
    """A decoder of half the length: its own rows halve, keys and values of the memory do not."""
    config = {
        "model_type": "t5", "vocab_size": 512, "d_model": 64, "d_kv": 16, "num_heads": 4, "d_ff": 128, "num_layers": 2,
    }  # fmt: skip
    whole, half = read(config, "t5"), read({**config, "decoder_seq_len": 512}, "t5")
    seq, width, ffn = 1024, 64, 128
    rows = 2 * (4 * width**2 + 2 * width**2 + 2 * width * ffn) + width * 512  # all but the memory's k and v
    lost = matmul_flop_per_token(whole, seq) - matmul_flop_per_token(half, seq)
    assert lost == pytest.approx(2 * rows / 2)
    scores = 2 * 4 * width * (seq * 3 / 4 + seq / 2)  # self: s^2 -> s^2/4; cross: s^2 -> s^2/2
    assert attention_flop_per_token(whole, seq) - attention_flop_per_token(half, seq) == pytest.approx(scores)


def test_plain_models_count_as_before():
    """For one tower the count is 6 N plus attention."""
    graph = load_model("llama-3-8b")
    expected = 6 * graph.num_matmul_parameters() + 3 * attention_flop_per_token(graph, 4096)
    assert model_flop_per_token(graph, 4096) == pytest.approx(expected, rel=1e-12)


def test_uniform_plans_run_on_two_towers():
    """A pipeline over both towers trains every token once, whatever the tensor parallelism."""
    cluster, training = simpar.Cluster("dgx-h100"), simpar.Training(seq_len=1024, global_batch=16)
    graph = load_model("t5-3b")
    results = [simpar.simulate(graph, cluster, simpar.Plan(tp=tp, pp=2, zero=1), training) for tp in (1, 2)]
    assert results[0].speed.model_flops_per_step == results[1].speed.model_flops_per_step
    assert results[1].memory.static_memory_bytes < results[0].memory.static_memory_bytes


def test_boundaries_carry_the_encoders_output():
    """Past the encoder's end a pipeline sends the decoder's stream and the memory, each of its own length."""
    graph = read(
        {
            "model_type": "t5", "vocab_size": 512, "d_model": 64, "d_ff": 128, "num_layers": 2, "num_heads": 1,
            "decoder_seq_len": 256,
        },
        "t5",
    )  # fmt: skip
    dims = {**graph.dims, "batch": 2, "seq": 1024, "context": 1024, "memory": 1024}
    assert graph.blocks["encoder_layer"].output_elements(dims) == 2 * 1024 * 64
    assert graph.blocks["decoder_layer"].output_elements(dims) == 2 * (256 + 1024) * 64
