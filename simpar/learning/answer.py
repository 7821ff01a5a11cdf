"""What was learnt, as numbers and as one file of profiles with its provenance."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from simpar.calls import refuses_unknown_keywords
from simpar.dataclass import dataclass
from simpar.files import write_atomic
from simpar.hardware.catalogue import load_cluster
from simpar.hardware.profile import ClusterProfile
from simpar.learning.fit import Learned, Observed
from simpar.learning.fit import learn as most_probable_of
from simpar.learning.memory import LearnedMemory, learn_memory
from simpar.learning.runs import Runs, runs_of
from simpar.profiles import LEARNED, REVISION, as_written, base_name, yaml_text
from simpar.report.certainty import runs_on, step_time_error, traits_of
from simpar.report.layouts import kin_of, layout_of, shares_of
from simpar.stacks.stack import load_stack
from simpar.uncertainty.memory import MemoryRisk
from simpar.uncertainty.own_runs import MeasuredLayout, OwnRuns
from simpar.uncertainty.support import Traits
from simpar.uncertainty.table import load_error_table
from simpar.units import Floats
from simpar.validation.predict import change_stack, cluster_of, job_of, replace_field, result_of
from simpar.validation.profile_overrides import ProfileOverrides

UNEXPLAINED = 0.05
"""Remaining errors above this are reported: no learnt parameter explains them."""

IMPROBABLE = 3.0
"""Spreads beyond which a parameter that was found is reported: one of 400 parts of a kind is as far out."""
AT_END = 2.0
"""Spreads beyond which one at the end of its bounds is: one of 20 is as far out, and none beyond."""


@dataclass(frozen=True)
class Answer:
    """The result of learning: the source files, the runs, and the parameters they gave.

    ``memory`` is what was learnt from their memory peaks; None if no run has one.
    """

    source: str
    runs: Runs
    learned: Learned
    memory: LearnedMemory | None = None

    def to_dict(self) -> dict[str, Any]:
        """The JSON of ``simpar learn``: changes, runs and errors, in SI units and percent."""
        return {
            "source": self.source,
            "runs": self.runs.count,
            "layouts": len(self.runs.layouts),
            "models": list(self.runs.models),
            "repeats_spread_percent": _percent_or_none(self.runs.repeats_spread),
            "median_error_percent": self.errors(),
            "half_interval_percent": self.half_intervals(),
            "memory": self._memory(),
            "changes": self.changes(),
            "runs_detail": [self._detail(at, run) for at, run in enumerate(self.runs.layouts)],
            "remarks": [*self.runs.remarks, *self.improbable()],
        }

    def improbable(self) -> list[str]:
        """A line for every parameter that lies farther from its profile than such parts differ, or where they end."""
        return [
            f"{change['profile']} {change['parameter']} = {change['is']:.4g} is {abs(change['spreads']):.1f} spreads "
            f"from {change['was']:.4g}: hardly any {change['kind']} differs as much, so these runs are slow or fast "
            "for a reason that no parameter has; do not rely on this file for other layouts"
            for change in self.changes()
            if abs(change["spreads"]) > IMPROBABLE
        ] + [line for learned in self._learned for line in _ends(learned)]

    @property
    def _learned(self) -> list[Learned]:
        return [self.learned, *([self.memory.learned] if self.memory else [])]

    def errors(self) -> dict[str, float]:
        """Median absolute errors of step time in percent: before, after, and of left-out runs."""
        return {name: _median_percent(each) for name, each in _named(self.learned)}

    def _memory(self) -> dict[str, Any] | None:
        """What was learnt from memory peaks: layouts, median errors, and by stack the spread of its hidden memory."""
        if self.memory is None:
            return None
        stacks = {run.case.stack: load_stack(run.case.stack) for run in self.memory.layouts}
        own = {name: (load_stack(name).own_runs, self._own_runs_of(name)) for name in stacks}
        return {
            "layouts": len(self.memory.layouts),
            "median_error_percent": {name: _median_percent(each) for name, each in _named(self.memory.learned)},
            "stack_spread_percent": {
                stack.known_as: {
                    when: round(100 * MemoryRisk.of(stack.known_as, load_error_table(), runs).habits, 1)
                    for when, runs in zip(("before", "after"), own[name], strict=True)
                }
                for name, stack in stacks.items()
            },
        }

    def half_intervals(self) -> dict[str, float]:
        """Half widths, before and after, of the 90 % intervals of layouts like these, in percent (the median).

        They are those of predictions: see :mod:`simpar.report.certainty`.
        """
        before, after = [], []
        for run in self.runs.layouts:
            cluster = cluster_of(run.case)
            known = runs_on(change_stack(run.case.stack, {}), cluster.profile.name)
            traits = _traits(run)
            own = self.own_runs(run.case.stack, run.case.hardware)
            before.append(step_time_error(traits, run.time_s, known).half_width)
            after.append(step_time_error(traits, run.time_s, own).half_width)
        return {name: round(100 * float(np.median(each)), 1) for name, each in (("before", before), ("after", after))}

    def own_runs(self, stack: str, hardware: str, cluster: str = "") -> tuple[OwnRuns, ...]:
        """What the layouts on a stack and hardware tell of similar ones, where ``cluster`` is the learnt name."""
        alike: dict[Traits, list[int]] = defaultdict(list)
        for at, run in enumerate(self.runs.layouts):
            if (run.case.stack, run.case.hardware) == (stack, hardware):
                alike[_traits(run)].append(at)
        result, errors = [], self.learned.left_out
        for traits, places in alike.items():
            peaks = [self._peak_errors[at]["left_out"] for at in places if at in self._peak_errors]
            error = _root_mean_square([float(errors[at]) for at in places])
            peak_error = _root_mean_square(peaks) if peaks else 0.0
            result.append(
                OwnRuns(
                    cluster=cluster,
                    traits=traits,
                    layouts=len(places),
                    error=error,
                    peaks=len(peaks),
                    peak_error=peak_error,
                )
            )
        return tuple(result)

    def _own_runs_of(self, stack: str) -> tuple[OwnRuns, ...]:
        """:meth:`own_runs` of a stack on any hardware."""
        clusters = dict.fromkeys(run.case.hardware for run in self.runs.layouts)
        return tuple(own for on in clusters for own in self.own_runs(stack, on))

    @cached_property
    def _peak_errors(self) -> dict[int, dict[str, float]]:
        """For every layout with a peak, by index, log(measured / predicted) of it: before, after, and left out."""
        if self.memory is None:
            return {}
        places = [at for at, run in enumerate(self.runs.layouts) if run.peak is not None]
        return {
            at: {name: float(each[row]) for name, each in _named(self.memory.learned)} for row, at in enumerate(places)
        }

    def _measured(self, stack: str, names: Mapping[str, str]) -> tuple[MeasuredLayout, ...]:
        """The layouts on a stack, with the names under which their clusters are learnt."""
        layouts = []
        for run, error in zip(self.runs.layouts, self.learned.after.tolist(), strict=True):
            if run.case.stack == stack:
                result = result_of(run.case, self.learned.tuning)
                shares = {part: _rounded(share) for part, share in shares_of(result).items()}
                layouts.append(
                    MeasuredLayout(
                        cluster=names[run.case.hardware],
                        layout=layout_of(result),
                        kin=kin_of(result),
                        label=run.label,
                        shares=shares,
                        step_time_s=_rounded(run.time_s),
                        error=_rounded(error),
                    )
                )
        return tuple(layouts)

    def changes(self) -> list[dict[str, Any]]:
        """Parameters that moved, farthest first; ``spreads`` is the move in units of the shipped profiles' spread."""
        changes = [change for learned in self._learned for change in _changes(learned)]
        return sorted(changes, key=lambda change: -abs(float(change["spreads"])))

    def _detail(self, at: int, run: Observed) -> dict[str, Any]:
        detail = {
            "rows": list(run.rows),
            "label": run.label,
            "measured_step_time_s": run.time_s,
            "error_percent": {name: _error_percent(each[at]) for name, each in _named(self.learned)},
            "explained": abs(float(self.learned.after[at])) <= UNEXPLAINED,
        }
        if run.peak is None:
            return detail
        errors = {name: _error_percent(error) for name, error in self._peak_errors[at].items()}
        return detail | {"measured_peak_bytes": run.peak.size_bytes, "memory_error_percent": errors}

    def save(self, path: str | Path) -> None:
        """Write the profiles to a YAML file. Raises UserError."""
        write_atomic(path, self.to_yaml(Path(path).name))

    def to_yaml(self, name: str) -> str:
        """The file of learnt profiles, called ``name``: provenance, then stacks and clusters by their base profile."""
        import simpar

        values: dict[str, dict[str, dict[str, float]]] = {"device": {}, "stack": {}, "cluster": {}}
        for change in self.changes():
            values[change["kind"]].setdefault(change["profile"], {})[change["parameter"]] = change["is"]
        cases = [run.case for run in self.runs.layouts]
        stacks = tuple(dict.fromkeys(case.stack for case in cases))
        clusters = tuple(dict.fromkeys(case.hardware for case in cases))
        about = {"simpar": simpar.__version__, "revision": REVISION, "source": self.source, "runs": self.runs.count,
                 "models": list(self.runs.models), "median_error_percent": self.errors()}  # fmt: skip
        if memory := self._memory():
            about["memory"] = memory
        document: dict[str, Any] = {LEARNED: about, "stacks": {}, "clusters": {}}
        several = len(clusters) > 1
        names = {base: f"{name}#{base_or_file(base, 'clusters', 'hardware')}" if several else name for base in clusters}
        for base in stacks:
            part = base_or_file(base, "stacks", "stack")
            own_runs = [own for on, called in names.items() for own in self.own_runs(base, on, called)]
            said = {"name": f"{name}#{part}" if len(stacks) > 1 else name, "learned_from": part,
                    "provenance": self._provenance(base), "own_runs": tuple(own_runs),
                    "measured": self._measured(base, names)}  # fmt: skip
            document["stacks"][part] = as_written(change_stack(base, {**values["stack"].get(base, {}), **said}))
        for base in clusters:
            part = base_or_file(base, "clusters", "hardware")
            said = {"name": names[base], "provenance": self._provenance(base)}
            document["clusters"][part] = as_written(_cluster(base, values).model_copy(update=said))
        return yaml_text(document)

    def _provenance(self, base: str) -> str:
        errors, runs, memory = self.errors(), self.runs, ""
        if result := self._memory():
            peaks = result["median_error_percent"]
            memory = f"of peak memory {peaks['before']:.1f} % before, {peaks['left_out']:.1f} % where left out; "
        return (
            f"learnt by simpar learn from {runs.count} run(s) of {self.source} ({', '.join(runs.models)}); median "
            f"absolute error of step time {errors['before']:.1f} % before, {errors['left_out']:.1f} % where left out; "
            f"{memory}before that the profile {base}"
        )


