"""Pictures of grids of searches: every cell says what its best plan takes, and how sure that is."""

import json
from pathlib import Path

import pytest

from simpar import cli
from simpar.errors import UserError
from simpar.formats import GRID, SWEEP
from simpar.plan.plan import Plan
from simpar.report.grid import load_grid, plot_grid, title_of

BEST = {
    "mfu": 0.5, "peak_reserved_bytes": 2.0**36, "plan": Plan().model_dump(mode="json"),
    "step_time_s": 2.0, "step_time_interval_s": [1.8, 2.5], "fit_probability": 0.97,
}  # fmt: skip


@pytest.fixture
def texts():
    """What stands in the cells of a grid with one best plan and one cell in which nothing fits."""

    def drawn(best):
        rows = [{"model": "m", "nodes": n, "parameters": 1e9, "best": plan} for n, plan in ((1, None), (2, best))]
        axes = plot_grid({"axes": ["model", "nodes"], "cells": rows, "title": "t"}).axes[0]
        return [text.get_text() for text in axes.texts]

    return drawn


def test_a_cell_says_how_far_its_step_may_be_off_and_how_surely_it_fits(texts):
    """Both in lines of their own."""
    assert texts(BEST) == ["nothing fits", "50%  64 GiB\n2.00 s \N{MINUS SIGN}10 +25%\n97 % sure to fit\n1 device\nmb1"]


def test_grids_of_versions_that_did_not_say_it_are_drawn_without(texts):
    """The rest is as it was."""
    known = {name: BEST[name] for name in ("mfu", "peak_reserved_bytes", "plan", "step_time_s")}
    assert texts(known)[1] == "50%  64 GiB\n1 device\nmb1"


def sweep_file(path, rows, keys=("tp", "micro_batch")):
    """A saved sweep: choices with the figures that it keeps, or why there are none."""
    figures = {key: BEST[key] for key in ("mfu", "peak_reserved_bytes", "step_time_s", "fit_probability")}
    listed = [
        {
            "choice": dict(zip(keys, choice, strict=True)),
            **({"refused": "no"} if fits is None else {**figures, "fits": fits}),
        }
        for choice, fits in rows
    ]
    path.write_text(json.dumps({SWEEP.key: SWEEP.version, "sweep": listed}))
    return path


def test_a_sweep_is_a_heat_map_with_the_line_behind_which_it_does_not_fit(tmp_path):
    """Cells that do not fit have no shade, refused ones say so, and the line runs between them and the rest."""
    rows = [((1, 1), False), ((1, 2), False), ((2, 1), True), ((2, 2), None)]
    axes = plot_grid(load_grid(sweep_file(tmp_path / "s.json", rows))).axes[0]
    texts = [text.get_text() for text in axes.texts]
    assert [text.splitlines()[0] for text in texts] == ["does not fit", "does not fit", "50%  64 GiB", "refused"]
    shades = axes.images[0].get_array()
    assert shades.mask.tolist() == [[True, True], [False, True]]
    lines = {tuple(map(tuple, line.get_xydata().tolist())) for line in axes.lines}
    assert lines == {((-0.5, 0.5), (0.5, 0.5)), ((0.5, 0.5), (0.5, 1.5))}
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("micro_batch", "tp")


def test_one_axis_is_one_row_and_three_show_the_best_of_those_between(tmp_path):
    """Nothing is laid over something else unsaid."""
    one = plot_grid(load_grid(sweep_file(tmp_path / "s.json", [((1,), True), ((2,), False)], keys=("tp",)))).axes[0]
    assert len(one.texts) == 2
    assert one.images[0].get_array().shape == (1, 2)
    cells = [
        {"model": "m", "nodes": 1, "seq": s, "parameters": 1e9, "best": {**BEST, "mfu": mfu}}
        for s, mfu in ((1, 0.4), (1, 0.2), (2, 0.3))
    ]
    grid = {"axes": ["model", "nodes", "seq"], "cells": cells, "title": "t"}
    figure = plot_grid(grid)
    assert [text.get_text()[:3] for text in figure.axes[0].texts] == ["40%", "30%"]
    assert "best over nodes" in figure.get_suptitle()
    assert title_of(grid) == "Best layout: t"  # of the page, which has every cell


def test_a_sweep_over_three_keys_is_refused(tmp_path):
    """A picture has two axes."""
    rows = sweep_file(tmp_path / "s.json", [((1, 1, 1), True)], keys=("tp", "pp", "zero"))
    with pytest.raises(UserError, match="allowed: one or two keys"):
        load_grid(rows)


def test_the_command_draws_both_kinds(tmp_path, capsys):
    """Without --kind, since there is one only."""
    path = sweep_file(tmp_path / "s.json", [((1, 1), True)])
    assert cli.run(["plot", str(path), "-o", str(tmp_path / "s.svg")]) == 0
    assert cli.run(["plot", str(path), "--kind", "memory", "-o", str(tmp_path / "s.svg")]) == 2
    assert "allowed: heatmap" in capsys.readouterr().err


def test_a_result_is_no_grid(result, tmp_path):
    """It shares the key of its version with sweeps."""
    result.save(tmp_path / "r.json")
    assert load_grid(tmp_path / "r.json") is None


def test_a_grid_is_a_page_with_all_its_cells(tmp_path, monkeypatch, capsys):
    """Of searches and of a sweep over any number of keys: figures and layout, or why there are none."""
    monkeypatch.chdir(tmp_path)
    cells = [
        {"model": "m", "nodes": n, "best": best, "reason": why} for n, best, why in ((1, None, "memory"), (2, BEST, ""))
    ]
    Path("grid.json").write_text(json.dumps({GRID.key: 1, "axes": ["model", "nodes"], "cells": cells, "title": "<t>"}))
    assert cli.run(["report", "grid.json"]) == 0
    page = Path("report.html").read_text()
    for words in (
        "Best layout: &lt;t&gt;",
        "nothing fits<small>memory",
        "50.0%",
        "64.0 GiB",
        "97 % sure",
        "1 device mb1",
    ):
        assert words in page
    rows = [((1, 1, 1), False), ((1, 2, 1), True), ((2, 1, 2), None)]
    sweep_file(tmp_path / "s.json", rows, keys=("tp", "micro_batch", "pp"))
    assert cli.run(["report", "s.json", "-o", "s.html"]) == 0
    page = Path("s.html").read_text()
    assert page.count("<tr") == 1 + len(rows)
    assert "does not fit" in page
    capsys.readouterr()
    assert cli.run(["report", "s.json", "--advise"]) == 2
    assert capsys.readouterr().err == "--advise: s.json is a grid; allowed: a search or a result\n"
    sweep_file(tmp_path / "s.json", [])
    assert cli.run(["report", "s.json"]) == 2
    assert capsys.readouterr().err == "s.json: is a sweep without a choice\n"
