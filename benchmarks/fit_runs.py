"""Fit what whole training runs tell: sustained clocks of devices, launch and expert costs of software stacks.

Usage: python benchmarks/fit_runs.py [--rows FILE] [--rounds N] [--only PART,PART] [--population KIND] [--write]

All parameters at once, never a number per row or source: general values by the physics of a device and by kind of
stack, and small departures that runs must pay for (pooled.py). Every parameter is moved once for each run (its
sensitivity, which --rows keeps), the most probable values are found, the runs are predicted with them, and both are
repeated from there. Deterministic. A value at the end of what is possible fails. With --write values and where they
come from go into the profiles, the spreads of departures into simpar/learning/spreads.json, and what clocks have in
common into benchmarks/clocks.json, which fit_devices.py reads.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from calibrate_uncertainty_rows import errors_under, kept_runs
from clocks import write_general_clock
from intervals import NINE_IN_TEN, write_intervals
from numpy.typing import NDArray
from pooled import (
    BY_KIND,
    OF_EAGER,
    Fitted,
    Pool,
    architecture,
    effects_of,
    highest,
    kind_of,
    like_measured,
    shared_effect,
)
from tables import ROOT

from simpar import files
from simpar.learning.parameters import CLOCKS, Name, parameter, tuning_of
from simpar.units import NS, US

Floats = NDArray[np.float64]
IN_MS = ("step_overhead_s", "message_s", "sync_s", "exchange_host_s")
TIMES = (
    "host_time_per_kernel_s", "host_time_per_collective_s", "shard_copy_s", "host_time_per_module_s",
    "host_time_per_unit_s", "host_time_per_array_s",
)  # fmt: skip
SPREADS = ROOT / "simpar" / "learning" / "spreads.json"
UNSEEN = ("torchtune", "llama3")
"""Stacks that nothing is fitted to."""
STEPS = (1.0, 0.5, 0.25)
"""How much of the way to the most probable values is gone, until the runs are met better."""
ROUNDS = 3
NEAR = 0.01  # share of what is possible within which a value counts as at its end
CLUSTER_LIMITS = (0.0, 1000.0)


def main() -> None:
    """Fit, print, and write on request."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--rows", type=Path, help="file that keeps sensitivities between runs")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--only", default="", help="stacks and devices that are fitted, others staying as they are")
    parser.add_argument("--population", choices=("tuned", "ordinary"), help="runs that are fitted to; else all")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    runs = [run for run in kept_runs(arguments.rows) if run.fitted and run.slopes]
    runs = [run for run in runs if arguments.population in (None, run.population)]
    only = tuple(filter(None, arguments.only.split(",")))
    pool = Pool(runs, only)
    values = pool.consistent()
    pool = pool.at(values, predicted_errors(pool, values))
    used = np.ones(len(runs), dtype=bool)
    print("as the profiles are:", in_sum(pool))
    for _ in range(arguments.rounds):
        pool = improved(pool, pool.fit(used))
    found = pool.fit(used)
    report(pool, found)
    ends = [name for name, value in zip(pool.names, pool.values, strict=True) if at_an_end(name, value)]
    if ends:
        raise SystemExit(f"at the end of what is possible: {ends}")
    if not arguments.write:
        return
    effects = dict(zip(pool.effects, found.effects.tolist(), strict=True))
    write(pool, only)
    if arguments.population != "ordinary":  # whose runs tell nothing of clocks
        write_general_clock(effects)
    write_sure(pool, found, only)
    if only:
        write_unseen(effects, [stack for stack in UNSEEN if stack in only])
    else:
        write_alike(pool, found)
        write_spreads(found)


def improved(pool: Pool, found: Fitted) -> Pool:
    """The pool at the values that were found, or on the way to them where the runs are met better there."""
    for step in STEPS:
        values = np.exp((1 - step) * np.log(pool.values) + step * np.log(found.values))
        values = np.minimum(values, [highest(name) for name in pool.names])
        tried = pool.at(values, predicted_errors(pool, values))
        print(f"step {step}: {tried.loss(found.spreads):.1f} after {pool.loss(found.spreads):.1f}", flush=True)
        if tried.loss(found.spreads) < pool.loss(found.spreads):
            return tried
    return pool


