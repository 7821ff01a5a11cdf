"""The runtime: a Plan trained for real with torch, and measured.

torch is an optional extra: modules that import it are loaded by the workers, never by ``import simpar.runtime``.
"""

OPEN = (
    "attention", "blend", "container", "core_times", "decoder", "documents", "experiment", "failures", "job", "launch",
    "lengths", "loss", "model", "operators", "prepare", "replan", "request", "rows", "served", "summary",
    "this_machine", "tokenize", "tokenizer", "train", "update", "worker",
)  # fmt: skip
"""The modules that other rooms may import; all others are inner."""
