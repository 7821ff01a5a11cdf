"""The explanation as one self-contained page: both timelines above each other, parts, changes, ranks."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from simpar.diagnosis.answer import Explanation, mean_axes
from simpar.diagnosis.changes import Changes
from simpar.diagnosis.classes import OPTIMIZER
from simpar.diagnosis.kinds import TRACE, files_of, kind_of
from simpar.diagnosis.terminal import axis_cells, collective_rows, headline, longer, sentences, words_of
from simpar.diagnosis.timeline import MOST_ROWS, choose_shown_ranks, make_measured_series
from simpar.errors import UserError
from simpar.files import write_atomic
from simpar.report.html import environment, fill_template
from simpar.report.html.data import series as predicted_series
from simpar.report.palette import PART_COLOUR
from simpar.units import format_seconds

FOLDER = Path(__file__).parent / "html"
CLASS_COLOUR = {
    "gemm": "#4477AA", "attention": "#228833", "norm": "#66CCEE", "elementwise": "#CCBB44", "cast": "#CC99BB",
    "routing": "#999933", "embedding": "#44AA99", "loss": "#882255", "copy": "#DDCC77", "memset": "#DDDDDD",
    OPTIMIZER: PART_COLOUR["optimizer"], "host": "#777777", "other": "#999999",
}  # fmt: skip
"""Colours of classes of kernels; the user's own classes get OTHER_COLOUR."""
OTHER_COLOUR = "#332288"
UNSAID = "#777777"
MOST_CLASSES = 12
LEAST_SHOWN = 0.005
"""Parts below this share of the step are not listed on their own."""


def require_traces(measured: Sequence[str | Path]) -> None:
    """Refuse a page of files without a profiler trace. Raises UserError."""
    kinds = [kind_of(file) for path in measured for file in files_of(path)]
    if TRACE not in kinds:
        raise UserError(
            f"--html: the page draws when kernels ran, which profiler traces tell; {measured[0]} is of kind "
            f"{kinds[0]}; without --html its answer is printed"
        )


def save_page(explanation: Explanation, path: str | Path) -> None:
    """Write the page atomically; equal explanations give equal bytes."""
    write_atomic(path, render(explanation))


def render(explanation: Explanation) -> str:
    """The page as text."""
    return fill_template(environment(FOLDER).get_template("explained.html.j2"), page_data(explanation))


def page_data(explanation: Explanation) -> dict[str, Any]:
    """The content of the template: numbers in words, series for the scripts."""
    measured, against, changes = explanation.traced, explanation.against, explanation.changes
    rows = list(_parts(explanation))
    data = make_measured_series(measured, colour_of)
    legend = [(kind["name"], kind["colour"]) for kind in data["kinds"]]
    if against is not None:
        predicted = predicted_series(against.result)
        data = _stacked(data, predicted)
        legend += [(f"{name}, predicted", colour) for colour, name in _passes(predicted).items()]
    drawn = len(choose_shown_ranks(measured))
    return {
        "title": headline(measured),
        "figures": list(_figures(explanation)),
        "fits": True,
        "lines": list(sentences(explanation)),
        "predicted": against is not None,
        "parts": rows,
        "gains": [] if changes is None else list(_gains(changes)),
        "refused": [] if changes is None else [vars(each) for each in changes.gains if each.refused],
        "fitted": "" if changes is None else _fitted(changes),
        "legend": legend,
        "drawn": f"{drawn} of {len(measured.ranks)} ranks are drawn." if drawn < len(measured.ranks) else "",
        "series": data,
        "axes": [(axis, *axis_cells(use)) for axis, use in mean_axes(measured.ranks).items()],
        "collectives": collective_rows(measured),
        "ranks": [
            {
                "name": f"rank {each.rank}",
                "step": format_seconds(each.step_time_s),
                "bars": [
                    _bar(words_of(cause), PART_COLOUR.get(cause, UNSAID), seconds, each.step_time_s)
                    for cause, seconds in each.causes_s.items()
                ],
            }
            for each in measured.ranks
        ],
    }


def colour_of(name: str) -> str:
    """The colour of a class of kernels."""
    return CLASS_COLOUR.get(name, OTHER_COLOUR)


def _figures(explanation: Explanation) -> Iterator[dict[str, str]]:
    measured = explanation.traced
    yield {"name": "measured step", "value": format_seconds(measured.step_time_s), "detail": ""}
    if explanation.against is not None:
        predicted_s = explanation.against.result.step_time_s
        off = f"measured {measured.step_time_s / predicted_s - 1:+.1%}"
        yield {"name": "predicted step", "value": format_seconds(predicted_s), "detail": off}
    means = measured.mean_s()
    step_s = sum(means.values())
    for name in ("compute", "waiting", "bubble", "host"):
        if means.get(name, 0.0) > LEAST_SHOWN * step_s:
            share = f"{means[name] / step_s:.1%} of the step"
            yield {"name": words_of(name), "value": format_seconds(means[name]), "detail": share}


