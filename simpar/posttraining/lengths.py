"""Lengths of prompts and responses: draws from a distribution, cut to the context."""

import csv
from math import exp, log, sqrt
from pathlib import Path
from statistics import NormalDist

import numpy as np

from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.plan.post_training import Lengths, PostTraining
from simpar.units import Floats, Ints

Z99 = NormalDist().inv_cdf(0.99)
PROMPTS, RESPONSES = 0, 1
"""Streams of random numbers, so that prompts do not depend on how responses are drawn."""


@dataclass(frozen=True)
class StepLengths:
    """Tokens of a step's texts: ``prompt`` int64[prompts] and ``response`` int64[prompts, samples].

    ``cut`` counts responses that were longer than the context leaves.
    """

    prompt: Ints
    response: Ints
    cut: int = 0

    @property
    def total(self) -> Ints:
        """Tokens of every response with its prompt, int64[prompts * samples]."""
        return (self.prompt[:, None] + self.response).ravel()


def lognormal_of(mean: float, p99: float) -> tuple[float, float]:
    """(Mean, standard deviation) of the logarithm of a log-normal with a mean and a 99th percentile. Raises UserError.

    With z = 2.326: ln p99 = mu + z sigma and ln mean = mu + sigma^2 / 2, so sigma^2 / 2 - z sigma + ln(p99 / mean) = 0;
    the smaller root is the one that grows from 0 with the tail. No log-normal has p99 above exp(z^2 / 2) = 15 means.
    """
    rest = Z99**2 - 2.0 * log(p99 / mean)
    if rest < 0:
        most = mean * exp(Z99**2 / 2)
        raise UserError(f"post_training.lengths: p99 = {p99:g} with mean = {mean:g}: allowed: p99 up to {most:.0f}")
    sigma = Z99 - sqrt(rest)
    return log(mean) - sigma**2 / 2, sigma


def draw(lengths: Lengths, shape: tuple[int, ...], key: tuple[int, int]) -> Ints:
    """Lengths of texts, int64[shape], each at least 1, by a counter-based generator with a ``key``."""
    if lengths.fixed is not None:
        return np.full(shape, lengths.fixed, dtype=np.int64)
    generator = np.random.Generator(np.random.Philox(key=list(key)))
    if lengths.mean is not None and lengths.p99 is not None:
        mu, sigma = lognormal_of(lengths.mean, lengths.p99)
        return _whole(np.exp(mu + sigma * generator.standard_normal(shape)))
    values, shares = support(lengths)
    return np.asarray(generator.choice(values.astype(np.int64), size=shape, p=shares), dtype=np.int64)


def support(lengths: Lengths) -> tuple[Floats, Floats]:
    """Values of a discrete distribution and their probabilities. Raises UserError for a file without lengths."""
    if lengths.histogram is not None:
        values = np.array(list(lengths.histogram), dtype=np.float64)
        weights = np.array(list(lengths.histogram.values()), dtype=np.float64)
        return values, weights / weights.sum()
    if lengths.fixed is not None:
        return np.array([float(lengths.fixed)]), np.ones(1)
    values = read_lengths(str(lengths.file)).astype(np.float64)
    return values, np.full(len(values), 1.0 / len(values))


def read_lengths(path: str) -> Ints:
    """The lengths in a file, one a line; the first column where it has several. Raises UserError."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read as text ({error.__class__.__name__})") from None
    result = []
    for number, row in enumerate(csv.reader(text.splitlines()), 1):
        word = row[0].strip() if row else ""
        if word.isdecimal() and int(word) > 0:
            result.append(int(word))
        elif word and not (number == 1 and not result):  # the first line may be a title
            raise UserError(f"{path}:{number}: {word!r}: allowed: a number of tokens, 1 or more")
    if not result:
        raise UserError(f"{path}: has no lengths; wants one number of tokens a line")
    return np.array(result, dtype=np.int64)


def check_context(section: PostTraining, context: int) -> None:
    """Raise UserError where prompts or responses are always, or by what is stated, above the ``context``."""
    prompt, response = section.lengths.prompt, section.lengths.response
    longest = max(_stated_most(prompt), section.lengths.least_prompt or 1)
    if longest >= context:
        raise UserError(
            f"post_training.lengths.prompt: {longest:.0f} tokens: allowed: below the context, training.seq_len = "
            f"{context}"
        )
    least = section.lengths.least_prompt or 1 if prompt.mean is not None else longest
    if least + _stated_most(response) > context:
        raise UserError(
            f"post_training.lengths.response: {_stated_most(response):.0f} tokens behind a prompt of {least:.0f}: "
            f"allowed: together up to the context, training.seq_len = {context}"
        )


def _stated_most(lengths: Lengths) -> float:
    """The longest text that a distribution states: of a log-normal, which has no end, its mean."""
    if lengths.mean is not None:
        return lengths.mean
    values, shares = support(lengths)
    return float(values[shares > 0].max())


def draw_step(section: PostTraining, context: int, step: int) -> StepLengths:
    """The texts of one step: prompts, and responses cut to what the context leaves behind the prompt."""
    count, samples = section.prompts, section.samples
    prompt = draw(section.lengths.prompt, (count,), (section.seed, 2 * step + PROMPTS))
    response = draw(section.lengths.response, (count, samples), (section.seed, 2 * step + RESPONSES))
    prompt = np.minimum(np.maximum(prompt, section.lengths.least_prompt or 1), context - 1)
    room = (context - prompt)[:, None]
    return StepLengths(prompt, np.minimum(response, room), int((response > room).sum()))


def _whole(values: Floats) -> Ints:
    return np.maximum(np.rint(values), 1.0).astype(np.int64)
