"""ZB-V: two chunks a rank, placed in a V, and no bubble within a rank at the activation memory of 1F1B.

Rank r holds stages r and 2p - 1 - r, so the loss is computed on rank 0 [Qi et al. 2023, arXiv 2401.10241,
section 6; phases as in torch.distributed.pipelining's ScheduleZBVZeroBubble].
"""

from simpar.plan.schedules.actions import F, I, RankActions, Schedule, W, rank_actions
from simpar.plan.schedules.producer import Names, Producer, Promise, moment


def zb_v(p: int, m: int) -> Schedule:
    """ZB-V: at most 2p chunks in flight; no rank waits once it started if F = I = W and m >= 2p."""
    return Schedule("zb-v", m, v_placement(p), tuple(_rank(r, p, m) for r in range(p)))


def v_placement(p: int) -> tuple[int, ...]:
    """Ranks of the 2p stages of a V: down the pipeline and up again."""
    return (*range(p), *reversed(range(p)))


def _rank(r: int, p: int, m: int) -> RankActions:
    """Warm-up, steady state, cool-down of at least 2p - 1 microbatches; those beyond m are left out."""
    down, up, planned = r, 2 * p - 1 - r, max(m, 2 * p - 1)
    done: dict[tuple[int, int], int] = {}
    rows: list[tuple[int, int, int]] = []

    def run(*codes: int, stage: int) -> None:
        for code in codes:
            microbatch = done.get((code, stage), 0)
            done[code, stage] = microbatch + 1
            if microbatch < m:
                rows.append((code, stage, microbatch))

    for _ in range(2 * (p - r) - 1):
        run(F, stage=down)
    for _ in range(r):
        run(F, stage=up)
        run(F, stage=down)
    for _ in range(p - r):
        run(F, I, W, stage=up)
    while done[F, up] < planned:
        if done[F, down] < planned:
            run(F, stage=down)
        run(I, W, stage=down)
        run(F, I, W, stage=up)
    for _ in range(r):
        run(I, stage=down)
        run(I, stage=up)
    for _ in range(p - r):
        run(I, W, stage=down)
    for stage in (up, down):
        for _ in range(planned - done.get((W, stage), 0)):
            run(W, stage=stage)
    return rank_actions(rows)


PRODUCERS = (
    Producer(
        "zb-v",
        zb_v,
        Promise("2024-01", lambda p, _m: 2 * p, lambda p, _m: p - 1),
        # the first gradient of the way up comes after 2p - r - 1 forwards down and r + 1 up
        lambda r, p, _v, m: moment([2 * p - r - 1, r + 1], 1, m, turns=True),
        chunks=2,
        names=Names(
            aliases=("zbvzerobubble",),
            hints=("zerobubble", "zb"),
            pattern=r"zb[- ]?v(?!-?(?:half|min))|v-zb|zero.?bubble[- ]?v\b|v[- ]shape\w* zero.?bubble",
        ),
    ),
)
