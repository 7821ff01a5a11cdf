"""Learning rates by step: warm-up, then constant, cosine, linear, or stable until a decay at the end. No torch."""

import math

from simpar.runtime.job import Learning

WSD_SHARE = 0.1  # of the steps, in which the rate falls at the end [Hu et al. 2024, arXiv 2404.06395, section 4.2]


def rate(learning: Learning, step: int, steps: int) -> float:
    """The learning rate of a step, in a run of ``steps`` or over the schedule's own number of steps.

    The rate rises linearly over the warm-up. Then "cosine" [Loshchilov and Hutter 2017, arXiv 1608.03983, equation 5]
    and "linear" fall to the least rate at the last step; "wsd" stays constant and falls linearly over its decay.
    """
    top, least = learning.learning_rate, learning.least_rate
    if step < learning.warmup_steps:
        return top * (step + 1) / learning.warmup_steps
    last = (learning.schedule_steps or steps) - 1
    begin = learning.warmup_steps
    if learning.schedule == "wsd":
        begin = max(begin, last + 1 - (learning.decay_steps or math.ceil(WSD_SHARE * (last + 1))))
    if learning.schedule == "constant" or step < begin:
        return top
    done = min(1.0, (step - begin + 1) / max(1, last - begin + 1))
    fallen = (1 - math.cos(math.pi * done)) / 2 if learning.schedule == "cosine" else done
    return top + (least - top) * fallen
