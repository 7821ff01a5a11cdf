"""Statistical efficiency: the worth of a sample under a scheme, by a stated model of noisy gradients.

Steps to a target are S(B) = S_min (1 + N / B) for a batch of B tokens and a noise scale of N [McCandlish et al. 2018,
arXiv 1812.06162, eq. 2.7]. Updates that meet parameters of another time need more of them: with staleness the 1
becomes 1 + sqrt(mean x largest staleness), the form of the bound of asynchronous SGD with a constant step size
[Koloskova et al. 2022, arXiv 2206.08307, theorem 6]; with H local steps it becomes H + sqrt((H - 1) N / b), the form of
the bound of local SGD on equal data [Koloskova et al. 2020, arXiv 2003.10422, theorem 2, with H - 1 for H, so that one
local step is no loss]. Both are worst cases over functions, taken with unit constants: lower bounds of the efficiency,
not forecasts of a run. Efficiency is the samples that synchronous training needs over those that the scheme needs,
with W replicas of b tokens each.

The noise scale, where none is given, is the critical batch size of Kaplan et al. 2020 (arXiv 2001.08361, eq. 1.4 and
1.1): 2.1e8 L^-4.8 tokens at the loss L = (8.8e13 / parameters)^0.076 of a model that is trained to its end.
"""

from math import sqrt

from simpar.report.parts import Efficiency, Staleness

NOISE_TOKENS, NOISE_EXPONENT = 2.1e8, -4.8
LOSS_PARAMETERS, LOSS_EXPONENT = 8.8e13, 0.076


def noise_scale_tokens(parameters: float) -> float:
    """Critical batch size in tokens at the end of training, for non-embedding parameters."""
    loss: float = (LOSS_PARAMETERS / parameters) ** LOSS_EXPONENT
    tokens: float = NOISE_TOKENS * loss**NOISE_EXPONENT
    return tokens


def of_staleness(staleness: Staleness, replicas: int, batch_tokens: float, noise_tokens: float) -> float:
    """Efficiency of updates of one replica's batch each, (W b + N) / (b (1 + sqrt(mean x max)) + N), at most 1.

    A staleness of W - 1 for all, as in lockstep, is a synchronous batch in W pieces and gives 1.
    """
    delay = sqrt(staleness.mean * staleness.maximum)
    together = replicas * batch_tokens + noise_tokens
    return min(1.0, together / (batch_tokens * (1 + delay) + noise_tokens))


def of_local_steps(steps: int, replicas: int, batch_tokens: float, noise_tokens: float) -> float:
    """Efficiency of averages every H steps, (W b + N) / (W b (H + sqrt((H - 1) N / b)) + N)."""
    penalty = steps + sqrt((steps - 1) * noise_tokens / batch_tokens)
    together = replicas * batch_tokens
    return (together + noise_tokens) / (together * penalty + noise_tokens)


def efficiency(model: str, value: float, noise_tokens: float, tokens_per_s: float) -> Efficiency:
    """The figures of a report: the model's name, the efficiency, the noise scale, and effective tokens per second."""
    return Efficiency(
        model=model, noise_scale_tokens=noise_tokens, efficiency=value, effective_tokens_per_s=value * tokens_per_s
    )
