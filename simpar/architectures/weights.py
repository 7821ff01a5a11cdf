"""Names of a family's released weights and their packing into tensors: data, by which the runtime reads and writes.

Names are those of the checkpoints of transformers. On simpar's side, a module has the name of its operator in the
graph; the parts of a packed product have names of their own (PARTS).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from enum import Enum, auto
from typing import Any

from simpar.dataclass import dataclass

QKV = ("query", "key", "value")
GATE_UP = ("gate", "up")
PARTS: Mapping[str, tuple[str, ...]] = {
    "qkv": QKV,
    "mlp_up": GATE_UP,
    "shared_up": ("shared_gate", "shared_up"),
    "kv_down": ("kv_down", "rotary_key"),
    "kv_up": ("key_up", "value_up"),
    "in_proj": ("mixer_gate", "mixer_input", "mixer_key", "mixer_query", "mixer_step"),
}
"""Operators whose products are several weights side by side; a product without a gate is the last part alone."""


class Packing(Enum):
    """How parameters are stored in tensors of a checkpoint."""

    SAME = auto()
    """One tensor each, as it is."""
    TRANSPOSED = auto()
    """One matrix each, transposed."""
    QKV_ROWS = auto()
    """Rows of all queries, then of all keys, then of all values."""
    QKV_COLUMNS = auto()
    """Transposed QKV_ROWS."""
    QKV_GROUPS = auto()
    """For every key-value head: rows of its queries, its key and its value."""
    HALVES = auto()
    """Rows of one product, then of another."""
    KEY_VALUE_HEADS = auto()
    """For every head: rows of its key's plain features, then of its value [latent attention]."""
    LATENT_AND_KEY = auto()
    """Rows of the latent, then of the rotary key [latent attention]."""
    SWAPPED_COLUMNS = auto()
    """A product of two inputs side by side, of which checkpoints have the second first."""
    EXPERT_TENSORS = auto()
    """One tensor per expert; gates of all experts first, then their ups."""
    EXPERT_HALVES = auto()
    """[experts, rows of gate and then of up, hidden]."""
    EXPERT_HALVES_TRANSPOSED = auto()
    """[experts, hidden, columns of gate and then of up]."""
    EXPERT_ALTERNATING = auto()
    """[experts, hidden, columns of gate and up in turn]."""
    EXPERT_ROWS = auto()
    """Two tensors [experts x ffn, hidden]: gates, and ups."""
    EXPERT_ROWS_TRANSPOSED = auto()
    """One tensor [experts x ffn, hidden] of what is a product to hidden."""
    MIXER_ROWS = auto()
    """Rows of gates, inputs, keys, queries and time steps of a state-space mixer."""
    DEPTHWISE = auto()
    """Kernels [channels, 1, width]."""
    ROW = auto()
    """A vector as a matrix of one row."""


@dataclass(frozen=True)
class Weights:
    """The names of a family's weights.

    ``layer`` maps modules of a layer (under the prefix ``layers`` and its number) to theirs, ``ends`` those outside of
    layers. ``packed`` are several modules that are one of theirs. ``transposed`` are modules whose matrices are stored
    transposed. ``experts`` are the modules of one expert's gate ("" without one), up and down products, under
    ``experts_in`` and its number. ``tensors`` names single tensors of theirs that have no module's name and ending, or
    several that are one parameter here. ``without`` renames modules in layers that lack another one.
    """

    layers: str
    layer: Mapping[str, str]
    ends: Mapping[str, str]
    packed: Mapping[tuple[str, ...], tuple[str, Packing]] = field(default_factory=dict)
    transposed: frozenset[str] = frozenset()
    experts_in: str = "mlp.experts"
    experts: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    tensors: Mapping[str, tuple[str | tuple[str, ...], Packing]] = field(default_factory=dict)
    without: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def changed(self, **changes: Any) -> Weights:
        """These names with other ones; mappings are merged into those here."""
        merged: dict[str, Any] = {
            name: {**getattr(self, name), **value} if isinstance(value, Mapping) else value
            for name, value in changes.items()
        }
        return replace(self, **merged)

    def with_mixer(self, mixer: str) -> Weights:
        """These names, with state-space mixers called ``mixer``."""
        return self.changed(
            layer={"mixer_norm": f"{mixer}.norm", "out_proj": f"{mixer}.out_proj", "conv": f"{mixer}.conv1d"},
            packed={PARTS["in_proj"]: (f"{mixer}.in_proj", Packing.MIXER_ROWS)},
            tensors={
                "conv.weight": (f"{mixer}.conv1d.weight", Packing.DEPTHWISE),
                "scan.decay": (f"{mixer}.A_log", Packing.SAME),
                "scan.skip": (f"{mixer}.D", Packing.SAME),
                "scan.step_bias": (f"{mixer}.dt_bias", Packing.SAME),
            },
        )


