"""The request of a user of ``simpar run``, turned into a job and a prediction. No torch here."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from simpar.architectures.catalogue import config_of
from simpar.architectures.graph import ModelGraph
from simpar.architectures.training import Documents, Training
from simpar.calls import Strict
from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.files import parse
from simpar.hardware.cluster import Cluster
from simpar.plan.plan import Plan
from simpar.program.perturbation import Perturbation
from simpar.report.result import Result
from simpar.runtime.data import open_source
from simpar.runtime.evaluate import held_out
from simpar.runtime.hf_weights import rules, weights_of
from simpar.runtime.indexed import prefix_of
from simpar.runtime.job import PICTURES, RunJob
from simpar.runtime.lengths import blended_lengths, measure_lengths
from simpar.runtime.metrics import check_installed
from simpar.runtime.objective import PAIR
from simpar.runtime.pictures import Pictures
from simpar.runtime.prepare import STACK, Prepared, prepare
from simpar.runtime.released import Released, check_target
from simpar.runtime.saved import check_continuation
from simpar.runtime.served import ServedFolder
from simpar.runtime.strategy import check_apart, check_cut, is_split
from simpar.runtime.this_machine import usable_cores
from simpar.runtime.tokenize import MANIFEST, TokenManifest, tokenised
from simpar.runtime.tokenizer import BYTES, TokenizerFiles, check_vocabulary, digest_of
from simpar.scenario import ClusterChoice, Perturbations, Published, read_as
from simpar.tracing.code import require_consent

DRIVERS = ("nvidia[0-9]*", "kfd", "dxg")
HARDWARE, WITHOUT = "--hardware", "--set cluster=null"
FUSED = "expert_up.weight"
"""The gates and ups of experts, by the name of the parameter: of families whose files have them as one tensor."""
NEEDS = ("model", "training.seq_len", "training.global_batch")


class Request(Strict):
    """A scenario whose cluster may be omitted; then nothing is predicted."""

    description: str = ""
    model: str | dict[str, Any]
    cluster: ClusterChoice | None = None
    training: Training
    plan: Plan = Plan()
    stack: str | None = None
    perturbation: Perturbations = Perturbations()
    published: Published | None = None

    def build_cluster(self) -> Cluster | None:
        """The cluster to predict on, with its degraded links. Raises UserError."""
        return None if self.cluster is None else self.cluster.build(self.perturbation.degraded_links)

    def part_of(self, cluster: Cluster | None, world_size: int, nodes: int) -> Cluster | None:
        """The part of a cluster that fewer ranks run on: one node's devices, or whole nodes; else the cluster.

        Raises UserError for degraded links that the part has not.
        """
        if cluster is None or self.cluster is None or cluster.is_mixed or world_size >= cluster.world_size:
            return cluster
        each = cluster.profile.devices_per_node
        if world_size != nodes * each and (nodes > 1 or world_size > each):
            return cluster
        part = self.cluster.model_copy(update={"nodes": None, "devices": world_size})
        return part.build(self.perturbation.degraded_links)


@dataclass(frozen=True)
class Ready:
    """A job that can start on ``world_size`` ranks, and the cluster, with what differs there, to predict it on.

    ``training`` is the job's as it is predicted: with documents as long as the data's, where they are kept apart.
    """

    job: RunJob
    training: Training
    prepared: Prepared
    world_size: int
    cluster: Cluster | None
    perturbation: Perturbation


def load_request(name: str, flags: Mapping[str, Any], settings: Iterable[str]) -> Request:
    """Read a plan or scenario and apply flags to it. Raises UserError.

    A model that is code is taken only from the command line, never from a file.
    """
    request = read_as(Request, name, flags, settings, needs=NEEDS)
    require_consent(request.model, name, flags)
    return request


def make_ready(
    request: Request, nproc: int | None, nodes: int, options: Mapping[str, Any], *, named_by: str = HARDWARE
) -> Ready:
    """Check everything that can be checked before torch starts. Raises UserError.

    ``nproc`` is the number of ranks on each of ``nodes`` nodes; the default follows from the plan, or else from the
    cluster. ``options`` are further fields of the Job; ``named_by`` is the flag or file that names the hardware.
    """
    cluster = request.build_cluster()
    world_size = _world_size(request, cluster, nproc, nodes)
    cluster = request.part_of(cluster, world_size, nodes)
    plan = request.plan
    if request.stack or not plan.stack:
        plan = plan.model_copy(update={"stack": request.stack or STACK})
    training, data = _documents_in(request.training, options.get("data", {}))
    fields = {"plan": plan, "model": request.model, "training": training, **options, "data": data}
    job = parse(RunJob, fields, source="simpar run")
    graph, cut = job.built_graph(), job.cut_graph()
    if cut is not None:
        check_cut(cut, config_of(job.model))
    _check_pictures(job)
    prepared = prepare(plan, graph, training, world_size, cut)
    job = job.model_copy(update={"plan": _counted(plan, prepared, nodes)})
    if cluster is not None and cluster.world_size != world_size:
        where, none = ("", f"no {HARDWARE}") if named_by == HARDWARE else (f" of {named_by}", WITHOUT)
        raise UserError(
            f"hardware {cluster.profile.name}{where}: {cluster.nodes} x {cluster.profile.devices_per_node} devices for "
            f"{world_size} ranks; allowed: a profile of as many, or {none}, which predicts nothing"
        )
    if job.checkpoints is not None and prepared.strategy.alone:
        raise UserError(
            f"--checkpoint with plan.sync = {plan.data_parallel.sync}: a checkpoint keeps one replica's states, and "
            "these differ or are on servers; allowed: no checkpoints"
        )
    _check_rounding(job)
    _check_traced(job, check_continuation(job))
    check_installed(job)
    _check_evaluation(job, prepared)
    if job.machine.compile:
        _check_compiled(prepared)
    _check_weights(job, graph)
    whole = job.graph()
    if whole is not None and (given := job.data.tokenizer) not in (None, BYTES):
        check_vocabulary(given, TokenizerFiles.of(given).ids(), whole.dims["vocab"])
    if job.data.kind == "text" and nodes > 1:
        raise UserError(
            f"--text with --nnodes {nodes}: every node would encode it; allowed: simpar tokenize, then --tokens FOLDER"
        )
    if job.data.apart:
        check_apart(prepared.strategy, graph, compiled=job.machine.compile)
    _check_idle(job)
    job = tokenised(job)
    _check_tokenizer(job)
    if whole is not None:
        source = open_source(job.data, job.training, whole.dims["vocab"], job.learning.seed)
        if job.measuring.evaluate_every is not None:
            held_out(job, whole.dims["vocab"])
        if source.masked and prepared.strategy.reduction == "stages":
            raise UserError("tokens outside the loss: stages of their own count all; allowed: --pack --loss-on all")
    return Ready(job, _as_predicted(job), prepared, world_size, cluster, request.perturbation.of_ranks())


def _documents_in(training: Training, data: Mapping[str, Any]) -> tuple[Training, dict[str, Any]]:
    """A training without documents, and the data as its documents say: apart in a sequence, or padded each.

    A run takes the lengths that its data has. Raises UserError for data without documents, or that says otherwise.
    """
    documents, result = training.documents, dict(data)
    if documents is not None:
        if result.get("path") is None and not result.get("blend"):
            raise UserError("training.documents: synthetic tokens have none; allowed: with --tokens FOLDER or --text")
        name, wanted = ("pack", False) if documents.packing == "pad" else ("apart", True)
        if result.setdefault(name, wanted) != wanted:
            raise UserError(
                f"training.documents.packing = {documents.packing} with data.{name} = {result[name]}; allowed: {wanted}"
            )
    if result.get("apart") and result.get("pack") is False:
        raise UserError("--apart with --no-pack: a document has a sequence of its own then; allowed: one of them")
    return training.model_copy(update={"documents": None}), result


def _as_predicted(job: RunJob) -> Training:
    """The training with the lengths of the data's documents, where these are kept apart."""
    if not job.data.apart:
        return job.training
    if job.data.blend:
        lengths = blended_lengths([(Path(each.path), each.weight) for each in job.data.blend])
        measured: dict[str, Any] = {"lengths": lengths, "packing": "pack"}
    else:
        measured = measure_lengths(Path(str(job.data.path)), None)["documents"]
    return job.training.model_copy(update={"documents": Documents.model_validate(measured)})


