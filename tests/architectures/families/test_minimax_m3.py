"""MiniMax M3: parameters as published, the indexer's weights and keys, what is refused."""

from __future__ import annotations

import pytest

import simpar
from simpar.architectures.catalogue import config_of, load_model
from simpar.architectures.families import DECLARED
from simpar.architectures.flops import attention_flop_per_token
from simpar.architectures.hf_config import read

M3 = load_model("minimax-m3")
TINY = DECLARED["minimax_m3_vl_text"].tiny
TRAINING = simpar.Training(seq_len=512, global_batch=16)


def tiny(**more):
    """The tiny language model, changed."""
    return read({**TINY, "model_type": "minimax_m3_vl_text", **more})


def test_published_sizes():
    """As the class of transformers counts them, with the biases that choose experts; 428B-A23B without tables."""
    assert M3.num_parameters() == 427_040_132_864 + 57 * 128
    tower = sum(M3.blocks[name].parameters(M3.dims) for name in M3.layers if not name.startswith("layer"))
    assert M3.num_active_parameters() - tower - 2 * 200064 * 6144 == pytest.approx(23e9, rel=0.03)


def test_attention_sees_sixteen_blocks():
    """57 layers see 2,048 keys of 65,536, and score all of them by four heads; three layers see all."""
    seq, each = 65536, 2 * 64 * 2 * 128
    text = read(config_of("minimax-m3")["text_config"])
    assert attention_flop_per_token(text, seq) == 3 * each * seq + 57 * (each * 2048 + 2 * 4 * 128 * seq)


def test_released_fields_say_the_same():
    """Lists of 0 and 1, and a section of their own."""
    given = {"sparse_num_index_heads": 2, "sparse_index_dim": 8, "sparse_block_size": 4, "sparse_topk_blocks": 2}
    own = [name for name in TINY if name.startswith("index_")]
    other = tiny(
        **dict.fromkeys((*own, "layer_types", "mlp_layer_types")), moe_layer_freq=[0, 1, 1],
        sparse_attention_config={**given, "sparse_attention_freq": [0, 0, 1]},
    )  # fmt: skip
    assert (other.layers, other.dims) == (tiny().layers, tiny().dims)


def test_a_prediction_layer_is_as_the_last_one():
    """With experts and an indexer; it counts in training only."""
    graph = tiny(num_mtp_modules=1)
    assert graph.layers[-2:] == ("layer_moe_sparse", "prediction_moe_sparse")
    assert graph.auxiliary == graph.layers[-1:]
    assert graph.num_parameters() == tiny().num_parameters()
    kinds = [op.kind for op in graph.blocks[graph.layers[-1]].operators]
    assert (kinds.count("indexer"), kinds.count("loss")) == (1, 1)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("layer_types", ["sparse"] * 3, "allowed: one of full_attention, minimax_m3_sparse for each of 3 layers"),
        ("attention_output_gate", True, "attention_output_gate = true: allowed: false, as published"),
        ("index_local_blocks", 2, "index_local_blocks = 2: allowed: 0, 1"),
    ],
)
def test_other_layers_are_refused(field, value, said):
    """In one line with the field and what is allowed."""
    with pytest.raises(simpar.UserError, match=said):
        tiny(**{field: value})


def test_plans_do_the_same_work():
    """Expert, context, tensor and pipeline parallelism."""
    plans = ({"ep": 4, "cp": 2}, {"tp": 2, "sequence_parallel": True, "ep": 2}, {"pp": 2, "zero": 1})
    results = [simpar.simulate(tiny(), "dgx-h100", plan, TRAINING) for plan in plans]
    assert len({result.speed.model_flops_per_step for result in results}) == 1
