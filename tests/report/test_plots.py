"""Pictures: they can be drawn for every kind and size, and they say what they show."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from simpar.errors import UserError
from simpar.report.certainty import Certainty
from simpar.report.plots import KINDS_OF_PLOT, plot, plot_timelines, save_plot
from simpar.report.result import Result
from simpar.report.roofline_chart import spread
from simpar.units import GIB, format_bytes
from tests.gate import some

STARTS = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF", ".html": b"<!doctype html>"}
KINDS = sorted(KINDS_OF_PLOT)
GATE = [
    ("heatmap", ".png"), ("breakdown", ".html"), ("memory", ".svg"), ("timeline", ".pdf"), ("flame", ".svg"),
    ("roofline", ".pdf"),
]  # fmt: skip
"""Every kind and every format."""


@pytest.mark.parametrize(("kind", "suffix"), some(product(KINDS, STARTS), GATE, tuples=True))
def test_every_kind_is_drawn_in_every_format(result, tmp_path, kind, suffix):
    """Each suffix gives a file of its format."""
    path = tmp_path / f"p{suffix}"
    save_plot(result, kind, path)
    assert path.read_bytes().startswith(STARTS[suffix])


def test_a_page_needs_nothing_from_outside(result, tmp_path):
    """The HTML page has its picture inside and loads no script, font or style from elsewhere."""
    save_plot(result, "timeline", tmp_path / "p.html")
    text = (tmp_path / "p.html").read_text()
    assert "<svg" in text
    assert "<script" not in text
    assert 'src="http' not in text
    assert "<link" not in text


@pytest.mark.parametrize(
    ("kind", "suffix"), some(product(["breakdown", "timeline"], [".svg", ".pdf"]), [("breakdown", ".pdf")], tuples=True)
)
def test_the_same_result_draws_the_same_bytes(result, tmp_path, kind, suffix):
    """Pictures carry no date and no random ids."""
    first, second = (tmp_path / f"{name}{suffix}" for name in "ab")
    for path in (first, second):
        save_plot(result, kind, path)
    assert first.read_bytes() == second.read_bytes()


def test_an_unknown_suffix_or_kind_is_refused(result, tmp_path):
    """The message lists what is allowed."""
    with pytest.raises(UserError, match=r"\.png, \.svg, \.pdf, \.html"):
        save_plot(result, "timeline", tmp_path / "p.jpg")
    with pytest.raises(UserError, match="did you mean 'timeline'"):
        save_plot(result, "timelime", tmp_path / "p.png")


def test_a_result_without_timeline_says_how_to_get_one(result):
    """Plots over time need the timeline section."""
    data = result.to_dict() | {"timeline": None}
    with pytest.raises(UserError, match="--json"):
        plot(Result.from_dict(data), "timeline")


@pytest.mark.parametrize("kind", ["flame", "roofline"])
def test_a_result_of_an_older_version_is_simulated_again(result, kind):
    """Their files have neither memory by layer nor kernels."""
    older = replace(result, overview=replace(result.overview, held=None, roofline=None))
    with pytest.raises(UserError, match="simpar simulate --json"):
        plot(older, kind)


def test_boxes_of_the_flame_chart_are_as_wide_as_their_bytes(result):
    """The total, the categories and the parts each fill the row; a part lies under its category."""
    held = result.overview.held
    boxes = [patch for patch in plot(result, "flame").axes[0].patches if patch.get_width() > 0]
    rows = {row: [box for box in boxes if int(box.get_y() + box.get_height() / 2) == row] for row in range(3)}
    for row in rows.values():
        assert sum(box.get_width() for box in row) == pytest.approx(held.total_bytes / GIB)
    (activations,) = [box for box in rows[1] if box.get_width() == pytest.approx(15)]
    inside = [box for box in rows[2] if box.get_x() >= activations.get_x() - 1e-9]
    assert [box.get_width() for box in inside] == pytest.approx([8, 7])


def test_points_of_the_roofline_are_rates_over_densities(result):
    """6 TFLOP in 10 ms over 4 GB: 600 TFLOP/s at 1500 FLOP per byte, under a peak of 989."""
    axes = plot(result, "roofline").axes[0]
    points = [tuple(each.get_offsets()[0]) for each in axes.collections]
    assert points == [pytest.approx(each) for each in ((1500, 600), (1000, 600), (4000, 400))]
    assert max(axes.lines[0].get_ydata()) == pytest.approx(989)


def test_names_beside_a_chart_keep_their_distance():
    """Near what they name where there is room, evenly where there is none; always in order and inside."""
    assert spread([0.2, 0.5, 0.9], 0.1) == [0.2, 0.5, 0.9]
    crowded = spread([0.9, 0.9, 0.95, 0.99], 0.1)
    assert np.diff(crowded) == pytest.approx([0.1, 0.1, 0.1])
    assert crowded[-1] == pytest.approx(0.95)
    assert spread([0.5] * 20, 0.1) == pytest.approx([(place + 0.5) / 20 for place in range(20)])


@pytest.mark.parametrize("kind", ["flame", "roofline"])
def test_no_label_covers_another(result, kind):
    """As drawn, boxes of texts inside a panel and beside it are apart."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure = plot(result, kind)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    boxes = [
        text.get_window_extent(canvas.get_renderer())
        for axes in figure.axes
        for text in (*axes.texts, *axes.get_xticklabels(), *axes.get_yticklabels())
        if text.get_text() and text.get_visible()
    ]
    assert len(boxes) > 4
    assert not [(one, other) for at, one in enumerate(boxes) for other in boxes[:at] if one.overlaps(other)]


