"""Random command lines and scenario files: an answer that can be repeated, or a line per problem that names it.

Usage: python benchmarks/fuzz_commands.py [--first 0] [--last 400] [--seconds 600] [--kind KIND ...]

A case is its seed. Kinds: `search` draws a tiny problem with options of `simpar search` and simulates its candidates
again, from their rows and from the plan that it wrote; `file` writes a scenario and says the same with flags; `broken`
puts a value that no key can mean somewhere in a scenario; `mixed` joins nodes of two kinds; `advice` runs every hint of
`--advise`. Exits with 1 where there are findings.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from simpar.cli import run
from simpar.plan.plan import Plan
from simpar.planner.progress import TOP
from simpar.settings import with_value
from simpar.units import format_seconds

ANSWERS, REFUSALS = (0,), (2, 3)
SAME = 1e-12
ROUNDED = 1e-4  # probabilities of being the best
ENDED: Counter[int] = Counter()
"""How many commands ended with each exit code."""
MODELS = ("tiny-llama", "tiny-mixture", "small-llama", "small-mixture", "gpt2")
CLUSTERS = ("rtx-3090-8", "dgx-h100", "a100-pcie-8", "l4-8", "laptop-cpu-4")
NETWORKED = ("dgx-a100-80gb", "dgx-h100", "hgx-h200", "a100-pcie-8", "dgx-v100")
BAD = (
    math.nan, math.inf, -math.inf, -1, -0.5, 0, 1e308, 10**30, 1e-320, "", "x", "1 GB", "-3 s", [], [1, "a"], {},
    {"a": 1}, True, False, None,
)  # fmt: skip

FIXES = (
    ("tp", "1,2,4"), ("tp", "8,1"), ("pp", "1,2"), ("pp", "4"), ("cp", "1,2"), ("ep", "1,2"), ("micro_batch", "1,2"),
    ("micro_batch", "3"), ("zero", "0,1"), ("zero", "3,2"), ("recompute", "none,full"), ("recompute", "optimal"),
    ("optimizer", "adamw,lion"), ("bucket_bytes", "1e6,1e8"), ("schedule", "1f1b,zb-h1"), ("vpp", "1,2"),
    ("sync", "bsp,local-sgd"), ("dp", "2"), ("sequence_parallel", "true"), ("order", "tp-cp-dp-pp"),
    ("reduce_dtype", "fp32,bf16"), ("offload_optimizer", "none,cpu"),
    ("hsdp", "1,2"), ("tp_overlap", "false,true"), ("cp_method", "ring,ulysses"),
)  # fmt: skip
OPTIONS = (
    ("--space", ("uniform", "uneven", "alpa"), 0.3),
    ("--objective", ("regret", "time", "cost", "energy"), 0.25),
    ("--deadline", ("5 s", "10 ms"), 0.1),
    ("--top", ("1", "3", "20"), 0.3),
    ("--schedules", ("1f1b", "1f1b,zb-h1,gpipe", "interleaved,zb-v"), 0.25),
    ("--portable", ("megatron", "torchtitan", "deepspeed", "nanotron", "accelerate", "pytorch"), 0.15),
    ("--headroom", ("0.1", "0.9"), 0.15),
    ("--time-limit", ("0.5", "1 min"), 0.1),
    ("--over", ("seq-len=128,256", "nodes=1,2", "model=tiny-llama"), 0.05),
    ("--stack", ("megatron", "torchtitan", "fsdp", "deepspeed", "nanotron", "ddp", "simpar"), 0.5),
    ("--precision", ("bf16", "fp16", "fp8"), 0.15),
    ("--optimizer", ("adamw", "muon", "sgd"), 0.1),
    ("--recompute", ("none", "full", "selective"), 0.15),
    ("--set", ("plan.lora_rank=8", "plan.frozen_layers=1", "perturbation.slow_ranks.1=2.0",
               "perturbation.degraded_links.port_tx=0.5", "plan.offload_activations=1.0"), 0.25),
    ("--tp", ("1", "2"), 0.15),
    ("--pp", ("1", "2"), 0.15),
    ("--zero", ("0", "1", "3"), 0.15),
    ("--micro-batch", ("1", "2"), 0.3),
)  # fmt: skip
"""Options of `simpar search` with values that may mean something, and how often each is drawn."""

WRONG = (
    ("--space", "flat"), ("--objective", "speed"), ("--objective", "devices"), ("--deadline", "0 s"),
    ("--deadline", "1"), ("--deadline", "nan s"), ("--top", "0"), ("--schedules", "none"), ("--headroom", "1.5"),
    ("--headroom", "-1"), ("--headroom", "nan"), ("--time-limit", "0"), ("--time-limit", "-3"),
    ("--time-limit", "soon"), ("--jobs", "0"), ("--jobs", "-2"), ("--backend", "threads"), ("--over", "tp=1"),
    ("--over", "nodes="), ("--precision", "int3"), ("--set", "training.nonsense=1"), ("--set", "plan.tp"),
    ("--set", "plan.tp=1"), ("--tp", "3"), ("--fix", "nonsense=1"), ("--fix", "tp=x"), ("--fix", "tp=0"),
    ("--fix", "layers=optimal"), ("--nodes", "0"), ("--seq-len", "-1"), ("--global-batch", "1e9"),
    ("--set", "perturbation.slow_ranks.99=2.0"), ("--set", "perturbation.jitter.sigma=0.1"),
)  # fmt: skip
"""Options that may be refused, one of which every fourth search has."""

PLAN_KEYS = (
    ("tp", (1, 2, 4), 0.5), ("pp", (1, 2, 4), 0.4), ("micro_batch", (1, 2, 4), 0.6), ("zero", (0, 1, 2, 3), 0.5),
    ("recompute", ("none", "full", "selective", "every:2"), 0.4), ("schedule", ("1f1b", "gpipe", "zb-h1"), 0.2),
    ("precision", ("bf16", "fp16", "fp32"), 0.3), ("lora_rank", (8,), 0.1), ("frozen_layers", (1,), 0.1),
    ("offload_optimizer", ("cpu",), 0.1), ("offload_activations", (0.5, 1.0), 0.1), ("sequence_parallel", (True,), 0.1),
    ("optimizer", ("adamw", "sgd"), 0.2), ("cp", (2,), 0.1), ("ep", (2,), 0.1),
    ("bucket_bytes", ("1 MB", "25 MB"), 0.1),
)  # fmt: skip


@dataclass(frozen=True)
class Said:
    """What a command answered: its exit code, and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> dict[str, Any]:
        """Its JSON."""
        return json.loads(self.out)


