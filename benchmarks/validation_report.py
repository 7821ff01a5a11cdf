"""Write docs/validation.md and its pictures from the development tables.

Usage: python benchmarks/validation_report.py [--rows FILE | --keep-refits]

Errors of left-out runs need every parameter moved once for every run (20 minutes on two cores); --rows FILE keeps
these sensitivities for the next call, and takes the errors that calibrate_uncertainty.py left beside them. With
--keep-refits these errors stay as the page has them, and all that predictions alone say is written anew (4 minutes).
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from as_published import published_outcomes
from calibrate_uncertainty_rows import ORDINARY, kept_runs
from left_out import KINDS, LeftOut
from normalise.tables import read_published
from tables import DATA, ROOT

from simpar.units import GIB
from simpar.validation.summary import RowOutcome, figures_by, summary

POPULATIONS = {
    "Runs as most people do them": (ORDINARY,),
    "Runs that vendors and frameworks tuned": ("measured_runs_dev.csv", "measured_playbook_dev.csv"),
}
COLUMNS = (
    ("modelled", "modelled"), ("time_ape_median", "time median"), ("time_ape_p90", "time p90"),
    ("time_bias_median", "bias"), ("memory_ape_median", "memory median"),
    ("static_memory_ape_median", "static median"), ("kendall_tau", "tau"), ("fit_accuracy", "fits right"),
    ("regret_mean", "regret mean"), ("interval_coverage", "inside"), ("interval_width_median", "width"),
)  # fmt: skip
GROUPS = {"device": "By device", "stack": "By software stack"}
WHAT_GROUPS = "Rows of both populations that are modelled; columns as above."
FITS = (
    ("ran_said_not_to_fit", "ran, said not to fit"), ("ran_said_not_to_fit_sure", "with 95 %"),
    ("oom_said_to_fit", "out of memory, said to fit"), ("oom_said_to_fit_sure", "with 95 %"),
)  # fmt: skip
WHAT_FITS = (
    "Percent of runs that ran, but whose printed settings are said not to fit: as predicted, and where the answer must",
    "be sure with 95 %, as searches and `check` ask. And percent of runs out of memory that are said to fit. Sources",
    "without either are left out.",
)
TWO_POPULATIONS = (
    "Published runs are of two kinds. Vendors and authors of frameworks tune what they publish; most people run",
    "Hugging Face models, DeepSpeed or FSDP as they are, on small clusters, older devices and short sequences. Errors",
    "of one kind say little about the other. Below are all rows as the shipped profiles predict them; nothing is",
    "fitted to rows of doubtful sources, but they count here.",
)
NEVER_SEEN = (
    "The test of a prediction is a run that no parameter was fitted to. The pooled parameters of devices and stacks",
    "are therefore fitted again without each source, then without each family of models, then without each of the two",
    "populations, and predict the runs that were left out (`benchmarks/left_out.py`: refits are linearised,",
    "predictions are not; what only one population tells returns to what is known of its kind). Of the two large",
    "grids only every 4th or 8th run takes part. No run has parameters of its own. The last line has the runs that no",
    "shipped parameter was fitted to: MLPerf, Megatron-FSDP, Llama 3 405B, rows that do not print a setting which is",
    "usually tuned (such as the micro-batch), rows with offload, partial recomputation or 4-bit products outside",
    "NeMo, and rows that ran although the settings they print need more memory than the device has.",
)
COLUMNS_BY_SOURCE = (
    "Time is the optimizer step, memory the allocator's reserved peak, static what is allocated between steps. Bias",
    "is the median signed error, tau the rank correlation (Kendall) of predicted and measured times of layouts of one",
    "job, and regret how much slower than the fastest of them the layout with the shortest predicted step ran. Inside",
    "is the share of rows whose time lies in their 90 % interval; width is half the length of that interval over the",
    "prediction.",
)
COLUMNS_LEFT_OUT = (
    "The column left out is the median error with the source left out of the fit, and family that with the family of",
    "each run's model left out; both cover only the runs in the first table. `docs/uncertainty.md` says how often",
    "intervals hold for runs that were left out.",
)
WORST = 25
WHY = (  # source, pattern of the run's label, sign of the error (0: either), reason; the first match counts
    ("ultrascale", r"pp(?!1 )\d", -1, "about a second of waiting per pipeline message; the row does not say why"),
    ("ultrascale", r"pp(?!1 )\d", +1, "its fabric test, over all ranks, was far slower than the groups of its layout"),
    ("ultrascale", r"tp(16|32)", -1, "tp over several nodes; 16 to 80 s a step for one layout, by micro-batch"),
    ("ultrascale", "", +1, "its fabric test was slower than its training"),
    ("ultrascale", "", -1, "slower than neighbouring layouts of the grid"),
    ("Megatron-FSDP", "", 0, "early software: token exchange over NCCL without overlap, FSDP units of expert layers"),
    ("Automodel", "LoRA", -1, "adapters in plain PyTorch, whose pipelines wait for the host"),
    ("Automodel", "", 0, "parallelism in plain PyTorch, without parameters fitted to its runs"),
    ("SC21 Table 2", "pp1 ", -1, "DeepSpeed's ZeRO-3 of 2021 moved 22 GB/s per device: one NIC of eight"),
    ("Primus projection", "70B", -1, "does not fit without recomputation, and the row prints none"),
    ("dgxc", "deepseek", -1, "early software: later releases run the same layout in half the time"),
    ("Bridge", "Qwen3_235B", -1, "token exchange overlapped without CUDA graphs; the next release is twice as fast"),
    ("Bridge", "Qwen3_30B", -1, "micro-batches of one sequence, whose experts wait for the host"),
    ("Bridge", "GPT OSS", -1, "bf16 is predicted 16 % too fast; some releases are slower than those before and after"),
    ("torchtitan B200", "", -1, "power limit below 1,000 W, which the table does not print"),
)
Point = tuple[float, float, float, float]
"""Measured, predicted, and the two ends of the 90 % interval."""
RATIOS = {"time": (0.5, 2.2), "memory": (0.5, 2.2)}
"""Limits of the lower panels: predicted over measured."""


@dataclass(frozen=True)
class KeptErrors:
    """Errors of left-out runs as a page has them: its table, and by source the cells of KINDS[1:3]."""

    lines: tuple[str, ...]
    by_source: Mapping[str, Mapping[str, str]]

    @staticmethod
    def of(page: str) -> KeptErrors:
        """Those of a page that was written with refits."""
        sections = dict(section.partition("\n")[::2] for section in re.split(r"(?m)^## ", page)[1:])
        lines = [line for line in sections["Runs that nothing was fitted to"].splitlines() if line.startswith("|")]
        rows = (line.strip("| ").split(" |") for line in sections["By source"].splitlines() if line.startswith("|"))
        cells = {row[0]: [cell.strip() for cell in row[-2:]] for row in rows if len(row) == len(COLUMNS) + 4}
        return KeptErrors(tuple(lines), {name: dict(zip(KINDS[1:3], two, strict=True)) for name, two in cells.items()})

    def table(self) -> tuple[str, ...]:
        """Lines of the table of all groups."""
        return self.lines

    def medians(self, source: str) -> Mapping[str, str]:
        """The cells of a source by kind; none where the page does not have it."""
        return self.by_source.get(source, {})


def main() -> None:
    """Predict every row of every table and write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=Path, help="file that keeps sensitivities between runs")
    parser.add_argument("--keep-refits", action="store_true", help="keep the page's errors of left-out runs")
    arguments = parser.parse_args()
    page = ROOT / "docs" / "validation.md"
    if arguments.keep_refits:
        left_out: LeftOut | KeptErrors = KeptErrors.of(page.read_text(encoding="utf-8"))
    else:
        left_out = LeftOut.of(kept_runs(arguments.rows), arguments.rows)
    by_population = _predicted()
    outcomes = [outcome for each in by_population.values() for outcome in each]
    lines = [
        "# Validation",
        "",
        "Generated by `benchmarks/validation_report.py` from published measurements. Errors are in percent.",
        "",
        "## Two populations",
        "",
        *TWO_POPULATIONS,
        "",
        *_in_sum(by_population),
        "",
        "## Which runs fit",
        "",
        *WHAT_FITS,
        "",
        *_fits(by_population),
        "",
        "## Runs that nothing was fitted to",
        "",
        *NEVER_SEEN,
        "",
        *left_out.table(),
        "",
        "## By source",
        "",
        *COLUMNS_BY_SOURCE,
        *COLUMNS_LEFT_OUT,
        "A row is either modelled or counted below with the reason why not. Nothing is fitted per row.",
        "",
        *(line for name, each in by_population.items() for line in (f"### {name}", "", *_table(each, left_out), "")),
        "![Predicted against measured step time](images/validation_time.png)",
        "",
        "![Predicted against measured peak memory](images/validation_memory.png)",
        "",
        *_groups(outcomes),
        *_peers(outcomes),
        *_reasons(outcomes),
        *_worst(outcomes),
    ]
    page.write_text("\n".join(lines) + "\n")
    _scatter(outcomes, "time", ROOT / "docs" / "images" / "validation_time.png")
    _scatter(outcomes, "memory", ROOT / "docs" / "images" / "validation_memory.png")


