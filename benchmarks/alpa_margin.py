"""What stages with meshes and shardings of their own gain over the best uniform plan, on models of unlike layers.

Usage: python benchmarks/alpa_margin.py [NAME ...]

Prints the simulated steps of both optima and the margin; on a model of like layers it may be zero but never below.
"""

from __future__ import annotations

import sys
from typing import Any

import simpar
from simpar.models.catalogue import load_model
from simpar.models.graph import ModelGraph
from simpar.models.hf_config import read
from simpar.search.api import search
from simpar.search.watch import Watch

LLAMA: dict[str, Any] = {
    "model_type": "llama", "vocab_size": 32000, "hidden_size": 2048, "num_attention_heads": 16,
    "intermediate_size": 5632, "num_hidden_layers": 12, "tie_word_embeddings": False,
}  # fmt: skip
VISION = {"hidden_size": 1280, "intermediate_size": 5120, "num_hidden_layers": 16, "num_attention_heads": 16}


def alternating() -> ModelGraph:
    """Layers that see a window of 1,024 tokens and layers that see all, five to one."""
    return load_model("gemma-3-1b")


MODELS = {
    "like layers": lambda: read(LLAMA, "llama-0.7b"),
    "large vocabulary": lambda: read({**LLAMA, "vocab_size": 256000}, "llama-0.7b-256k"),
    "vision tower": lambda: read(
        {"model_type": "llava", "vision_config": VISION, "text_config": LLAMA, "images_per_sequence": 4},
        "vlm-1b",
    ),
    "alternating windows": alternating,
    "encoder-decoder": lambda: load_model("mt5-xl"),
}
TRAINING = simpar.Training(seq_len=4096, global_batch=32)


def measure(name: str) -> float:
    """Print one line, and return the margin."""
    graph, cluster = MODELS[name](), simpar.Cluster("a100-pcie-8")
    found = search(graph, cluster, TRAINING, space="alpa", watch=Watch(top=1, brief=True))
    uniform, best = found.details["uniform_best_s"], found.best.step_time_s
    margin = uniform / best - 1
    stages = found.best.plan.pipeline.stages
    how = "uniform" if stages is None else "+".join(f"{one.layers}L/{one.num_devices}" for one in stages)
    print(
        f"{name:20s} {graph.num_parameters() / 1e9:5.1f} B: uniform {uniform:.4f} s, alpa {best:.4f} s ({how}), "
        f"margin {margin:+.1%}, {found.search_seconds:.0f} s",
        flush=True,
    )
    return margin


def main() -> None:
    """Measure the named models, or all. Exits with 1 where a margin is negative."""
    margins = [measure(name) for name in sys.argv[1:] or MODELS]
    sys.exit(min(margins) < 0)


if __name__ == "__main__":
    main()
