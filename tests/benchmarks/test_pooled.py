"""What the pooled fit takes from which runs."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import pooled
from calibrate_uncertainty import sorted_spread
from calibrate_uncertainty_rows import ORDINARY, Run

from simpar.learning.parameters import Name
from simpar.uncertainty.memory import Parts
from simpar.uncertainty.support import Traits

USUAL = pooled.GENERAL["launch.kernel_overhead"].usual


def overhead(stack: str) -> Name:
    """The parameter that multiplies kernels of a stack."""
    return "stack", stack, "launch.kernel_overhead"


def slower(stack: str, source: str, error: float, count: int) -> list[Run]:
    """Runs of a source that are all slower than predicted by as much, as logarithm, of nothing but kernels."""
    run = Run(
        source=source, family="llama", cell=(), traits=Traits(stack, "h100-sxm-80gb"), error=error,
        slopes={overhead(stack): (USUAL, 1 / USUAL)}, predicted_s=1.0, measured_s=1.0, fits=True, needed_bytes=1.0,
        capacity_bytes=2.0, parts_bytes=Parts(0.0, 0.0, 0.0), peak_error=None, fitted=True, row=(ORDINARY, 0),
    )  # fmt: skip
    return [run] * count


def found(runs: list[Run]) -> dict[Name, float]:
    """Values of parameters under runs."""
    pool = pooled.Pool(runs)
    return dict(zip(pool.names, pool.fit(np.ones(len(runs), dtype=bool)).values.tolist(), strict=True))


def test_eager_stacks_share_their_kernels() -> None:
    """A stack that one source tells fast and another that one tells slow have one number, between them."""
    values = found(slower("huggingface", "a", 0.0, 30) + slower("deepspeed", "b", 0.06, 30))
    assert values[overhead("huggingface")] == values[overhead("deepspeed")]
    assert USUAL < values[overhead("huggingface")] < USUAL * np.exp(0.06)


def test_a_source_of_many_runs_is_one_source() -> None:
    """What is shared moves by v / (v + s^2 + n^2 / count) of what runs of a source say, v being its variance before."""
    v, s, n, count, error = 0.1**2, pooled.SOURCE**2, pooled.NOISE**2, 40, 0.05
    value = found(slower("huggingface", "a", error, count))[overhead("huggingface")]
    assert np.log(value / USUAL) == pytest.approx(error * v / (v + s + n / count), rel=0.02)


def test_ordinary_runs_tell_of_their_own_stacks() -> None:
    """Neither of clocks nor of stacks that vendors tune; a vendor's run tells of both."""
    ordinary = slower("fsdp", "a", 0.1, 1)[0]
    tuned = Run(**{**ordinary.__dict__, "row": ("measured_runs_dev.csv", 0)})
    clock = ("device", "h100-sxm-80gb", "sustained_clock")
    assert [pooled.tells(run, overhead("fsdp")) for run in (ordinary, tuned)] == [False, True]
    assert [pooled.tells(run, clock) for run in (ordinary, tuned)] == [False, True]
    assert pooled.tells(ordinary, overhead("deepspeed"))


def test_runs_in_which_python_sorts_tokens_say_how_far_such_steps_lie() -> None:
    """Nine in ten of them lie inside, in units of the ends; others say nothing of it."""
    ordinary = slower("megatron", "a", 0.3, 1)[0]
    by_hand = Traits("megatron", "h100-sxm-80gb", mixture=True, sorted=True)
    runs = [Run(**{**ordinary.__dict__, "traits": by_hand, "error": each}) for each in (-0.3, *[0.2] * 9)]
    assert sorted_spread([*runs, ordinary], (-1.5, 2.0)) == pytest.approx(0.11)  # 0.1 nine times, and 0.2
    assert sorted_spread([ordinary], (-1.5, 2.0)) == 0.0
