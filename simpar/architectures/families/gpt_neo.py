"""GPT-Neo: GPT-2 with windows in every second layer, or as ``attention_types`` says."""

from simpar.architectures.config import Config
from simpar.architectures.details import Details, Scales
from simpar.architectures.families.family import ModelFamily
from simpar.architectures.graph import ModelGraph
from simpar.architectures.reading import shape_of, style_of
from simpar.architectures.transformer import Style, build, layers_with_windows
from simpar.architectures.weights import GPT2
from simpar.errors import UserError


def _read(config: Config, name: str) -> ModelGraph:
    hidden = config.size("hidden_size")
    layers = config.size("num_layers", "num_hidden_layers")
    shape = shape_of(
        config, hidden=hidden, ffn=config.size("intermediate_size", default=4 * hidden), layers=layers,
        heads=config.size("num_heads", "num_attention_heads"),
        positions=config.size("max_position_embeddings", default=2048),
    )  # fmt: skip
    style = Style(norm="layer", gated=False, tied=True, output_bias=True, mlp_bias=True, rotary=False)
    local = _local(config, layers)
    window = config.size("window_size", default=256) if any(local) else None
    return build(
        name, shape, style_of(config, style),
        layers=layers_with_windows(tuple(window if each else None for each in local)),
        dropout=config.rate("resid_dropout", "embed_dropout", "attention_dropout") > 0,
    )  # fmt: skip


def _local(config: Config, layers: int) -> list[bool]:
    """Which layers see a window, from pairs of (kinds in turn, how often). Raises UserError."""
    config.data.get("attention_layers")  # asked for, because it is attention_types written out
    given = config.data.get("attention_types")
    kinds = ["global", "local"] * 12
    if given is not None:
        try:
            times = [(list(turn), int(count)) for turn, count in given]
        except (OverflowError, TypeError, ValueError):
            times = []
        fits = sum(len(turn) * count for turn, count in times) == layers  # before it is written out: it may be huge
        kinds = [kind for turn, count in times for kind in turn * count] if fits else []
    if len(kinds) != layers or any(kind not in ("global", "local") for kind in kinds):
        raise UserError(
            f"{config.source}: attention_types = {given!r}: allowed: pairs of global and local layers and how often, "
            f"{layers} layers in all"
        )
    return [kind == "local" for kind in kinds]


FAMILIES = (
    ModelFamily(
        "gpt_neo",
        _read,
        Details("gelu_new", scales=Scales(attention=1.0)),
        GPT2.changed(
            layer={
                "query": "attn.attention.q_proj", "key": "attn.attention.k_proj", "value": "attn.attention.v_proj",
                "o_proj": "attn.attention.out_proj",
            },
        ),
        {
            "vocab_size": 96, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "window_size": 8,
            "attention_types": [[["global", "local"], 1]], "max_position_embeddings": 64, "bos_token_id": 1,
            "eos_token_id": 2,
        },
        classes={"gpt_neo": "GPTNeoForCausalLM"},
    ),
)  # fmt: skip
