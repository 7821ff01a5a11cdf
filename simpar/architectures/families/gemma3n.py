"""Gemma 3n: alternating updates of four streams, embeddings for every layer, layers that share keys, sparse gates.

Towers (MobileNet-V5 for images, a conformer for sound) are left out: the language model alone is read.
"""

from simpar.architectures.alternating import Alternation, build_alternating
from simpar.architectures.config import Config
from simpar.architectures.details import Caps, Details, Positions, Rope, Scales
from simpar.architectures.families.family import TINY, ModelFamily
from simpar.architectures.gemma4 import FullHeads, LayerPlan, check_shared
from simpar.architectures.graph import ModelGraph
from simpar.architectures.reading import all_but_every, llama_shape, mark_unbuilt, windows_in
from simpar.errors import UserError

UNBUILT = "alternating updates of several streams"
SPARSE_LAYERS = 10
"""Layers with sparse gates at the beginning of a model that has more, where its config does not say."""


def _read(config: Config, name: str) -> ModelGraph:
    ffn = _width(config)
    shape = llama_shape(config.having({"intermediate_size": ffn}), kv_heads=2, head_dim=256)
    if not config.tied(default=True):
        raise UserError(f"{config.source}: tie_word_embeddings = false: allowed: true, the family's table is tied")
    if config.flag("attention_bias", default=False):
        raise UserError(f"{config.source}: attention_bias = true: allowed: false")
    windows = windows_in(config, shape.layers, all_but_every(config, shape.layers, default=5), default=512)
    shared = config.size("num_kv_shared_layers", default=15) if config.data.get("num_kv_shared_layers", 15) else 0
    check_shared(config.source, windows, shared)
    for silent in ("altup_active_idx", "altup_coef_clip", "altup_correct_scale"):
        config.data.get(silent)
    layout = LayerPlan(
        windows, FullHeads(shape.head_dim, shape.kv_heads, keys_are_values=False), shared,
        embedded=config.size("hidden_size_per_layer_input", default=256),
        rows=config.size("vocab_size_per_layer_input", default=262_144),
    )  # fmt: skip
    ways = Alternation(
        config.size("altup_num_inputs", default=4),
        config.size("laurel_rank", default=64),
        _sparse(config, shape.layers),
    )
    if ways.streams < 2:
        raise UserError(f"{config.source}: altup_num_inputs = {ways.streams}: allowed: 2 and more")
    return mark_unbuilt(build_alternating(name, shape, layout, ways), UNBUILT)


def _width(config: Config) -> int:
    """The width of all MLPs, which a config may give layer by layer. Raises UserError."""
    given = config.data.get("intermediate_size")
    widths = given if isinstance(given, list) else [given]
    if not widths or any(width != widths[0] for width in widths):
        raise UserError(f"{config.source}: intermediate_size = {given!r}: allowed: one width for all layers")
    width = widths[0]
    return config.having({"intermediate_size": width}).size("intermediate_size", default=16_384)


def _sparse(config: Config, layers: int) -> tuple[bool, ...]:
    """Which layers have sparse gates. Raises UserError."""
    given = config.data.get("activation_sparsity_pattern")
    if given is None:
        return tuple(at < SPARSE_LAYERS < layers for at in range(layers))
    if not isinstance(given, list) or len(given) != layers or not all(_is_share(each) for each in given):
        raise UserError(
            f"{config.source}: activation_sparsity_pattern = {given!r}: allowed: 0 up to below 1 for each of {layers} "
            "layers"
        )
    return tuple(each > 0 for each in given)


def _is_share(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1


FAMILIES = (
    ModelFamily(
        "gemma3n_text",
        _read,
        Details(
            "gelu_pytorch_tanh", 0.000001, positions=Positions(Rope(1_000_000.0), Rope()),
            scales=Scales(attention=1.0), caps=Caps(logits=30.0),
        ),
        None,
        {
            **TINY, "head_dim": 8, "num_hidden_layers": 6, "sliding_window": 8, "vocab_size_per_layer_input": 80,
            "hidden_size_per_layer_input": 4, "num_kv_shared_layers": 3, "laurel_rank": 4,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
            "activation_sparsity_pattern": [0.95, 0.0, 0.0, 0.0, 0.0, 0.0],
        },
        aliases=("gemma3n",),
        scaled_by_root=True,
    ),
)  # fmt: skip
