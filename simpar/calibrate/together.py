"""Work of several processes at once, timed: collectives by group size, and whole steps side by side."""

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from simpar.architectures.training import Training
from simpar.calibrate.request import CalibrationRequest, Sample, Steps
from simpar.calibrate.stopwatch import Members, Stopwatch, Times
from simpar.plan.plan import Plan
from simpar.runtime.job import RunJob
from simpar.runtime.prepare import STACK
from simpar.runtime.train import Session, start, train_step

OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send")


def collectives(request: CalibrationRequest, members: Members, watch: Stopwatch) -> Iterator[Sample]:
    """Every collective on a group by bytes of the whole tensor; for two ranks also a message there and back."""
    for op in OPS if members.size == 2 else OPS[:-1]:
        for size in request.messages:
            work = partial(_call(op), size // 4 // members.size * members.size, members, watch.device)()
            times = watch.time_together(work, members, request.machine.threads)
            share = 0.5 if op == "send" else 1.0  # there and back
            yield Sample(
                kind="collective", name=op, shape=(members.size, size), seconds=times.seconds * share,
                spread=times.spread, repeats=times.repeats, load=times.load,
            )  # fmt: skip


def _call(op: str) -> Callable[..., Callable[[], None]]:
    """A function from (elements, members, device) to a call of the collective on existing tensors."""
    return {
        "all_reduce": _all_reduce, "all_gather": _all_gather, "reduce_scatter": _reduce_scatter,
        "all_to_all": _all_to_all, "send": _send,
    }[op]  # fmt: skip


def _all_reduce(count: int, members: Members, device: Any) -> Callable[[], None]:
    whole = torch.zeros(count, device=device)
    return lambda: dist.all_reduce(whole, group=members.group)


def _all_gather(count: int, members: Members, device: Any) -> Callable[[], None]:
    whole, part = torch.zeros(count, device=device), torch.zeros(count // members.size, device=device)
    return lambda: dist.all_gather_into_tensor(whole, part, group=members.group)


def _reduce_scatter(count: int, members: Members, device: Any) -> Callable[[], None]:
    whole, part = torch.zeros(count, device=device), torch.zeros(count // members.size, device=device)
    return lambda: dist.reduce_scatter_tensor(part, whole, group=members.group)


def _all_to_all(count: int, members: Members, device: Any) -> Callable[[], None]:
    sent, received = torch.zeros(count, device=device), torch.empty(count, device=device)
    return lambda: dist.all_to_all_single(received, sent, group=members.group)


def _send(count: int, members: Members, device: Any) -> Callable[[], None]:
    message, first = torch.zeros(count, device=device), dist.get_rank() == members.first
    peer = members.first + int(first)

    def there_and_back() -> None:
        for sends in (first, not first):
            if sends:
                dist.send(message, dst=peer, group=members.group)
            else:
                dist.recv(message, src=peer, group=members.group)

    return there_and_back


def steps(request: CalibrationRequest, number: int, watch: Stopwatch, *, beside: Members | None = None) -> Sample:
    """Steps of a model on this process alone, or side by side with others that do the same for the same time."""
    wanted = request.steps[number]
    session, done = _session(request, wanted, watch.device), itertools.count()

    def step() -> None:
        train_step(session, next(done))

    times = watch.rate_beside(step, beside) if beside else _alone(watch, step)
    return Sample(
        kind="step", name="step", shape=(number,), seconds=times.seconds, spread=times.spread,
        repeats=times.repeats, beside=beside.size if beside else 1,
    )  # fmt: skip


def _alone(watch: Stopwatch, step: Callable[[], None]) -> Times:
    return Stopwatch(watch.device, 4 * watch.window_s).time_whole(step)


def _session(request: CalibrationRequest, wanted: Steps, device: Any) -> Session:
    """A run of one rank that shares nothing with the others."""
    training = Training(seq_len=wanted.seq_len, global_batch=wanted.batch)
    micro_batch = wanted.batch // wanted.microbatches
    plan = Plan.model_validate({"dp": 1, "micro_batch": micro_batch, "precision": request.dtype, "stack": STACK})
    job = RunJob(
        plan=plan, model={**wanted.model, "name": "calibration"}, training=training, steps=1, folder=request.folder,
        machine=request.machine,
    )  # fmt: skip
    return start(job, 0, 1, device)
