"""Choices of tensor parallelism."""

from collections.abc import Mapping
from functools import partial
from math import gcd
from typing import Any

import numpy as np
from pydantic import ConfigDict

from simpar.architectures.training import beyond_positions
from simpar.dataclass import dataclass
from simpar.plan.choices.choice import (
    BLOCKS,
    MEMORY,
    OPS,
    REPLICAS,
    TRAFFIC,
    Axis,
    Choice,
    Columns,
    Flag,
    Moves,
    Question,
    divisors,
    in_section,
    make_effects,
    replace_with,
)
from simpar.plan.choices.section import Section
from simpar.plan.choices.target import Refusals, Workload, format_divisors, refuse, select_kept
from simpar.plan.stages import StagePlan
from simpar.stacks.stack import Stack
from simpar.units import Counts, Flags

REMOVED = {"tp_method": "1d", "tp_depth": 1}
"""Keys that plan files of earlier releases have, with the only value that is left."""
REMOVED_SCHEMA = {key: {"const": left, "deprecated": True} for key, left in REMOVED.items()}


def _add_removed_keys(schema: dict[str, Any]) -> None:
    schema["properties"] |= REMOVED_SCHEMA


class TensorParallel(Section):
    """Tensor parallelism: sequence parallelism and overlap. What is None is decided by the stack."""

    model_config = ConfigDict(json_schema_extra=_add_removed_keys)

    sequence_parallel: bool | None = None
    overlap: bool | None = None


@dataclass(frozen=True, kw_only=True)
class DecidedTensor:
    """Whether the residual stream is sharded over the sequence, and whether collectives run beside products."""

    sequence_parallel: bool | Flags = False
    tp_overlap: bool = False


def has_tensor_ranks(tp: Counts, stages: tuple[StagePlan, ...] | None) -> bool:
    """Whether some layers are tensor-parallel in Megatron's roles: in all stages, or in a stage of its own."""
    own = (stage for stage in stages or () if not stage.sharding)
    return bool(tp > 1) or any(stage.num_devices > stage.mesh[0] for stage in own)


def by_stack(stack: Stack, *, tp: int, stages: tuple[StagePlan, ...] | None) -> dict[str, Any]:
    """What a stack decides of tensor parallelism."""
    return {
        "sequence_parallel": has_tensor_ranks(tp, stages) and stack.sequence_parallel,
        "tp_overlap": stack.overlap.tensor_forward,
    }


def tensor_refusals(tp: Counts, target: Workload, sequence_parallel: bool | Flags = False) -> Refusals:
    """Where a model cannot be split over ``tp`` ranks; without ``sequence_parallel``, sequences aside."""
    yield (
        np.asarray(sequence_parallel) & (np.asarray(tp) == 1),
        lambda: "plan.sequence_parallel = true: needs tp > 1, with tp = 1 there is nothing to share out",
    )
    if refusal := target.graph.facts.get("no_tensor_parallel"):
        yield np.asarray(tp) > 1, lambda: f"plan.tp = {tp}: {target.graph.name} has {refusal}; allowed: 1"
    graph, seq_len = target.graph, target.training.seq_len
    visual, heard = graph.dims.get("visual.seq", 0), graph.dims.get("sound.seq", 0)
    words = "tokens of images and sound" if heard else "visual tokens"
    taken = visual + heard
    yield (
        np.asarray(taken > seq_len),
        lambda: f"seq_len = {seq_len}: {graph.name} has {taken} {words} a sequence; allowed: as many or more",
    )
    prompt = graph.dims.get("prompt.seq", 0)
    yield (
        np.asarray(seq_len <= prompt),
        lambda: (
            f"seq_len = {seq_len}: {graph.name} has {prompt} tokens of text a sequence; allowed: more, for an image"
        ),
    )
    longest = graph.facts.get("longest", seq_len)
    yield np.asarray(seq_len > longest), lambda: beyond_positions(graph.name, seq_len, longest)
    for dims in graph.divided_scopes:
        yield from _divided_dims(tp, dims, int(dims.get("seq", seq_len)), sequence_parallel)


OTHERS = {
    "mamba_heads": "heads of state-space layers", "mamba_groups": "groups of state-space layers",
    "linear_heads": "heads of linear attention", "linear_key_heads": "key heads of linear attention",
    "o_groups": "groups of the output projection",
}  # fmt: skip
"""Dims that only some layers have, and what they are."""


ROWS = "seq_len (sequence parallel)"