def base_or_file(base: str, kind: str, what: str) -> str:
    """The name of a learnt profile in its file: the shipped profile that it derives from, or the user's file."""
    return base_name(base, kind, what) or Path(base).name.partition(".")[0]


def _cluster(name: str, values: Mapping[str, Mapping[str, Mapping[str, float]]]) -> ClusterProfile:
    """A cluster with its device, both with their learnt parameters."""
    cluster = load_cluster(name)
    device, profile = cluster.device, cluster.profile
    kernels = {**device.kernels, **values["device"].get(device.name, {})}
    for key, value in values["cluster"].get(name, {}).items():
        profile = replace_field(profile, key.split("."), value)
    return profile.model_copy(update={"device": device.model_copy(update={"kernels": kernels})})


@refuses_unknown_keywords
def learn(*runs: str | Path, stack: str | None = None, hardware: str | None = None) -> Answer:
    """A stack and a cluster profile adapted to measured runs: tables of them, or folders of ``simpar run``.

    ``stack`` and ``hardware`` are the profiles of all runs; without them every row names its own. ``save`` of the
    answer writes the file that takes the place of a stack's and a cluster's name. Raises UserError for input that
    cannot be used.
    """
    paths = tuple(map(str, runs))
    measured = runs_of(paths, ProfileOverrides(stack, hardware))
    names = ", ".join(Path(path).name for path in paths)
    return Answer(names, measured, most_probable_of(measured.layouts), learn_memory(measured.layouts))


