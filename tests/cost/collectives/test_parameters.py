"""Parameters: defaults, overrides, and keys that do not exist."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simpar.cost.collectives.parameters import PARAMETERS, parameters
from simpar.errors import UserError
from simpar.files import bundled
from simpar.hardware.catalogue import load_cluster

from .conftest import make_toy


def test_defaults_profile_state() -> None:
    """A profile overrides the defaults, the measured state of a cluster overrides its profile."""
    toy = make_toy(1, base_us=7.0)
    assert parameters(toy)["base_us"] == 7.0
    assert parameters(toy)["p2p_channels"] == PARAMETERS["p2p_channels"][0]
    assert parameters(replace(toy, state={"base_us": 9.0}))["base_us"] == 9.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"port_efficency": 0.5}, "unknown key collectives.port_efficency; did you mean 'port_efficiency'"),
        ({"port_efficiency": 0.0}, "collectives.port_efficiency = 0.0: must be greater than 0"),
        ({"base_us": -1.0}, "collectives.base_us = -1.0: must not be negative"),
    ],
)
def test_wrong_parameters_are_refused(change: dict[str, float], message: str) -> None:
    """A misspelt key or a value out of range is one line that names it."""
    with pytest.raises(UserError, match=message):
        parameters(make_toy(1, **change))


def test_every_parameter_is_explained() -> None:
    """Every parameter has a meaning and a default that the rules admit."""
    assert all(meaning and default >= 0 for default, meaning in PARAMETERS.values())


@pytest.mark.parametrize("name", sorted(bundled("clusters")))
def test_bundled_clusters_have_valid_parameters(name: str) -> None:
    """Every bundled profile uses known names, and shares of links are at most 1."""
    values = parameters(load_cluster(name, 1))
    assert all(values[key] <= 1 for key in values if key.endswith(("_efficiency", "_share", "_loss")))
    assert values["ll_efficiency"] < values["ll128_efficiency"] < 1
