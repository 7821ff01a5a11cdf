"""Models with parts that the runtime's decoder does not compute, as modules of transformers' own classes.

Such a module has no roles for its operators, so it is only data parallel, like a module of the user's. Nothing that
comes with a model is executed: the class is that of the installed package, and its weights are random.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from simpar.errors import UserError
from simpar.runtime.objective import CHOSEN
from simpar.tracing.library import make_module

MULTIPLIER, PLACE, MODULUS = 7919, 104_729, 65_521
"""Primes of a hash that says which tokens are masked."""


class LibraryModel(nn.Module):
    """A model of transformers that keeps nothing of what it saw, and returns logits only.

    Experts without a token, or an indexer that no loss reaches, have no gradient in a step (``skips_parameters``).
    """

    skips_parameters = True

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.inner, inputs = make_module(config, "", "model")
        names = {*(inputs or {"input_ids": None})}
        if not names <= {"input_ids", "decoder_input_ids"}:
            raise UserError(f"model: its class reads {', '.join(sorted(names))}; allowed: tokens alone")
        self.is_pair = "decoder_input_ids" in names
        self.is_causal = self.is_pair or "use_cache" in inspect.signature(self.inner.forward).parameters
        self.vocab_size = int(self.inner.get_input_embeddings().num_embeddings)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens int64[batch, seq] in, logits float[batch, seq, vocab] out; an encoder reads them with some masked."""
        named: dict[str, Any] = {"use_cache": False} if self.is_causal else {}
        if self.is_pair:
            named |= {"decoder_input_ids": tokens}
        shown = masked(tokens, self.vocab_size - 1) if self.is_pair else tokens
        logits: Tensor = self.inner(input_ids=shown, **named).logits
        return logits


def masked(tokens: Tensor, mask: int) -> Tensor:
    """Tokens int64[batch, seq] of which a share is ``mask``: those whose hash, with what is before them, is low."""
    places = torch.arange(1, tokens.shape[1] + 1, device=tokens.device)
    seen = (tokens * places).cumsum(1)
    hashed = (seen * MULTIPLIER + places * PLACE) % MODULUS
    return torch.where(hashed < round(CHOSEN * MODULUS), mask, tokens)


def make_library_model(config: Mapping[str, Any]) -> LibraryModel:
    """The module of a config, on the host, in fp32. Raises UserError where transformers has no class for it."""
    with torch.device("cpu"):
        return LibraryModel(config)
