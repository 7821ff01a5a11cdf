"""Words of tables for sharding: stages, FSDP and its degree, parts of the ranks, slices, and states on the host."""

import re
from collections.abc import Callable
from typing import Any

from simpar.validation.cells import Unmodelled

STAGES = {
    **{f"{word}{stage}": stage for word in ("", "zero", "stage", "zerostage") for stage in (0, 1, 2, 3)},
    **dict.fromkeys(("ddp", "none", "no", "off", "false", "noshard", "disabled", "na"), 0),
    **dict.fromkeys(("distributedoptimizer", "distoptimizer", "distopt", "usedistributedoptimizer"), 1),
    **dict.fromkeys(("fullshard", "fullyshard", "fsdpfull", "fsdpfullshard"), 3),
}  # fmt: skip
"""Words for sharding, without what stands between letters, and their ZeRO stages."""
VERSIONS_OF_FSDP = ("fsdp1", "fsdp2", "fsdp-1", "fsdp-2", "fsdpv1", "fsdpv2", "fsdp-v2")
"""Not degrees, which stand apart: FSDP 64."""
_STAGE = re.compile(r"\bzero[ _-]?(?:stage ?)?([0-3])")
_WITHIN = re.compile(r"within (\d+) ranks")
_DEGREES = re.compile(r"ici_fsdp ?=? ?-?\d+")
_WIDTH = re.compile(r"(?:fsdp[ =]|degree )(\d+)|(\d+)-way fsdp|^fsdp(\d+)$")
_KEEPS_GATHERED = re.compile(r"zero-2-like|shard[ _-]?grad|grad[ _-]op|without reshard")
_HYBRID = re.compile(r"hybrid[ _-]?shard|^hsdp$")


def read_sharding(
    cell: str, ranks: int, *, per_node: int, domain: Callable[[], int], experts: int = 1
) -> dict[str, Any] | None:
    """ZeRO stage, replicas of shards and offload of a cell, over ``ranks``; None for words that are not known.

    ``domain`` tells the devices of a scale-up domain: a slice of TPUs. A degree of FSDP beside so many ranks of
    ``experts`` may be that of what is sharded over both. Nothing is sharded over one rank, but the hooks of ZeRO-3 run
    there as well. Raises Unmodelled where degrees do not divide.

    >>> read_sharding("ZeRO-1 within 8 ranks of a node, replicated between nodes", 64, per_node=8, domain=int)
    {'zero': 1, 'hsdp': 8}
    >>> read_sharding("ZeRO-3 with optimizer and parameters on the CPU", 8, per_node=8, domain=int)
    {'zero': 3, 'offload_optimizer': 'cpu', 'offload_parameters': 'cpu'}
    >>> read_sharding("FSDP 64", 256, per_node=8, domain=int)
    {'zero': 3, 'hsdp': 4}
    """
    words = cell.lower()
    result = _stage(words, ranks) if "fsdp" not in words else None
    result = result or _fully_sharded(words, ranks, per_node, domain, experts)
    if result is None or ranks > 1:
        return result
    away = {name: home for name, home in result.items() if name.startswith("offload")}
    return {"zero": 3 if result["zero"] == 3 and "sdp" not in words else 0, **away}


def _stage(words: str, ranks: int) -> dict[str, Any] | None:
    """A ZeRO stage by its number or by another word, over which ranks, and what of it is on the host."""
    letters = "".join(each for each in words if each.isalnum())
    stage = _STAGE.search(words)
    if stage is None:
        known = letters in STAGES or "ddp" in words or "distributed optimizer" in words
        return {"zero": STAGES.get(letters, int("optimizer" in words))} if known else None
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
    return result


def _fully_sharded(
    words: str, ranks: int, per_node: int, domain: Callable[[], int], experts: int
) -> dict[str, Any] | None:
    """FSDP, with its degree where one is given."""
    if _DEGREES.search(words):
        return {"zero": 3, "hsdp": 1}  # over the slices, too: copies would be ici_data and dcn_data
    if "fsdp inside the slice" in words:
        return {"zero": 3, "hsdp": max(1, ranks // domain())}
    if _KEEPS_GATHERED.search(words):
        return {"zero": 2, "kind": "fsdp"}
    if _HYBRID.search(words):
        return {"zero": 3, "hsdp": max(1, ranks // per_node)}
    if "fsdp" not in words:
        return None
    width = None if words in VERSIONS_OF_FSDP else _WIDTH.search(words)
    shards = int(next(filter(None, width.groups()))) if width else ranks
    shards = ranks if shards * experts == ranks else shards
    if not shards or ranks % shards:
        raise Unmodelled("FSDP degree does not divide dp")
    return {"zero": 3, "hsdp": ranks // shards}
