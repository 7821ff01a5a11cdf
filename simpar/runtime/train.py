"""The training loop of one rank: data, steps, log, checkpoints, measurements."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from simpar.architectures.catalogue import config_of
from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.files import write_atomic
from simpar.runtime.assemble import make_engine, make_own_engine
from simpar.runtime.checkpoint import Contents, Store
from simpar.runtime.data import Loader, open_source
from simpar.runtime.decoder import Recompute
from simpar.runtime.engine import TrainingEngine, average_loss
from simpar.runtime.evaluate import Evaluation
from simpar.runtime.from_transformers import make_library_model
from simpar.runtime.job import KINETO, LOG, PICTURES, SNAPSHOT, RunJob, read_log
from simpar.runtime.masked import as_trained
from simpar.runtime.measure import Clock, Memory, recording_memory, tracing
from simpar.runtime.metrics import Sink, figures, open_sinks
from simpar.runtime.model import Blueprint, Dtypes, place_of
from simpar.runtime.one_process import as_one_rank
from simpar.runtime.pictured import make_pictured_model
from simpar.runtime.prediction import layers_of, next_tokens
from simpar.runtime.prepare import Prepared, prepare
from simpar.runtime.ranks import Ranks, ranks_of
from simpar.runtime.rates import rate
from simpar.runtime.released import Released
from simpar.runtime.saved import next_step
from simpar.runtime.served import ServedFolder
from simpar.runtime.servers import RemoteUpdate
from simpar.runtime.states import finish_loading, named_tensors
from simpar.runtime.strategy import replicas_inside
from simpar.runtime.update import StepUpdate
from simpar.runtime.weights import check_used, save, save_adapters
from simpar.tracing.code import load_user_module


@dataclass(frozen=True)
class Session:
    """One rank's run in progress; ``further`` layers of the model predict tokens behind the next."""

    job: RunJob
    prepared: Prepared
    ranks: Ranks
    engine: TrainingEngine
    loader: Loader
    clock: Clock
    further: int
    evaluation: Evaluation | None = None

    @property
    def by_servers(self) -> bool:
        """Whether replicas synchronise only at parameter servers: each logs its own loss and waits for no mean."""
        return self.prepared.strategy.reduction == "servers"

    @property
    def folder(self) -> Path:
        """The folder of results."""
        return Path(self.job.folder)


def train(job: RunJob, rank: int, world_size: int, device: Any) -> dict[str, Any]:
    """Run a job on this rank and return its measurements. Raises UserError."""
    torch.set_num_threads(job.machine.threads)
    snapshot = Path(job.folder) / SNAPSHOT.format(rank=rank) if job.measuring.memory_snapshot else None
    with recording_memory(snapshot):
        return _train(job, rank, world_size, device)


def _train(job: RunJob, rank: int, world_size: int, device: Any) -> dict[str, Any]:
    memory = Memory.start(device)
    session = start(job, rank, world_size, device)
    saving = CheckpointSaver.open(session)
    first = saving.resume()
    rows: list[dict[str, Any]] = []
    log = Log.open(session, first) if rank == 0 else None
    path = session.folder / KINETO.format(rank=rank) if job.measuring.trace_steps else None
    with tracing(path, wait=job.measuring.warmup, steps=job.measuring.trace_steps) as traced:
        for step in range(first, job.steps):
            rows.append({**train_step(session, step), **_evaluated(session, step + 1)})
            if log is not None:
                log.append(rows[-1])
            saving.after(step)
            traced()
    saving.finish()
    if log is not None:
        log.close()
    if job.weights.save_to is not None:
        _save(session)
    return {"rank": rank, "steps": rows, **memory.peak()}


def _save(session: Session) -> None:
    """Write the model, or its adapters, to the job's folder for servers."""
    job, update, graph = session.job, session.engine.update, session.job.built_graph()
    assert graph is not None, "requests with other models are refused"
    if isinstance(update, RemoteUpdate):
        update.pull_last()
    elif update.meeting is not None:
        update.meeting.leave_mean()
    dtype = str(Dtypes.of(session.prepared.plan).compute).removeprefix("torch.")
    adapters = job.plan.tuning.lora_rank is not None and not job.weights.merge
    (save_adapters if adapters else save)(session.engine.stages, graph, ServedFolder.of(job, dtype))


