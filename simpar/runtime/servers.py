"""Parameter servers: ranks beyond the mesh that keep parameters and optimizer states; replicas push and pull.

The parameters of the model are one flat tensor, cut into one part per server [Li et al. 2014, OSDI]. After its own
forward and backward, a replica sends every server its part of the gradient and waits for that part of the parameters. A
server has a thread for every replica, so that no replica waits for another one's message:

* ``bsp``: when all replicas have pushed, their mean gradient is one update; then all pull.
* ``asp``: every push is an update of its own; the pull returns the current parameters.
* ``ssp``: as asp, but a replica that would be more than ``staleness`` local steps ahead of the slowest has to wait.

Messages go between hosts (gloo), in the dtypes that are simulated: gradients as they are reduced, parameters as they
are computed with; servers keep them as the plan stores them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import field
from queue import SimpleQueue
from threading import Condition, Thread
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.plan.plan import Plan
from simpar.runtime.job import Learning, RunJob
from simpar.runtime.measure import Clock
from simpar.runtime.model import Dtypes
from simpar.runtime.prepare import prepare
from simpar.runtime.served import ServedFolder
from simpar.runtime.summary import count_staleness
from simpar.runtime.update import Owned, Scope, optimizer_of
from simpar.runtime.weights import save

SIZE, BEGIN, PUSH, PULL = range(4)  # tags of messages
HOST = torch.device("cpu")


@dataclass(frozen=True)
class Terms:
    """What a server and its replicas agree on: plan, optimizer, dtypes, and the time-out of any wait."""

    plan: Plan
    learning: Learning
    dtypes: Dtypes
    replicas: int
    steps: int
    timeout_s: float

    @property
    def together(self) -> bool:
        """Whether the pushes of a step form one update."""
        return self.plan.data_parallel.sync == "bsp"

    @property
    def bound(self) -> float:
        """The most local steps by which a replica may lead the slowest when it is answered."""
        data = self.plan.data_parallel
        return {"bsp": 0, "ssp": int(data.staleness or 0)}.get(data.sync, math.inf)


class RemoteUpdate:
    """The update of a replica whose optimizer is on servers: gradients out, parameters in."""

    def __init__(self, scope: Scope, owned: Sequence[Owned], dtypes: Dtypes) -> None:
        if scope.learning.varies:
            raise UserError(
                f"learning.schedule = {scope.learning.schedule} with plan.servers: servers update at one rate; "
                "allowed: constant, without warm-up"
            )
        if scope.learning.clip_norm is not None:
            raise UserError(
                f"learning.clip_norm = {scope.learning.clip_norm} with plan.servers: no server sees a whole "
                "gradient; allowed: none"
            )
        self.scope, self.owned, self.dtypes = scope, list(owned), dtypes
        first, count = scope.ranks.mesh.world_size, int(scope.plan.data_parallel.servers or 1)
        self.servers = range(first, first + count)
        self.flat = torch.cat([each.local.detach().reshape(-1) for each in self.owned]).to(HOST)
        if scope.ranks.rank == 0:
            for part, server in zip(self._parts(self.flat), self.servers, strict=True):
                dist.send(torch.tensor([len(part)]), server, tag=SIZE)
                dist.send(part.contiguous(), server, tag=BEGIN)
        self._pull(self._asked())

    def pull_last(self) -> None:
        """Take over the servers' parameters after the last update of all replicas: the model of a run."""
        self._pull(self._asked())

    def collect(self) -> None:
        """After a backward: gradients stay until the step."""

    def step(self, clock: Clock, factor: float = 1.0) -> float | None:
        """Push the gradients times a ``factor``, take over the returned parameters, clear the gradients."""
        with clock.phase("communication"):
            gradient = torch.cat([each.gradient().reshape(-1) for each in self.owned]) * factor
            parts = self._parts(gradient.to(HOST, self.dtypes.reduce))
            asked = self._asked()
            sent = [dist.isend(part, server, tag=PUSH) for part, server in zip(parts, self.servers, strict=True)]
            self._pull(asked)
            for each in sent:
                each.wait()
        for each in self.owned:
            each.parameter.grad = None
        return None

    def _parts(self, flat: Tensor) -> list[Tensor]:
        return list(torch.tensor_split(flat, len(self.servers)))

    def _asked(self) -> tuple[Tensor, list[Any]]:
        """A buffer for the next parameters, and the receives that fill it."""
        room = torch.empty_like(self.flat, dtype=self.dtypes.compute)
        parts = zip(self._parts(room), self.servers, strict=True)
        return room, [dist.irecv(part, server, tag=PULL) for part, server in parts]

    @torch.no_grad()
    def _pull(self, asked: tuple[Tensor, list[Any]]) -> None:
        room, messages = asked
        for message in messages:
            message.wait()
        pieces = room.split([each.local.numel() for each in self.owned])
        for each, piece in zip(self.owned, pieces, strict=True):
            each.local.copy_(piece.view_as(each.local))


