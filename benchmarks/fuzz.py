"""Random runs over every axis: each is a result that obeys laws, or a refusal in words; anything else is a finding.

Usage: python benchmarks/fuzz.py [--first 0] [--last 1000] [--seconds 600]

A case is its seed: `--first N --last N` repeats one. Prints each finding with its case, then a summary; exits with 1
where there are findings.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import simpar
from simpar.architectures.catalogue import load_model
from simpar.errors import BadCall, UserError
from simpar.files import bundled
from simpar.hardware.catalogue import load_cluster
from simpar.hardware.cluster import Cluster
from simpar.plan.plan import Plan
from simpar.plan.schedules import SCHEDULES
from simpar.program.perturbation import Perturbation
from simpar.report.result import Result

MODELS = ("gpt2", "tiny-llama", "small-llama", "llama-3.2-1b", "llama-3-8b", "mixtral-8x7b", "gpt3-13b", "qwen2.5-7b")
OTHERS = (
    "nemotron-nano-2-9b",
    "nemotron-3-nano",
    "tiny-mixture",
    "olmoe-1b-7b",
    "gpt-oss-20b",
    "gemma-2-2b",
    "t5-3b",
    "deepseek-v2-lite",
)
"""Hybrids, mixtures, windows and encoders, drawn last so that a seed stays what it was."""
SLACK_NS = 2


def drawn(seed: int) -> dict[str, Any]:
    """The inputs of a case: model, cluster with changed numbers, plan keys, training, stack and what perturbs."""
    pick = random.Random(seed)
    nodes = pick.choice((1, 1, 2, 2, 4, 8))
    names = sorted(bundled("clusters"))
    cluster = {"hardware": pick.choice(names), "nodes": nodes, "scale": {}}
    if pick.random() < 0.3:
        keys = ("bandwidth", "nic", "latency", "host", "memory")
        cluster["scale"] = {key: pick.choice((0.01, 0.3, 3.0, 100.0)) for key in pick.sample(keys, 2)}
    plan: dict[str, Any] = {}
    for key, values, chance in AXES:
        if pick.random() < chance:
            plan[key] = pick.choice(values)
    perturbation: dict[str, Any] = {}
    if pick.random() < 0.15:
        perturbation = {"slow_ranks": {pick.randrange(8): pick.choice((1.1, 3.0))}}
    if pick.random() < 0.1:
        perturbation |= {"jitter_sigma": pick.choice((0.03, 0.3)), "seeds": 2}
    found = {
        "model": pick.choice(MODELS),
        "cluster": cluster,
        "plan": plan,
        "training": {"seq_len": pick.choice((128, 512, 1024, 4096)), "global_batch": pick.choice((8, 32, 64, 96, 128))},
        "stack": pick.choice((None, *sorted(bundled("stacks")))),
        "perturbation": perturbation,
    }
    return found | {"model": pick.choice(OTHERS)} if pick.random() < 0.25 else found


AXES: tuple[tuple[str, tuple[Any, ...], float], ...] = (
    ("tp", (1, 2, 4, 8), 0.5), ("pp", (2, 4, 8), 0.4), ("vpp", (2, 3), 0.1), ("cp", (2, 4), 0.15),
    ("ep", (2, 4, 8), 0.15),
    ("etp", (1, 2), 0.05), ("micro_batch", (1, 2, 4), 0.7), ("zero", (0, 1, 2, 3), 0.7), ("hsdp", (2, 4), 0.15),
    ("kind", ("ddp", "fsdp"), 0.2), ("schedule", tuple(SCHEDULES), 0.2), ("sequence_parallel", (True, False), 0.2),
    ("recompute", ("none", "selective", "full", "every:2"), 0.4), ("precision", ("bf16", "fp16", "fp32", "fp8"), 0.2),
    ("optimizer", ("adamw", "sgd", "muon", "adafactor", "lion"), 0.15), ("overlap_grad_reduce", (True, False), 0.15),
    ("overlap_param_gather", (True, False), 0.15), ("bucket_bytes", (1e6, 1e8), 0.1), ("ulysses", (2,), 0.05),
    ("reshard_after_forward", (True, False), 0.1), ("offload_optimizer", ("cpu", "nvme"), 0.06),
    ("offload_activations", (0.5, 1.0), 0.04), ("reduce_dtype", ("fp32", "bf16"), 0.08),
    ("grad_dtype", ("fp32", "bf16"), 0.08),
    ("master_weights", (True, False), 0.05), ("capacity_factor", (1.0, 1.25), 0.04),
    ("lora_rank", (4, 64), 0.06), ("frozen_layers", (1, 6), 0.04), ("frozen_dtype", ("nf4",), 0.03),
    ("sync", ("local-sgd", "ssp", "asp", "diloco"), 0.06), ("sync_every", (4,), 0.05), ("staleness", (2,), 0.04),
)  # fmt: skip


def cluster_of(chosen: Mapping[str, Any], better: float = 1.0) -> Cluster:
    """The cluster of a case: a shipped one with some numbers scaled, all links ``better`` times as fast."""
    found = load_cluster(chosen["hardware"], chosen["nodes"])
    scale, profile = chosen["scale"], found.profile
    up = profile.scale_up.model_copy(
        update={
            "bandwidth": profile.scale_up.bandwidth * scale.get("bandwidth", 1.0) * better,
            "latency": profile.scale_up.latency * scale.get("latency", 1.0),
        }
    )
    changed: dict[str, Any] = {"scale_up": up}
    if out := profile.scale_out:
        changed["scale_out"] = out.model_copy(
            update={"nic_bandwidth": out.nic_bandwidth * scale.get("nic", 1.0) * better}
        )
    host = profile.host
    changed["host"] = host.model_copy(update={"pcie_bandwidth": host.pcie_bandwidth * scale.get("host", 1.0) * better})
    device = found.device.model_copy(update={"memory_bytes": found.device.memory_bytes * scale.get("memory", 1.0)})
    return load_cluster(profile.model_copy(update={**changed, "device": device}), chosen["nodes"])


def run(case: Mapping[str, Any], *, better: float = 1.0, engine: str = "auto", fold: bool = True) -> Result:
    """One simulation of a case, or of its variants."""
    training = simpar.Training(**case["training"])
    return simpar.simulate(
        load_model(case["model"]), cluster_of(case["cluster"], better), Plan(**case["plan"]), training,
        stack=case["stack"], engine=engine, flops_convention="causal",
        perturbation=Perturbation(**case["perturbation"], fold=fold),
    )  # fmt: skip


def broken(result: Result) -> list[str]:
    """The laws that a single result breaks."""
    speed, memory, parts = result.speed, result.memory, result.time_breakdown_s.model_dump()
    step_s = speed.step_time_s
    found = []
    numbers = _numbers(result.to_dict())
    found += [f"{name} = {value} is not finite" for name, value in numbers if not math.isfinite(value)]
    found += [f"{name} = {value} is negative" for name, value in parts.items() if value < -SLACK_NS * 1e-9]
    if not math.isclose(sum(parts.values()), step_s, rel_tol=1e-6):
        found.append(f"breakdown {sum(parts.values())} is not the step {step_s}")
    if not 0 <= speed.mfu <= speed.hfu * (1 + 1e-9) <= 1 + 1e-9:
        found.append(f"MFU {speed.mfu}, HFU {speed.hfu}: not 0 <= MFU <= HFU <= 1")
    peak, reserved = memory.peak_memory_bytes, memory.peak_reserved_bytes
    if memory.static_memory_bytes > peak * (1 + 1e-9):
        found.append(f"static {memory.static_memory_bytes:.6g} above the peak {peak:.6g}")
    if peak > reserved * (1 + 1e-9):
        found.append(f"peak {peak:.6g} above what is reserved {reserved:.6g}")
    for kind, each in result.communication.items():
        if each.exposed_s > each.busy_s + SLACK_NS * 1e-9:
            found.append(f"{kind} exposed {each.exposed_s:.6g} s above busy {each.busy_s:.6g} s")
    return found


def _numbers(value: Any, name: str = "") -> list[tuple[str, float]]:
    if isinstance(value, dict):
        return [found for key, each in value.items() for found in _numbers(each, f"{name}.{key}")]
    if isinstance(value, list | tuple):
        return [found for each in value for found in _numbers(each, name)]
    return [(name, float(value))] if isinstance(value, int | float) else []


def disagreements(case: Mapping[str, Any], result: Result) -> list[str]:
    """What other engines, every rank on its own, and faster links say otherwise."""
    found = []
    step_s = result.step_time_s
    small = result.setup.engine["ops"] < 20_000
    if small and not case["perturbation"].get("jitter_sigma"):
        times = {engine: run(case, engine=engine).step_time_s for engine in ("reference", "event")}
        times |= _swept(case)
        found += [f"engine {name}: {other} s, auto {step_s} s" for name, other in times.items() if other != step_s]
        if result.setup.fold["ranks"] <= 16 and (other := run(case, fold=False).step_time_s) != step_s:
            found.append(f"every rank on its own: {other} s, folded {step_s} s")
        if (other := run(case, better=1.5).step_time_s) > step_s * 1.001:
            found.append(f"links 1.5 times as fast: {other} s, was {step_s} s")
    return found


def _swept(case: Mapping[str, Any]) -> dict[str, float]:
    """The step by the engine without contention, where no links are shared."""
    try:
        return {"sweep": run(case, engine="sweep").step_time_s}
    except UserError as error:
        assert "shared" in str(error) or "share" in str(error), error
        return {}


def outcome(seed: int) -> tuple[str, list[str]]:
    """Whether a case is a result, refused or invalid, and what is wrong with that."""
    case = drawn(seed)
    try:
        result = run(case)
    except BadCall:
        return "invalid", []
    except UserError as error:
        return "refused", [f"refusal of several lines: {error}"] if "\n" in str(error) else []
    except Exception as error:  # noqa: BLE001 - what a user would see as a traceback
        return "crash", [f"{type(error).__name__}: {error}"]
    try:
        return "result", broken(result) + disagreements(case, result)
    except Exception as error:  # noqa: BLE001
        return "crash", [f"a variant: {type(error).__name__}: {error}"]


def fuzz(first: int, last: int, seconds: float, say: Callable[[str], None] = print) -> Counter[str]:
    """Run cases ``first`` to ``last``; how many ended how, and how many findings there are."""
    counts: Counter[str] = Counter()
    until = time.monotonic() + seconds
    for seed in range(first, last + 1):
        if time.monotonic() > until:
            break
        kind, findings = outcome(seed)
        counts[kind] += 1
        counts["findings"] += len(findings)
        for each in findings:
            say(f"case {seed}: {each}\n  {drawn(seed)}")
    return counts


def main() -> int:
    """Read the flags, run, and print what came out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    for flag, default in (("--first", 0), ("--last", 1000), ("--seconds", 600)):
        parser.add_argument(flag, type=int, default=default)
    asked = parser.parse_args()
    counts = fuzz(asked.first, asked.last, asked.seconds)
    print(", ".join(f"{counts[kind]} {kind}" for kind in ("result", "refused", "invalid", "crash", "findings")))
    return int(counts["findings"] > 0)


if __name__ == "__main__":
    sys.exit(main())
