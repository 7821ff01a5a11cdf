"""GPT-J: attention and MLP side by side on one LayerNorm, a fourth of a head's features rotates."""

from simpar.architectures.config import Config
from simpar.architectures.details import Details, Positions, Rope
from simpar.architectures.families.family import ModelFamily
from simpar.architectures.graph import ModelGraph
from simpar.architectures.reading import gpt_shape, mark_unbuilt, style_of
from simpar.architectures.transformer import Style, build
from simpar.architectures.weights import GPT2
from simpar.errors import UserError

PARALLEL_DROPOUT = "dropout behind branches side by side"


def _read(config: Config, name: str) -> ModelGraph:
    shape = gpt_shape(config, learned=False)
    turned = config.data.get("rotary_dim", 64)
    if not isinstance(turned, int) or not 0 < turned <= shape.head_dim:
        raise UserError(
            f"{config.source}: rotary_dim = {turned!r}: allowed: 1 to the {shape.head_dim} features of a head"
        )
    usual = Style(norm="layer", gated=False, mlp_bias=True, head_bias=True, parallel=True, norms=1)
    drops = config.rate("resid_pdrop", "attn_pdrop", "embd_pdrop") > 0
    graph = build(name, shape, style_of(config, usual), dropout=drops)
    return mark_unbuilt(graph, PARALLEL_DROPOUT) if config.rate("resid_pdrop") else graph


FAMILIES = (
    ModelFamily(
        "gptj",
        _read,
        Details("gelu_new", positions=Positions(Rope(fraction=0.25, interleaved=True))),
        GPT2.changed(
            layer={
                "query": "attn.q_proj", "key": "attn.k_proj", "value": "attn.v_proj", "o_proj": "attn.out_proj",
                "up": "mlp.fc_in", "mlp_down": "mlp.fc_out",
            },
        ),
        {
            "vocab_size": 96, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "rotary_dim": 4,
            "bos_token_id": 1, "eos_token_id": 2,
        },
        classes={"gptj": "GPTJForCausalLM"},
    ),
)  # fmt: skip