def _check_traced(job: RunJob, first: int) -> None:
    """Raise UserError if a run that begins with step ``first`` ends before its trace does."""
    traced, warmup = job.measuring.trace_steps, job.measuring.warmup
    if traced and job.steps - first < warmup + traced:
        raise UserError(
            f"--trace-steps {traced} (1 with --trace) after --warmup {warmup}: {job.steps - first} steps are left to "
            f"run; allowed: {warmup + traced} or more, or a smaller --warmup"
        )


def _check_evaluation(job: RunJob, prepared: Prepared) -> None:
    """Raise UserError if a run cannot be evaluated on the data it is given."""
    every, strategy = job.measuring.evaluate_every, prepared.strategy
    if every is None:
        if job.measuring.held_out is not None:
            raise UserError(f"--held-out {job.measuring.held_out}: allowed: with --eval-every N")
        return
    if strategy.alone:
        raise UserError(
            f"--eval-every with plan.sync = {job.plan.data_parallel.sync}: replicas that step on their own differ; "
            "allowed: bsp"
        )
    if strategy.reduction == "stages":
        raise UserError("--eval-every: stages of their own run forward and backward only together; allowed: none")


def _check_compiled(prepared: Prepared) -> None:
    """Raise UserError if torch.compile does not support the layers."""
    if prepared.strategy.reduction in ("stages", "one_process"):
        what = "stages of their own" if prepared.strategy.reduction == "stages" else "kind = single_process"
        raise UserError(f"--compile with {what}: layers are not called as they stand; allowed: none")
    if (tp := prepared.plan.mesh.tp) > 1 and not prepared.plan.tensor_parallel.sequence_parallel:
        raise UserError(
            f"--compile with tp = {tp} and whole sequences: torch does not finish tracing such layers; allowed: "
            "plan.sequence_parallel = true, or tp = 1"
        )
    if prepared.schedule is not None and is_split(prepared.schedule):
        raise UserError(
            f"--compile with schedule {prepared.plan.schedule}: a compiled backward cannot be split into I and W; "
            "allowed: a schedule without W"
        )