def _bar(name: str, colour: str, seconds: float, whole_s: float) -> dict[str, Any]:
    share = seconds / whole_s
    return {
        "name": name,
        "colour": colour,
        "share": min(share, 1.0),
        "text": f"{format_seconds(seconds)} ({share:.1%})",
    }


def _parts(explanation: Explanation) -> Iterator[dict[str, Any]]:
    """Rows of causes, and of classes of kernels inside compute."""
    measured, against = explanation.traced, explanation.against
    causes, classes = measured.mean_s(), measured.mean_s("classes_s")
    step_s = sum(causes.values())
    should = ({}, {}) if against is None else (against.causes_s, against.classes_s)
    whole_s = max(step_s, *(sum(each.values()) for each in should[:1]))

    def row(name: str, was: float, meant: float, colour: str, *, inner: bool = False) -> dict[str, Any]:
        return {
            "name": name, "inner": inner, "measured": format_seconds(was), "predicted": format_seconds(meant),
            "more": longer(was, meant),
            "bar": _bar(name, colour, was, whole_s), "should": _bar(f"{name} predicted", colour, meant, whole_s),
        }  # fmt: skip

    for cause in {**causes, **should[0]}:
        colour = PART_COLOUR.get(cause, UNSAID)
        yield row(words_of(cause), causes.get(cause, 0.0), should[0].get(cause, 0.0), colour)
        if cause == "compute":
            names = [name for name in {**classes, **should[1]} if name != OPTIMIZER]
            for name in sorted(names, key=lambda one: -max(classes.get(one, 0.0), should[1].get(one, 0.0)))[
                :MOST_CLASSES
            ]:
                yield row(name, classes.get(name, 0.0), should[1].get(name, 0.0), colour_of(name), inner=True)


def _fitted(changes: Changes) -> str:
    fitted = changes.fitted
    steps = f"{format_seconds(fitted.before_s)} predicted before, {format_seconds(fitted.after_s)} after"
    remarks = (f"{line[0].upper()}{line[1:]}." for line in changes.remarks)
    return " ".join([f"Simulated on profiles fitted to this run: {steps}.", *remarks])


def _gains(changes: Changes) -> Iterator[dict[str, Any]]:
    for each in changes.gains:
        if each.gain_s is None or each.interval_s is None or each.step_time_s is None:
            continue
        low, high = (f"{'-' * (s < 0)}{format_seconds(abs(s))}" for s in each.interval_s)
        yield {
            "change": each.change,
            "gain": f"{'undecided, ' * each.undecided}{'-' * (each.gain_s < 0)}{format_seconds(abs(each.gain_s))}",
            "interval": f"{low} to {high}",
            "step": format_seconds(each.step_time_s),
            "fits": each.fits,
            "sure": each.verdict,
            "why": each.not_with,
            "verdict": "undecided" if each.undecided else "faster" if each.gain_s > 0 else "slower",
        }


def _stacked(measured: dict[str, Any], predicted: dict[str, Any]) -> dict[str, Any]:
    """Rows of both, measured ones on top, on one time axis."""
    shift = len(measured["kinds"])
    stages = [
        {
            **stage,
            "name": stage["name"].replace("stage", "predicted"),
            "memory": None,
            "blocks": stage["blocks"] | {"kind": [kind + shift for kind in stage["blocks"]["kind"]]},
        }
        for stage in _spread(predicted["stages"])
    ]
    return {
        **measured,
        "step_ns": max(measured["step_ns"], predicted["step_ns"]),
        "kinds": [*measured["kinds"], *predicted["kinds"]],
        "stages": [*measured["stages"], *stages],
    }


def _passes(predicted: Mapping[str, Any]) -> dict[str, str]:
    """Names of the predicted passes by colour, for those that are drawn."""
    kinds = predicted["kinds"]
    used = sorted({kind for stage in predicted["stages"] for kind in stage["blocks"]["kind"]})
    result: dict[str, str] = {}
    for kind in used:
        if kinds[kind]["lane"] == 0:
            result.setdefault(kinds[kind]["colour"], kinds[kind]["name"])
    return result


def _spread(stages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """At most MOST_ROWS rows, evenly chosen."""
    at = np.unique(np.linspace(0, len(stages) - 1, min(len(stages), MOST_ROWS)).astype(np.int64))
    return [stages[each] for each in at.tolist()]
