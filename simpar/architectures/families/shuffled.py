"""SigLIP's tower before a language model, its patches side by side (pixel shuffle), through one or two products.

PaliGemma 2 [arXiv 2412.03555], Idefics 3 and SmolVLM [arXiv 2408.12637; 2504.05299], Aya Vision [arXiv 2505.08751] and
Command A Vision.
"""

from collections.abc import Mapping
from typing import Any

from simpar.architectures.config import Config
from simpar.architectures.families.family import TINY
from simpar.architectures.families.vision_family import TowerReader, vision_family
from simpar.architectures.vision import ProjectorStep, Vision
from simpar.architectures.vision_reading import VIT, check_width, siglip

SHUFFLED = {"hidden_size": 1152, "intermediate_size": 3072, "num_attention_heads": 16, "patch_size": 32}
"""Defaults of the towers of Idefics 3 and SmolVLM."""
COHERE = {"hidden_size": 1152, "intermediate_size": 3072, "num_hidden_layers": 27, "image_size": 512}
AYA = {
    "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 26, "num_attention_heads": 14,
    "image_size": 384, "patch_size": 14,
}  # fmt: skip
PALI = {
    "hidden_size": 1152, "intermediate_size": 4096, "num_hidden_layers": 27, "num_attention_heads": 16, "patch_size": 14
}  # fmt: skip


def _pali(vision: Config, around: Config, hidden: int) -> Vision:
    check_width(around, "projection_dim", hidden)
    around.data.get("hidden_size")  # the language model's, which text_config says
    tower = siglip(vision.having(PALI, unless_given=True), around)
    return Vision(*tower, VIT, (ProjectorStep("linear", hidden),), end_norm="layer")


def _idefics(vision: Config, around: Config, hidden: int) -> Vision:
    around.data.get("vocab_size")  # the language model's, which text_config says
    tower = siglip(vision.having(SHUFFLED, unless_given=True), around, merge=around.size("scale_factor", default=2))
    return Vision(*tower, VIT, (ProjectorStep("linear", hidden, bias=False),), end_norm="layer")


def _gated(usual: Mapping[str, Any], *, normed: bool) -> TowerReader:
    """Patches side by side, normed or not, through a gated MLP whose gate is half of what its first product makes."""

    def read(vision: Config, around: Config, hidden: int) -> Vision:
        merge = around.size("downsample_factor", default=2)
        patches, shape = siglip(vision.having(usual, unless_given=True), around, merge=merge)
        inner = around.size("alignment_intermediate_size", default=hidden if normed else 36_864)
        norm = (ProjectorStep("norm", shape.hidden * merge**2),) * normed
        return Vision(patches, shape, VIT, (*norm, ProjectorStep("gated", hidden, inner // 2)), end_norm="layer")

    return read


TOWER = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 56,
    "patch_size": 14,
}  # fmt: skip
HEADLESS = {**TOWER, "vision_use_head": False, "model_type": "siglip_vision_model"}
LLAMA = {**TINY, "model_type": "llama"}
COMMAND = {"text_config": {**TINY, "model_type": "cohere2", "sliding_window": 8}, "vision_config": HEADLESS}
FAMILIES = (
    vision_family(
        "paligemma", _pali, "gemma",
        {
            "text_config": {**TINY, "model_type": "gemma2", "head_dim": 8, "sliding_window": 8},
            "vision_config": HEADLESS, "projection_dim": 32,
        },
    ),
    vision_family("idefics3", _idefics, "llama", {"text_config": LLAMA, "vision_config": TOWER}),
    vision_family("smolvlm", _idefics, "llama", {"text_config": LLAMA, "vision_config": TOWER, "scale_factor": 4}),
    vision_family(
        "cohere2_vision", _gated(COHERE, normed=False), "cohere2", {**COMMAND, "alignment_intermediate_size": 48}
    ),
    vision_family("aya_vision", _gated(AYA, normed=True), "cohere2", COMMAND),
)  # fmt: skip