def _check_pictures(job: RunJob) -> None:
    """Raise UserError where a class of transformers reads images or pairs in a way that a run cannot give it."""
    parts, whole = job.library_parts, job.graph()
    if whole is not None and PICTURES in parts:
        Pictures.of(config_of(job.model), whole, job.training.seq_len)
    if whole is not None and PAIR in parts and (own := whole.dims.get("decoder.seq")) is not None:
        raise UserError(
            f"decoder_seq_len = {own}: a run gives encoder and decoder the same tokens; allowed: none, which predicts "
            "as many"
        )


def _check_weights(job: RunJob, graph: ModelGraph | None) -> None:
    """Raise UserError if a run cannot start from the weights it is given, or cannot write any."""
    for flag, folder in (("--init-from", job.weights.init_from), ("--save-to", job.weights.save_to)):
        if folder is not None and graph is None:
            whose = "a model of your own reads and writes its weights itself"
            if job.library_parts:
                whose = "a run of transformers' own class starts from random weights, and its checkpoints are its own"
            raise UserError(f"{flag} {folder}: {whose}; allowed: none")
    if graph is None:
        return
    if job.weights.init_from is not None:
        Released.of(Path(job.weights.init_from), graph)
    if job.weights.save_to is not None:
        rules(str(config_of(job.model).get("model_type") or ""), (), graph.dims)
        check_target(Path(job.weights.save_to))
        ServedFolder.of(job, "")
    _check_adapters(job, graph)


def _check_tokenizer(job: RunJob) -> None:
    """Raise UserError for tokens of another tokenizer than the one that is named, or that the model is saved with."""
    given = job.data.tokenizer
    folders = [folder for each in job.data.parts if ((folder := Path(str(each.path))) / MANIFEST).is_file()]
    stated = {folder: digest for folder in folders if (digest := TokenManifest.load(folder).tokenizer) is not None}
    for folder, digest in stated.items():
        if digest != stated[first := next(iter(stated))]:
            raise UserError(f"{folder}: has tokens of another tokenizer than {first}; allowed: the same one")
    if not folders or (given is None and job.weights.save_to is None):
        return
    used = None if given == BYTES else ServedFolder.of(job, "").tokenizer
    here = BYTES if given == BYTES else used and digest_of(used.ids())
    if here is not None and (others := [folder for folder, digest in stated.items() if digest != here]):
        name = f"--tokenizer {given}" if used is None else str(used.definition)
        raise UserError(
            f"{name}: {others[0]} has tokens of another tokenizer; allowed: the one that they were made with"
        )


