"""How long it takes to trace a model of 8 billion parameters without weights, in fresh processes.

Usage: python benchmarks/trace_speed.py [--seq-len N] [--times N]

Prints processor seconds: of importing torch and transformers, and of all, from the import to the graph (Llama 3 8B as
``AutoModelForCausalLM.from_config`` makes it). Every number is the least of a few.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

MOST_S = 15.0
"""Seconds that tracing may take, for anybody to wait for it."""
SIZES = {
    "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "rope_theta": 500_000.0,
}  # fmt: skip


def llama_3_8b() -> Any:
    """The module, as a user writes it."""
    import transformers

    config = transformers.AutoConfig.for_model("llama", **SIZES)
    return transformers.AutoModelForCausalLM.from_config(config)


def once(seq_len: int) -> dict[str, float]:
    """Processor seconds of this process until its imports are done, and until the graph is there; parameters."""
    from transformers import LlamaForCausalLM  # noqa: F401 - what every such model imports

    imported_s = time.process_time()
    import simpar

    graph = simpar.Model("trace_speed:llama_3_8b", seq_len=seq_len)
    return {"imports_s": imported_s, "all_s": time.process_time(), "parameters": graph.num_parameters()}


def main() -> None:
    """Measure, and fail where it takes too long."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seq-len", type=int, default=8192)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--once", action="store_true", help="measure in this process")
    given = parser.parse_args()
    if given.once:
        print(json.dumps(once(given.seq_len)))
        return
    command = [sys.executable, __file__, "--once", "--seq-len", str(given.seq_len)]
    runs = []
    for _ in range(given.times):
        done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
        runs.append(json.loads(done.stdout.splitlines()[-1]))
    least = {name: min(run[name] for run in runs) for name in runs[0]}
    print(f"{least['parameters'] / 1e9:.2f} billion parameters, sequences of {given.seq_len} tokens")
    print(f"imports {least['imports_s']:.1f} s, all {least['all_s']:.1f} s of a processor; allowed {MOST_S:.0f} s")
    sys.exit(least["all_s"] > MOST_S)


if __name__ == "__main__":
    main()
