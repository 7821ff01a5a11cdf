"""Fit the parameters of collectives to published measurements and write them into the cluster profiles.

    python benchmarks/fit_collectives.py [collectives.csv] [--check] [--verbose]

The fit starts from the defaults in the code, never from what a profile holds, so running it again changes nothing.
``--check`` writes nothing and fails where a profile differs from the fit.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from fit_collectives_rows import Case, Skipped, read_cases
from intervals import NINE_IN_TEN, deviations, write_intervals
from tables import DATA

from simpar import files
from simpar.cost.collectives.lines import RawCost, envelope_s, lines, raw_costs
from simpar.cost.collectives.parameters import PARAMETERS
from simpar.cost.collectives.placement import place, regular_shape, representative
from simpar.units import MIB
from simpar.validation.collectives import cluster_for

NODE = (
    "base_us", "port_hop_us", "ll_hop_factor", "ll_efficiency", "ll128_hop_factor", "ll128_efficiency",
    "port_efficiency", "pair_loss", "exchange_efficiency", "near_peer_us",
)  # fmt: skip
SWITCH = ("nvls_us", "nvls_efficiency")
SEND = ("send_us", "send_efficiency")
NETWORK = (
    "far_hop_us", "nic_hop_us", "tree_hop_us", "peer_us", "far_port_share", "nic_efficiency",
    "exchange_nic_efficiency", "nic_scale_loss",
)  # fmt: skip
FACTORS = ("ll_hop_factor", "ll128_hop_factor")
PORT = ("port_efficiency", "exchange_efficiency")
CHANNELS = ("p2p_channel_gb_per_s",)
# where a parameter still means what its name says; a fit at an end says that the model lacks something
RANGES = {
    "base_us": (3.0, 60.0), "port_hop_us": (0.5, 12.0), "far_hop_us": (0.2, 20.0), "nic_hop_us": (2.0, 100.0),
    "tree_hop_us": (10.0, 500.0), "nvls_us": (10.0, 300.0), "send_us": (0.5, 100.0),
    "near_peer_us": (0.05, 12.0), "peer_us": (0.2, 20.0),
    "ll_hop_factor": (0.05, 0.9), "ll_efficiency": (0.03, 0.5),
    "ll128_hop_factor": (0.1, 1.0), "ll128_efficiency": (0.3, 1.0), "port_efficiency": (0.3, 1.0),
    "pair_loss": (0.02, 0.9), "far_port_share": (0.5, 1.0),
    "host_bridge_share": (0.2, 1.0), "host_bridge_flows": (0.1, 2.0), "nvls_efficiency": (0.15, 0.95),
    "exchange_efficiency": (0.3, 1.0), "nic_efficiency": (0.3, 1.0), "exchange_nic_efficiency": (0.3, 1.0),
    "nic_scale_loss": (0.0, 0.3), "send_efficiency": (0.3, 1.0), "p2p_channel_gb_per_s": (5.0, 30.0),
}  # fmt: skip
AT_AN_END = (("dgx-v100", "port_efficiency"),)
"""What lacks a mechanism, and is known to: small rings of vTrain's V100 traces are faster than all of the port."""
FAR = 0.1  # errors beyond this count by their size, not its square
PRIOR = 0.1  # weight of the pull towards the start: settles what the data leave open, moves nothing else


@dataclass(frozen=True)
class Fit:
    """What a profile learns from its rows: ``free`` parameters; others come from ``start`` (last wins)."""

    profile: str
    free: tuple[str, ...]
    start: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True)
class Derived:
    """A profile without measurements: parameters of siblings (last wins), and what is known to differ, and why."""

    profile: str
    start: tuple[tuple[str, tuple[str, ...]], ...]
    changes: Mapping[str, float] = field(default_factory=dict)
    why: str = ""