def _check_idle(job: RunJob) -> None:
    """Raise UserError for a flag that would do nothing: what it needs is not there."""
    data, learning, measuring = job.data, job.learning, job.measuring
    scaled = job.plan.numerics.precision == "fp16"
    files = [Path(str(each.path)) for each in data.parts if data.kind == "tokens"]
    files = [each for each in files if not each.is_dir()]
    indexed = any(prefix_of(each) is not None for each in files)
    flat = any(prefix_of(each) is None for each in files)
    for part, name, flag, needed, with_it in (
        (
            data,
            "validation",
            "--validation",
            data.kind == "text" or indexed,
            "--text or an index; simpar tokenize holds out of other --tokens",
        ),
        (data, "loss_on", "--loss-on", data.kind == "text", "--text; simpar tokenize says it of --tokens"),
        (data, "skip_empty", "--skip-empty", data.kind == "text", "--text; simpar tokenize has its own"),
        (data, "dtype", "--token-dtype", flat, "--tokens FILE, a flat one"),
        (measuring, "evaluate_batches", "--eval-batches", measuring.evaluate_every is not None, "--eval-every N"),
        (learning, "decay_steps", "--lr-decay", learning.schedule == "wsd", "--lr-schedule wsd"),
        (learning.sixteen_bits, "loss_scale", "--loss-scale", scaled, "--precision fp16"),
    ):
        if getattr(part, name) != type(part).model_fields[name].default and not needed:
            raise UserError(f"{flag} {getattr(part, name)}: nothing reads it; allowed: with {with_it}")


def _check_rounding(job: RunJob) -> None:
    rounding = job.learning.sixteen_bits.rounding
    if rounding is not None and job.plan.execution.parameter_dtype != "bf16":
        raise UserError(
            f"--rounding {rounding}: parameters are kept in fp32; allowed: with plan.parameter_dtype = bf16"
        )


def _check_adapters(job: RunJob, graph: ModelGraph) -> None:
    """Raise UserError if adapters would be left without their weights, or if there are none to merge."""
    adapters, weights = job.plan.tuning.lora_rank is not None, job.weights
    if job.learning.lora_alpha is not None and not adapters:
        raise UserError(f"--lora-alpha {job.learning.lora_alpha:g}: allowed: with --lora-rank")
    if weights.merge and not (adapters and weights.save_to is not None):
        raise UserError("--merge: adapters go into the weights that are saved; allowed: with --lora-rank and --save-to")
    if adapters and weights.save_to is not None and weights.init_from is None and not weights.merge:
        raise UserError(
            f"--save-to {weights.save_to}: adapters belong to weights that no folder has: these are random; allowed: "
            "--init-from DIR, or --merge, which saves both as one model"
        )
    if adapters and weights.save_to is not None and not weights.merge:
        _check_expert_adapters(job, graph)


def _check_expert_adapters(job: RunJob, graph: ModelGraph) -> None:
    """Raise UserError if PEFT would not read adapters of experts from a file of adapters alone."""
    family = str(config_of(job.model).get("model_type") or "")
    has = {op.name for block in graph.blocks.values() for op in block.operators}
    if not (graph.is_mixture and {"gate_proj", "down_proj"} & {*job.plan.tuning.lora_targets}):
        return
    why = ""
    if FUSED in weights_of(family).tensors:
        why = f"files of {family} have all experts as one tensor"
    elif {"mlp_up", "shared_up"} & has:
        why = "an MLP beside them has the same words, of which PEFT reads one with transformers 5"
    if why:
        raise UserError(
            f"--save-to {job.weights.save_to}: adapters of experts: {why}; allowed: --merge, or plan.lora_targets = "
            "q_proj, k_proj, v_proj, o_proj"
        )


