"""Sections of a block that take the same time whatever happens to its other steps: each is one op.

Where others may disturb some collectives of a block, its passes are written step by step. But a block has joints, at
which all its steps so far have ended and none of the others has begun: from one to another, with no such collective in
between, all steps keep their distances, whenever the first begins.
"""

from collections.abc import Sequence
from itertools import groupby

from simpar.program.blocks.phases import COMPUTE, BlockStep


def split_into_sections(steps: Sequence[BlockStep], disturbed: frozenset[str]) -> list[list[int]]:
    """Positions of steps by section, in order; collectives in ``disturbed`` groups and steps beside these are alone."""
    open_steps = {at for at, step in enumerate(steps) if step.collective and step.collective.group in disturbed}
    ends = [*_joints(steps), len(steps)] if steps else []
    between = [[*range(begin, end)] for begin, end in zip([0, *ends], ends, strict=False)]

    def kind(some: Sequence[int]) -> tuple[bool, int | None]:
        return open_steps.isdisjoint(some), steps[some[0]].layer

    result = list[list[int]]()
    for (is_closed, _), neighbours in groupby(between, kind):
        together = [at for some in neighbours for at in some]
        computes = any(steps[at].stream == COMPUTE for at in together)  # else each collective is accounted for alone
        result += [together] if is_closed and computes else [[at] for at in together]
    return result


def _joints(steps: Sequence[BlockStep]) -> list[int]:
    """Positions from which on every step begins when all steps before them have ended."""
    ended: list[int] = []  # by step, the steps that have ended when it begins, as a set of bits
    last: dict[str, int] = {}
    for at, step in enumerate(steps):
        ended.append(0)
        for one in (*step.after, *([last[step.stream]] if step.stream in last else [])):
            ended[at] |= ended[one] | 1 << one
        last[step.stream] = at
    always, result = -1, list[int]()
    for at in range(len(steps) - 1, 0, -1):
        always &= ended[at]
        before = (1 << at) - 1
        if always & before == before:
            result.append(at)
    return result[::-1]