def said(*arguments: str) -> Said:
    """Run one command in this process. What a user would see as a traceback comes out as an exception."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = run(list(arguments))
    ENDED[code] += 1
    return Said(code, out.getvalue(), err.getvalue())


def answer(found: Said) -> list[str]:
    """What is wrong with how a command ended: its code, silence, lines that name no problem."""
    if found.code in ANSWERS:
        return []
    lines = [line for line in found.err.splitlines() if line.strip()]
    if found.code not in REFUSALS:
        return [f"exit code {found.code}: {found.err[-200:]}"]
    if not lines or any(
        line[0].isspace() or (found.code == 2 and ": " not in line and "; " not in line) for line in lines
    ):
        return [f"a refusal that names nothing: {found.err[:300]}"]
    return []


def search_case(pick: random.Random, folder: Path) -> tuple[list[str], list[str]]:
    """A search with random options; its arguments, and what is wrong."""
    arguments = ["--model", pick.choice(MODELS), "--hardware", pick.choice(CLUSTERS)]
    arguments += ["--nodes", pick.choice(("1", "1", "1", "2")), "--seq-len", pick.choice(("128", "512"))]
    arguments += ["--global-batch", pick.choice(("4", "8", "16"))]
    for flag, values, chance in OPTIONS:
        if pick.random() < chance:
            arguments += [flag, pick.choice(values)]
    arguments += pick.choice(WRONG) if pick.random() < 0.25 else ()
    for axis, values in pick.sample(FIXES, pick.choice((0, 1, 2, 3))):
        arguments += ["--fix", f"{axis}={values}"]
    plan = folder / "plan.json"
    written = ["--output", str(plan)] if pick.random() < 0.5 else []
    found = said("search", *arguments, *written, "--json", "-")
    problems = answer(found)
    if found.code or "--over" in arguments:
        return arguments, problems
    data = found.data
    problems += _ranked(data)
    if written:
        again = said("simulate", str(plan), *_perturbation(data, arguments), "--json", "-")
        problems += answer(again)
        if not again.code:
            problems += _same("the plan written", again.data["step_time_s"], data["candidates"][0]["step_time_s"])
    return arguments, problems + _repeated(data, folder)


def _perturbation(data: Mapping[str, Any], arguments: list[str]) -> list[str]:
    """A plan file holds no slow ranks: the settings that drew them."""
    del data
    return [
        word
        for flag, value in pairwise(arguments)
        if flag == "--set" and value.startswith("perturbation")
        for word in (flag, value)
    ]


def _ranked(data: Mapping[str, Any]) -> list[str]:
    """What contradicts itself in the JSON of a search."""
    rows, problems = data["candidates"], []
    if not rows:
        return ["an answer without a candidate"]
    times = [row["step_time_s"] for row in rows]
    if data["objective"] == "time" and times != sorted(times):
        problems.append(f"candidates are not in order: {times}")
    if any("best_probability" in row for row in rows):
        odds = [row["best_probability"] for row in rows]
        missing = 1 - sum(odds)  # what others have that were compared and are not shown
        over = (data.get("tie") or {}).get("layouts")
        shows_all = len(rows) >= (TOP if over is None else over)
        wrong = missing < -ROUNDED * len(rows) or (shows_all and missing > ROUNDED * len(rows))
        if wrong or any(row["expected_regret"] < 0 for row in rows):
            problems.append(f"probabilities of being the best: {odds}")
    if data["certified_optimal"] and data["gap"]:
        problems.append(f"certified with a gap of {data['gap']}")
    if not 0 <= data["gap"] <= 1:
        problems.append(f"gap {data['gap']}")
    plans = [json.dumps(row["plan"], sort_keys=True) + str(row.get("nodes")) for row in rows]
    if len(set(plans)) < len(plans):
        problems.append("a plan is listed twice")
    return problems


def _repeated(data: Mapping[str, Any], folder: Path) -> list[str]:
    """Every row, simulated again from a saved result that has it first."""
    problems = []
    for row in data["candidates"][:3]:
        alone = folder / "row.json"
        alone.write_text(json.dumps({**data, "candidates": [row]}))
        again = said("simulate", str(alone), "--json", "-")
        problems += answer(again)
        if again.code:
            continue
        problems += _same(f"row {row['rank']}", again.data["step_time_s"], row["step_time_s"])
        limit = 1 - (data["constraints"]["headroom"] or 0.0)
        if again.data["peak_reserved_bytes"] > limit * again.data["capacity_bytes"] * (1 + SAME):
            problems.append(f"row {row['rank']} leaves less than the headroom")
    return problems


def _same(what: str, found: float, wanted: float) -> list[str]:
    return [] if math.isclose(found, wanted, rel_tol=SAME) else [f"{what}: {found} s, was {wanted} s"]


def scenario(pick: random.Random) -> dict[str, Any]:
    """A scenario as one writes it: flat or nested keys of a plan, and perhaps what perturbs."""
    plan = {key: pick.choice(values) for key, values, chance in PLAN_KEYS if pick.random() < chance}
    found: dict[str, Any] = {
        "model": pick.choice(MODELS),
        "cluster": {"hardware": pick.choice(CLUSTERS), "nodes": 1},
        "training": {"seq_len": pick.choice((128, 512)), "global_batch": pick.choice((8, 16, 32))},
        "plan": plan,
    }
    if pick.random() < 0.5:
        found["stack"] = pick.choice(("megatron", "fsdp", "torchtitan", "deepspeed", "simpar"))
    if pick.random() < 0.4:
        found["perturbation"] = pick.choice(
            (
                {"slow_ranks": {1: 2.0}},
                {"degraded_links": {"port_tx": 0.5}},
                {"jitter": {"sigma": 0.05, "seeds": 2}},
                {"slow_ranks": {0: 1.5}, "jitter": {"sigma": 0.1}},
            )
        )
    return found


def settings_of(document: Mapping[str, Any], before: str = "") -> list[str]:
    """The same as --set flags, key by key."""
    found = []
    for key, value in document.items():
        name = f"{before}{key}"
        if isinstance(value, Mapping) and name not in ("perturbation.slow_ranks", "perturbation.degraded_links"):
            found += settings_of(value, f"{name}.")
        elif isinstance(value, Mapping):
            found += [word for part, each in value.items() for word in ("--set", f"{name}.{part}={each}")]
        elif name == "model":
            found += ["--model", str(value)]
        else:
            found += ["--set", f"{name}={json.dumps(value)}"]
    return found


def file_case(pick: random.Random, folder: Path) -> tuple[list[str], list[str]]:
    """A scenario as a file, as settings, nested, and from its own result: the same answer."""
    document = scenario(pick)
    engine = pick.choice((None, "auto", "reference", "plain", "sweep", "event"))
    extra = ["--engine", engine] if engine else []
    path = _written(document, folder)
    first = said("simulate", str(path), *extra, "--json", "-")
    flags = settings_of(document)
    problems = answer(first)
    second = said("simulate", *flags, *extra, "--json", "-")
    if first.code != second.code:
        problems.append(f"file ends with {first.code} ({first.err}), flags with {second.code} ({second.err})")
    if first.code or second.code:
        return flags + extra, problems
    problems += [f"flags say {key} = {b!r}, the file {a!r}" for key, a, b in _differences(first.data, second.data)]
    result = folder / "result.json"
    result.write_text(first.out)
    again = said("simulate", str(result), *extra, "--json", "-")
    problems += answer(again)
    if not again.code:
        problems += _same("from its own result", again.data["step_time_s"], first.data["step_time_s"])
    if not document.get("perturbation", {}).get("jitter") and engine in ("reference", "plain", "event", "sweep"):
        auto = said("simulate", str(path), "--json", "-")
        problems += _same(f"engine {engine}", first.data["step_time_s"], auto.data["step_time_s"])
    nested = _written(document | {"plan": Plan(**document["plan"]).model_dump(mode="json", exclude_unset=True)}, folder)
    whole = said("simulate", str(nested), *extra, "--json", "-")
    problems += answer(whole)
    if not whole.code:
        problems += _same("with the plan in full", whole.data["step_time_s"], first.data["step_time_s"])
    return flags + extra, problems


def _written(document: Mapping[str, Any], folder: Path) -> Path:
    from ruamel.yaml import YAML

    path, writer = folder / "scenario.yaml", YAML(typ="safe")
    writer.sort_base_mapping_type_on_output = False  # the order of axes in a mesh is the rank order
    with path.open("w") as stream:
        writer.dump(dict(document), stream)
    return path


def _differences(one: Any, other: Any, name: str = "") -> list[tuple[str, Any, Any]]:
    if isinstance(one, dict) and isinstance(other, dict):
        keys = sorted(one.keys() | other.keys())
        return [each for key in keys for each in _differences(one.get(key), other.get(key), f"{name}.{key}")]
    return [] if one == other else [(name, one, other)]


def broken_case(pick: random.Random, folder: Path) -> tuple[list[str], list[str]]:
    """One or two leaves of a scenario are something else: refused in one line, or an answer in finite numbers."""
    document = scenario(pick)
    document.setdefault("perturbation", {"slow_ranks": {1: 2.0}, "jitter": {"sigma": 0.1, "seed": 1, "seeds": 2}})
    leaves = _leaves(document)
    changed = document
    for _ in range(pick.choice((1, 1, 2))):
        changed = with_value(changed, pick.choice(leaves), pick.choice(BAD))
    found = said("simulate", str(_written(changed, folder)), "--json", "-")
    problems = answer(found)
    if not found.code:
        problems += [f"{name} = {value}" for name, value in _numbers(found.data) if not math.isfinite(value)]
    return [json.dumps(changed)], problems


def _leaves(document: Mapping[str, Any], before: str = "") -> list[str]:
    found = []
    for key, value in document.items():
        found += _leaves(value, f"{before}{key}.") if isinstance(value, Mapping) else [f"{before}{key}"]
    return found


def _numbers(value: Any, name: str = "") -> list[tuple[str, float]]:
    if isinstance(value, dict):
        return [found for key, each in value.items() for found in _numbers(each, f"{name}.{key}")]
    if isinstance(value, list):
        return [found for each in value for found in _numbers(each, name)]
    return [(name, float(value))] if isinstance(value, int | float) else []


def mixed_case(pick: random.Random, folder: Path) -> tuple[list[str], list[str]]:
    """Nodes of two kinds: engines agree, parts sum to the step, and an uneven search repeats."""
    document = scenario(pick)
    groups = [{"hardware": name, "nodes": pick.choice((1, 1, 2))} for name in pick.sample(NETWORKED, 2)]
    hardware: dict[str, Any] = {"name": "mix", "groups": groups}
    if pick.random() < 0.5:
        hardware["between"] = {"bandwidth": pick.choice(("1 GB/s", "100 GB/s")), "latency": "5 us"}
    document["cluster"] = {"hardware": hardware}
    path = _written(document, folder)
    first = said("simulate", str(path), "--json", "-")
    problems = answer(first)
    if not first.code:
        parts = first.data["time_breakdown_s"]
        if not math.isclose(sum(parts.values()), first.data["step_time_s"], rel_tol=1e-6):
            problems.append(f"breakdown {sum(parts.values())} s, step {first.data['step_time_s']} s")
        if not document.get("perturbation", {}).get("jitter"):
            other = said("simulate", str(path), "--engine", "reference", "--json", "-")
            problems += answer(other)
            problems += _same("reference", other.data["step_time_s"], first.data["step_time_s"])
    if pick.random() < 0.3:
        found = said(
            "search", str(path), "--space", "uneven", "--fix", "tp=1,2", "--fix", "micro_batch=1", "--json", "-"
        )
        problems += answer(found)
        if not found.code:
            problems += _ranked(found.data) + _repeated(found.data, folder)
    return [json.dumps(document)], problems


def advice_case(pick: random.Random, folder: Path) -> tuple[list[str], list[str]]:
    """What is advised for a scenario, run with the flags of the hint: it fits, and gains what was said."""
    document = scenario(pick)
    document.get("perturbation", {}).pop("jitter", None)
    path = str(_written(document, folder))
    first = said("simulate", path, "--advise", "--json", "-")
    problems = answer(first)
    if first.code:
        return [json.dumps(document)], problems
    found = first.data
    for hint in found["why"]["hints"]:
        change, _, said_of_it = hint.partition(": ")
        if change.startswith("repair"):
            healthy = {**document, "perturbation": {**document["perturbation"], "slow_ranks": {}}}
            again = said("simulate", str(_written(healthy, folder)), "--json", "-")
            _written(document, folder)
        else:
            again = said("simulate", path, *change.split(), "--require-fit", "--json", "-")
        if again.code:
            problems.append(f"{hint}: ends with {again.code}: {again.err}")
        elif found["fits"] and again.data["step_time_s"] > 0.995 * found["step_time_s"] * (1 + SAME):
            problems.append(f"{hint}: {again.data['step_time_s']} s, was {found['step_time_s']} s")
        elif format_seconds(again.data["step_time_s"]) not in said_of_it:
            problems.append(f"{hint}: {again.data['step_time_s']} s is not what it says")
    return [json.dumps(document)], problems


KINDS: dict[str, Callable[[random.Random, Path], tuple[list[str], list[str]]]] = {
    "search": search_case, "file": file_case, "broken": broken_case, "mixed": mixed_case,
    "advice": advice_case,
}  # fmt: skip


def outcome(kind: str, seed: int) -> tuple[list[str], list[str]]:
    """The input of a case, and what is wrong with what came of it."""
    pick = random.Random(f"{kind} {seed}")
    with tempfile.TemporaryDirectory() as folder:
        try:
            return KINDS[kind](pick, Path(folder))
        except Exception as error:  # noqa: BLE001 - what a user would see as a traceback
            return [], [f"{type(error).__name__}: {error}"]


def main() -> int:
    """Read the flags, run, and print what came out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    for flag, default in (("--first", 0), ("--last", 400), ("--seconds", 600)):
        parser.add_argument(flag, type=int, default=default)
    parser.add_argument("--kind", choices=KINDS, action="append")
    asked = parser.parse_args()
    counts: Counter[str] = Counter()
    until = time.monotonic() + asked.seconds
    for seed in range(asked.first, asked.last + 1):
        for kind in asked.kind or KINDS:
            if time.monotonic() > until:
                break
            arguments, problems = outcome(kind, seed)
            counts[kind] += 1
            counts["findings"] += len(problems)
            for each in problems:
                print(f"{kind} {seed}: {each}\n  {' '.join(arguments)}", flush=True)
    print(", ".join(f"{counts[kind]} {kind}" for kind in (*KINDS, "findings")), f"exit codes {dict(ENDED)}")
    return int(counts["findings"] > 0)


if __name__ == "__main__":
    sys.exit(main())