ALL = tuple(PARAMETERS)
FITS = (
    Fit("hgx-h100", NODE + SWITCH + SEND + NETWORK + CHANNELS),
    Fit("hgx-h200", NODE[:-3] + SWITCH, (("hgx-h100", ALL),)),
    Fit("aws-p5", NETWORK + NODE[2:6], (("hgx-h100", ALL),)),
    Fit("gcp-a3-mega", ("tree_hop_us", "nic_efficiency", *FACTORS), (("hgx-h100", ALL),)),
    Fit("hgx-a100-80gb", (*NODE, "nic_efficiency", "exchange_nic_efficiency"), (("hgx-h100", ALL),)),
    Fit("aws-p4d", ("nic_efficiency",), (("hgx-a100-80gb", ALL), ("aws-p5", NETWORK))),
    Fit("dgx-v100", NODE[:7], (("hgx-a100-80gb", ALL),)),
    Fit("a100-pcie-8", (*PORT, "pair_loss", "host_bridge_share", "host_bridge_flows"), (("hgx-a100-80gb", ALL),)),
    Fit("hgx-b200", NODE + SWITCH + SEND, (("hgx-h100", ALL),)),
    Fit("hgx-b300", ("nvls_efficiency", *PORT[1:], "exchange_nic_efficiency"), (("hgx-b200", ALL),)),
    Fit("gb200-nvl72", (*NODE, *SWITCH, *SEND, "exchange_nic_efficiency"), (("hgx-b200", ALL),)),
    Fit("gb300-nvl72", NODE + SWITCH + SEND, (("gb200-nvl72", ALL),)),
    Fit("mi300x-8", ("port_efficiency", "nic_efficiency"), (("hgx-a100-80gb", ALL), ("hgx-h100", NETWORK))),
    Fit("mi355x-8", (*PORT, "exchange_nic_efficiency"), (("mi300x-8", ALL),)),
)
STAGED = {"port_efficiency": 0.42, "host_bridge_share": 0.36}
WHY_STAGED = "half as fast, for these cards have no peer-to-peer: every byte crosses host memory, on one socket or two"
SOCKETS = {name: PARAMETERS[name][0] for name in NETWORK}
WHY_SOCKETS = "TCP sockets, with NCCL's own tables and as many threads as it starts there"
CLOUDS = (  # a cloud's nodes, the board that they have, and the network
    ("aws-p3dn", "dgx-v100", "aws-p5"), ("aws-p5e", "hgx-h200", "aws-p5"), ("aws-p5en", "hgx-h200", "aws-p5"),
    ("aws-p6-b200", "hgx-b200", "aws-p5"), ("aws-p6-b300", "hgx-b300", "aws-p5"),
    ("aws-p6e-gb200", "gb200-nvl72", "aws-p5"), ("aws-p6e-gb300", "gb300-nvl72", "aws-p5"),
    ("aws-g6e", "l40s-8", "aws-p5"),
)  # fmt: skip
DERIVED = (
    Derived("dgx-h100", (("hgx-h100", ALL),)),
    Derived("grand-teton-h100", (("hgx-h100", ALL),)),
    Derived("h100-roce-400", (("hgx-h100", ALL),)),
    Derived("hgx-h800", (("hgx-h100", ALL),)),
    Derived("hgx-h20", (("hgx-h100", ALL),)),
    Derived("hgx-a800", (("hgx-a100-80gb", ALL),)),
    Derived("meta-llama3-h100", (("hgx-h100", ALL),)),
    Derived("dgx-a100-80gb", (("hgx-a100-80gb", ALL),)),
    Derived("dgx-a100-40gb", (("hgx-a100-80gb", ALL),)),
    Derived("a100-roce-1600", (("hgx-a100-80gb", ALL),)),
    Derived("a100-800", (("hgx-a100-80gb", ALL),)),
    Derived("hgx-b200-limited", (("hgx-b200", ALL),)),
    Derived("hgx-b200-throttled", (("hgx-b200", ALL),)),
    Derived("mi325x-8", (("mi300x-8", ALL),)),
    Derived(
        "mi250x-8",
        (("mi300x-8", ALL),),
        {"port_efficiency": 0.7},
        "rings over the eight dies assumed to reach 140 GB/s",
    ),
    Derived("l40s-8", (("a100-pcie-8", ALL),)),
    Derived("h100-pcie-8", (("a100-pcie-8", ALL),)),
    Derived("a10g-8", (("a100-pcie-8", ALL), ("aws-p5", NETWORK))),
    Derived("gcp-a2-high", (("dgx-a100-40gb", ALL),), {**SOCKETS, "socket_threads": 4.0}, WHY_SOCKETS),
    Derived("gcp-a2-ultra", (("hgx-a100-80gb", ALL),), {**SOCKETS, "socket_threads": 4.0}, WHY_SOCKETS),
    Derived("l4-8", (("a100-pcie-8", ALL),), {**SOCKETS, "socket_threads": 2.0}, WHY_SOCKETS),
    *(
        Derived(name, (("a100-pcie-8", ALL),), {**STAGED, **SOCKETS}, f"{WHY_STAGED}; {WHY_SOCKETS}")
        for name in ("rtx-3090-8", "rtx-4090-8")
    ),
    Derived("trn2", (("aws-p5", NETWORK),)),
    *(Derived(cloud, ((base, ALL), (network, NETWORK))) for cloud, base, network in CLOUDS),
)


