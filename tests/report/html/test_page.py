"""The page as text: self-contained, the same bytes for the same result, harmless whatever the names are."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from simpar.report.html import render, save_report
from simpar.report.html.data import HATCHED, _figure, page_data
from simpar.report.palette import tint
from simpar.report.parts import Trial, Why
from simpar.report.timeline import IDLE_CAUSES, IdleSpans
from simpar.scenario import Published
from simpar.units import GIB, KIB, NS_PER_S

HOSTILE = "</script><script>document.title='owned'</script>"


@pytest.fixture(scope="module")
def tried(result):
    """The result with three trials: one fits and gains, one is too large, one cannot be."""
    trials = (
        Trial(change="--vpp 2", step_time_s=0.9 * result.step_time_s, mfu=0.45, peak_reserved_bytes=9 * GIB, fits=True),
        Trial(change="--zero 1", step_time_s=0.5 * result.step_time_s, mfu=0.8, peak_reserved_bytes=99 * GIB),
        Trial(change="--tp 3", refused="plan.tp = 3: does not divide"),
    )
    why = Why(binds=("compute takes most",), critical_path_s={"forward": 0.01, "pp": 0.002}, trials=trials)
    return replace(result, why=why)


def test_the_page_needs_nothing_from_outside(tried):
    """No address, no external script, style, font or image; and a policy that forbids them."""
    text = render(tried)
    assert not re.findall(r"""(?:src|href)=["'](?!#|data:)""", text)
    assert "http" not in text.replace("http-equiv", "")
    assert "default-src 'none'" in text
    assert "@import" not in text


def test_the_same_result_gives_the_same_bytes(tried, tmp_path):
    """No clock, no random ids."""
    for name in ("a.html", "b.html"):
        save_report(tried, tmp_path / name)
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_names_are_only_ever_text(result):
    """A model whose name is a script does not become one."""
    setup = result.setup.model_copy(update={"model": {"name": HOSTILE, "parameters": 1}})
    text = render(replace(result, setup=setup))
    assert HOSTILE not in text
    assert text.count("<script") == render(result).count("<script")


def test_series_hold_every_block_and_every_byte(result):
    """Starts are running sums in ns, memory parts in KiB; constant parts are one number."""
    series = page_data(result)["series"]
    for shown, stage in zip(series["stages"], result.overview.stages, strict=True):
        columns = shown["blocks"]
        assert len(columns["start"]) == len(stage.blocks)
        assert sum(columns["start"]) == round(float(stage.blocks.start_s.max()) * NS_PER_S)
        assert sum(columns["duration"]) == round(float(stage.blocks.duration_s.sum()) * NS_PER_S)
        parts = shown["memory"]["parts"]
        at_peak = max(
            sum(part if isinstance(part, int) else part[i] for part in parts)
            for i in range(len(shown["memory"]["time"]))
        )
        assert at_peak * KIB == pytest.approx(stage.memory.total_bytes.max())


def test_bars_are_shares_of_the_step_and_of_the_device(result):
    """Parts of the critical rank and of every stage add up to the step; memory bars to the peak."""
    page = page_data(result)
    assert sum(bar["share"] for bar in page["breakdown"]) == pytest.approx(1)
    for row in page["stage_bars"]:
        assert sum(bar["share"] for bar in row["bars"]) == pytest.approx(1)
    for row, stage in zip(page["memory"]["stages"], result.memory.stages, strict=True):
        whole = max(result.memory.capacity_bytes, result.memory.peak_reserved_bytes)
        assert sum(bar["share"] for bar in row["bars"]) == pytest.approx(stage.peak_bytes / whole)


def test_trials_say_what_they_gain_and_whether_they_fit(tried):
    """A gain is a negative share of the step; what cannot be is listed with its reason."""
    page = page_data(tried)
    assert [(row["change"], row["gain"], row["fits"], row["shown"]) for row in page["trials"]] == [
        ("--vpp 2", "-10.0%", True, True), ("--zero 1", "-50.0%", False, True),
    ]  # fmt: skip
    assert page["refused"][0]["refused"] == "plan.tp = 3: does not divide"
    assert "does not fit" in render(tried)


def test_published_figures_stand_beside_the_prediction(result):
    """With the error in percent and the source."""
    text = render(result.with_published(Published(source="A paper, table 1", mfu=0.5)))
    assert "A paper, table 1" in text
    assert "-18.0%" in text  # 0.41 against 0.5


def test_a_result_without_timeline_still_makes_a_page(result):
    """Tables remain; no empty canvas is left behind."""
    text = render(replace(result, overview=None, timeline=None))
    assert "<canvas" not in text
    assert "Where the step goes" in text


def test_the_plan_can_be_taken_along(result):
    """The page offers the plan as a file."""
    from urllib.parse import unquote

    address = re.search(r'download="plan.json" href="data:application/json;charset=utf-8,([^"]*)"', render(result))
    assert json.loads(unquote(address.group(1))) == result.setup.plan


def test_the_legend_shows_idle_time_as_it_is_drawn(result):
    """Bubbles are hatched, exposed communication is a tint of the colour of communication."""
    legend = dict(page_data(replace(result, overview=with_idle(result.overview)))["legend"])
    assert legend["bubble"] == HATCHED
    assert legend["exposed communication"] == tint(legend["communication"])
    assert len(set(legend.values())) == len(legend)


def with_idle(view):
    """Every stage with a bubble and exposed communication."""
    codes = np.array([IDLE_CAUSES.index("bubble"), IDLE_CAUSES.index("exposed")])
    idle = IdleSpans(np.array([0.0, 0.1]), np.array([0.05, 0.05]), codes)
    return replace(view, stages=tuple(replace(stage, idle=idle) for stage in view.stages))


@pytest.mark.parametrize(
    ("value", "first", "detail"),
    [
        ("2.45 M (150 per device)", "2.45 M", "150 per device"),
        ("85 M (73 M to 108 M) at 2.90 USD (--flag sets it)", "85 M", "73 M to 108 M at 2.90 USD (--flag sets it)"),
        ("6.65 s", "6.65 s", ""),
    ],
)
def test_brackets_of_a_figure_close(value, first, detail):
    """What stands behind them is kept, with its own."""
    assert _figure("dollars", value) == {"name": "dollars", "value": first, "detail": detail}
