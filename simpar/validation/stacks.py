"""Software by the words of a table: stacks with a profile of their own, and the nearest profile of those without."""

import re

_NEAREST = (
    (r"internevo|internlm", "internevo"),
    (r"paxml|\bpax\b", "paxml"),
    (r"torchtune", "torchtune"),
    (r"nemo|bridge", "nemo"),
    (r"deepspeed", "deepspeed"),
    (r"transformers|hugging ?face|\bhf\b|trl|factory|axolotl|swift|peft|accelerate|unsloth", "huggingface"),
    (r"mega|primus|neuron|colossal|mindspeed|zero.?bubble", "megatron"),
    (r"jax|xla|flax|t5x|levanter|axlearn|maxtext", "maxtext"),
    (r"titan", "torchtitan"),
    (r"foundry|composer|mosaic", "llm-foundry"),
    (r"fsdp|torch|lightning|olmo", "fsdp"),
)
"""Words of stacks without a profile, and the profile of their kind."""
_OWN = ("internevo", "paxml", "torchtune", "huggingface", "deepspeed")
"""Profiles whose words above are names of the software that they are of, or of trainers that run its models."""


def nearest_stack(words: str) -> str | None:
    """The profile of similar software, by words in lower case; None where none of them is known.

    >>> nearest_stack("hf transformers + peft"), nearest_stack("colossal-ai"), nearest_stack("ours")
    ('huggingface', 'megatron', None)
    """
    return next((profile for pattern, profile in _NEAREST if re.search(pattern, words)), None)


def is_of_profile(profile: str) -> bool:
    """Whether all that has its words runs a profile's own software; other words are of something similar.

    >>> is_of_profile("huggingface"), is_of_profile("megatron")
    (True, False)
    """
    return profile in _OWN