def _divided_dims(tp: Counts, dims: Mapping[str, int], seq_len: int, sequence_parallel: bool | Flags) -> Refusals:
    """The rules on one tower's dims, with ``seq_len`` where sequences are sharded, too."""
    sizes = {"attention heads": dims["heads"], "ffn size": dims["ffn"], "hidden size": dims["hidden"]}
    if dims.get("shared_ffn"):
        sizes["ffn size of the shared expert"] = dims["shared_ffn"]
    for dim, said in OTHERS.items():
        if dim in dims:
            sizes[said] = dims[dim]
    shared = np.where(sequence_parallel, seq_len, 0)  # every number of ranks divides 0
    for name, size in (*sizes.items(), (ROWS, shared)):
        yield np.asarray(size % np.asarray(tp) != 0), partial(_undivided, tp, name, size, (*sizes.values(), shared))
    kv_heads = dims["kv_heads"]
    yield (
        np.asarray((kv_heads % np.asarray(tp) != 0) & (np.asarray(tp) % kv_heads != 0)),
        lambda: f"plan.tp = {tp}: does not fit {kv_heads} key-value heads; allowed: a divisor or a multiple of it",
    )


def _undivided(tp: Counts, name: str, size: Any, sizes: tuple[Any, ...]) -> str:
    allowed = format_divisors(gcd(*sizes))
    if name == ROWS and gcd(*sizes[:-1]) % tp == 0:
        allowed += ", or plan.sequence_parallel = false"
    return f"plan.tp = {tp}: does not divide the {name} {size}; allowed: {allowed}"


def tensor_degrees(problem: Question) -> list[int]:
    """Tensor-parallel degrees that divide the devices and the sizes of the model."""
    degrees = np.array(divisors(problem.cluster.world_size, int(problem.graph.dims["heads"])))
    legal: list[int] = degrees[select_kept(tensor_refusals(degrees, _target(problem)))].tolist()
    return legal


def tensor_fits(rows: Columns) -> Flags:
    """Rows with degrees that the model allows. Raises UserError with the reason if it allows none."""
    legal = np.isin(rows["tp"], tensor_degrees(rows.problem))
    if not legal.any():
        for tp in rows.domain["tp"]:
            refuse(tensor_refusals(tp, _target(rows.problem)))
    return legal


def _target(problem: Question) -> Workload:
    return Workload(problem.graph, problem.training, problem.cluster.world_size, 1)


def _sequence_fits(rows: Columns) -> Flags:
    lengths = {int(dims.get("seq", rows.problem.training.seq_len)) for dims in rows.problem.graph.divided_scopes}
    legal = rows["tp"] > 1
    for length in sorted(lengths):
        legal = legal & (length // rows["cp"] % rows["tp"] == 0)
    needed = (rows["ep"] > 1) & (rows["tp"] > 1)  # sequence parallelism: each token comes from one rank
    return np.asarray(np.where(rows["sequence_parallel"], legal, ~needed))


CHOICES = in_section(
    "tensor_parallel",
    Choice(
        "sequence_parallel",
        by_stack=True,
        is_exported=True,
        is_column=True,
        flag=Flag(
            bool,
            "Shard activations along the sequence between tensor-parallel operators",
            "--sequence-parallel/--no-sequence-parallel",
        ),
        axis=Axis(
            make_effects(MEMORY, BLOCKS, REPLICAS, OPS, TRAFFIC), lambda _: (False, True), _sequence_fits, after="hsdp"
        ),
        moves=Moves(
            lambda plan, _: (not plan.tensor_parallel.sequence_parallel,) if plan.mesh.tp > 1 else (),
            around=(True, False),
            menu=lambda *_: (False, True),
            replacements=replace_with("sequence_parallel", False, True),
            after="offload_optimizer",
            led_by="tp",
        ),
    ),
    Choice(
        "tp_overlap",
        by_stack=True,
        is_exported=True,
        field="overlap",
        key=None,
        axis=Axis(
            make_effects(BLOCKS, OPS, TRAFFIC),
            lambda problem: (False, True) if problem.cluster.profile.scale_up.peer_to_peer else (False,),
            lambda rows: np.asarray(~rows["tp_overlap"] | rows["sequence_parallel"]),
            after="recompute",
            possible=lambda _: (False, True),
            untuned=lambda _: (False,),
        ),
        moves=Moves(
            around=(True, False), replacements=lambda _: ({"tensor_parallel": {"overlap": False}},), led_by="tp"
        ),
    ),
)