def _traits(run: Observed) -> Traits:
    """The traits that decide how well a layout is known, under the name that its stack will have."""
    cluster = cluster_of(run.case)
    traits = traits_of(job_of(run.case, cluster), cluster, cluster.device.name)
    return replace(traits, stack=base_or_file(run.case.stack, "stacks", "stack"))


def _root_mean_square(values: Sequence[float]) -> float:
    return _rounded(float(np.sqrt(np.mean(np.square(values)))))


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def _named(learned: Learned) -> tuple[tuple[str, Floats], ...]:
    """Errors of runs by stage: before, after, and left out."""
    return ("before", learned.before), ("after", learned.after), ("left_out", learned.left_out)


def _changes(learned: Learned) -> list[dict[str, Any]]:
    """Parameters that moved, in the order of their names."""
    prior, values = learned.prior, learned.values
    return [
        {
            "kind": kind,
            "profile": profile,
            "parameter": key,
            "was": float(prior.values[at]),
            "is": float(values[at]),
            "spreads": round(float((values[at] - prior.values[at]) / prior.spread[at]), 2),
        }
        for at, (kind, profile, key) in enumerate(prior.names)
        if values[at] != prior.values[at]
    ]


def _ends(learned: Learned) -> list[str]:
    """A line for every parameter that moved far, to the end of what it can be: runs that want more of it than that."""
    prior, values = learned.prior, learned.values
    spreads = np.abs((values - prior.values) / prior.spread)
    return [
        f"{profile} {key} = {values[at]:.4g} is the {'least' if values[at] <= prior.low[at] else 'most'} that it can "
        f"be (it was {prior.values[at]:.4g}): these runs ask for more, for a reason that no parameter has; do not "
        "rely on this file for other layouts"
        for at, (_, profile, key) in enumerate(prior.names)
        if AT_END < spreads[at] <= IMPROBABLE and (values[at] <= prior.low[at] or values[at] >= prior.high[at])
    ]


def _error_percent(error: float) -> float:
    """Predicted over measured minus one, in percent, from log(measured / predicted)."""
    return round(100.0 * float(np.expm1(-error)), 2)


def _median_percent(errors: Floats) -> float:
    """The median of absolute errors, in percent."""
    return round(100.0 * float(np.median(np.abs(np.expm1(-errors)))), 2)


def _percent_or_none(value: float | None) -> float | None:
    return None if value is None else round(100.0 * value, 2)
