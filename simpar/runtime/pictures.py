"""Images of sequences in runs of models that see: what a class of transformers reads of them. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from math import isqrt
from typing import Any

from simpar.architectures.graph import ModelGraph
from simpar.architectures.hf_config import UNSEEN
from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.tracing.library import pictured_class, reads_of

GRID = "image_grid_thw"
"""Frames, rows and columns of patches, where a class reads patches of images of any size."""
KINDS = ("mm_token_type_ids", "token_type_ids")
"""What a class reads of which tokens are those of images."""
BY_SEQUENCE = "pixel_attention_mask"
"""What classes read of which images of a sequence, and which of their pixels, are there."""
UNKNOWN = ("image_position_ids", "spatial_shapes", "vision_image_sizes")
"""Inputs that are not made here."""
TEXT_ALONE = "allowed: images_per_sequence = 0 beside its fields, which trains the language model on text alone"


@dataclass(frozen=True)
class Pictures:
    """Images of every sequence: how many, the shape of one as a class reads it, its tokens, and their number's token.

    ``grid`` are frames, rows and columns of patches (none where images have one size), ``marks`` the inputs that tell
    which tokens are images'; ``by_sequence``: pixels have an axis of sequences before that of images.
    """

    count: int
    shape: tuple[int, ...]
    tokens: int
    token: int
    grid: tuple[int, ...] = ()
    marks: tuple[str, ...] = ()
    by_sequence: bool = False

    @staticmethod
    def of(config: Mapping[str, Any], graph: ModelGraph, seq_len: int) -> Pictures:
        """What a config's class reads in sequences of ``seq_len`` tokens. Raises UserError where that is not known."""
        if why := UNSEEN.get(str(config["model_type"])):
            raise UserError(f"model {graph.name}: {why}; {TEXT_ALONE}")
        reads, library = reads_of(config, pictured_class(str(config["model_type"])))
        if unknown := [name for name in UNKNOWN if name in reads]:
            raise UserError(
                f"model {graph.name}: transformers' class reads {unknown[0]}, which no run makes; {TEXT_ALONE}"
            )
        marks, vision = tuple(name for name in KINDS if name in reads), library.vision_config
        if GRID in reads and getattr(vision, "temporal_patch_size", None) is None:
            raise UserError(f"model {graph.name}: transformers' class reads patches of no known form; {TEXT_ALONE}")
        count = int(config.get("images_per_sequence") or 1)
        tokens = graph.dims["visual.seq"] // count
        if seq_len < count * (tokens + 1) + 1:
            raise UserError(
                f"training.seq_len = {seq_len}: model {graph.name} has {count} x {tokens} tokens of images; allowed: "
                "more than these, and one of text beside each"
            )
        token = getattr(library, "image_token_id", None)
        if not isinstance(token, int) or not 0 <= token < graph.dims["vocab"]:
            raise UserError(
                f"model {graph.name}: image_token_id = {token}: allowed: one of the {graph.dims['vocab']} tokens"
            )
        if GRID not in reads:
            side = vision.image_size
            sides = tuple(side) if isinstance(side, list | tuple) else (side, side)
            shape = (vision.num_channels, *sides)
            return Pictures(count, shape, tokens, token, (), marks, BY_SEQUENCE in reads)
        patches, merge = graph.dims["vision.seq"] // count, int(getattr(vision, "spatial_merge_size", 1))
        rows = _rows(patches, merge)
        channels = int(getattr(vision, "in_channels", getattr(vision, "in_chans", 3)))
        numbers = channels * int(vision.temporal_patch_size) * int(vision.patch_size) ** 2
        return Pictures(count, (patches, numbers), tokens, token, (1, rows, patches // rows), marks)


def _rows(patches: int, merge: int) -> int:
    """Rows of an image of so many patches, as near to a square as pieces of ``merge`` x ``merge`` allow."""
    fitting = (rows for rows in range(isqrt(patches), 0, -1) if patches % rows == 0)
    return next(rows for rows in fitting if rows % merge == 0 and patches // rows % merge == 0)
