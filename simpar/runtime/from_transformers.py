"""Models with parts that the runtime's decoder does not compute, as modules of transformers' own classes.

Such a module has no roles for its operators, so it is only data parallel, like a module of the user's. Nothing that
comes with a model is executed: the class is that of the installed package, and its weights are random.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from simpar.errors import UserError
from simpar.tracing.library import make_module


class LibraryModel(nn.Module):
    """A model of transformers that keeps nothing of what it saw, and returns logits only.

    Experts without a token, or an indexer that no loss reaches, have no gradient in a step (``skips_parameters``).
    """

    skips_parameters = True

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.inner, inputs = make_module(config, "", "model")
        if inputs is not None:
            raise UserError("model: has two towers; the runtime trains decoders, or a module:function")
        self.vocab_size = int(self.inner.get_input_embeddings().num_embeddings)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens int64[batch, seq] in, logits float[batch, seq, vocab] out."""
        logits: Tensor = self.inner(input_ids=tokens, use_cache=False).logits
        return logits


def make_library_model(config: Mapping[str, Any]) -> LibraryModel:
    """The module of a config, on the host, in fp32. Raises UserError where transformers has no class for it."""
    with torch.device("cpu"):
        return LibraryModel(config)