@dataclass(frozen=True)
class Problem:
    """Rows of one profile with equal op, shape and algorithm: raw costs once, sizes and times as arrays."""

    cases: tuple[Case, ...]
    raw_costs: tuple[RawCost, ...]
    sizes: np.ndarray
    seconds: np.ndarray

    def predicted(self, values: Mapping[str, float]) -> np.ndarray:
        """Seconds under given parameters."""
        return envelope_s([line for each in self.raw_costs for line in lines(each, values)], self.sizes)


def problems(profile: str, cases: Iterable[Case]) -> list[Problem]:
    """Cases of a profile, grouped."""
    grouped: dict[tuple[object, ...], list[Case]] = defaultdict(list)
    for case in cases:
        if case.profile == profile:
            grouped[case.op, case.domains, case.per_domain, case.algorithm].append(case)
    return [_problem(profile, tuple(grouped[key])) for key in sorted(grouped, key=str)]


def _problem(profile: str, cases: tuple[Case, ...]) -> Problem:
    first = cases[0]
    cluster = cluster_for(profile, first.domains, sharp=first.algorithm == "sharp")
    placed = representative(regular_shape(first.domains, first.per_domain), cluster)
    if first.op == "send":
        far = cluster.domain_size if first.domains > 1 else 1
        placed = place(np.array([[0, far]]), cluster)
    return Problem(
        cases,
        tuple(raw_costs(first.op, placed, first.algorithm)),
        np.array([case.size_bytes for case in cases]),
        np.array([case.seconds for case in cases]),
    )