LLAMA = Weights(
    "model.layers",
    layer={
        "attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm", "query": "self_attn.q_proj",
        "key": "self_attn.k_proj", "value": "self_attn.v_proj", "query_norm": "self_attn.q_norm",
        "key_norm": "self_attn.k_norm", "o_proj": "self_attn.o_proj", "gate": "mlp.gate_proj", "up": "mlp.up_proj",
        "mlp_down": "mlp.down_proj", "router": "mlp.gate", "shared_gate": "mlp.shared_experts.gate_proj",
        "shared_up": "mlp.shared_experts.up_proj", "shared_down": "mlp.shared_experts.down_proj",
        "q_down": "self_attn.q_a_proj", "q_norm": "self_attn.q_a_layernorm", "q_up": "self_attn.q_b_proj",
        "kv_norm": "self_attn.kv_a_layernorm", "state_norm": "hnorm", "embedding_norm": "enorm",
        "final_norm": "shared_head.norm",
    },
    ends={"token_embedding": "model.embed_tokens", "final_norm": "model.norm", "lm_head": "lm_head"},
    packed={
        PARTS["kv_down"]: ("self_attn.kv_a_proj_with_mqa", Packing.LATENT_AND_KEY),
        PARTS["kv_up"]: ("self_attn.kv_b_proj", Packing.KEY_VALUE_HEADS),
        ("join",): ("eh_proj", Packing.SWAPPED_COLUMNS),
    },
    without={"q_down": {"q_up": "self_attn.q_proj"}},
)  # fmt: skip
"""Most families since Llama, with its experts, latent attention and prediction layers as in DeepSeek."""
POST_NORMS = LLAMA.changed(
    layer={
        "attention_post_norm": "post_attention_layernorm", "mlp_norm": "pre_feedforward_layernorm",
        "mlp_post_norm": "post_feedforward_layernorm",
    },
)  # fmt: skip
"""Llama's names, with norms behind attention and MLP."""
GPT2 = Weights(
    "transformer.h",
    layer={
        "attention_norm": "ln_1", "mlp_norm": "ln_2", "o_proj": "attn.c_proj", "up": "mlp.c_fc",
        "mlp_down": "mlp.c_proj",
    },
    ends={
        "token_embedding": "transformer.wte", "position_embedding": "transformer.wpe",
        "final_norm": "transformer.ln_f", "lm_head": "lm_head",
    },
)  # fmt: skip
QKV_IN_GROUPS = Weights(
    "transformer.h",
    layer={
        "attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm", "o_proj": "self_attention.dense",
        "up": "mlp.dense_h_to_4h", "mlp_down": "mlp.dense_4h_to_h",
    },
    ends={
        "token_embedding": "transformer.word_embeddings", "final_norm": "transformer.ln_f", "lm_head": "lm_head",
    },
    packed={QKV: ("self_attention.query_key_value", Packing.QKV_GROUPS)},
)  # fmt: skip
"""Families of Megatron's names, which store queries, keys and values of every group of heads together."""
ROUTER_BIAS = {"router.bias": ("mlp.gate.e_score_correction_bias", Packing.SAME)}
"""The bias that chooses experts, in DeepSeek-V3 and families after it."""
