"""Small problems: models of a few layers, clusters of a few devices, spaces that can be simulated in full."""

from __future__ import annotations

import random

import pytest

import simpar
from simpar.architectures.hf_config import read
from simpar.planner import Constraints, Problem, make_problem
from simpar.planner.certify.frontier import Frontier
from simpar.planner.space.fit import needs
from simpar.planner.space.rows import enumerate_space

CLUSTERS = (("dgx-h100", 1), ("dgx-h100", 2), ("dgx-a100-80gb", 1), ("l4-8", 2), ("a100-pcie-8", 1), ("rtx-3090-8", 2))
STACKS = ("megatron", "fsdp", "nanotron", "deepspeed", "torchtitan")


def small_config(rng: random.Random) -> dict[str, object]:
    """A Llama-like or GPT-2-like config of two to six layers."""
    heads = rng.choice((4, 8))
    hidden, layers = heads * rng.choice((32, 64)), rng.choice((2, 4, 6))
    if rng.random() < 0.3:
        return {
            "model_type": "gpt2", "resid_pdrop": 0.0, "attn_pdrop": 0.0, "embd_pdrop": 0.0,
            "n_embd": hidden, "n_head": heads, "n_layer": layers, "vocab_size": 4096,
            "n_positions": 1024,
        }  # fmt: skip
    return {
        "model_type": "llama", "hidden_size": hidden, "num_attention_heads": heads, "num_hidden_layers": layers,
        "num_key_value_heads": rng.choice((heads, heads // 2)), "intermediate_size": 4 * hidden,
        "vocab_size": rng.choice((4096, 32000)), "tie_word_embeddings": rng.random() < 0.5,
        "max_position_embeddings": 2048, "rms_norm_eps": 0.00001, "hidden_act": "silu",
    }  # fmt: skip


def random_problem(seed: int, **fixed: object) -> Problem:
    """A random small problem; the seed decides everything."""
    rng = random.Random(seed)
    graph = read(small_config(rng), name=f"small-{seed}")
    hardware, nodes = rng.choice(CLUSTERS)
    training = simpar.Training(seq_len=rng.choice((256, 512)), global_batch=rng.choice((16, 32)))
    return make_problem(
        graph,
        simpar.Cluster(hardware, nodes=nodes),
        training,
        stack=rng.choice(STACKS),
        objective="time",
        constraints=Constraints(fixed=fixed),
    )


def make_frontier(problem: Problem, seed: int, count: int = 10) -> Frontier:
    """The frontier of a few random rows of a problem, fitting or not."""
    rows = enumerate_space(problem)
    rows.keep_only(sorted(random.Random(seed).sample(range(rows.count), min(count, rows.count))))
    return Frontier.of(rows, needs(rows).needed_bytes)


@pytest.fixture(scope="session")
def problem_of():
    """Builder of a random small problem: ``problem_of(seed, axis=value)``."""
    return random_problem


@pytest.fixture(scope="session")
def frontier_of():
    """Builder of the frontier of a few random rows: ``frontier_of(problem, seed)``."""
    return make_frontier


@pytest.fixture(scope="session")
def found():
    """The answer of a small search for a run of so many tokens, for tests that only look at it."""
    training = simpar.Training(seq_len=128, global_batch=8, tokens=10**9)
    few = Constraints(fixed={"cp": 1, "pp": (1, 2), "micro_batch": 1})
    return simpar.search("tiny-llama", simpar.Cluster("dgx-h100", 1), training, constraints=few)
