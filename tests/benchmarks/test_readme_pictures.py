"""The pictures that README.md shows are those that are drawn today."""

import pytest

from benchmarks.readme_pictures import FOLDER, KINDS, drawn
from simpar.report.figures import written_in
from simpar.report.plots import plot


@pytest.mark.slow  # figures change with every calibration, and pictures are drawn anew before a release
def test_what_is_written_in_them_is_what_is_drawn():
    """Titles with their figures, labels and legends: `python benchmarks/readme_pictures.py` renews them."""
    from PIL import Image

    result = drawn()
    for kind in KINDS:
        assert Image.open(FOLDER / f"{kind}.png").text["Description"] == written_in(plot(result, kind))
