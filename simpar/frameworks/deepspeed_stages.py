"""How DeepSpeed's pipeline spreads the layers of a GPT over its stages, by the method that a launch asks for."""

import re

EMBEDDING, LAYER = "EmbeddingPipe", "ParallelTransformerLayerPipe"
"""Classes of what a pipeline is made of, in Megatron-DeepSpeed and GPT-NeoX."""
HEADS = {"tied": EMBEDDING, "megatron-deepspeed": "LMHeadPipe", "gpt-neox": "ParallelLinearPipe"}
"""Classes of the last table: the first one again where both are tied, else by framework."""


def layers_by_method(method: str, layers: int, stages: int, head: str) -> tuple[int, ...] | None:
    """Layers of every stage; None where simpar does not know them.

    ``type:REGEX`` counts what has a class of that name and gives every stage as many [DeepSpeed,
    runtime/pipe/module.py, _partition_layers]. Where they do not divide, versions differ in who has more; ``uniform``
    and ``parameters`` count what belongs to no layer, by version.

    >>> layers_by_method("type:transformer|embedding", 70, 12, HEADS["tied"])
    (5, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 5)
    """
    kind, _, pattern = method.strip("'\"").partition(":")
    try:
        counts = [bool(re.search(pattern, name, re.IGNORECASE)) for name in (EMBEDDING, LAYER, head)]
    except re.error:
        return None
    first, each, last = counts
    in_all = first + layers + last
    if kind.lower() != "type" or not pattern or not each or stages < 2 or in_all % stages or in_all < 2 * stages:
        return None
    most = in_all // stages
    return (most - first, *[most] * (stages - 2), most - last)
