"""GPT-2, and GPT BigCode: GPT-2 whose heads share one key-value head [SantaCoder, arXiv 2301.03988]."""

from dataclasses import replace

from simpar.architectures.config import Config
from simpar.architectures.details import Details, Dropout
from simpar.architectures.families.family import ModelFamily
from simpar.architectures.graph import ModelGraph
from simpar.architectures.reading import GPT_STYLE, gpt_shape, style_of
from simpar.architectures.transformer import build
from simpar.architectures.weights import GPT2, QKV, Packing
from simpar.errors import UserError

TIED = replace(GPT_STYLE, tied=True)
DROPOUT = Dropout(0.1, 0.1, 0.1)
TINY = {
    "vocab_size": 96, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "resid_pdrop": 0.0,
    "attn_pdrop": 0.0, "embd_pdrop": 0.0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


def _read(config: Config, name: str, kv_heads: int = 0) -> ModelGraph:
    usual = dict.fromkeys(("resid_pdrop", "attn_pdrop", "embd_pdrop"), 0.1)
    drops = config.having(usual, unless_given=True).rate(*usual) > 0
    return build(name, gpt_shape(config, kv_heads=kv_heads), style_of(config, TIED), dropout=drops)


def _read_bigcode(config: Config, name: str) -> ModelGraph:
    if config.flag("add_cross_attention", default=False):
        raise UserError(f"{config.source}: add_cross_attention = true: allowed: false, a decoder alone")
    config.data.get("num_key_value_heads")  # asked for, because multi_query states the same
    return _read(config, name, kv_heads=1 if config.flag("multi_query", default=True) else 0)


FAMILIES = (
    ModelFamily(
        "gpt2",
        _read,
        Details("gelu_new", dropout=DROPOUT),
        GPT2.changed(
            packed={QKV: ("attn.c_attn", Packing.QKV_COLUMNS)}, transposed=frozenset({"o_proj", "up", "mlp_down"})
        ),
        TINY,
        classes={"gpt2": "GPT2LMHeadModel"},
    ),
    ModelFamily(
        "gpt_bigcode",
        _read_bigcode,
        Details("gelu_pytorch_tanh", dropout=DROPOUT),
        GPT2.changed(packed={QKV: ("attn.c_attn", Packing.QKV_GROUPS)}),
        TINY,
        classes={"gpt_bigcode": "GPTBigCodeForCausalLM"},
    ),
)