def inherited(task: Fit | Derived, known: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Defaults, overridden by what a profile takes from others."""
    values = {name: default for name, (default, _) in PARAMETERS.items()}
    for profile, names in task.start:
        values |= {name: known[profile][name] for name in names}
    return values


def fit(
    task: Fit, cases: Sequence[Case], known: Mapping[str, Mapping[str, float]]
) -> tuple[dict[str, float], dict[str, tuple[float, float]]]:
    """Parameters of a profile and intervals of the fitted ones: robust least squares on the logarithm of time."""
    from scipy.optimize import least_squares

    values = inherited(task, known)
    work = problems(task.profile, cases)
    start = np.array([_coordinate(name, values[name]) for name in task.free])
    low, high = np.array([_bounds(name) for name in task.free]).T
    start = np.clip(start, low + 1e-6, high - 1e-6)

    def residuals(point: np.ndarray) -> np.ndarray:
        trial = values | {name: _value(name, x) for name, x in zip(task.free, point, strict=True)}
        return np.concatenate([*(_weighted(problem, trial) for problem in work), PRIOR * (point - start)])

    best = min(
        (least_squares(residuals, np.clip(start + shift, low + 1e-6, high - 1e-6), bounds=(low, high),
                       loss="soft_l1", f_scale=FAR, diff_step=1e-3, max_nfev=200)
         for shift in (0.0, 0.2, -0.2)), key=lambda found: float(found.cost),
    )  # fmt: skip
    groups = [at for at, problem in enumerate(work) for _ in problem.cases]
    spread = NINE_IN_TEN * deviations(residuals, best.x, groups, FAR)
    ends_of = np.clip([best.x - spread, best.x + spread], low, high).T
    intervals = {
        f"collectives.{name}": (_value(name, ends[0]), _value(name, ends[1]))
        for name, ends in zip(task.free, ends_of, strict=True)
    }
    for name, x, ends in zip(task.free, best.x, zip(low, high, strict=True), strict=True):
        # a loss of nothing is a finding; at any other end the model lacks something
        beyond = ends if RANGES[name][0] else ends[1:]
        if min(abs(x - end) for end in beyond) < 1e-2 and (task.profile, name) not in AT_AN_END:
            raise SystemExit(f"{task.profile}: {name} = {_value(name, x):.3g}, an end of {RANGES[name]}")
        values[name] = _value(name, x)
    return {name: _rounded(value) for name, value in values.items()}, intervals


def _weighted(problem: Problem, values: Mapping[str, float]) -> np.ndarray:
    weight = np.where(problem.sizes >= MIB, 1.0, 0.5)
    return weight * np.log(problem.predicted(values) / problem.seconds)


def _coordinate(name: str, value: float) -> float:
    """What may be zero is fitted as it is, everything else as a logarithm."""
    return math.log(value) if RANGES[name][0] else value


def _value(name: str, coordinate: float) -> float:
    return math.exp(coordinate) if RANGES[name][0] else coordinate


def _bounds(name: str) -> tuple[float, float]:
    low, high = RANGES[name]
    return _coordinate(name, low), _coordinate(name, high)


def _rounded(value: float) -> float:
    """Three significant digits: more would be noise."""
    return float(f"{value:.3g}")


def errors(problem: Problem, values: Mapping[str, float]) -> np.ndarray:
    """Relative error of bandwidth, predicted over measured - 1."""
    return problem.seconds / problem.predicted(values) - 1


def report(results: Mapping[str, Mapping[str, float]], cases: Sequence[Case], *, verbose: bool) -> None:
    """Print the error table: rows by profile, source, op and world size, then profile and grand totals."""
    print(f"{'profile':14} {'source':32} {'op':15} {'ranks':>6} {'rows':>5} {'>=1MB':>7} {'p90':>6} {'<1MB':>7}")
    totals: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for profile, values in results.items():
        cells: dict[tuple[str, str, int], list[tuple[float, float]]] = defaultdict(list)
        for problem in problems(profile, cases):
            for case, error in zip(problem.cases, errors(problem, values), strict=True):
                point = (case.size_bytes, float(error))
                cells[case.source, case.op, case.domains * case.per_domain].append(point)
                totals[profile].append(point)
                totals["all"].append(point)
                if verbose:
                    print(f"    {case.op} {case.domains}x{case.per_domain} {case.size_bytes / MIB:.3f} MiB "
                          f"{case.algorithm} {1e6 * case.seconds:.1f} us {100 * error:+.0f} %")  # fmt: skip
        for (source, op, ranks), found in sorted(cells.items()):
            print(f"{profile:14} {source[:32]:32} {op:15} {ranks:6d} {_columns(found)}")
    for profile, found in totals.items():
        print(f"{profile:14} {'total':32} {'':15} {'':6} {_columns(found)}")


def _columns(found: Sequence[tuple[float, float]]) -> str:
    large = [abs(error) for size, error in found if size >= 1e6]
    small = [abs(error) for size, error in found if size < 1e6]
    middle = f"{100 * np.median(large):6.1f}% {100 * np.quantile(large, 0.9):5.0f}%" if large else f"{'-':>7} {'-':>6}"
    return f"{len(found):5d} {middle} " + (f"{100 * np.median(small):6.1f}%" if small else f"{'-':>7}")


def provenance(task: Fit, cases: Sequence[Case], values: Mapping[str, float]) -> str:
    """One line for the profile: how many rows of which sources, which error, what was taken over."""
    mine = problems(task.profile, cases)
    sources = Counter(case.source for problem in mine for case in problem.cases)
    found = np.concatenate([np.abs(errors(problem, values))[problem.sizes >= 1e6] for problem in mine])
    taken = f"; other parameters from {', '.join(name for name, _ in task.start)}" if task.start else ""
    rows = ", ".join(f"{source} ({count} rows)" for source, count in sorted(sources.items()))
    return (
        f"collectives: benchmarks/fit_collectives.py on {rows}; median bandwidth error from 1 MB on "
        f"{100 * float(np.median(found)):.1f} %{taken}"
    )


def write(profile: str, known: Mapping[str, Mapping[str, float]], origin: str | None, *, check: bool) -> bool:
    """Put what differs from the profile that one is like, and its origin, into a profile; True if the file changed.

    Comments are kept. Who differs in nothing has no origin of its own either.
    """
    from io import StringIO

    from ruamel.yaml import YAML

    path = files.bundled("clusters")[profile]
    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 4096
    yaml.indent(mapping=2, sequence=4, offset=2)
    data = yaml.load(path.read_text(encoding="utf-8"))
    base = known[data["like"]] if "like" in data else {name: default for name, (default, _) in PARAMETERS.items()}
    own = {name: value for name, value in known[profile].items() if value != base[name]}
    data.pop("collectives", None)
    if own:
        place = next((list(data).index(key) for key in ("jobs", "provenance", "sources") if key in data), len(data))
        data.insert(place, "collectives", own)
    # what fit_runs.py says of it stays
    _, mark, runs = str(data.pop("provenance", "")).partition("; in training")
    said = (origin or "" if own else "") + mark + runs
    if said:
        data.insert(list(data).index("sources") if "sources" in data else len(data), "provenance", said)
    buffer = StringIO()
    yaml.dump(data, buffer)
    changed = buffer.getvalue() != path.read_text(encoding="utf-8")
    if changed and not check:
        files.write_atomic(path, buffer.getvalue())
    return changed


def main(arguments: Sequence[str] | None = None) -> int:
    """Fit, print, write; 1 if ``--check`` finds a difference."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", nargs="?", type=Path, default=DATA / "collectives.csv")
    parser.add_argument("--check", action="store_true", help="write nothing, fail on a difference")
    parser.add_argument("--verbose", action="store_true", help="print every row")
    options = parser.parse_args(arguments)
    cases, skipped = read_cases(options.table)
    results: dict[str, dict[str, float]] = {}
    intervals: dict[str, dict[str, tuple[float, float]]] = {}
    for task in FITS:
        results[task.profile], intervals[task.profile] = fit(task, cases, results)
    report(results, cases, verbose=options.verbose)
    _list_skipped(skipped)
    changed = [
        task.profile for task in FITS
        if write(task.profile, results, provenance(task, cases, results[task.profile]), check=options.check)
    ]  # fmt: skip
    for each in DERIVED:
        siblings = ", ".join(f"{name} (network)" if names == NETWORK else name for name, names in each.start)
        origin = f"collectives: no published measurements; taken from {siblings}" + f"; {each.why}" * bool(each.why)
        results[each.profile] = {
            name: _rounded(value) for name, value in {**inherited(each, results), **each.changes}.items()
        }
        if write(each.profile, results, origin, check=options.check):
            changed.append(each.profile)
    if not options.check:
        write_intervals("clusters", intervals)
    print(f"changed: {', '.join(changed) or 'none'}")
    return 1 if options.check and changed else 0


def _list_skipped(skipped: Sequence[Skipped]) -> None:
    print("\nnot modelled:")
    for (source, reason), count in sorted(Counter((row.source, row.reason) for row in skipped).items()):
        print(f"  {count:5d} rows, {source}: {reason}")


if __name__ == "__main__":
    sys.exit(main())
