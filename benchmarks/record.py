"""What simpar answers, written down, so that a redesign can be held against what stood before it.

Usage:
    python benchmarks/record.py take OUT.json [--plans 400] [--searches 50] [--seed 1] [--table TABLE.csv ...]
    python benchmarks/record.py compare BEFORE.json AFTER.json

``take`` simulates random plans over all software stacks (start and finish of every op as a digest, step and memory),
runs searches (winner, step, counts, certificate), and predicts every row of tables. ``compare`` prints what differs.
Both work on any revision: run ``take`` from the checkout that is to be recorded.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sys
from pathlib import Path
from typing import Any

import simpar
from simpar.engine import choose_engine
from simpar.files import bundled
from simpar.planner.problem import Constraints
from simpar.simulation import lower_job, make_job
from simpar.stacks.stack import load_stack
from simpar.validation.table import validate

MODELS = (
    "gpt2", "llama-3.2-3b", "llama-3-8b", "gpt3-13b", "mixtral-8x7b", "deepseek-v2-lite", "gemma-2-9b",
    "nemotron-nano-2-9b",
)  # fmt: skip
HARDWARE = ("dgx-h100", "dgx-a100-80gb", "a100-pcie-8", "l4-8", "dgx-v100")
SCHEDULES = ("1f1b", "interleaved", "gpipe", "zb-h1", "zb-v", "v-half", "dualpipev", "breadth-first")
SEARCHED = ("llama-3.2-3b", "llama-3-8b", "mixtral-8x7b", "gpt3-13b", "gpt2")


def main() -> int:
    """Take a record, or compare two."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    take = commands.add_parser("take")
    take.add_argument("out", type=Path)
    take.add_argument("--plans", type=int, default=400)
    take.add_argument("--searches", type=int, default=50)
    take.add_argument("--seed", type=int, default=1)
    take.add_argument("--table", type=Path, action="append", default=[])
    compare = commands.add_parser("compare")
    compare.add_argument("before", type=Path)
    compare.add_argument("after", type=Path)
    options = parser.parse_args()
    if options.command == "compare":
        return compared(json.loads(options.before.read_text()), json.loads(options.after.read_text()))
    found = {
        "plans": dict(simulated(number, options.seed) for number in range(options.plans)),
        "searches": dict(searched(number, options.seed) for number in range(options.searches)),
        "rows": {str(table.name): predicted(table) for table in options.table},
    }
    options.out.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    return 0


