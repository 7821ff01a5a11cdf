"""Optimizers that update value by value: SGD, AdamW, Lion, and the last two with states of eight bits, or paged.

Paged states are in memory that CUDA manages, whose pages go to the host when the device is short of memory
[bitsandbytes, ``optim/optimizer.py``: ``get_paged``]. They count as on the device; their moves are not modelled.
"""

from dataclasses import replace

from simpar.plan.optimizers.optimizer import SCALE_BLOCK, InTorch, Optimizer
from simpar.units import DTYPE_BYTES

_EIGHT_BITS = 1.0 + DTYPE_BYTES["fp32"] / SCALE_BLOCK
_AS_PLAIN = (
    Optimizer(
        "adamw",
        "Adam with decoupled weight decay: two moments [arXiv 1711.05101]",
        "2017-11",
        moments=2,
        others=2,
        on_host=True,
        in_torch=InTorch("AdamW", ("betas", "eps"), ("exp_avg", "exp_avg_sq"), counts_steps=True, denominator=True),
        usual=True,
    ),
    Optimizer(
        "sgd", "Stochastic gradient descent, no states", "", moments=0, others=0, on_host=True, in_torch=InTorch("SGD")
    ),
    Optimizer(
        "sgd_momentum",
        "Stochastic gradient descent with momentum",
        "",
        moments=1,
        others=1,
        on_host=True,
        in_torch=InTorch("SGD", ("momentum",), ("momentum_buffer",)),
    ),
    Optimizer("lion", "Sign of a momentum: one state [arXiv 2302.06675]", "2023-02", moments=1, others=1, on_host=True),
    Optimizer(
        "adamw_8bit",
        "AdamW with moments of eight bits, a scale for every 256 of them [arXiv 2110.02861]",
        "2021-10",
        moments=2,
        others=2,
        width_bytes=_EIGHT_BITS,
    ),
    Optimizer(
        "lion_8bit",
        "Lion with a momentum of eight bits, a scale for every 256 of them [bitsandbytes, Lion8bit]",
        "2023-04",
        moments=1,
        others=1,
        width_bytes=_EIGHT_BITS,
    ),
)
_PAGED = {"adamw": "paged_adamw", "adamw_8bit": "paged_adamw_8bit"}
OPTIMIZERS = (
    *_AS_PLAIN,
    *(
        replace(
            each,
            name=_PAGED[each.name],
            summary=f"{each.name} with paged states, counted as on the device [bitsandbytes, arXiv 2305.14314]",
            month="2023-05",
            on_host=False,
            in_torch=None,
            usual=False,
        )
        for each in _AS_PLAIN
        if each.name in _PAGED
    ),
)