def predicted_errors(pool: Pool, values: Floats) -> Floats:
    """log(measured / predicted) of runs under values of parameters; of those that no moving one reaches, as it was."""
    tuning = tuning_of(dict(zip(pool.names, values.tolist(), strict=True)))
    reached = pool.slopes.any(axis=1) if pool.held.any() else np.ones(len(pool.runs), dtype=bool)
    runs = [run for run, moves in zip(pool.runs, reached, strict=True) if moves]
    result = pool.errors.copy()
    result[reached] = errors_under(runs, [[tuning]] * len(runs))[:, 0]
    return result


def at_an_end(name: Name, value: float) -> bool:
    """Whether a value lies at an end of what is possible; clocks may, for none is above the boost clock."""
    if name[2] in CLOCKS:
        return False
    known = parameter(name[2]) if name[0] != "cluster" else None
    low, high = (known.low, known.high) if known else CLUSTER_LIMITS
    return not low + (NEAR * (high - low) if low else 0.0) < value < high - NEAR * (high - low)


def report(pool: Pool, found: Fitted) -> None:
    """Parameters, spreads, how many numbers there are, and errors by source."""
    for (kind, part, key), value in zip(pool.names, pool.values.tolist(), strict=True):
        print(f"{kind:8s} {part:22s} {key:45s} {value:.4g}")
    for effect, departs, value in zip(pool.effects, pool.departs.tolist(), found.effects.tolist(), strict=True):
        if not departs:
            print(f"general  {effect:50s} {np.exp(value):.4g}")
    print("spreads of departures:", {key: round(value, 3) for key, value in found.spreads.items()})
    general = int((~pool.departs).sum())
    print(f"{general} general effects, {len(found.spreads)} spreads; runs tell {found.told:.0f} numbers")
    print("as they are found:", in_sum(pool))
    errors = np.abs(np.expm1(-pool.errors))
    sources = np.array([run.source for run in pool.runs])
    for source in sorted(set(sources)):
        own, bias = errors[sources == source], np.median(np.expm1(-pool.errors[sources == source]))
        print(
            f"{source[:46]:46s} n {len(own):4d} median {np.median(own):6.1%} "
            f"p90 {np.percentile(own, 90):6.1%} bias {bias:+6.1%}"
        )


def in_sum(pool: Pool) -> str:
    """Errors of all runs, and the mean of medians of sources, in words."""
    errors, sources = np.abs(np.expm1(-pool.errors)), np.array([run.source for run in pool.runs])
    middles = [np.median(errors[sources == source]) for source in set(sources)]
    return (
        f"{len(errors)} runs, median {np.median(errors):.2%}, p90 {np.percentile(errors, 90):.1%}, "
        f"mean of sources {np.mean(middles):.2%}"
    )


def write(pool: Pool, only: Sequence[str] = ()) -> None:
    """Put the numbers and where they come from into the profiles, all of them or those of some parts."""
    errors = np.abs(np.expm1(-pool.errors))
    parts: dict[tuple[str, str], dict[str, float]] = {}
    for (kind, part, key), value in zip(pool.names, pool.values.tolist(), strict=True):
        if not only or part in only:
            parts.setdefault((kind, part), {})[key] = value
    for (kind, part), values in parts.items():
        mine = [at for at, run in enumerate(pool.runs) if any(name[:2] == (kind, part) for name in run.slopes)]
        sources = sorted({pool.runs[at].source for at in mine})
        note = (
            f"fitted to {len(mine)} runs ({'; '.join(sources)}), drawn to what others are like; median absolute error "
            f"of step time {np.median(errors[mine]):.1%}"
        )
        update_profile(ROOT / "hardware_profiles" / f"{kind}s" / f"{part}.yaml", kind, values, note)


def write_alike(pool: Pool, found: Fitted) -> None:
    """What no run tells: clocks of devices by power and architecture (at most 1), and costs of stacks by their kind."""
    known = dict(zip(pool.effects, found.effects.tolist(), strict=True))
    write_unseen(known, UNSEEN)
    for device in files.bundled("devices"):
        parts = list(effects_of(("device", device, CLOCKS[1])))
        if ("device", device, CLOCKS[0]) in pool.names or f"{CLOCKS[0]} of {architecture(device)}" not in known:
            continue
        wide = [part for part in parts if CLOCKS[1] not in part[0]]
        clocks = [np.exp(sum(known.get(effect, 0.0) * factor for _, effect, factor in some)) for some in (wide, parts)]
        values = {key: min(1.0, float(clock)) for key, clock in zip(CLOCKS, clocks, strict=False)}
        note = f"by its power and what others of {architecture(device)} show"
        if alike := like_measured(device, dict(zip(pool.names, pool.values.tolist(), strict=True))):
            note = f"that of {alike[0]} by the clocks that both have in long products (AMD, max-achievable FLOPs)"
            values = alike[1]
        update_profile(ROOT / "hardware_profiles" / "devices" / f"{device}.yaml", "device", values, note)


