"""From measured runs to layouts with times: repeats are merged, and unusable runs are left out with a reason."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from simpar.architectures.flops import model_flop_per_token
from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.hardware.catalogue import load_cluster
from simpar.learning.fit import Observed, Peak
from simpar.learning.memory import merge_peaks, odd_peak
from simpar.learning.reports import is_report, read_report
from simpar.stacks.stack import load_stack
from simpar.validation.cells import Row, Unmodelled
from simpar.validation.open_settings import choose_open_settings
from simpar.validation.predict import has_rate, peak_flop_per_s, predict_time_s, with_rates
from simpar.validation.profile_overrides import ProfileOverrides
from simpar.validation.rows import Case, read_measurements
from simpar.validation.table import label, read_table, suspect

MOST_LAYOUTS = 60
"""The most layouts to learn from: more add little about a few parameters, and take minutes."""
ABSURD = 20.0  # this many times slower or faster than predicted: another unit or run
MOST_NAMED = 8  # rows that are named per reason
DISAGREE = 0.1  # repeats of a layout that differ by more are named


@dataclass(frozen=True)
class Runs:
    """Measured layouts, the spread of repeats (None without any), and remarks on oddities."""

    layouts: tuple[Observed, ...]
    repeats_spread: float | None
    remarks: tuple[str, ...]

    @property
    def count(self) -> int:
        """The number of measured runs, including repeats."""
        return sum(one.repeats for one in self.layouts)

    @property
    def models(self) -> tuple[str, ...]:
        """Names of the models that were trained."""
        return tuple(dict.fromkeys(one.case.graph.name for one in self.layouts))


def runs_of(paths: Sequence[str], chosen: ProfileOverrides) -> Runs:
    """Layouts with usable times from tables and from folders of simpar run.

    Raises UserError if there is none.
    """
    if chosen.stack:
        load_stack(chosen.stack)  # an unreadable profile is not the rows' fault
    if chosen.hardware:
        load_cluster(chosen.hardware)
    observed: list[Observed] = []
    left_out: dict[str, list[str]] = defaultdict(list)
    odd_peaks: list[str] = []
    for path in paths:
        if is_report(path):
            named = [(Path(path).name, partial(read_report, path, chosen))]
        else:
            named = [
                (f"row {line} ({label(row)})", partial(_observed, line, row, chosen))
                for line, row in enumerate(read_table(path), start=2)
            ]
        for name, read in named:
            try:
                one = read()
                _check(one.case, one.time_s)
                if odd := odd_peak(one):
                    odd_peaks.append(f"peak memory of {name} is left out: {odd}")
                    one = replace(one, peak=None)
                observed.append(one)
            except (Unmodelled, UserError) as reason:
                left_out[str(reason).splitlines()[0]].append(name)
    remarks = [_left_out(names, reason) for reason, names in left_out.items()]
    if not observed:
        count = sum(map(len, left_out.values()))
        more = f" ({count} runs)" if len(remarks) > 1 else ""
        raise UserError(f"nothing to learn from: {remarks[0]}{more}")
    repeated = _repeated(observed)
    spread = _spread(repeated)
    remarks += odd_peaks
    remarks += [line for group in repeated for line in _disagreement(group)]
    layouts = [_merged(group, spread) for group in repeated]
    if len(layouts) > MOST_LAYOUTS:
        remarks.append(f"{MOST_LAYOUTS} of {len(layouts)} layouts are learnt from, evenly over the table")
        layouts = [layouts[int(i * len(layouts) / MOST_LAYOUTS)] for i in range(MOST_LAYOUTS)]
    return Runs(tuple(layouts), spread, tuple(remarks))


def _left_out(names: Sequence[str], reason: str) -> str:
    """One line for all runs that are left out for the same reason."""
    if len(names) == 1:
        return f"{names[0]} is left out: {reason}"
    rows = [name.split(" ")[1] for name in names if name.startswith("row ")]
    some = f"rows {', '.join(rows[:MOST_NAMED])}" if len(rows) == len(names) else ", ".join(names[:MOST_NAMED])
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f"{some}{more} are left out: {reason}"


def _observed(line: int, row: Row, chosen: ProfileOverrides) -> Observed:
    """A row as a layout with its time. Raises Unmodelled, UserError."""
    if odd := suspect(row):
        raise Unmodelled(odd)
    times = read_measurements(row)
    if times.step_time_s is None and not has_rate(row):
        raise Unmodelled("no step time")
    entry, _ = choose_open_settings(chosen.case(row))
    time_s = times.step_time_s or with_rates(times, row, entry).step_time_s
    if time_s is None:
        raise Unmodelled("no step time")
    peak = Peak(times.peak_memory_bytes, times.peak_counts) if times.peak_memory_bytes else None
    return Observed(entry, time_s, label=label(row), rows=(line,), peak=peak)


def _check(entry: Case, time_s: float) -> None:
    """Raise for times that the device cannot have reached, or that are off by more than any profile could be."""
    training = entry.training
    tokens = training.tokens_per_step / entry.num_devices
    least_s = model_flop_per_token(entry.graph, training.seq_len, "causal") * tokens / peak_flop_per_s(entry)
    if time_s < least_s and "lora_rank" not in entry.plan:
        raise Unmodelled(f"{time_s:.4g} s are impossible: at the device's peak it takes {least_s:.4g} s")
    predicted_s = predict_time_s(entry)
    if not 1 / ABSURD < time_s / predicted_s < ABSURD:
        raise Unmodelled(f"{time_s:.4g} s measured and {predicted_s:.4g} s predicted: is it in seconds?")


def _repeated(runs: Sequence[Observed]) -> list[list[Observed]]:
    """Runs by layout, in the order of the table."""
    groups: dict[tuple[object, ...], list[Observed]] = defaultdict(list)
    for run in runs:
        entry = run.case
        layout = (
            entry.graph.name, entry.graph.num_parameters(), entry.hardware, entry.num_devices, entry.devices_per_node,
            entry.training, str(sorted(entry.plan.items())), entry.stack, str(sorted(entry.stack_changes.items())),
            str(sorted(entry.hardware_changes.items())),
        )  # fmt: skip
        groups[layout].append(run)
    return list(groups.values())


def _spread(repeated: Sequence[Sequence[Observed]]) -> float | None:
    """The standard deviation of the logarithms of steps around the mean of their layout."""
    squares, free = 0.0, 0
    for group in repeated:
        logs = np.log([run.time_s for run in group])
        squares, free = squares + float(np.sum((logs - logs.mean()) ** 2)), free + len(group) - 1
    return float(np.sqrt(squares / free)) if free else None


def _merged(group: Sequence[Observed], spread: float | None) -> Observed:
    """The repeats of a layout as one, with their combined scatter."""
    time_s = float(np.exp(np.mean(np.log([run.time_s for run in group]))))
    rows = tuple(line for run in group for line in run.rows)
    scatter = max(spread or 0.0, *(run.scatter for run in group)) / len(group) ** 0.5
    return replace(group[0], time_s=time_s, scatter=scatter, rows=rows, repeats=len(group), peak=merge_peaks(group))


def _disagreement(group: Sequence[Observed]) -> list[str]:
    """A line if repeats of a layout differ by more than noise."""
    times = [run.time_s for run in group]
    apart = max(times) / min(times) - 1
    if apart <= DISAGREE:
        return []
    lines = ", ".join(str(line) for run in group for line in run.rows)
    return [f"rows {lines} are one layout ({group[0].label}) and differ by {apart:.0%}: taken as noise of that size"]
