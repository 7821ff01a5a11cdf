"""Models that see, as transformers' own classes: sequences begin with images that are made of their tokens.

No image is read. The pixels of a sequence are numbers that follow from its tokens, so that every layout trains on the
same ones; in the place of its first tokens stand those for images, whose targets stay the text's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from simpar.architectures.graph import ModelGraph
from simpar.runtime.pictures import GRID, Pictures
from simpar.tracing.library import make_module, pictured_class

LARGEST = 251
"""Values of a pixel; a prime, so that neighbours differ from image to image."""


class PicturedModel(nn.Module):
    """A model of transformers that sees: tokens in, logits out, with images in front of every sequence's text."""

    skips_parameters = True

    def __init__(self, config: Mapping[str, Any], pictures: Pictures) -> None:
        super().__init__()
        self.inner, _ = make_module(config, pictured_class(str(config["model_type"])), "model")
        self.vocab_size = int(self.inner.get_input_embeddings().num_embeddings)
        self.pictures = pictures

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens int64[batch, seq] in, logits float[batch, seq, vocab] out."""
        own, batch = self.pictures, len(tokens)
        places = torch.zeros_like(tokens, dtype=torch.bool)
        for at in range(own.count):
            begin = 1 + at * (own.tokens + 1)
            places[:, begin : begin + own.tokens] = True
        other = (own.token + 1) % self.vocab_size
        shown = tokens.masked_fill(tokens == own.token, other).masked_fill(places, own.token)
        named: dict[str, Any] = {name: places.long() for name in own.marks}
        if own.grid:
            named[GRID] = torch.tensor([own.grid] * (batch * own.count), device=tokens.device)
        pixels = made_of(tokens, own.count, own.shape)
        pixels = pixels.view(batch, own.count, *own.shape) if own.by_sequence else pixels
        logits: Tensor = self.inner(input_ids=shown, pixel_values=pixels, use_cache=False, **named).logits
        return logits


def made_of(tokens: Tensor, count: int, shape: tuple[int, ...]) -> Tensor:
    """Pixels between -1 and 1 that follow from a sequence's tokens: float[batch x count, ...], patches side by side."""
    numel = count * torch.Size(shape).numel()
    places = torch.arange(numel, device=tokens.device)
    seeds = (tokens * torch.arange(1, tokens.shape[1] + 1, device=tokens.device)).sum(1, keepdim=True)
    values = (places * (1 + seeds % LARGEST) + seeds) % LARGEST
    pixels = values.float() / (LARGEST // 2) - 1
    return pixels.view(-1, shape[1]) if len(shape) == 2 else pixels.view(-1, *shape)


def make_pictured_model(config: Mapping[str, Any], graph: ModelGraph, seq_len: int) -> PicturedModel:
    """The module of a config whose graph has a vision tower, on the host, in fp32. Raises UserError."""
    with torch.device("cpu"):
        return PicturedModel(config, Pictures.of(config, graph, seq_len))
