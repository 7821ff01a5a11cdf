"""Blocks that run together take as long in C as one by one, to the nanosecond."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import simpar
from simpar.native import NativeLibrary
from simpar.planner import Constraints, make_problem
from simpar.planner.bound import merged_blocks
from simpar.planner.bound.merged_blocks import Slowing
from simpar.planner.bound.overlapped_passes import OverlappedPasses
from simpar.program.blocks.segments import in_order
from tests.compilers import needs_compiler
from tests.gate import some
from tests.planner.conftest import make_frontier, random_problem

MIXTURE = {"ep": (1, 2, 4), "tp": (1, 2), "cp": (1, 2), "pp": (2, 4), "micro_batch": (1, 2), "zero": 1, "hsdp": 1}
LETTERS = "BIW"


def pairs_of(name):
    """Pairs of a dense model, or of a mixture whose tokens are exchanged."""
    if name == "dense":
        return pairs_of_rows(random_problem(3, hsdp=1, recompute=("none", "full")))
    training = simpar.Training(seq_len=512, global_batch=64)
    fixed = {**MIXTURE, "schedule": "dualpipev", "recompute": ("none", "selective")}
    cluster = simpar.Cluster("hgx-h800", nodes=2)
    return pairs_of_rows(make_problem(name, cluster, training, stack="megatron", constraints=Constraints(fixed=fixed)))


def pairs_of_rows(problem):
    """Pairs of sixty rows of a problem."""
    return OverlappedPasses(make_frontier(problem, 3, 60).bounds.pipelines.blocks)


def forms():
    """The merging in Python and compiled."""
    library = merged_blocks.LIBRARY
    return [replace(library, worth=0, why_not=why_not, loaded=None) for why_not in ("not here", "")]


@needs_compiler
@pytest.mark.parametrize("name", some(["dense", "deepseek-v2-lite", "mixtral-8x7b"], 2))
def test_both_forms_agree(name, monkeypatch):
    """For every kind of block that meets another, every half of the backward, at any speed."""
    pairs = pairs_of(name)
    blocks, compared = pairs.blocks, 0
    for batch in blocks.all_batches:
        for kind, letter in ((len(blocks.kinds) - 1, one) for one in LETTERS):
            merged, _ = pairs._merged(batch, (kind, kind), letter)
            places = np.arange(len(batch.keys))
            for slowing in (Slowing(1.0, 0.0), Slowing(1.5, 0.13)):
                both = []
                for library in forms():
                    monkeypatch.setattr(merged_blocks, "LIBRARY", library)
                    both.append(merged.merged_ns(places, slowing))
                assert np.array_equal(*both)
                compared += len(places)
    assert compared >= 24


def test_a_library_that_is_not_worth_it_is_not_compiled(monkeypatch):
    """Few blocks are merged in Python, which counts them."""
    pairs = pairs_of("dense")
    library = NativeLibrary(merged_blocks.LIBRARY.source, worth=10**9, why_not="not here")
    monkeypatch.setattr(merged_blocks, "LIBRARY", library)
    merged, _ = pairs._merged(pairs.blocks.all_batches[0], (1, 1), "B")
    assert (merged.merged_ns(np.array([0]), Slowing(1.0, 0.0)) > 0).all()
    assert library.done == len(merged.sms)


def test_sums_are_in_order():
    """As floats are added one by one, in every version of Python."""
    assert in_order([1e16, 1.0, -1e16]) == 0.0
    assert in_order([]) == 0.0
