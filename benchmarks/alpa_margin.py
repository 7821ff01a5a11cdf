"""What stages with meshes and shardings of their own gain over the best uniform plan, on models of unlike layers.

Usage: python benchmarks/alpa_margin.py [NAME ...]

Prints the simulated steps of both optima and the margin; on a model of like layers it may be zero but never below.

Unlike layers matter where the model is cut, so their margin needs clusters on which the uniform optimum is a pipeline:
several nodes of 24 GB devices without NVLink. In one node replicas alone are best for models of this size.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import simpar
from simpar.architectures.catalogue import load_model
from simpar.architectures.graph import ModelGraph
from simpar.architectures.hf_config import read
from simpar.planner.api import search
from simpar.planner.problem import Constraints
from simpar.planner.progress import SearchProgress

LLAMA: dict[str, Any] = {
    "model_type": "llama", "vocab_size": 32000, "hidden_size": 2048, "num_attention_heads": 16,
    "intermediate_size": 5632, "num_hidden_layers": 12, "tie_word_embeddings": False,
}  # fmt: skip
VISION = {"hidden_size": 1280, "intermediate_size": 5120, "num_hidden_layers": 16, "num_attention_heads": 16}


def alternating() -> ModelGraph:
    """Layers that see a window of 1,024 tokens and layers that see all, five to one."""
    return load_model("gemma-3-1b")


GIANT_VISION = {
    "hidden_size": 1664, "intermediate_size": 8192, "num_hidden_layers": 48, "num_attention_heads": 16,
    "image_size": 1344,
}  # fmt: skip
LLAMA_7B = {
    **LLAMA, "hidden_size": 4096, "num_attention_heads": 32, "intermediate_size": 11008, "num_hidden_layers": 32,
}  # fmt: skip


def _vlm(vision: dict[str, Any], language: dict[str, Any], images: int) -> ModelGraph:
    config = {"model_type": "llava", "vision_config": vision, "text_config": language}
    return read({**config, "images_per_sequence": images}, "vlm")


MODELS = {
    "like layers": (lambda: read(LLAMA, "llama-0.7b"), "a100-pcie-8", 1, 4096),
    "large vocabulary": (lambda: read({**LLAMA, "vocab_size": 256000}, "llama-0.7b-256k"), "a100-pcie-8", 1, 4096),
    "alternating windows": (alternating, "rtx-3090-8", 4, 4096),
    "encoder-decoder": (lambda: load_model("mt5-xl"), "rtx-3090-8", 2, 2048),
    "vision tower": (lambda: _vlm(VISION, LLAMA, 4), "rtx-3090-8", 4, 4096),
    "large vision tower": (lambda: _vlm(GIANT_VISION, LLAMA_7B, 1), "rtx-3090-8", 4, 2048),
}
"""Model, hardware, nodes and tokens of a sequence of every instance; 32 sequences a step."""
GLOBAL_BATCH = 32


def measure(name: str) -> float:
    """Print one line, and return the margin."""
    make, hardware, nodes, seq_len = MODELS[name]
    graph, cluster = make(), simpar.Cluster(hardware, nodes=nodes)
    training = simpar.Training(seq_len=seq_len, global_batch=GLOBAL_BATCH)
    as_predicted = Constraints(fit_probability=0.5)  # spaces are compared, not what they leave free
    found = search(
        graph,
        cluster,
        training,
        space="alpa",
        progress=SearchProgress(top=1, brief=True),
        objective="time",
        constraints=as_predicted,
    )
    uniform, best = found.details["uniform_best_s"], found.best.step_time_s
    margin = uniform / best - 1
    stages = found.best.plan.pipeline.stages
    how = "uniform" if stages is None else "+".join(f"{one.layers}L/{one.num_devices}" for one in stages)
    print(
        f"{name:19s} {graph.num_parameters() / 1e9:5.1f} B, {nodes} x {hardware}: uniform {uniform:.4f} s, "
        f"alpa {best:.4f} s ({how}), margin {margin:+.1%}, gap {found.gap:.0%}, {found.search_seconds:.0f} s",
        flush=True,
    )
    return margin


def main() -> None:
    """Measure the named models, or all. Exits with 1 where a margin is negative."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"one of: {', '.join(MODELS)}; all where none is given"
    )
    margins = [measure(name) for name in parser.parse_args().names or MODELS]
    sys.exit(min(margins) < 0)


if __name__ == "__main__":
    main()