def _predicted() -> dict[str, list[RowOutcome]]:
    """Outcomes of all rows of every population."""
    return {
        name: [outcome for table in tables for outcome in published_outcomes(read_published(DATA / table))]
        for name, tables in POPULATIONS.items()
    }


def _groups(outcomes: Sequence[RowOutcome]) -> list[str]:
    """Lines of Markdown: the figures of both populations by device and by software stack."""
    lines = list[str]()
    for name, title in GROUPS.items():
        rows = [
            [group, str(each["rows"]), *(_cell(each[key]) for key, _ in COLUMNS)]
            for group, each in [("**all**", summary(outcomes)), *figures_by(name, outcomes).items()]
        ]
        lines += [f"## {title}", "", WHAT_GROUPS, ""]
        lines += [*_markdown([name, "rows", *(column for _, column in COLUMNS)], rows), ""]
    return lines


def _markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of a table."""
    lines = ("| " + " | ".join(cells) + " |" for cells in (header, *rows))
    return [next(lines), "|" + "---|" * len(header), *lines]


def _in_sum(by_population: Mapping[str, Sequence[RowOutcome]]) -> list[str]:
    """Lines of Markdown: the figures of each population."""
    known = {name: summary(outcomes) for name, outcomes in by_population.items()}
    rows = (
        [name, str(figures["rows"]), *(_cell(figures[key]) for key, _ in COLUMNS)] for name, figures in known.items()
    )
    return _markdown(["runs", "rows", *(title for _, title in COLUMNS)], rows)


def _fits(by_population: Mapping[str, Sequence[RowOutcome]]) -> list[str]:
    """Lines of Markdown: mistakes about fitting, of each population and of its sources that have some."""
    rows = []
    for name, outcomes in by_population.items():
        figures = summary(outcomes)
        mistaken = {source: each for source, each in figures["by_source"].items() if any(each[key] for key, _ in FITS)}
        for title, each in {f"**{name}**": figures, **mistaken}.items():
            known: Counter[str] = Counter()
            for word, count in each["fit_confusion"].items():
                known[word.partition("_")[0]] += count
            rows.append([title, str(known["fits"]), str(known["oom"]), *(_cell(each[key]) for key, _ in FITS)])
    return _markdown(["runs", "ran", "out of memory", *(title for _, title in FITS)], rows)


def _table(outcomes: Sequence[RowOutcome], left_out: LeftOut | KeptErrors) -> list[str]:
    figures = summary(outcomes)
    rows = []
    for name, found in [("**all**", figures), *figures["by_source"].items()]:
        medians = {} if name == "**all**" else left_out.medians(name)
        left = (_cell(medians.get(kind)) for kind in KINDS[1:3])
        rows.append([name, str(found["rows"]), *(_cell(found[key]) for key, _ in COLUMNS), *left])
    lines = _markdown(["source", "rows", *(title for _, title in COLUMNS), "left out", "family"], rows)
    clean = f"the median is {figures['clean_time_ape_median']} % and p90 {figures['clean_time_ape_p90']} %"
    return [*lines, "", f"Rows that their source calls disturbed are included; without them {clean}."]


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)


def _peers(outcomes: Sequence[RowOutcome]) -> list[str]:
    found = {name: f for name, f in summary(outcomes)["by_source"].items() if f["peer_rows"]}
    if not found:
        return []
    lines = [
        "## Against published predictions of other tools",
        "",
        "Mean absolute errors on the rows whose source prints another tool's prediction.",
        "",
    ]
    keys = ("peer_time_ape_mean", "ours_on_peer_time_ape_mean", "peer_memory_ape_mean", "ours_on_peer_memory_ape_mean")
    rows = ([name, f"{each['peer_rows']:.0f}", *(_cell(each[key]) for key in keys)] for name, each in found.items())
    header = ["source", "rows", "step time: theirs", "simpar", "memory: theirs", "simpar"]
    return [*lines, *_markdown(header, rows), ""]


def _reasons(outcomes: Sequence[RowOutcome]) -> list[str]:
    reasons = summary(outcomes)["unmodelled_reasons"]
    rows = ([reason, str(count)] for reason, count in reasons.items())
    return ["## Rows not modelled", "", *_markdown(["reason", "rows"], rows), ""]


def _worst(outcomes: Sequence[RowOutcome]) -> list[str]:
    known = [o for o in outcomes if o.time_error is not None and not o.suspect]
    known.sort(key=lambda o: -abs(np.log1p(o.time_error or 0)))
    lines = [
        f"## The {WORST} worst step times",
        "",
        "| row | source | run | measured s | error % | why |",
        "|---|---|---|---|---|---|",
    ]
    for outcome in known[:WORST]:
        seconds = outcome.measured.step_time_s if outcome.measured else None
        error = 100 * (outcome.time_error or 0)
        cells = (outcome.row, outcome.source, outcome.label, f"{seconds:.3g}", f"{error:+.0f}", _why(outcome, error))
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return lines


def _why(outcome: RowOutcome, error: float) -> str:
    """What explains a row, where something is known."""
    for source, words, sign, why in WHY:
        if source in outcome.source and re.search(words, outcome.label) and sign * error >= 0:
            return why
    return "not known"


def _point(outcome: RowOutcome, what: str) -> Point | None:
    """A run in a scatter; None where it was not measured, not modelled, or disturbed.

    Peaks of tensors alone are left out: intervals are of reserved memory.
    """
    run, found = outcome.measured, outcome.prediction
    if run is None or found is None or found.certainty is None or outcome.suspect:
        return None
    if what == "time":
        return (run.step_time_s, found.step_time_s, *found.certainty.step_time_interval_s) if run.step_time_s else None
    if not run.peak_memory_bytes or run.peak_counts != "reserved":
        return None
    low, high = found.certainty.reserved_memory_interval_bytes
    return run.peak_memory_bytes / GIB, found.peak_reserved_bytes / GIB, low / GIB, high / GIB


def _scatter(outcomes: Sequence[RowOutcome], what: str, path: Path) -> None:
    """Predicted against measured with 90 % intervals as bars, and below their ratio; one colour per source.

    Intervals that miss their measurement are drawn darker, above the others.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    points: dict[str, list[Point]] = {}
    for outcome in outcomes:
        if found := _point(outcome, what):
            points.setdefault(outcome.source, []).append(found)
    largest = sorted(points, key=lambda name: -len(points[name]))[:9]
    groups = {name: np.array(points[name]) for name in largest}
    if others := [point for name, found in points.items() if name not in largest for point in found]:
        groups["all others"] = np.array(others)
    everything = np.concatenate(list(groups.values()))
    measured, _, low, high = everything.T
    inside = np.mean((measured >= low) & (measured <= high))
    figure, (axes, below) = plt.subplots(
        2, 1, figsize=(8.5, 10), sharex=True, height_ratios=(5, 3), layout="constrained"
    )
    ends = np.array([everything[:, :2].min() * 0.8, everything[:, :2].max() * 1.25])
    axes.plot(ends, ends, color="0.3", linewidth=0.8, zorder=3)
    below.axhline(1.0, color="0.3", linewidth=0.8, zorder=3)
    colours = [colour for colour in mpl.color_sequences["tab10"] if len(set(colour)) > 1]  # grey is for all others
    for (name, found), colour in zip(groups.items(), [*colours[: len(largest)], "0.6"], strict=False):
        measured, predicted, low, high = found.T
        out = (measured < low) | (measured > high)
        for panel, scale in ((axes, 1.0), (below, measured)):
            for which, alpha in ((~out, 0.12), (out, 0.45)):
                panel.vlines(
                    measured[which], (low / scale)[which], (high / scale)[which],
                    color=colour, alpha=alpha, linewidth=0.6, zorder=1 + alpha, rasterized=True,
                )  # fmt: skip
            panel.scatter(measured, predicted / scale, s=5, alpha=0.6, color=colour, lw=0, zorder=2, label=name)
    unit = "step time, s" if what == "time" else "peak memory, GiB"
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, ylabel=f"predicted {unit}")
    below.set(yscale="log", ylim=RATIOS[what], ylabel="predicted / measured", xlabel=f"measured {unit}")
    ticks = [tick for tick in (0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0) if tick < RATIOS[what][1]]
    below.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    below.set_yticks([], minor=True)
    below.grid(axis="y", color="0.9", zorder=0)
    axes.legend(fontsize=8, frameon=False, markerscale=2.5)
    said = "bars: 90 % intervals" + "; reserved peaks alone" * (what == "memory")
    axes.set_title(f"{said}\n{inside:.1%} of {len(everything):,} runs lie in theirs", fontsize=9, loc="left")
    figure.savefig(path, dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    main()
