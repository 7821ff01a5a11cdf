"""What was learnt, in numbers and as one file of profiles with its provenance."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from simpar.hardware.catalogue import load_cluster
from simpar.hardware.profile import ClusterProfile
from simpar.learn.fit import Learned, Observed
from simpar.learn.fit import learn as most_probable_of
from simpar.learn.runs import Runs, runs_of
from simpar.profiles import LEARNED, REVISION, as_written, base_name, yaml_text
from simpar.report.certainty import runs_on, step_time_error, traits_of
from simpar.report.layouts import layout_of, shares_of
from simpar.uncertainty.own_runs import MeasuredLayout, OwnRuns
from simpar.uncertainty.support import Traits
from simpar.units import Floats
from simpar.validate.chosen import Chosen
from simpar.validate.predict import changed, changed_stack, cluster_of, job_of, result_of

UNEXPLAINED = 0.05
"""An error that stays beyond this is said: no parameter that was learnt explains it."""


@dataclass(frozen=True)
class Answer:
    """What measured runs taught: the files they are from, the runs, and the parameters under them."""

    source: str
    runs: Runs
    learned: Learned

    def to_dict(self) -> dict[str, Any]:
        """The JSON of ``simpar learn``: changes, runs and errors, in SI and percent."""
        return {
            "source": self.source,
            "runs": self.runs.count,
            "layouts": len(self.runs.layouts),
            "models": list(self.runs.models),
            "repeats_spread_percent": _percent_or_none(self.runs.repeats_spread),
            "median_error_percent": self.errors(),
            "half_interval_percent": self.half_intervals(),
            "changes": self.changes(),
            "runs_detail": [self._detail(at, run) for at, run in enumerate(self.runs.layouts)],
            "remarks": list(self.runs.remarks),
        }

    def errors(self) -> dict[str, float]:
        """Median absolute errors of step time in percent: before, after, and of runs that were left out."""
        found = self.learned
        return {
            name: round(float(np.median(np.abs(_error_percent(each)))), 2)
            for name, each in (("before", found.before), ("after", found.after), ("left_out", found.left_out))
        }

    def half_intervals(self) -> dict[str, float]:
        """Half of what nine of ten layouts like these should lie in, before and after, in percent (the median).

        As of their predictions: see :mod:`simpar.report.certainty`.
        """
        before, after = [], []
        for run in self.runs.layouts:
            cluster = cluster_of(run.case)
            known = runs_on(changed_stack(run.case.stack, {}), cluster.profile.name)
            traits = _traits(run)
            before.append(step_time_error(traits, known).half_width)
            after.append(step_time_error(traits, self.own_runs(run.case.stack, run.case.hardware)).half_width)
        return {
            name: round(100 * float(np.median(each)), 1)
            for name, each in (("before", before), ("after", after))
        }

    def own_runs(self, stack: str, hardware: str, cluster: str = "") -> tuple[OwnRuns, ...]:
        """What the layouts on a stack and hardware show of others like them, on what is learnt as ``cluster``."""
        alike: dict[Traits, list[float]] = defaultdict(list)
        for run, error in zip(self.runs.layouts, self.learned.left_out.tolist(), strict=True):
            if (run.case.stack, run.case.hardware) == (stack, hardware):
                alike[_traits(run)].append(error)
        return tuple(
            OwnRuns(cluster=cluster, traits=traits, layouts=len(errors), error=_root_mean_square(errors))
            for traits, errors in alike.items()
        )

    def _measured(self, stack: str, names: Mapping[str, str]) -> tuple[MeasuredLayout, ...]:
        """The layouts on a stack, on the clusters that are learnt under some names."""
        found = []
        for run, error in zip(self.runs.layouts, self.learned.after.tolist(), strict=True):
            if run.case.stack == stack:
                result = result_of(run.case, self.learned.tuning)
                shares = {part: _rounded(share) for part, share in shares_of(result).items()}
                found.append(
                    MeasuredLayout(
                        cluster=names[run.case.hardware],
                        layout=layout_of(result),
                        label=run.label,
                        shares=shares,
                        step_time_s=_rounded(run.time_s),
                        error=_rounded(error),
                    )
                )
        return tuple(found)

    def changes(self) -> list[dict[str, Any]]:
        """Parameters that moved, the farthest first; ``spreads`` is how far in what shipped profiles differ by."""
        prior, values = self.learned.prior, self.learned.values
        moved = np.abs(values - prior.values) / prior.spread
        return [
            {
                "kind": prior.names[at][0],
                "profile": prior.names[at][1],
                "parameter": prior.names[at][2],
                "was": float(prior.values[at]),
                "is": float(values[at]),
                "spreads": round(float((values[at] - prior.values[at]) / prior.spread[at]), 2),
            }
            for at in np.argsort(-moved).tolist()
            if moved[at] > 0
        ]

    def _detail(self, at: int, run: Observed) -> dict[str, Any]:
        errors = {
            name: round(float(_error_percent(each[at])), 2)
            for name, each in (
                ("before", self.learned.before), ("after", self.learned.after), ("left_out", self.learned.left_out),
            )
        }  # fmt: skip
        return {
            "rows": list(run.rows),
            "label": run.label,
            "measured_step_time_s": run.time_s,
            "error_percent": errors,
            "explained": abs(float(self.learned.after[at])) <= UNEXPLAINED,
        }

    def to_yaml(self, name: str) -> str:
        """The file of learnt profiles, called ``name``: provenance, then stacks and clusters by what they were."""
        import simpar

        values: dict[str, dict[str, dict[str, float]]] = {"device": {}, "stack": {}, "cluster": {}}
        for change in self.changes():
            values[change["kind"]].setdefault(change["profile"], {})[change["parameter"]] = change["is"]
        cases = [run.case for run in self.runs.layouts]
        stacks = tuple(dict.fromkeys(case.stack for case in cases))
        clusters = tuple(dict.fromkeys(case.hardware for case in cases))
        about = {"simpar": simpar.__version__, "revision": REVISION, "source": self.source, "runs": self.runs.count,
                 "models": list(self.runs.models), "median_error_percent": self.errors()}  # fmt: skip
        document: dict[str, Any] = {LEARNED: about, "stacks": {}, "clusters": {}}
        several = len(clusters) > 1
        names = {
            base: f"{name}#{base_or_file(base, 'clusters', 'hardware')}" if several else name
            for base in clusters
        }
        for base in stacks:
            part = base_or_file(base, "stacks", "stack")
            own_runs = [own for on, called in names.items() for own in self.own_runs(base, on, called)]
            said = {"name": f"{name}#{part}" if len(stacks) > 1 else name, "learned_from": part,
                    "provenance": self._provenance(base), "own_runs": tuple(own_runs),
                    "measured": self._measured(base, names)}  # fmt: skip
            document["stacks"][part] = as_written(
                changed_stack(base, {**values["stack"].get(base, {}), **said})
            )
        for base in clusters:
            part = base_or_file(base, "clusters", "hardware")
            said = {"name": names[base], "provenance": self._provenance(base)}
            document["clusters"][part] = as_written(_cluster(base, values).model_copy(update=said))
        return yaml_text(document)

    def _provenance(self, base: str) -> str:
        errors, runs = self.errors(), self.runs
        return (
            f"learnt by simpar learn from {runs.count} run(s) of {self.source} ({', '.join(runs.models)}); median "
            f"absolute error of step time {errors['before']:.1f} % before, {errors['left_out']:.1f} % where left out; "
            f"before that the profile {base}"
        )


def base_or_file(base: str, kind: str, what: str) -> str:
    """What a learnt profile is called in its file: the shipped profile that it goes back to, or the user's file."""
    return base_name(base, kind, what) or Path(base).name.partition(".")[0]


