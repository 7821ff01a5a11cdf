"""Hardware by the names that people say."""

import pytest

from simpar import files
from simpar.hardware.catalogue import load_cluster


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("H100", "dgx-h100"), ("h100-sxm", "dgx-h100"), ("a100", "dgx-a100-80gb"), ("4090", "rtx-4090-8"),
        ("rtx4090", "rtx-4090-8"), ("p5.48xlarge", "aws-p5"), ("p4d", "aws-p4d"), ("a3-megagpu-8g", "gcp-a3-mega"),
        ("ND H100 v5", "dgx-h100"), ("DGX A100", "dgx-a100-80gb"), ("8xH100", "dgx-h100"), ("gb200", "gb200-nvl72"),
    ],
)  # fmt: skip
def test_names_that_people_say(said: str, name: str) -> None:
    """The profile that each means."""
    assert load_cluster(said).profile.name == name


def test_every_alias_is_one_shipped_profile() -> None:
    """None names what is not there, and none is written twice."""
    table = files.load(next(iter(files.bundled("clusters").values())).parent.parent / "aliases.yaml").data["clusters"]
    names = [name for listed in table.values() for name in listed]
    assert set(table) <= set(files.bundled("clusters"))
    assert len(names) == len(set(names))