@dataclass
class Server:
    """One server's part of the parameters, its optimizer, and the progress of every replica.

    ``clocks`` counts the pushes of each replica, ``version`` the applied updates, ``read`` is the version that each
    replica holds. ``updates`` lists (replica, its local step, updates by others since it read) in order.
    """

    terms: Terms
    parameter: nn.Parameter
    optimizer: Any
    changed: Condition = field(default_factory=Condition)
    version: int = 0
    ahead: int = 0
    clocks: list[int] = field(default_factory=list)
    read: list[int] = field(default_factory=list)
    waiting: dict[int, Tensor] = field(default_factory=dict)
    updates: list[tuple[int, int, int]] = field(default_factory=list)

    @staticmethod
    def open(terms: Terms) -> Server:
        """Wait for the initial values that rank 0 sends."""
        size = torch.empty(1, dtype=torch.int64)
        dist.recv(size, 0, tag=SIZE)
        begin = torch.empty(int(size), dtype=terms.dtypes.storage)
        dist.recv(begin, 0, tag=BEGIN)
        parameter = nn.Parameter(begin)
        kind, options = optimizer_of(terms.plan, terms.learning)
        nobody = [0] * terms.replicas
        return Server(terms, parameter, kind([parameter], **options), clocks=list(nobody), read=nobody)

    def turn(self, replica: int, gradient: Tensor) -> Tensor:
        """Take one push; returns the parameters to answer with, once the scheme lets this replica continue."""
        with self.changed:
            step = self.clocks[replica]
            if self.terms.together:
                self._gather(replica, gradient)
            else:
                self.updates.append((replica, step, self.version - self.read[replica]))
                self._apply(gradient)
            self.clocks[replica] += 1
            self.changed.notify_all()
            if not self.changed.wait_for(lambda: self._may_go(step), self.terms.timeout_s):
                slowest = self.clocks.index(min(self.clocks))
                raise TimeoutError(f"replica {replica} waited {self.terms.timeout_s:g} s for replica {slowest}")
            if step + 1 < self.terms.steps:
                self.ahead = max(self.ahead, step + 1 - min(self.clocks))
            return self.answer(replica)

    def answer(self, replica: int) -> Tensor:
        """The current parameters, in the dtype in which they are sent."""
        self.read[replica] = self.version
        return self.parameter.detach().to(self.terms.dtypes.compute, copy=True)

    def _may_go(self, step: int) -> bool:
        return min(self.clocks) > step - self.terms.bound

    def _gather(self, replica: int, gradient: Tensor) -> None:
        """Keep a push until all are here; their mean, summed in the order of replicas, is one update."""
        self.waiting[replica] = gradient
        if len(self.waiting) == self.terms.replicas:
            wide = [self.waiting[each].to(self.parameter.dtype) for each in sorted(self.waiting)]
            self.waiting.clear()
            self._apply(torch.stack(wide).mean(dim=0))

    def _apply(self, gradient: Tensor) -> None:
        self.parameter.grad = gradient.to(self.parameter.dtype)
        self.optimizer.step()
        self.version += 1


def serve(terms: Terms) -> Server:
    """Answer every replica's pushes until all have done their steps; returns the server in its final state.

    Raises the error of the first replica thread that failed; none outlives the time-out of the process group.
    """
    server, ended = Server.open(terms), SimpleQueue[BaseException | None]()
    for replica in range(terms.replicas):
        Thread(target=_reporting(_attend, ended), args=(server, replica), daemon=True).start()
    for _ in range(terms.replicas):
        if (failed := ended.get()) is not None:
            raise failed
    return server


def _reporting(function: Callable[..., None], ended: SimpleQueue[BaseException | None]) -> Callable[..., None]:
    """The function, which puts its error, or None, in a queue when it ends."""

    def call(*arguments: Any) -> None:
        try:
            function(*arguments)
        except BaseException as error:  # noqa: BLE001 - raised again where somebody can see it
            ended.put(error)
        else:
            ended.put(None)

    return call


def _attend(server: Server, replica: int) -> None:
    """Handle one replica's messages: the first parameters, then an answer to every push."""
    terms = server.terms
    with server.changed:
        begin = server.answer(replica)
    dist.send(begin, replica, tag=PULL)
    for _ in range(terms.steps):
        gradient = torch.empty_like(begin, dtype=terms.dtypes.reduce)
        dist.recv(gradient, replica, tag=PUSH)
        dist.send(server.turn(replica, gradient), replica, tag=PULL)


def serve_job(job: RunJob, rank: int, replicas: int) -> dict[str, Any]:
    """Run a server of a job; returns its measurements. Raises UserError."""
    torch.set_num_threads(job.machine.threads)
    plan = prepare(job.plan, job.built_graph(), job.training, replicas).plan
    terms = Terms(plan, job.learning, Dtypes.of(plan), replicas, job.steps, job.machine.timeout_s)
    server = serve(terms)
    if job.weights.save_to is not None and (graph := job.built_graph()) is not None:
        for replica in range(replicas):
            dist.send(server.answer(replica), replica, tag=PULL)
        save({}, graph, ServedFolder.of(job, str(terms.dtypes.compute).removeprefix("torch.")))
    return {
        "rank": rank, "server": rank - replicas, "updates": server.version, "most_ahead": server.ahead,
        "staleness": count_staleness(server.updates, replicas, job.steps, job.measuring.warmup),
    }  # fmt: skip
