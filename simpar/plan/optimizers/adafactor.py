"""Adafactor: a row and a column of second moments for every matrix [Shazeer and Stern 2018, arXiv 1804.04235].

It reads gradients twice more than others: for the factors, and to clip the update.
"""

from simpar.plan.optimizers.optimizer import Optimizer

OPTIMIZERS = (
    Optimizer(
        "adafactor",
        "A row and a column of second moments for every matrix [arXiv 1804.04235]",
        "2018-04",
        moments=0,
        others=0,
        gradient_passes=2.0,
        factored=True,
    ),
)
