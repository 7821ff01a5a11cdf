"""Intervals of fitted constants: what they are of, that they hold the values, that they are shown."""

import json

import pytest

from simpar import cli
from simpar.files import bundled
from simpar.hardware.catalogue import load_cluster
from simpar.hardware.device import load_device
from simpar.hardware.intervals import FILE, interval_of
from simpar.stacks.stack import load_stack

KNOWN = json.loads(FILE.read_text())
PROFILES = {"clusters": lambda name: load_cluster(name).profile, "devices": load_device, "stacks": load_stack}


def value_of(kind: str, profile: str, name: str) -> float:
    """The constant that a dotted name stands for, through sections and mappings."""
    found = PROFILES[kind](profile)
    for part in name.split("."):
        found = found[part] if isinstance(found, dict) else getattr(found, part)
    return float(found)


@pytest.mark.parametrize("kind", sorted(PROFILES))
def test_intervals_hold_the_values_of_shipped_profiles(kind):
    """Each names a constant that is there, and has room on both sides of it unless it ends where the meaning does."""
    assert KNOWN[kind].keys() <= bundled(kind).keys()
    for profile, values in KNOWN[kind].items():
        for name, (low, high) in values.items():
            value = value_of(kind, profile, name)
            assert low * 0.99 <= value <= high * 1.01, (profile, name)
            assert low < high, (profile, name)


def test_what_many_rows_tell_is_surer_than_what_few_do():
    """The share of NVLink on H100 (617 rows) within a tenth; that of AMD's links (4 rows) wider than it."""
    low, high = interval_of("clusters", "hgx-h100", "collectives.port_efficiency")
    few = interval_of("clusters", "mi300x-8", "collectives.port_efficiency")
    assert high / low < 1.1 < few[1] / few[0] * 1.1
    assert high / low < few[1] / few[0]
    assert interval_of("clusters", "hgx-h100", "collectives.no_such") is None
    assert interval_of("clusters", "no-such", "collectives.base_us") is None


def test_intervals_are_shown_where_the_constant_is_the_profile_s_own(tmp_path, capsys):
    """Through what it is like, and not for a value that a file of the user's says itself, under whatever name."""
    low, high = interval_of("clusters", "hgx-h100", "collectives.base_us")
    assert cli.run(["hardware", "show", "dgx-h100"]) == 0
    assert f" # like hgx-h100, {low:g} to {high:g}\n" in capsys.readouterr().out
    path = tmp_path / "hgx-h100.yaml"
    path.write_text("name: ours\nlike: dgx-h100\ncollectives:\n  base_us: 30\n")
    assert cli.run(["hardware", "show", str(path)]) == 0
    said = capsys.readouterr().out
    assert "  base_us: 30\n" in said
    assert "like hgx-h100, " in said
    clock = interval_of("devices", "h100-sxm-80gb", "kernels.sustained_clock")
    assert cli.run(["hardware", "show", "dgx-h100", "--device"]) == 0
    assert f"# {clock[0]:g} to {clock[1]:g}\n" in capsys.readouterr().out
