"""Local SGD: every replica takes ``sync_every`` steps on its own, then parameters are averaged.

Source: Stich 2019 (ICLR), arXiv 1805.09767.
"""

from simpar.replicas.averaging import meet
from simpar.replicas.setting import ReplicaSetting
from simpar.replicas.staleness import MeanStep


def rounds(setting: ReplicaSetting) -> MeanStep:
    """An all-reduce of the parameters in the dtype in which they are sent."""
    return meet(setting, size_bytes=setting.parameter_bytes)
