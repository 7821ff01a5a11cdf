"""ASP, asynchronous: a replica goes on with whatever parameters the servers hold when it asks.

Source: Dean et al. 2012 (NeurIPS), Downpour SGD.
"""

from simpar.replicas.servers import meet
from simpar.replicas.setting import ReplicaSetting
from simpar.replicas.staleness import MeanStep


def rounds(setting: ReplicaSetting) -> MeanStep:
    """No replica waits for another; they only share links and servers."""
    return meet(setting, lambda _: None)
