"""Optimizers that update value by value: SGD, AdamW, Lion, and AdamW with states of eight bits."""

from simpar.plan.optimizers.optimizer import SCALE_BLOCK, InTorch, Optimizer
from simpar.units import DTYPE_BYTES

OPTIMIZERS = (
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
        width_bytes=1.0 + DTYPE_BYTES["fp32"] / SCALE_BLOCK,
    ),
)
