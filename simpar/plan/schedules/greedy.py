"""ZB-H1 and ZB-H2: one rule with two memory caps [Qi et al. 2023, arXiv 2401.10241, section 2].

Forwards (while fewer than the cap are in flight) and input gradients take turns; a weight gradient runs when
neither can. The cap is the same on every rank: a rank further down holds back weight gradients instead.
"""

from __future__ import annotations

from simpar.errors import UserError
from simpar.plan.schedules.actions import F, I, Schedule, W
from simpar.plan.schedules.list_scheduler import UNIT, Chooser, Costs, RankState, list_schedule


def zb_h1(p: int, m: int, vpp: int = 1, *, costs: Costs = UNIT) -> Schedule:
    """ZB-H1: at most p forwards in flight, the memory of 1F1B; bubble (p - 1)(F + I - W) where I >= W."""
    return _zero_bubble("zb-h1", p, m, vpp, p, costs)


def zb_h2(p: int, m: int, vpp: int = 1, *, costs: Costs = UNIT) -> Schedule:
    """ZB-H2: at most 2p - 1 forwards in flight; no rank waits within if F = I = W and m >= 2p - 1."""
    return _zero_bubble("zb-h2", p, m, vpp, 2 * p - 1, costs)


def _zero_bubble(name: str, p: int, m: int, vpp: int, cap: int, costs: Costs) -> Schedule:
    if vpp != 1:
        raise UserError(f"schedule {name}: vpp = {vpp}; allowed: 1 (zb-v has two chunks a rank)")
    return list_schedule(name, tuple(range(p)), m, lambda: _take_turns(cap), costs)


def _take_turns(cap: int) -> Chooser:
    def choose(rank: RankState, now: float) -> tuple[int, int] | None:
        forward = rank.ready(F, now) if rank.in_flight < cap else None
        gradient = rank.ready(I, now)
        if forward and gradient:
            return gradient if rank.rows and rank.rows[-1][0] == F else forward
        return forward or gradient or rank.ready(W, now)

    return choose
