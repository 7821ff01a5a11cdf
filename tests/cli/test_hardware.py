"""``simpar hardware show``: what a profile holds, and the price behind its dollars."""

from __future__ import annotations

from pathlib import Path

import pytest

from simpar import cli
from simpar.files import bundled


@pytest.mark.parametrize(
    ("profile", "said"),
    [
        ("dgx-h100", "# price: 2.9 USD/h of h100-sxm-80gb (on-demand survey, May 2026); price_per_device_hour here"),
        ("gb200-nvl72", "# price: not known (price_per_device_hour here, or --price-per-gpu-hour, sets one)"),
        ("like: dgx-h100\ndevice: {name: h100-94, memory_bytes: 94 GiB}", "# price: 2.9 USD/h of h100-94; "),
        ("like: dgx-h100\nprice_per_device_hour: 2.10 USD/h", "price_per_device_hour: 2.10 USD/h"),
    ],
)
def test_the_price_is_shown(profile: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of the device where the profile has none of its own; a comment, so that the text stays a profile."""
    name = profile
    if profile not in bundled("clusters"):
        (tmp_path / "ours.yaml").write_text(f"name: ours\n{profile}\n")
        name = str(tmp_path / "ours.yaml")
    assert cli.run(["hardware", "show", name]) == 0
    shown = capsys.readouterr().out
    assert said in shown
    assert shown.count("# price: ") == (not said.startswith("price_"))
    (tmp_path / "shown.yaml").write_text(shown)
    assert cli.run(["hardware", "show", str(tmp_path / "shown.yaml")]) == 0
