"""Choices about offloading that a plan leaves open."""

import numpy as np

from simpar.units import Flags, Numbers


def offloads_gradients(
    offload_optimizer: str, offload_gradients: bool | None, zero: Numbers, width: Numbers
) -> bool | None:
    """Whether gradients leave the device as they are made: as asked, else where they may; None without offload.

    ``width`` is the number of ranks that reduce gradients with each other.
    """
    if offload_optimizer == "none" or offload_gradients is not None:
        return offload_gradients
    return bool(leaves_unasked(zero, width))


def leaves_unasked(zero: Numbers, width: Numbers) -> Flags:
    """Whether gradients of offloaded states leave the device as they are made, if the plan leaves that open.

    They do where no other pass adds to them: ZeRO-2 and 3 reduce them after every microbatch, and a single rank
    (``width`` 1) does not reduce. Numbers or arrays.
    """
    return np.asarray((np.asarray(zero) >= 2) | (np.asarray(width) == 1))
