"""What a family of models declares: the reader of its config, its details, its weights, a tiny config."""

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

from simpar.architectures.details import Details
from simpar.architectures.graph import ModelGraph
from simpar.architectures.weights import LLAMA, Weights
from simpar.dataclass import dataclass

Reader = Callable[..., ModelGraph]
"""Makes a graph of a :class:`simpar.architectures.config.Config` and the model's name."""
USUAL = Details()
TINY = {
    "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
"""A tiny config with Llama's field names."""


@dataclass(frozen=True)
class ModelFamily:
    """Everything that simpar knows of one ``model_type``, and of ``aliases`` with the same fields and weights.

    ``read`` makes a graph of its ``config.json``; where configs have configs of other models within (``nested``), it
    gets their reader as a third argument. ``classes`` are the names of causal language models in the ``architectures``
    of configs by ``model_type``, where :func:`class_by_name` does not give them ("": there is none). ``details`` are
    defaults for configs that do not state them (None: the activation is SiLU behind a gate, else GELU), ``activations``
    those that configs name -> those that the code uses instead; ``scaled_by_root``: embeddings are multiplied by the
    root of the hidden size. ``weights`` are the names of its released weights (None: not known). ``tiny`` is a config
    with all features of the family, small enough to be trained in a test.
    """

    model_type: str
    read: Reader
    details: Details | None = USUAL
    weights: Weights | None = LLAMA
    tiny: Mapping[str, Any] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()
    activations: Mapping[str, str] = field(default_factory=dict)
    scaled_by_root: bool = False
    nested: bool = False
    classes: Mapping[str, str] = field(default_factory=dict)

    def causal_class(self, model_type: str) -> str:
        """The name of the class by which libraries load weights with a language model's head; "" if none does."""
        return self.classes.get(model_type, class_by_name(model_type))

    def library_type(self, model_type: str) -> str:
        """The ``model_type`` by which transformers knows the model: the family's own where its class is meant."""
        own = self.causal_class(self.model_type)
        return self.model_type if own and own == self.causal_class(model_type) else model_type


def class_by_name(model_type: str) -> str:
    """What transformers calls a model's class in most families: deepseek_v3 is DeepseekV3ForCausalLM."""
    return "".join(word[:1].upper() + word[1:] for word in model_type.split("_")) + "ForCausalLM"
