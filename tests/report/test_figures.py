"""Figures: bytes that are the same each time, without pyplot."""

import subprocess
import sys

from simpar.report.figures import canvas, render_figure


def drawn():
    """A line in a panel."""
    figure, axes = canvas(3.0)
    axes.plot([0, 1], [1, 0])
    return figure


def test_the_same_figure_is_the_same_bytes():
    """As SVG and as PNG: neither holds the time, or names that are drawn by chance."""
    for suffix, begins in (("svg", b"<?xml"), ("png", b"\x89PNG")):
        first = render_figure(drawn(), suffix)
        assert first.startswith(begins)
        assert first == render_figure(drawn(), suffix)


def test_nothing_global_is_touched():
    """A figure is made and written without pyplot, which keeps every figure and looks for a display."""
    code = (
        "import sys; from simpar.report.figures import canvas, render_figure; render_figure(canvas(3.0)[0], 'svg'); "
        "print('matplotlib.pyplot' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "False"