def _cluster(name: str, values: Mapping[str, Mapping[str, Mapping[str, float]]]) -> ClusterProfile:
    """A cluster with its device inside, both with what was learnt of them."""
    cluster = load_cluster(name)
    device, profile = cluster.device, cluster.profile
    kernels = {**device.kernels, **values["device"].get(device.name, {})}
    for key, value in values["cluster"].get(name, {}).items():
        profile = changed(profile, key.split("."), value)
    return profile.model_copy(update={"device": device.model_copy(update={"kernels": kernels})})


def learn(*paths: str, stack: str | None = None, hardware: str | None = None) -> Answer:
    """Learn from tables of runs and folders of simpar run, all on a stack and hardware where they are given.

    Raises UserError.
    """
    runs = runs_of(paths, Chosen(stack, hardware))
    return Answer(", ".join(Path(path).name for path in paths), runs, most_probable_of(runs.layouts))


def _traits(run: Observed) -> Traits:
    """What decides how well a layout is known, by the name that its stack will be known as."""
    cluster = cluster_of(run.case)
    traits = traits_of(job_of(run.case, cluster), cluster, cluster.device.name)
    return replace(traits, stack=base_or_file(run.case.stack, "stacks", "stack"))


def _root_mean_square(values: Sequence[float]) -> float:
    return _rounded(float(np.sqrt(np.mean(np.square(values)))))


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def _error_percent(error: Floats | float) -> Floats:
    """Predicted over measured less one, in percent, of log(measured / predicted)."""
    return np.asarray(100.0 * np.expm1(-np.asarray(error)))


def _percent_or_none(value: float | None) -> float | None:
    return None if value is None else round(100.0 * value, 2)
