"""DiT, which predicts the noise of labelled latent images, by the names of its own arguments [arXiv 2212.09748]."""

from dataclasses import replace

from simpar.architectures.config import Config
from simpar.architectures.details import Details
from simpar.architectures.families.family import ModelFamily
from simpar.architectures.graph import ModelGraph
from simpar.architectures.images import diffusion_transformer
from simpar.architectures.vision import Patches
from simpar.architectures.vision_reading import vit_shape
from simpar.errors import UserError


def _read(config: Config, name: str) -> ModelGraph:
    size, side = config.size("input_size", default=32), config.size("patch_size", default=2)
    if size % side:
        raise UserError(f"{config.source}: patch_size = {side} does not divide input_size = {size}")
    count, channels = (size // side) ** 2, config.size("in_channels", default=4)
    hidden = config.size("hidden_size", default=1152)
    ffn = int(hidden * config.number("mlp_ratio", default=4.0))
    shape = vit_shape(config, hidden=1152, layers=28, heads=16, ffn=ffn)
    labels = config.size("num_classes", default=1000)
    free = "class_dropout_prob" not in config.data or config.rate("class_dropout_prob") > 0
    predicted = side * side * channels * (2 if config.flag("learn_sigma", default=True) else 1)
    patches = Patches(channels * side * side, count, positions=count)
    graph = diffusion_transformer(name, patches, shape, labels + free, predicted)
    said = f"a sequence is a latent image of {count:,} patches, one time and label each; no encoder makes it here"
    return replace(graph, facts={**graph.facts, "assumed": (said,), "longest": count})


FAMILIES = (
    ModelFamily(
        "dit",
        _read,
        Details("gelu_pytorch_tanh"),
        None,
        {"hidden_size": 32, "depth": 2, "num_heads": 4, "input_size": 8, "num_classes": 10},
    ),
)