def draw_plan(number: int, seed: int, stack: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A random job under a software stack: what is not its plan, and the keys of its plan."""
    rng = random.Random(f"{seed} plan {number}")
    drawn = {
        "model": rng.choice(MODELS),
        "hardware": rng.choice(HARDWARE),
        "nodes": rng.choice([1, 2, 4]),
        "stack": stack,
        "seq_len": rng.choice([1024, 4096]),
        "global_batch": rng.choice([32, 64]),
    }
    keys: dict[str, Any] = {
        "tp": rng.choice([1, 2, 4]), "pp": rng.choice([1, 2, 4]), "zero": rng.choice([0, 1, 2, 3]),
        "micro_batch": rng.choice([1, 2]), "recompute": rng.choice(["none", "selective", "full", "every:2"]),
    }  # fmt: skip
    if keys["pp"] > 1:
        keys["schedule"] = rng.choice(SCHEDULES)
        keys["vpp"] = 2 if keys["schedule"] in ("interleaved", "breadth-first", "zb-v", "v-half", "dualpipev") else 1
    options = {
        "cp": [2], "ep": [2, 4], "hsdp": [2], "overlap_grad_reduce": [False, True], "sequence_parallel": [False, True],
        "overlap_param_gather": [False, True], "tp_overlap": [True], "bucket_bytes": ["25 MB"],
        "precision": ["fp8", "fp16"],
        "optimizer": ["muon", "sgd"], "offload_optimizer": ["cpu"], "offload_activations": [0.5],
        "ep_overlap": [True], "capacity_factor": [1.25], "reduce_dtype": ["bf16"], "cp_method": ["ulysses"],
    }  # fmt: skip
    for name in rng.sample(sorted(options), rng.choice([0, 1, 2, 3])):
        keys[name] = rng.choice(options[name])
    return drawn, keys


def simulated(number: int, seed: int) -> tuple[str, dict[str, Any]]:
    """One random plan: what was drawn, and what the simulator says of it."""
    stacks = sorted(bundled("stacks"))
    drawn, keys = draw_plan(number, seed, stacks[number % len(stacks)])
    name = json.dumps(drawn | {"plan": keys}, sort_keys=True)
    try:
        plan = simpar.Plan.model_validate(keys)
        training = simpar.Training(seq_len=drawn["seq_len"], global_batch=drawn["global_batch"])
        model = simpar.Model(drawn["model"], seq_len=training.seq_len)
        cluster = simpar.Cluster(drawn["hardware"], nodes=drawn["nodes"])
        result = simpar.simulate(model, cluster, plan, training, stack=drawn["stack"])
        job = make_job(model, cluster, plan, training, load_stack(drawn["stack"]))
        program = lower_job(job, cluster).program
        timing = choose_engine("auto", program)(program)
    except (simpar.UserError, ValueError) as error:
        return name, {"refused": type(error).__name__}
    digest = hashlib.sha256(timing.start_ns.tobytes() + timing.finish_ns.tobytes()).hexdigest()[:16]
    plain = result.to_dict()
    return name, {
        "timeline": digest,
        "ops": len(timing.start_ns),
        "step_time_s": result.step_time_s,
        "static_bytes": plain["static_memory_bytes"],
        "peak_bytes": plain["peak_memory_bytes"],
        "reserved_bytes": result.memory.peak_reserved_bytes,
        "fits": result.fits,
    }


def searched(number: int, seed: int) -> tuple[str, dict[str, Any]]:
    """One random search: what was drawn, and its answer."""
    rng = random.Random(f"{seed} search {number}")
    stacks = sorted(bundled("stacks"))
    drawn = {
        "model": rng.choice(SEARCHED), "hardware": rng.choice(HARDWARE[:4]), "nodes": rng.choice([1, 2]),
        "stack": stacks[number % len(stacks)], "seq_len": rng.choice([2048, 4096]),
        "global_batch": rng.choice([32, 64]),
        "schedules": rng.choice([["1f1b"], ["1f1b", "interleaved"], ["1f1b", "zb-v"], ["gpipe", "zb-h1"]]),
    }  # fmt: skip
    name = json.dumps(drawn, sort_keys=True)
    try:
        training = simpar.Training(seq_len=drawn["seq_len"], global_batch=drawn["global_batch"])
        found = simpar.search(
            simpar.Model(drawn["model"], seq_len=training.seq_len),
            simpar.Cluster(drawn["hardware"], nodes=drawn["nodes"]),
            training,
            stack=drawn["stack"],
            constraints=Constraints(schedules=tuple(drawn["schedules"]), fixed={"cp": 1}, portable="any"),
        )
    except (simpar.UserError, simpar.Infeasible, ValueError) as error:
        return name, {"refused": type(error).__name__}
    best = found.shortest
    return name, {
        "plan": best.plan.model_dump(mode="json", exclude_defaults=True, exclude={"predicted", "search"}),
        "step_time_s": best.step_time_s,
        "space": found.counts.space_size,
        "feasible": found.counts.feasible,
        "simulated": found.counts.simulated,
        "certified": found.certified_optimal,
    }


def predicted(table: Path) -> list[dict[str, Any]]:
    """Every row of a table of measured runs, with what is predicted for it and its errors."""
    return list(validate(table, jobs=1)["rows_detail"])


def compared(before: dict[str, Any], after: dict[str, Any]) -> int:
    """Print what differs, field by field; 1 where anything does."""
    differ = 0
    for part in ("plans", "searches"):
        count: dict[str, int] = {}
        for name, old in before[part].items():
            new = after[part].get(name, {"refused": "missing"})
            fields = [key for key in sorted({*old, *new}) if old.get(key) != new.get(key)]
            if not fields:
                continue
            for key in fields:
                count[key] = count.get(key, 0) + 1
            print(part, name)
            for key in fields:
                print(f"    {key}: {old.get(key)} -> {new.get(key)}")
        differ += sum(count.values())
        print(f"{part}: {len(before[part])} recorded; fields that differ: {count or 'none'}")
    for table, rows in before["rows"].items():
        others = after["rows"].get(table, [])
        changed = [(a, b) for a, b in zip(rows, others, strict=False) if a != b]
        differ += len(changed) + abs(len(rows) - len(others))
        print(f"{table}: {len(rows)} rows, {len(changed)} differ")
        for old, new in changed[:10]:
            fields = [key for key in sorted({*old, *new}) if old.get(key) != new.get(key)]
            print("   ", old["label"], ", ".join(f"{key} {old.get(key)} -> {new.get(key)}" for key in fields))
    return int(differ > 0)


if __name__ == "__main__":
    sys.exit(main())
