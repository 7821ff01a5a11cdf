"""Longer words of tables for sharding: over part of the ranks, per slice, and with states on the host."""

import re
from collections.abc import Callable
from typing import Any

from simpar.validation.cells import Unmodelled

_STAGE = re.compile(r"\bzero[ _-]?(?:stage ?)?([0-3])")
_WITHIN = re.compile(r"within (\d+) ranks")
_DEGREES = re.compile(r"ici_fsdp ?=? ?(-?\d+)(?: ?x ?dcn_fsdp ?=? ?(\d+))?")


def sharding_in_words(cell: str, ranks: int, domain: Callable[[], int]) -> dict[str, Any]:
    """ZeRO stage, replicas of shards and offload of such words, over ``ranks``; empty for words of another kind.

    ``domain`` tells the devices of a scale-up domain: a slice of TPUs. Raises Unmodelled where degrees do not divide.

    >>> sharding_in_words("ZeRO-1 within 8 ranks of a node, replicated between nodes", 64, int)
    {'zero': 1, 'hsdp': 8}
    >>> sharding_in_words("ZeRO-3 with optimizer and parameters on the CPU", 8, int)
    {'zero': 3, 'offload_optimizer': 'cpu', 'offload_parameters': 'cpu'}
    """
    words = cell.lower()
    if degrees := _DEGREES.search(words):
        return {"zero": 3, "hsdp": int(degrees[2] or 1)}
    if "fsdp inside the slice" in words:
        return {"zero": 3, "hsdp": max(1, ranks // domain())}
    stage = _STAGE.search(words)
    if stage is None:
        return {}
    result: dict[str, Any] = {"zero": int(stage[1])}
    if within := _WITHIN.search(words):
        replicas, rest = divmod(ranks, min(int(within[1]), ranks))
        if rest:
            raise Unmodelled(f"zero_stage_or_fsdp: {within[1]} ranks do not divide the {ranks} of a replica")
        result["hsdp"] = replicas
    if re.search(r"(?:on|to) the (?:cpu|host)|(?:cpu|host)[ _-]?offload", words):
        result["offload_optimizer"] = "cpu"
        if "parameters" in words:
            result["offload_parameters"] = "cpu"
    return result if len(result) > 1 else {}