def test_labels_are_drawn_only_where_they_fit(timeline_of, result_of):
    """Wide blocks carry their microbatch, narrow ones none."""
    few = plot(result_of(timeline_of(2, 4)), "timeline").axes[0].texts
    many = plot(result_of(timeline_of(8, 256)), "timeline").axes[0].texts
    assert len(few) == 2 * 2 * 4
    assert not many


def test_one_panel_a_stage_and_the_capacity_in_each(timeline_of, result_of):
    """Memory panels: all stages up to 16, then a choice with the fullest among them."""
    small = plot(result_of(timeline_of(3, 4)), "memory")
    assert [axes.get_title(loc="left").split(":")[0] for axes in small.axes if axes.get_visible()][1:] == [
        "stage 1",
        "stage 2",
    ]
    large = plot(result_of(timeline_of(20, 4)), "memory")
    assert sum(axes.get_visible() for axes in large.axes) <= 16


def test_occupancy_of_a_heatmap_is_the_busy_share(result):
    """Averaged over time, the heat map's rows are the compute share of each stage."""
    image = plot(result, "heatmap").axes[0].images[0].get_array()
    blocks = result.overview.stages[0].blocks
    busy = blocks.of_kind("forward", "backward", "optimizer").duration_s.sum()
    assert float(image[0].mean()) == pytest.approx(busy / result.step_time_s, rel=1e-6)


def test_breakdown_bars_end_at_the_step_time(result):
    """The waterfall's last bar ends where the step ends."""
    bars = plot(result, "breakdown").axes[0].patches
    assert max(bar.get_x() + bar.get_width() for bar in bars) == pytest.approx(result.step_time_s / 1e-3)


def test_intervals_are_drawn_where_they_are_known(result):
    """An error bar from low to high in the breakdown, a band of reserved peaks over memory; neither without them."""
    step_s, peak = result.step_time_s, result.memory.peak_reserved_bytes
    known = Certainty(
        step_time_interval_s=(0.9 * step_s, 1.3 * step_s),
        reserved_memory_interval_bytes=(0.9 * peak, 1.2 * peak),
        fit_probability=0.61,
        support=1,
    )
    sure = replace(result, why=result.why.model_copy(update={"certainty": known}))
    (bar,) = plot(sure, "breakdown").axes[0].collections
    assert bar.get_segments()[0][:, 0] == pytest.approx([0.9 * step_s / 1e-3, 1.3 * step_s / 1e-3])
    figure = plot(sure, "memory")
    (band,) = [patch for axes in figure.axes for patch in axes.patches if patch.get_hatch()]
    assert band.get_y() == pytest.approx(0.9 * peak / GIB)
    assert band.get_height() == pytest.approx(0.3 * peak / GIB)
    assert figure.axes[0].get_ylim()[1] > 1.2 * peak / GIB
    [said] = [text.get_text() for text in figure.texts if "61 % sure" in text.get_text()]
    assert said.startswith(f"fits: {format_bytes(peak)} of ")
    assert said.endswith(f"peak in use {format_bytes(result.memory.peak_memory_bytes)}")
    bare = replace(result, why=result.why.model_copy(update={"certainty": None}))
    assert not plot(bare, "breakdown").axes[0].collections
    assert not [patch for axes in plot(bare, "memory").axes for patch in axes.patches if patch.get_hatch()]


@pytest.mark.parametrize("kind", ["timeline", "memory", "breakdown", "flame", "roofline"])
def test_results_draw_themselves(result, kind, tmp_path):
    """A method for every picture of one result, as vectors or pixels."""
    path = tmp_path / f"{kind}.svg"
    getattr(result, f"plot_{kind}")(path)
    assert path.read_text().startswith("<?xml")


def test_two_timelines_share_one_scale_of_time(result):
    """A step of half the length ends in the middle of the axis, whatever the other one takes."""
    view = result.overview
    short = replace(result, overview=replace(view, step_time_s=view.step_time_s / 2))
    upper, lower = plot_timelines({"A": result, "B": short}).axes
    assert upper.get_xlim() == lower.get_xlim()
    ends = [axes.lines[-1].get_xdata()[0] for axes in (upper, lower)]
    assert ends == pytest.approx([upper.get_xlim()[1], upper.get_xlim()[1] / 2])
    assert [axes.get_title(loc="left")[:2] for axes in (upper, lower)] == ["A:", "B:"]


def test_the_picture_of_memory_holds_what_the_curve_does(result):
    """Layers from zero to the total at every time; what never changes is two points, so that vectors stay small."""
    panel = plot(result, "memory").axes[0]
    curve = result.overview.stages[0].memory
    drawn = [each for each in panel.collections if hasattr(each, "get_paths") and len(each.get_paths()) == 1]
    layers = {name: drawn[at].get_paths()[0].vertices for at, name in enumerate(curve.parts)}
    top, flat = 0.0, True
    for name, vertices in layers.items():
        values = curve.parts[name] / GIB
        flat = flat and not np.ptp(values)
        assert vertices[:, 1].min() == pytest.approx(top if flat else vertices[:, 1].min())
        assert (len(vertices) <= 9) == (flat or len(values) <= 3)
        top += float(values.max())
    assert max(vertices[:, 1].max() for vertices in layers.values()) == pytest.approx(curve.total_bytes.max() / GIB)
