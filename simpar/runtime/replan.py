"""A run that has lost ranks goes on with fewer, from its last checkpoint, in the layout that a search finds for them.

Checkpoints load into any layout and batches are drawn by number, so that the loss goes on as if nothing had happened.
What is not a layout (model, batch, optimizer, precision) stays as it was. No torch here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from simpar.architectures.graph import ModelGraph
from simpar.dataclass import dataclass
from simpar.errors import Infeasible, UserError
from simpar.files import choose
from simpar.plan.plan import Plan
from simpar.planner.api import search
from simpar.report.words import layout
from simpar.runtime.failures import RankFailure
from simpar.runtime.prepare import STACK
from simpar.runtime.request import HARDWARE, Ready, Request, make_ready
from simpar.runtime.saved import find_newest
from simpar.tracing.load import load_config

RESTART, REPLAN = "restart", "replan"
Say = Callable[[str], None]
TRIED = 4
"""Numbers of ranks that are searched, the largest first: fewer may be faster where the batch does not divide."""
LIMIT_S = 60.0
"""Time of a search, after which the best plan so far is taken."""


@dataclass(frozen=True)
class Replanner:
    """What a run needs to go on with fewer ranks: its request, and the options of its job."""

    request: Request
    options: Mapping[str, Any]
    named_by: str = HARDWARE

    def check(self, nodes: int, max_restarts: int | None) -> None:
        """Raise UserError where a run could not go on so."""
        flag = "--on-loss replan"
        if (self.options.get("checkpoints") or {}).get("folder") is None:
            raise UserError(f"{flag}: goes on from a checkpoint; allowed: with --checkpoint DIR")
        if self.request.build_cluster() is None:
            raise UserError(f"{flag}: a search needs hardware; allowed: with {HARDWARE}")
        if max_restarts:
            raise UserError(f"{flag} with --max-restarts {max_restarts}: would start lost ranks; allowed: one of them")
        if nodes > 1 and self.request.plan.data_parallel.servers is not None:
            raise UserError(f"{flag} with parameter servers: they are on one node; allowed: --nnodes 1")

    def begin(self, nproc: int | None, nodes: int, *, say: Say) -> Ready | None:
        """The job on so many ranks a node if its checkpoint was written on another number; None: as it is asked for.

        So a run goes on whose command a scheduler starts again on the nodes that are left. Raises UserError.
        """
        saved = find_newest(Path(self.options["checkpoints"]["folder"]))
        if nproc is None or saved is None:
            return None
        before, now = Plan.model_validate(saved[1]["plan"]).world_size, nproc * nodes
        if before in (None, now):
            return None
        ready = self.on(now, nodes)
        say(f"{saved[0].name} was written on {before} ranks, {now} are here: {_told(ready, saved[1])}")
        return ready

    def after(self, failure: RankFailure, before: Ready, *, say: Say) -> Ready:
        """The job on what is left of its ranks, and of their devices. Raises UserError if nothing runs there."""
        machine = dict(self.options.get("machine") or {})
        devices = before.job.machine.devices or range(before.world_size)
        machine["devices"] = tuple(each for rank, each in enumerate(devices) if rank not in failure.lost)
        left = replace(self, options={**self.options, "machine": machine})
        ready = left.on(len(machine["devices"]), 1)
        saved = find_newest(Path(self.options["checkpoints"]["folder"]))
        say(f"{failure.where(before.prepared.plan)}: {failure.message}: {_told(ready, saved[1] if saved else None)}")
        return ready

    def on(self, ranks: int, nodes: int) -> Ready:
        """The fastest job, as predicted, on at most so many ranks. Raises UserError if none can run."""
        tried = list(self._tried(ranks, nodes))
        if not tried:
            raise UserError(f"--on-loss replan: no plan runs on {ranks} ranks; allowed: more ranks, or another batch")
        return min(tried, key=lambda each: each[0])[1]

    def _tried(self, ranks: int, nodes: int) -> Iterator[tuple[float, Ready]]:
        """The predicted step in s and the job, for the best plan that runs on each number of ranks."""
        request, whole = self.request, self.request.build_cluster()
        mesh = request.plan.mesh.model_copy(update={"dp": None})  # that of the ranks that were there
        base = request.plan.model_copy(update={"mesh": mesh})
        for count in range(ranks, max(0, ranks - TRIED * nodes), -nodes):
            cluster = request.part_of(whole, count, nodes)
            if cluster is None or cluster.world_size != count:
                continue
            stack = request.plan.stack or request.stack or STACK
            try:
                best = search(
                    _model(request), cluster, request.training, stack=stack, base=base, objective="time",
                    perturbation=request.perturbation.of_ranks(), time_limit_s=LIMIT_S,
                )  # fmt: skip
            except Infeasible:
                continue
            for candidate in best.candidates:
                again = request.model_copy(update={"plan": candidate.plan.model_copy(update={"stack": stack})})
                try:
                    ready = make_ready(again, count // nodes, nodes, self.options, named_by=self.named_by)
                except UserError:  # a real run refuses what the search may propose: the next one
                    continue
                yield candidate.step_time_s, ready
                break


def replanner_of(on_loss: str | None, request: Request, options: Mapping[str, Any], named_by: str) -> Replanner | None:
    """What replans a run, if ``--on-loss`` asks for it. Raises UserError for an unknown word."""
    if choose(on_loss or RESTART, (RESTART, REPLAN), "--on-loss") == RESTART:
        return None
    return Replanner(request, options, named_by)


def _told(ready: Ready, manifest: Mapping[str, Any] | None) -> str:
    """How a run goes on, and from where."""
    begun = f"from step {manifest['step']}" if manifest else "from the beginning, without a checkpoint"
    plan = ready.prepared.plan.model_dump(mode="json")
    return f"{ready.world_size} rank{'s' * (ready.world_size > 1)} go on {begun} with {layout(plan)}"


def _model(request: Request) -> str | ModelGraph:
    model = request.model
    return model if isinstance(model, str) else load_config(model, str(model.get("name", "inline")))