@dataclass(frozen=True)
class CheckpointSaver:
    """When checkpoints are written and read; ``store`` is None for a run without checkpoints."""

    session: Session
    store: Store | None

    @property
    def update(self) -> StepUpdate:
        """The optimizer of this rank, which holds the states."""
        update = self.session.engine.update
        assert isinstance(update, StepUpdate), "parameter servers keep no checkpoints"
        return update

    @staticmethod
    def open(session: Session) -> CheckpointSaver:
        """Open the folder of checkpoints, if the job has one."""
        wanted = session.job.checkpoints
        if wanted is None:
            return CheckpointSaver(session, None)
        store = Store.open(Path(wanted.folder), keep=wanted.keep, background=wanted.background)
        return CheckpointSaver(session, store)

    def resume(self) -> int:
        """Load the newest sound checkpoint, if there is one; returns the step to resume at. Raises UserError."""
        for path, manifest in self.store.sound() if self.store is not None else ():
            step = next_step(path, manifest, self.session.job)
            assert self.store is not None, "its checkpoints were just read"
            self.store.load(path, named_tensors(self.update))
            finish_loading(self.update, step)
            return step
        return 0

    def after(self, step: int) -> None:
        """Save if it is due: on schedule, and after the last step."""
        job, done = self.session.job, step + 1
        if self.store is None or job.checkpoints is None:
            return
        if done == job.steps or (job.checkpoints.every and done % job.checkpoints.every == 0):
            plan, graph = self.session.prepared.plan, job.graph()
            contents = Contents(
                model=graph.name if graph else str(job.model),
                optimizer=plan.numerics.optimizer,
                step=done,
                plan=plan.model_dump(mode="json"),
            )
            self.store.save(named_tensors(self.update)[0], contents)

    def finish(self) -> None:
        """Wait for the save in progress."""
        if self.store is not None:
            self.store.wait()


def start(job: RunJob, rank: int, world_size: int, device: Any) -> Session:
    """Build everything that a rank needs. Raises UserError."""
    built, cut = job.built_graph(), job.cut_graph()
    prepared = prepare(job.plan, built, job.training, world_size * replicas_inside(job.plan), cut)
    graph = built or cut
    if prepared.strategy.reduction == "one_process":
        prepared = replace(prepared, plan=as_one_rank(prepared.plan))
    plan = prepared.plan
    copies = 1 if prepared.strategy.reduction == "one_process" else prepared.strategy.replicas
    ranks = ranks_of(plan, rank, device, copies)
    seed = job.learning.seed
    blueprint = Blueprint(
        graph, plan, prepared.strategy, Dtypes.of(plan), Recompute(plan.memory.recompute, prepared.selective),
        seed=seed, released=_released(job, rank), compiled=job.machine.compile, lora_alpha=job.learning.lora_alpha,
        library=None if cut is None else config_of(job.model),
    )  # fmt: skip
    clock = Clock(device)
    if graph is None or prepared.schedule is None:
        torch.manual_seed(seed)
        model = _own_module(job)
        engine, vocab = (make_own_engine(model, blueprint, job.training, job.learning, ranks), vocabulary(model))
    else:
        engine = make_engine(blueprint, job.training, job.learning, prepared.schedule, ranks)
        vocab = graph.dims["vocab"]
    engine.measure(clock)
    engine.follow_documents()
    source = as_trained(open_source(job.data, job.training, vocab, seed), job, vocab)
    shares = ranks.data_rank, plan.mesh.replicas
    loader = Loader(source, job.training.global_batch, *shares, seed)
    return Session(job, prepared, ranks, engine, loader, clock, layers_of(graph), Evaluation.of(job, vocab, *shares))


def _own_module(job: RunJob) -> Any:
    """The user's module, or that of a class of transformers, with images in front of sequences where it sees."""
    if not (parts := job.library_parts):
        return load_user_module(str(job.model))
    config, graph = config_of(job.model), job.graph()
    if PICTURES in parts and graph is not None:
        return make_pictured_model(config, graph, job.training.seq_len)
    return make_library_model(config)


def _released(job: RunJob, rank: int) -> Released | None:
    """The weights that a job starts from; the first rank reports which of them the model lacks. Raises UserError."""
    graph = job.built_graph()
    if job.weights.init_from is None or graph is None:
        return None
    result = Released.of(Path(job.weights.init_from), graph)
    if rank == 0:
        check_used(result, graph)
    return result


def vocabulary(model: Any) -> int:
    """The vocabulary size of a user's module: its ``vocab_size``, or its first embedding's. Raises UserError."""
    tables = (module.num_embeddings for module in model.modules() if isinstance(module, torch.nn.Embedding))
    result = getattr(model, "vocab_size", None) or next(tables, None)
    if not isinstance(result, int):
        raise UserError("the model has no vocab_size and no Embedding: its number of tokens is not known")
    return result