def write_unseen(known: Mapping[str, float], stacks: Sequence[str]) -> None:
    """Stacks without runs of their own are as all of their kind, in what those have a general effect of."""
    for stack in stacks:
        effects = {key: shared_effect(key, stack) for key in (*BY_KIND, *OF_EAGER)}
        values = {
            key: float(np.exp(known[name])) for key, name in effects.items() if " like " in name and name in known
        }
        note = f"no number is fitted to runs of its own; launch costs are those of all stacks like {kind_of(stack)}"
        update_profile(ROOT / "hardware_profiles" / "stacks" / f"{stack}.yaml", "stack", values, note)


def write_spreads(found: Fitted) -> None:
    """The spreads of departures, as logarithms: what to expect of a device or a stack that nobody has measured."""
    known = dict(found.spreads)
    wider = known.pop("architecture")
    for clock in CLOCKS:  # each departs from what it is a share of
        wider = known[clock] = float(np.hypot(wider, known[clock]))
    rounded = {key: round(value, 3) for key, value in sorted(known.items())}
    SPREADS.write_text(json.dumps(rounded, indent=1) + "\n")


def write_sure(pool: Pool, found: Fitted, only: Sequence[str] = ()) -> None:
    """Intervals of the values, in the units of parameters: seconds, shares and factors; of some parts if given."""
    of_kind: dict[str, dict[str, dict[str, tuple[float, float]]]] = {}
    widths = np.exp(NINE_IN_TEN * found.deviations)
    for (kind, part, key), value, width in zip(pool.names, pool.values.tolist(), widths.tolist(), strict=True):
        if only and part not in only:
            continue
        name = f"kernels.{key}" if kind == "device" else key
        of_kind.setdefault(f"{kind}s", {}).setdefault(part, {})[name] = (value / width, value * width)
    for kind, intervals in of_kind.items():
        write_intervals(kind, intervals)


def _written(values: dict[str, float]) -> dict[str, float]:
    """Clocks as the profiles keep them, so that a block fits the same alone and behind others."""
    return {name: float(f"{value:.4g}") for name, value in values.items()}


def update_profile(path: Path, kind: str, values: dict[str, float], note: str = "") -> None:
    """Put values of a profile of a kind, in SI units, and where they come from into its file."""
    from ruamel.yaml import YAML

    parser = YAML()
    parser.width = 4096
    if kind == "cluster":  # as fit_collectives.py lays these files out
        parser.preserve_quotes = True
        parser.indent(mapping=2, sequence=4, offset=2)
    document = parser.load(path.read_text())
    if kind == "device":
        kernels = document.setdefault("kernels", {})
        kernels |= _written(values)
        kept = str(document.get("provenance") or "").split("; sustained clock")[0]
        if note:
            document["provenance"] = f"{kept}; sustained clock {note}".removeprefix("; ")
    elif kind == "cluster":
        for key, value in values.items():
            *sections, field = key.split(".")
            part = document
            for section in sections:
                part = part.setdefault(section, {})
            part[field] = float(f"{value:.3g}")
        kept = str(document.get("provenance") or "").split("; in training")[0]
        document["provenance"] = f"{kept}; in training {note}"
    else:
        for key, value in values.items():
            *sections, field = key.split(".")
            unit = None
            unit = f"{value / US:.3g} us" if field in TIMES else unit
            unit = f"{value * 1e3:.3g} ms" if field in IN_MS else unit
            unit = f"{value / NS:.3g} ns" if field == "row_s" else unit
            part = document
            for section in sections:
                part = part.setdefault(section, {})
            part[field] = unit or float(f"{value:.4g}")
        document["provenance"] = note
    with path.open("w") as stream:
        parser.dump(document, stream)


if __name__ == "__main__":
    main()
