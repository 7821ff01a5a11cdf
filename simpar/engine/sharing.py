"""Max-min fair sharing of links in integers: water-filling in which all links tied at the minimum freeze together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simpar.program.program import COEFFICIENT_ONE


def max_min_rates(
    routes: Mapping[int, Sequence[tuple[int, int]]], caps: Mapping[int, int], capacity: Sequence[int]
) -> dict[int, int]:
    """Rates in bytes/s of flows by id.

    ``routes[f]`` lists (link, coefficient in fixed point), ``caps[f]`` the flow's own limit (0: none),
    ``capacity`` bytes/s per link. The smallest fair share over all links (and caps) is given to every flow it
    binds; they leave with their load; repeat. Ties freeze together, so the order of flows cannot matter.
    """
    left = {link: capacity[link] * COEFFICIENT_ONE for route in routes.values() for link, _ in route}
    active: dict[int, Sequence[tuple[int, int]]] = dict(routes)
    rates: dict[int, int] = {}
    while active:
        load: dict[int, int] = {}
        for route in active.values():
            for link, coefficient in route:
                load[link] = load.get(link, 0) + coefficient
        share = {link: left[link] // total for link, total in load.items()}
        capped = [caps[f] for f in active if caps[f]]
        fair = max(min([*share.values(), *capped]), 1)
        tight = {link for link, value in share.items() if max(value, 1) <= fair}
        frozen = [f for f, route in active.items() if caps[f] == fair or any(link in tight for link, _ in route)]
        for flow in frozen:
            rates[flow] = fair
            for link, coefficient in active.pop(flow):
                left[link] = max(left[link] - fair * coefficient, 0)
    return rates
