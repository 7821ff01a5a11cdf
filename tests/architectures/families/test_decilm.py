"""Llama-Nemotron: layers with fewer keys, narrower MLPs or without a branch, as lists of configs say."""

from __future__ import annotations

from typing import Any

import pytest

import simpar
from simpar.architectures.catalogue import load_model
from simpar.architectures.families import DECLARED
from simpar.architectures.hf_config import read
from simpar.errors import UserError

TINY = {**DECLARED["nemotron-nas"].tiny, "model_type": "nemotron-nas"}
LLAMA_70B = {
    "model_type": "nemotron-nas", "hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64,
    "vocab_size": 128_256, "num_key_value_heads": None, "intermediate_size": None,
}  # fmt: skip
WHOLE = {
    "attention": {"n_heads_in_group": 8, "no_op": False, "replace_with_linear": False, "window_length": None},
    "ffn": {"ffn_mult": 5.25, "no_op": False, "replace_with_linear": False, "sparsify": None},
}  # fmt: skip


def changed(at: int, part: str, **fields: Any) -> dict[str, Any]:
    """The tiny config with other fields of a layer's branch."""
    blocks = [dict(each) for each in TINY["block_configs"]]
    blocks[at] = {**blocks[at], part: fields}
    return {**TINY, "block_configs": blocks}


def test_with_every_branch_it_is_llama() -> None:
    """5.25 x 8192 x 2 / 3 = 28,672 features of an MLP, 64 / 8 heads of keys: Llama 3 70B, to the parameter."""
    graph = read({**LLAMA_70B, "block_configs": [WHOLE] * 80}, "theirs")
    assert graph.num_parameters() == load_model("llama-3-70b").num_parameters()
    assert graph.details.unread == ()


def test_parameters_by_hand() -> None:
    """32 features, 4 heads of 8: every branch of the tiny model by itself.

    MLPs of 16 and 8 x 32 x 2 / 3 features are rounded up to 512 and 256; a layer without branches has nothing.
    """
    graph = read(TINY, "tiny")
    attention = {keys: 32 * (32 + 2 * 8 * keys) + 32 * 32 + 32 for keys in (1, 2)}
    mlp = {width: 3 * 32 * width + 32 for width in (256, 512)}
    linear = 32 * 32 + 32
    layers = attention[2] + mlp[512] + mlp[256] + attention[1] + 2 * linear
    assert graph.num_parameters() == layers + 2 * 96 * 32 + 32
    assert len(graph.layers) == 4
    assert graph.assumed == ("1 of 5 layers have neither attention nor an MLP: they are left out",)


def test_layouts_of_unequal_layers() -> None:
    """Pipelines, tensor parallelism and sharding run; wider MLPs in one layer take longer; widths are divided."""
    training, cluster = simpar.Training(seq_len=64, global_batch=8), simpar.Cluster("dgx-h100")
    graph = read({**TINY, "vocab_size": 128}, "tiny")
    for plan in (simpar.Plan(tp=2), simpar.Plan(pp=2), simpar.Plan(zero=3)):
        assert simpar.simulate(graph, cluster, plan, training).step_time_s > 0
    wide = read({**changed(1, "ffn", intermediate_size=65_536), "vocab_size": 128}, "tiny")
    one, two = (simpar.simulate(each, cluster, simpar.Plan(tp=2), training).step_time_s for each in (graph, wide))
    assert two > one
    odd = read({**changed(1, "ffn", intermediate_size=255), "vocab_size": 128}, "tiny")
    with pytest.raises(UserError, match="tp = 2: does not divide the ffn size 255"):
        simpar.simulate(odd, cluster, simpar.Plan(tp=2), training)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({**TINY, "num_hidden_layers": 4}, "block_configs: allowed: a mapping for each of 4 layers"),
        (changed(0, "attention", n_heads_in_group=3), r"block_configs\[0\].attention.n_heads_in_group = 3: allowed"),
        (changed(0, "attention", n_heads_in_group=2, window_length=8), r"attention.window_length = 8: allowed: null"),
        (changed(1, "ffn"), r"block_configs\[1\].ffn: intermediate_size is missing"),
    ],
)
def test_what_is_not_modelled_is_refused(config: dict[str, Any], said: str) -> None:
    """With the layer and the field."""
    with pytest.raises(UserError, match=said):
        read(config, "tiny")
