"""Lower bounds of a step's time, which need no simulation of generation.

On policy a step is generation, then everything else, and the batch is known. Generation takes no less than

- its work over all replicas: an iteration of n sequences yields n tokens in at least base(n), so a token takes at least
  the smallest base(n) / n; keys are read in addition, a nanosecond an iteration less (times are floors);
- the longest response alone.

Off policy the responses of a batch may have been generated before: what is left is training on the shortest groups that
a batch could have, and new weights.
"""

import numpy as np

from simpar.posttraining.iterations import SCALE, IterationTimes
from simpar.posttraining.lengths import StepLengths, draw_step
from simpar.posttraining.simulate import PostTrainingSetting
from simpar.units import NS_PER_S, Floats, Ints


def step_bound_s(setting: PostTrainingSetting) -> float:
    """Seconds that a mean step takes at least. Raises UserError where a side cannot be laid out."""
    section, took = setting.section, setting.durations
    context = setting.trained.training.seq_len
    turns = took.to_training + took.to_generation + took.weights
    ahead = section.synchrony.steps_off
    steps = [
        draw_step(section, context, step) for step in range(section.measured_steps + (2 * ahead + 1 if ahead else 0))
    ]
    if ahead:
        least = _shortest(steps, section.prompts, by_longest=not setting.trained.is_packed)
        return (sum(took.batch(least)) + turns) / NS_PER_S
    total = sum(
        generation_ns(setting.served.times, step, setting.num_replicas) + sum(took.batch(step.total)) for step in steps
    )
    return (total / len(steps) + turns) / NS_PER_S


def _shortest(steps: list[StepLengths], prompts: int, *, by_longest: bool) -> Ints:
    """Tokens of the responses in the ``prompts`` groups that are shortest, in all or by their longest response."""
    groups = np.concatenate([step.prompt[:, None] + step.response for step in steps])
    sizes = groups.max(axis=1) if by_longest else groups.sum(axis=1)
    return np.asarray(groups[np.argsort(sizes, kind="stable")[:prompts]].ravel(), dtype=np.int64)


def generation_ns(times: IterationTimes, step: StepLengths, replicas: int) -> int:
    """Nanoseconds that the responses of a step take at least on so many replicas."""
    bases = np.array(times.bases[1:], dtype=np.float64)
    each = float((bases / np.arange(1, len(bases) + 1)).min())
    tokens = int(step.response.sum())
    keys = np.zeros(step.response.shape)
    prompts = np.broadcast_to(step.prompt[:, None], step.response.shape).astype(np.float64)
    for window, rate in zip(times.windows, times.rates, strict=True):
        keys += rate / SCALE * _keys(prompts, step.response.astype(np.float64) - 1, float(window))
    work = (tokens * each + float(keys.sum()) - tokens) / replicas
    alone = step.response * (bases[0] - 1.0) + keys
    return max(0, int(work), int(float(alone.max())))


def _keys(prompt: Floats, decoded: Floats, window: float) -> Floats:
    """Keys that each response reads after its first token: the sum of min(prompt + i, window) for i up to decoded."""
    growing = np.clip(window - prompt, 0.0, decoded)
    keys: Floats = growing * prompt + growing * (growing + 1.0) / 2.0 + (decoded - growing) * window
    return keys