def _counted(plan: Plan, prepared: Prepared, nodes: int) -> Plan:
    """The plan with its replicas in one process, or its servers, which workers cannot count. Raises UserError."""
    if prepared.strategy.reduction == "one_process":
        mesh = plan.mesh.model_copy(update={"dp": prepared.plan.mesh.dp})
        return plan.model_copy(update={"mesh": mesh})
    if prepared.strategy.reduction != "servers":
        return plan
    if nodes > 1:
        raise UserError(
            f"--nnodes {nodes} with plan.sync = {plan.data_parallel.sync} and servers: they are processes of the one "
            "node in a real run; allowed: 1"
        )
    servers = {"servers": prepared.plan.data_parallel.servers}
    return plan.model_copy(update={"data_parallel": plan.data_parallel.model_copy(update=servers)})


def _world_size(request: Request, cluster: Cluster | None, nproc: int | None, nodes: int) -> int:
    if nproc is not None and nproc < 1:
        raise UserError(f"--nproc {nproc}: allowed: 1 or more")
    if nproc is not None:
        return nproc * nodes
    ranks = request.plan.world_size
    if ranks is None:
        ranks = request.plan.mesh.world_size if cluster is None else cluster.world_size
    if ranks % nodes:
        raise UserError(f"plan: {ranks} ranks do not spread evenly over {nodes} nodes")
    return ranks


def on_machine(job: RunJob, processes: int, *, servers: int = 0, devices: int | None = None) -> RunJob:
    """The job with the choices that depend on this machine: the device, and the threads of each rank.

    Ranks of a node share its cores, also with parameter servers. CUDA is chosen if there are enough ``devices``: one
    per process by default. Raises UserError if CUDA was asked for and there are too few.
    """
    needed = devices or processes
    chosen = job.machine.model_fields_set
    result = accelerators()
    device = job.machine.device if "device" in chosen else ("cuda" if result >= needed else "cpu")
    if device == "cuda" and result < needed:
        raise UserError(
            f"machine.device = cuda: {needed} ranks on this node, {result} CUDA devices; "
            "allowed: cpu, or one device a rank"
        )
    threads = job.machine.threads if "threads" in chosen else max(1, usable_cores() // (processes + servers))
    if job.measuring.memory_snapshot and device != "cuda":
        raise UserError("--memory-snapshot: torch records allocations on CUDA only; allowed: with --device cuda")
    machine = job.machine.model_copy(update={"device": device, "threads": threads})
    return job.model_copy(update={"machine": machine})


def accelerators() -> int:
    """The number of devices that torch's CUDA backend sees: NVIDIA's, AMD's, those of WSL.

    torch is imported for this only if the system has the device file of such a driver.
    """
    if not any(path for pattern in DRIVERS for path in Path("/dev").glob(pattern)):
        return 0
    import torch

    return int(torch.cuda.device_count())


def simulate_job(ready: Ready) -> Result | None:
    """The simulated step of the job, with a user's model traced; None without a cluster."""
    from simpar.simulation import simulate

    if ready.cluster is None:
        return None
    graph = ready.job.graph()
    model = str(ready.job.model) if graph is None else graph
    return simulate(model, ready.cluster, ready.job.plan, ready.training, perturbation=ready.perturbation)


def predict_job(ready: Ready, result: Result | None) -> dict[str, Any] | None:
    """What the simulation, or else the plan file, predicts for the job; None if neither does."""
    if result is None:
        return dict(ready.job.plan.predicted) if ready.job.plan.predicted else None
    figures = {name: getattr(result.speed, name) for name in ("step_time_s", "tokens_per_s", "mfu")}
    memory = {name: getattr(result.memory, name) for name in ("peak_memory_bytes", "peak_reserved_bytes")}
    met = result.cooperation
    stale = {"staleness": met.staleness.model_dump()} if met is not None and met.staleness is not None else {}
    return {**figures, **memory, **stale, "time_breakdown_s": result.time_breakdown_s.model_dump()}


def default_folder(name: str) -> Path:
    """The default folder of results: in the current directory, named after the plan."""
    return Path(f"{Path(name).stem}-run")
