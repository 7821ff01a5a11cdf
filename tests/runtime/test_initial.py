"""Initial values: any part of a tensor alone, the same as in the whole, and as random as they should be."""

import pytest

torch = pytest.importorskip("torch")

from simpar.runtime import initial  # noqa: E402
from simpar.runtime.initial import initial_value, mix_bits  # noqa: E402

NAME = "layers.0.o_proj.parts.0.weight"


def test_numbers_are_those_of_the_published_generator():
    """The first outputs of splitmix64 from state 1234567, as its authors' program prints them."""
    state = torch.arange(1, 4) * initial._signed(initial.GOLDEN) + 1234567
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert [int(each) % 2**64 for each in mix_bits(state)] == published


@pytest.mark.parametrize("name", [NAME, "layers.0.conv.weight", "layers.0.scan.decay", "layers.0.scan.step_bias"])
def test_parts_are_those_of_the_whole(name, monkeypatch):
    """Rows, columns or both, in chunks of any size: equal to the last bit."""
    shape = (24, 7, 10) if name == NAME else (24, 4) if "conv" in name else (24,)
    whole = initial_value(name, shape, 3)
    monkeypatch.setattr(initial, "CHUNK", 11)
    for rows in (slice(0, 24), slice(5, 9), slice(24, 24)):
        part = (rows, *(slice(2, size) for size in shape[1:]))
        assert torch.equal(initial_value(name, shape, 3, part=part), whole[part])


def test_a_part_costs_no_more_than_itself():
    """Six numbers out of a tensor of 4 TB."""
    part = (slice(2**19, 2**19 + 2), slice(5, 8))
    assert initial_value(NAME, (2**20, 2**20), 0, part=part).shape == (2, 3)


def test_matrices_are_normal():
    """Mean, deviation, skew, kurtosis, tails and neighbours of a quarter of a million numbers."""
    x = initial_value(NAME, (512, 512), 0).double().flatten() / 0.02
    assert abs(float(x.mean())) < 0.01
    assert float(x.std()) == pytest.approx(1.0, abs=0.01)
    assert abs(float((x**3).mean())) < 0.03
    assert float((x**4).mean()) == pytest.approx(3.0, abs=0.06)
    assert float((x.abs() > 3).double().mean()) == pytest.approx(0.0027, abs=0.0005)
    assert abs(float((x[1:] * x[:-1]).mean())) < 0.01
    assert abs(float((x[512:] * x[:-512]).mean())) < 0.01
    other = initial_value("layers.1.o_proj.parts.0.weight", (512, 512), 0).double().flatten() / 0.02
    assert abs(float((x * other).mean())) < 0.01
