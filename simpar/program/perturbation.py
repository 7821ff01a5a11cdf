"""What makes ranks differ from the nominal cluster, and how far it may go."""

from typing import Annotated

from pydantic import Field

from simpar.calls import Strict

Rank = Annotated[int, Field(ge=0)]
SlowFactor = Annotated[
    float, Field(ge=1, le=1000, allow_inf_nan=False, description="factor on kernel times, 1 is nominal")
]
Sigma = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False, description="standard deviation of the logarithm")]
"""Beyond 1 a lognormal of mean 1 has a median below 0.61 and its mean in a rare tail: no spread of equal kernels."""
Seeds = Annotated[int, Field(ge=1, le=100_000, description="how many samples of the step, one a seed")]


class Perturbation(Strict):
    """What makes ranks differ, drawn before the run: compute slowdown per rank, and lognormal jitter.

    ``slow_ranks`` maps a rank to the factor (1 to 1,000) on its kernel times; ``jitter_sigma`` (0 to 1) is the
    standard deviation of the logarithm of a factor of mean 1 on the kernels of every pass of every rank
    (:mod:`simpar.program.jitter`), drawn for each of ``seeds`` seeds from ``seed`` on. Without ``fold`` every rank
    is a class of its own, which changes no time: what folding is compared with. Raises UserError.

    >>> Perturbation(slow_ranks={5: 1.2}).slow_ranks  # the kernels of rank 5 take 1.2 times as long
    {5: 1.2}
    """

    slow_ranks: dict[Rank, SlowFactor] = Field(default_factory=dict)
    jitter_sigma: Sigma = 0.0
    seed: int = 0
    seeds: Seeds = 1
    fold: bool = True
