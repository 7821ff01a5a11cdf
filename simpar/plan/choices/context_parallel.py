"""Choices of context parallelism."""

from typing import Any, Literal

import numpy as np
from pydantic import Field

from simpar.architectures.graph import ModelGraph
from simpar.dataclass import dataclass
from simpar.plan.choices.choice import (
    AMONG,
    BLOCKS,
    MEMORY,
    Choice,
    Columns,
    Moves,
    OptionalAxis,
    Question,
    Rules,
    divisors,
    has_value,
    in_section,
    make_effects,
    replace_with,
)
from simpar.plan.choices.section import Section
from simpar.stacks.stack import Stack
from simpar.units import Count, Counts, Flags

LEAST_PIECE = 2048
"""A rank's piece of a sequence is shorter than this many tokens only if the sequence is halved once."""


class ContextParallel(Section):
    """Context parallelism: how queries meet keys of other ranks. What is None is decided by the stack.

    ``cp_method`` "ring" passes blocks of keys and values round the ranks, "all_gather" collects them first,
    "ulysses" exchanges heads for tokens. With "ring" and "all_gather", groups of ``ulysses`` neighbours exchange
    heads first (the hybrid). ``cp_balance`` says which tokens a rank holds: "zigzag" (one chunk from each end),
    "striped" (every cp-th token) or "contiguous" (one chunk: causal ranks at the end have the most work).
    """

    cp_method: Literal["ring", "ulysses", "all_gather"] | None = None
    cp_balance: Literal["zigzag", "striped", "contiguous"] | None = None
    ulysses: Count | None = Field(
        default=None, description="context ranks that exchange heads; default all of them for ulysses, else 1"
    )


@dataclass(frozen=True, kw_only=True)
class DecidedContext:
    """Context parallelism; ``ulysses`` None: all context ranks exchange heads for cp_method ulysses, else none."""

    cp_method: Literal["ring", "ulysses", "all_gather"] = "ring"
    cp_balance: Literal["zigzag", "striped", "contiguous"] = "zigzag"
    ulysses: int | None = None


def by_stack(stack: Stack) -> dict[str, Any]:
    """What a stack decides of context parallelism."""
    return {"cp_method": stack.context.method, "cp_balance": stack.context.balance}


def suit(stack: Stack, graph: ModelGraph) -> Stack:
    """The stack as it trains a model: keys that are chosen anywhere in a sequence are gathered."""
    if not graph.chooses_keys:
        return stack
    return stack.model_copy(update={"context": stack.context.model_copy(update={"method": "all_gather"})})


def context_degrees(problem: Question) -> list[int]:
    """Degrees that halve any sequence or leave at least LEAST_PIECE tokens; 1 where a layer has a state.

    If activations fill the memory, context parallelism beats more recomputation or tensor ranks at any length.
    """
    if problem.graph.has_state:
        return [1]
    return divisors(problem.training.seq_len, max(2, problem.training.seq_len // LEAST_PIECE))


def all_context_degrees(problem: Question) -> list[int]:
    """All degrees that divide the sequence, if no layer carries a state along it."""
    return [] if problem.graph.has_state else divisors(problem.training.seq_len)


def shares_states(cp: Counts, heads: Counts, groups: Counts) -> Flags:
    """Whether context ranks can share the heads of state-space layers that a tensor-parallel rank has, in ``groups``.

    Each takes as many heads, and whole groups of them or heads of one group [Megatron-LM,
    core/ssm/mamba_context_parallel.py].
    """
    cp, groups = np.asarray(cp), np.maximum(groups, 1)
    return np.asarray((heads % cp == 0) & ((groups % cp == 0) | (cp % groups == 0)))


def context_fits(rows: Columns) -> Flags:
    """Rows whose sequence divides into the chunks of every rank, and heads of state-space layers among them."""
    graph = rows.problem.graph
    if graph.has_state and not graph.exchanges_heads:
        return np.asarray(rows["cp"] == 1)
    divides = np.asarray(True)
    if graph.has_state:
        divides = shares_states(rows["cp"], *(graph.dims[of] // rows["tp"] for of in ("mamba_heads", "mamba_groups")))
    problem, choice = rows.problem, rows.problem.base.context_parallel
    seq, asked = problem.training.seq_len, {"cp_method", "cp_balance"} & set(problem.constraints.fixed)
    chunks = 1 if asked or "contiguous" in (choice.cp_balance, problem.stack.context.balance) else 2
    divides = divides & (seq % (rows["cp"] * chunks) == 0)
    return np.asarray((rows["cp"] == 1) | divides)


def _has_context_ranks(rows: Columns) -> Flags:
    return np.asarray(rows["cp"] > 1)


_DECIDES = make_effects(MEMORY, BLOCKS, AMONG)
_KEEPS_CONTEXT = Rules(("context",), reads=("tp", "cp", "sequence_parallel", "cp_method", "cp_balance", "ulysses"))
CHOICES = in_section(
    "context_parallel",
    Choice(
        "cp_method",
        by_stack=True,
        is_exported=True,
        axis=OptionalAxis(
            _DECIDES, _has_context_ranks, rules=(_KEEPS_CONTEXT,), label=None, is_decided=True, after="reduce_dtype"
        ),
        moves=Moves(replacements=replace_with("cp_method", "ring", "all_gather", "ulysses"), led_by="cp"),
    ),
    Choice(
        "cp_balance",
        by_stack=True,
        is_exported=True,
        axis=OptionalAxis(
            _DECIDES, _has_context_ranks, rules=(_KEEPS_CONTEXT,), label=None, is_decided=True, after="cp_method"
        ),
        moves=Moves(replacements=replace_with("cp_balance", "zigzag", "contiguous"), led_by="cp"),
    ),
    Choice(  # hybrids: some context ranks exchange heads, the others use the method
        "ulysses",
        is_exported=True,
        axis=OptionalAxis(
            _DECIDES,
            lambda rows: _has_context_ranks(rows) & ~has_value(rows, "cp_method", "ulysses"),
            rules=(_KEEPS_CONTEXT,),
            after="cp_balance",
        ),
        moves=Moves(replacements=replace_with("ulysses", None), led_by="cp"),
    ),
)
