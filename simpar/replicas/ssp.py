"""SSP, stale-synchronous: no replica runs more than ``staleness`` local steps ahead of the slowest.

Source: Ho et al. 2013 (NeurIPS), a stale synchronous parallel parameter server.
"""

from simpar.replicas.servers import meet
from simpar.replicas.setting import ReplicaSetting
from simpar.replicas.staleness import MeanStep


def rounds(setting: ReplicaSetting) -> MeanStep:
    """Parameters for step c + 1 contain all replicas' updates up to step c - staleness."""
    bound = int(setting.layout.staleness or 0)
    return meet(setting, lambda exchange: exchange.wait_for_clock(bound))
