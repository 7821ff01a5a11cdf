"""ViT, which classifies images [arXiv 2010.11929]."""

from dataclasses import replace

from simpar.architectures.config import Config
from simpar.architectures.details import Details
from simpar.architectures.families.family import ModelFamily
from simpar.architectures.graph import ModelGraph
from simpar.architectures.images import classifier
from simpar.architectures.vision_reading import VIT, patches_of, square, vit_shape
from simpar.errors import UserError

SILENT = ("encoder_stride", "pooler_output_size", "pooler_act", "vocab_size")


def _read(config: Config, name: str) -> ModelGraph:
    for field in SILENT:
        config.data.get(field)
    if rate := config.rate("hidden_dropout_prob", "attention_probs_dropout_prob"):
        raise UserError(f"{config.source}: hidden_dropout_prob = {rate:g}: allowed: 0, dropout is not modelled here")
    sized = config.having({"image_size": 224}, unless_given=True)
    side = square(sized, "image_size", default=224) // square(sized, "patch_size", default=16)
    patches = patches_of(sized, sized, fixed=True, positions=side * side + 1, classes=1)
    style = replace(VIT, qkv_bias=config.flag("qkv_bias", default=True))
    graph = classifier(name, patches, vit_shape(config, hidden=768, layers=12, heads=12), style, _labels(config))
    said = f"a sequence is an image of {side * side:,} patches, beside which the class token may count as one more"
    return replace(graph, facts={**graph.facts, "assumed": (said,), "longest": patches.positions})


def _labels(config: Config) -> int:
    """The number of labels, by their names or alone."""
    names = config.mapping("id2label")
    return len(names) if names else config.size("num_labels", default=2)


FAMILIES = (
    ModelFamily(
        "vit",
        _read,
        Details("gelu", 1e-12),
        None,
        {
            "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
            "image_size": 64, "num_labels": 10,
        },
    ),
)  # fmt: skip