def train_step(session: Session, step: int) -> dict[str, Any]:
    """One optimizer step on this rank, with its loss, time and phases."""
    clock, ranks = session.clock, session.ranks
    seed_step(session, step)
    begin = clock.now()
    learning, update = session.job.learning, session.engine.update
    own_rate = rate(learning, step, session.job.steps)
    if learning.varies and isinstance(update, StepUpdate):
        update.set_rate(own_rate)
    with clock.phase("data"):
        tokens, targets, factor = local_batch(session, step)
        positions = _positions(session.loader, step)
    scale = session.engine.scale
    loss, norm = session.engine.step(tokens, targets, factor, positions)
    mean = float(loss) if session.by_servers and loss is not None else average_loss(loss, ranks, ranks.device)
    end = clock.now()
    row = {"step": step, "loss": mean, "step_time_s": end - begin, "phases_s": clock.take()}
    if learning.varies:
        row["learning_rate"] = own_rate
    if isinstance(update, StepUpdate) and update.loss_scale is not None:
        row["loss_scale"] = scale
    return row if norm is None else {**row, "gradient_norm": norm}


def local_batch(session: Session, step: int) -> tuple[Tensor, Tensor, float]:
    """Tokens and next tokens of this rank in a step: int64[sequences, its part of the sequence] each.

    If a model predicts further tokens, the second is int64[sequences, 1 + further, part]. The last is the factor of
    :meth:`simpar.runtime.data.Loader.targets`.
    """
    wanted, factor = session.loader.targets(step)
    return *_shared_out(session, session.loader.batch(step), wanted), factor


def _evaluated(session: Session, done: int) -> dict[str, float]:
    """The held-out loss, if evaluation is due after ``done`` steps."""
    evaluation, ranks = session.evaluation, session.ranks
    if evaluation is None or not evaluation.is_due(done):
        return {}

    def of_batch(number: int, wanted: Any) -> float:
        tokens, targets = _shared_out(session, evaluation.loader.batch(number), wanted)
        loss = session.engine.evaluate(tokens, targets, _positions(evaluation.loader, number))
        return average_loss(loss, ranks, ranks.device)

    return {"evaluation_loss": evaluation.loss(of_batch)}


def _positions(loader: Loader, step: int) -> Tensor | None:
    """Positions of a batch's tokens in documents that are kept apart, on the host; None if they are not."""
    positions = loader.positions(step)
    return None if positions is None else torch.from_numpy(positions)


def _shared_out(session: Session, drawn: Any, wanted: Any) -> tuple[Tensor, Tensor]:
    """The local part of sequences and their targets, int64[sequences, seq_len + 1], as :func:`local_batch` has it."""
    samples, targets = (torch.from_numpy(each).to(session.ranks.device) for each in (drawn, wanted))
    length = session.job.training.seq_len // session.ranks.mesh.cp
    here = place_of(session.prepared.layout, session.ranks).positions(length, samples.device)
    return samples[:, here], next_tokens(targets, here, session.further)


def seed_step(session: Session, step: int) -> None:
    """Make dropout a function of seed, step and rank, so that a resumed run continues exactly.

    Ranks of a tensor-parallel group draw the same numbers: masks of whole tensors, of which each takes its part.
    """
    torch.manual_seed(seed_of(session.job.learning.seed, step, session.ranks.here))


def seed_of(seed: int, step: int, here: Mapping[str, int]) -> int:
    """The seed of what the rank at some coordinates of the mesh draws in a step."""
    text = f"{seed} {step} {sorted({**here, 'tp': 0}.items())}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=6).digest(), "little")


@dataclass(frozen=True)
class Log:
    """Rank 0's log, one line of JSON per step, and the other outputs of figures."""

    path: Path
    sinks: Sequence[Sink]
    tokens_per_step: int

    @staticmethod
    def open(session: Session, first: int) -> Log:
        """Continue the log from a step; lines of steps that will be run again are dropped."""
        path = session.folder / LOG
        kept = [row for row in read_log(path) if row["step"] < first]
        write_atomic(path, "".join(json.dumps(row) + "\n" for row in kept))
        return Log(path, open_sinks(session.job, first), session.job.training.tokens_per_step)

    def append(self, row: dict[str, Any]) -> None:
        """Add a step."""
        with self.path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(row) + "\n")
        for sink in self.sinks:
            sink.write(row["step"], figures(row, self.tokens_per_step))

    def close(self) -> None:
        """Close the outputs."""
        for sink in self.sinks:
            sink.close()
