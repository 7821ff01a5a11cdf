"""How a checked plan runs in torch, and which combinations are refused, with the reason. No torch here.

| plan | gradients | optimizer states |
|---|---|---|
| no data parallelism | - | whole |
| zero 0 | DDP; explicit where DDP cannot (tensor parallelism, several chunks, split backward) | whole |
| zero 1 | as zero 0 | ZeroRedundancyOptimizer |
| zero 2, 3, HSDP | fully_shard | with the shards |
| experts with ep or tp, zero 0, 1 | explicit, of experts over the ranks that hold the same | as zero 0, 1 |
| the same, zero 2, 3 | fully_shard, of experts over the ranks that hold the same | with the shards |
| offload_parameters cpu | fully_shard that keeps its shards on the host, of one rank as well | with the shards |
| offload_optimizer cpu | as without | on the host, with the update, of what a rank would update otherwise |
| servers | pushed to ranks of their own, over the host | on the servers |
| stages of their own | by role: of rows over the ranks that share them (`runtime/placed.py`) | as zero 0 or 1 |
| single_process | autograd of one process that drives all replicas | whole |

DDP broadcasts and reduces plain tensors only, and expects one backward per parameter and step; fully_shard reduces
in hooks that a split backward (I and W) does not reach.
"""

import importlib.util
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from simpar import precisions
from simpar.architectures.details import ROPE_TYPES, SCORES
from simpar.architectures.graph import ModelGraph
from simpar.architectures.recompute import SIMPLE, modes
from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.layout.layout import Layout
from simpar.plan.choices import CHOICES
from simpar.plan.choices.numerics import NARROW_MASTERS
from simpar.plan.optimizers import IN_TORCH
from simpar.plan.plan import Plan
from simpar.plan.schedules import HALF_SCHEDULES
from simpar.plan.schedules.actions import B, F, Schedule
from simpar.plan.sync import replicas_are_independent
from simpar.plan.torch_roles import explain_no_copies, refuse_roles
from simpar.simulation import apply_tuning
from simpar.tracing.library import pipeline_parts

OWN_CHOICES = ("lora_dropout", "parameter_dtype")
"""Choices of stacks that the runtime makes as a plan says: what adapters drop, what it keeps of parameters."""
Reduction = Literal["none", "ddp", "explicit", "fsdp", "one_process", "servers", "stages"]


@dataclass(frozen=True)
class Strategy:
    """The implementation of a plan in torch.

    ``reduction`` is that of gradients over the data-parallel ranks, ``shard_optimizer`` is set for ZeRO-1, ``reshard``
    frees parameters after the forward (ZeRO-3), ``replicas`` counts copies of the shards, which are ``alone`` if they
    reduce nothing inside a step. Experts are ``spread`` if ranks of a stage hold different ones.
    """

    reduction: Reduction
    shard_optimizer: bool = False
    reshard: bool = False
    replicas: int = 1
    alone: bool = False
    spread: bool = False


def choose(plan: Plan, schedule: Schedule | None, graph: ModelGraph | None = None) -> Strategy:
    """The strategy of a checked plan; ``graph`` is None for a user's model.

    Raises UserError for what torch cannot do, or does wrongly.
    """
    _refuse_overlaps(plan)
    _refuse(plan, graph, cut=graph is None and schedule is not None)
    if schedule is not None:
        refuse_schedule(schedule)
        if graph is None and is_split(schedule):
            raise UserError(
                f"plan.schedule = {plan.schedule}: stages of transformers' class are not known to split their backward "
                "in I and W; allowed: a schedule without W"
            )
    if plan.numerics.products.is_cast:
        _refuse_eight_bits(plan, schedule, graph)
    if schedule is not None and graph is not None and graph.auxiliary:
        _refuse_further(plan, graph, schedule)
    if plan.pipeline.stages and graph is not None:
        refuse_roles(plan.pipeline.stages, graph)
        if (zero := plan.data_parallel.zero) > 1:
            raise UserError(f"plan.zero = {zero}: gradients of stages stay whole in a real run; allowed there: 0, 1")
        return Strategy("stages", shard_optimizer=zero == 1)
    data, mesh = plan.data_parallel, plan.mesh
    # The first line that holds decides; width = ranks over which a gradient is summed:
    #   one process drives all replicas            one_process
    #   experts on other ranks, zero 0 or 1        explicit, sums of experts and of the rest over different groups
    #   width 1, nothing fetched from the host     none
    #   parameter servers                          servers
    #   replicas meet every few steps, zero 0      none, each alone
    #   zero 2 or 3, or parameters on the host     fsdp (never where backward is split into I and W)
    #   tp 1, one chunk, backward not split        ddp, whose hooks overlap the sums
    #   else                                       explicit, sums behind the last backward
    width = mesh.gradient_ranks
    if data.kind == "single_process":
        return Strategy("one_process", replicas=width)
    spread, fetches = spreads_experts(plan, graph), plan.offload.offload_parameters != "none"
    if spread and not fetches and (data.zero < 2 or width == 1):
        sharded = data.zero == 1 and width > 1
        return Strategy("explicit", shard_optimizer=sharded, replicas=data.hsdp, spread=True)
    if width == 1 and not fetches:
        return Strategy("none")
    if data.servers is not None:
        return Strategy("servers", replicas=width, alone=True)
    if replicas_are_independent(plan) and not data.zero:
        return Strategy("none", alone=True)
    split = schedule is not None and is_split(schedule)
    if data.zero >= 2 or fetches:
        if split:
            what = "offload_parameters = cpu" if fetches else f"zero = {data.zero}"
            raise UserError(
                f"plan.{what} with schedule {plan.schedule}: fully_shard misses gradients of a backward "
                f"that is split into I and W, silently; allowed: {'none' if fetches else 'zero 0 or 1'}, or a schedule "
                "without W"
            )
        reshard = data.reshards or width == 1
        return Strategy(
            "fsdp", reshard=reshard, replicas=data.hsdp, alone=replicas_are_independent(plan), spread=spread
        )
    plain = mesh.tp == 1 and plan.pipeline.vpp == 1 and not split
    return Strategy("ddp" if plain else "explicit", shard_optimizer=data.zero == 1, replicas=data.hsdp)


def replicas_inside(plan: Plan) -> int:
    """Replicas that one process drives: all of them under ``single_process``, otherwise one."""
    return plan.mesh.replicas if plan.data_parallel.kind == "single_process" else 1


def is_split(schedule: Schedule) -> bool:
    """Whether any backward is split into I and W."""
    return any(bool(((columns.code != F) & (columns.code != B)).any()) for columns in schedule.ranks)


def refuse_schedule(schedule: Schedule) -> None:
    """Raise UserError for an action table that torch's pipeline runtime cannot execute."""
    if schedule.num_mirrored:
        raise UserError(
            f"plan.schedule = {schedule.name}: two copies of every stage; allowed: the others, such as "
            f"{HALF_SCHEDULES[schedule.name]}"
        )
    last = schedule.num_stages - 1
    for rank in range(schedule.num_ranks):
        code, stage, microbatch = schedule.arrays(rank)
        order = microbatch[(code == F) & (stage == last)]
        if len(order) and (order[1:] < order[:-1]).any():
            raise UserError(
                "plan.actions: the last stage's forwards are out of order; allowed: microbatches 0, 1, 2, ..., "
                "because torch counts losses"
            )


def check_cut(graph: ModelGraph, config: Mapping[str, Any]) -> None:
    """Raise UserError unless transformers says how a pipeline cuts the class of a config, whose graph is given."""
    why = ""
    if pipeline_parts(config) is None:
        why = f"transformers states no pipeline for {config.get('model_type')}"
    elif graph.tied_embeddings:
        why = "its first and last stage would share a table"
    elif graph.auxiliary:
        why = "transformers' class has no layers that predict further tokens"
    if why:
        raise UserError(f"plan.pp: {why}; allowed: 1")


def _refuse_other_pipelines(plan: Plan) -> None:
    if Layout.of(plan).runs_slices:
        raise UserError("plan.slices: torch's pipelines run whole sequences; allowed in a real run: none")
    if plan.pipeline.encoder_in_bubbles:
        raise UserError(
            "plan.encoder_in_bubbles = true: torch's pipelines run a stage on one rank; allowed in a real run: false"
        )


def _refuse_overlaps(plan: Plan) -> None:
    for name in ("ep_overlap", "shared_expert_overlap"):
        if getattr(plan.experts, name):
            raise UserError(f"plan.{name} = true: a rank waits for its tokens; allowed in a real run: false")


def _refuse(plan: Plan, graph: ModelGraph | None, *, cut: bool = False) -> None:
    numerics, mesh = plan.numerics, plan.mesh
    _refuse_other_pipelines(plan)
    if plan.memory.recompute_early:
        raise UserError(
            "plan.recompute_early = true: torch recomputes inside the backward; allowed in a real run: false"
        )
    if replicas_are_independent(plan):
        _refuse_alone(plan)
    narrow = plan.execution.parameter_dtype == "bf16"
    if numerics.optimizer not in IN_TORCH or numerics.moment_dtype not in (None, "fp32", "bf16" if narrow else None):
        raise UserError(
            f"plan.optimizer = {numerics.optimizer}, moment_dtype = {numerics.moment_dtype}: allowed in a real run: "
            f"{', '.join(IN_TORCH)} with fp32 moments{'' if narrow else '; with parameter_dtype = bf16 also bf16 ones'}"
        )
    if numerics.master_dtype in NARROW_MASTERS:
        raise UserError(
            f"plan.master_dtype = {numerics.master_dtype}: torch's optimizers update fp32; allowed in a real run: fp32"
        )
    if narrow:
        _refuse_narrow(plan, graph)
    policy = plan.memory.recompute
    if not {*modes(policy)} <= {*SIMPLE}:
        raise UserError(
            f"plan.recompute = {policy}: allowed in a real run: none, selective, full, every:C, or layers: of "
            "the first three"
        )
    if plan.tuning.is_used:
        _refuse_tuning(plan, graph)
    for name in ("offload_optimizer", "offload_parameters"):
        if getattr(plan.offload, name) == "nvme":
            raise UserError(
                f"plan.{name} = nvme: torch has no part that reads and writes drives beside an update; allowed in a "
                "real run: none, cpu"
            )
    for choice in CHOICES:
        if choice.name in OWN_CHOICES:
            continue
        if choice.in_stack is not None and (given := plan.get(choice.name)) is not None:
            raise UserError(
                f"plan.{choice.name} = {given}: the runtime executes steps in its own way; allowed in a real run: none"
            )
    for name in ("reduce_dtype", "gather_dtype"):
        if (given := getattr(numerics, name)) is not None:
            raise UserError(
                f"plan.{name} = {given}: the runtime sends gradients and parameters as it holds them; allowed: none"
            )
    if numerics.precision == "fp16":
        _refuse_scaled(plan, graph)
    if not numerics.products.in_torch:
        raise UserError(
            f"plan.precision = {numerics.precision}: needs products that torch has not; "
            f"allowed in a real run: {', '.join(precisions.IN_TORCH)}"
        )
    if graph is None:
        others = {"tp": mesh.tp, "pp": 1 if cut else mesh.pp, "cp": mesh.cp, "ep": mesh.ep if cut else 1}
        whose = (
            "a class of transformers is data parallel and cut into stages"
            if cut
            else ("a module of your own, or of transformers, is only data parallel")
        )
        for axis, size in others.items():
            if size > 1:
                raise UserError(f"plan.{axis} = {size}: {whose}; allowed: 1")
        if cut and plan.pipeline.stages:
            raise UserError(f"plan.stages: {whose}, all alike; allowed: none")
        return
    if parts := graph.details.unbuilt:
        raise UserError(
            f"model {graph.name}: {', '.join(parts)}: simulated, no run computes it; allowed: models without"
        )
    if not is_decoder(graph):
        raise UserError(
            f"model {graph.name}: has two towers, or layers that are not causal; the runtime trains decoders, or a "
            "module:function"
        )
    _refuse_details(plan, graph)
    if "mamba_heads" in graph.dims:
        _refuse_mixers(graph)
    if mesh.tp > 1:
        _refuse_tensor(mesh.tp, graph)


def _refuse_narrow(plan: Plan, graph: ModelGraph | None) -> None:
    """Parameters in bf16 are all there is of them, and torch's gradients have their dtype."""
    numerics, sync = plan.numerics, plan.data_parallel.sync
    for wrong, said in (
        (graph is None, "a model of your own keeps its dtypes itself; allowed: none"),
        (numerics.products.in_torch != "bfloat16", f"precision = {numerics.precision}; allowed: bf16, fp8"),
        (
            numerics.master_weights is not False,
            "master_weights = true: a run keeps parameters once; allowed: master_weights = false, or fp32",
        ),
        (
            numerics.grad_dtype != "bf16",
            f"grad_dtype = {numerics.grad_dtype}: gradients have the dtype of their parameters; allowed: bf16",
        ),
        (plan.offload.offload_optimizer != "none", "offload_optimizer: hosts update in fp32; allowed: none"),
        (replicas_are_independent(plan), f"sync = {sync}: means of parameters would be rounded; allowed: bsp"),
        (plan.tuning.is_used, "adapters or frozen layers, which have dtypes of their own; allowed: none"),
    ):
        if wrong:
            raise UserError(f"plan.parameter_dtype = bf16 with {said}")


def _refuse_scaled(plan: Plan, graph: ModelGraph | None) -> None:
    """A scaled loss needs one update of all ranks at once, from gradients that are summed in fp32."""
    data = plan.data_parallel
    for wrong, said in (
        (graph is None, "a model of your own scales its loss itself; allowed: bf16, fp32"),
        (plan.numerics.master_weights is False, "master_weights = false: updates vanish; allowed: true, or bf16"),
        (data.servers is not None, f"servers = {data.servers}: they keep no scale of a loss; allowed: bf16, fp32"),
        (bool(plan.pipeline.stages), "stages of their own; allowed: bf16, fp32"),
        (bool(plan.offload.offload_delayed), "offload_delayed: it is too late to leave a step out; allowed: false"),
    ):
        if wrong:
            raise UserError(f"plan.precision = fp16 with {said}")


def _refuse_eight_bits(plan: Plan, schedule: Schedule | None, graph: ModelGraph | None) -> None:
    """8-bit products come from torchao: whole weights, dense layers, and backwards that are not split."""
    mesh = plan.mesh
    for wrong, said in (
        (graph is None, "a model of your own decides on its products itself; allowed: bf16, fp32"),
        (graph is not None and graph.is_mixture, "products of experts in 8 bits are not written; allowed: bf16"),
        (mesh.tp > 1, f"tp = {mesh.tp}: parts of a product would have scales of their own; allowed: 1"),
        (bool(plan.pipeline.stages), "stages of their own place products by role; allowed: bf16"),
        (plan.tuning.is_used, "adapters and frozen layers; allowed: bf16"),
        (plan.data_parallel.kind == "single_process", "kind = single_process; allowed: processes of their own"),
        (schedule is not None and is_split(schedule), "a backward in I and W; allowed: a schedule without W"),
        (
            importlib.util.find_spec("torchao") is None,
            "torchao, which computes 8-bit products, is not installed: pip install torchao",
        ),
    ):
        if wrong:
            raise UserError(f"plan.precision = {plan.numerics.precision}: {said}")


def _refuse_details(plan: Plan, graph: ModelGraph) -> None:
    """Refuse what a config asks for and the runtime does not compute, or not in parts of a sequence."""
    details = graph.details
    if graph.is_mixture and details.gating.score not in SCORES:
        raise UserError(
            f"model {graph.name}: its router scores by {details.gating.score}; the runtime knows {', '.join(SCORES)}"
        )
    if details.positions.rope.kind not in ROPE_TYPES:
        kind = details.positions.rope.kind
        raise UserError(
            f"model {graph.name}: rope_scaling.rope_type = {kind}: the runtime knows {', '.join(ROPE_TYPES)}"
        )
    for has, what in (
        (details.caps.attention, "a cap of attention scores"),
        (details.positions.alibi, "ALiBi"),
        (details.dropout.attention > 0, "dropout of attention"),
    ):
        if has and plan.mesh.cp > 1:
            raise UserError(
                f"plan.cp = {plan.mesh.cp} with {what}: attention to parts of a sequence has none; allowed: 1"
            )


def _refuse_tuning(plan: Plan, graph: ModelGraph | None) -> None:
    """Adapters and frozen layers work in decoders, with products of 16 bits or more."""
    tuning = plan.tuning
    name = "lora_rank" if tuning.lora_rank is not None else "frozen_layers"
    for wrong, said in (
        (graph is None, f"plan.{name}: a model of your own freezes its weights itself; allowed: none"),
        (
            tuning.frozen_dtype not in ("bf16", "nf4"),
            f"plan.frozen_dtype = {tuning.frozen_dtype}: torch has no such products; allowed: bf16, nf4",
        ),
        *_four_bits(plan, graph),
        *_adapters_beside(plan, graph),
        (
            replicas_are_independent(plan),
            f"plan.{name} with sync = {plan.data_parallel.sync}: allowed: bsp without servers",
        ),
        (bool(plan.pipeline.stages), f"plan.{name}: a real run trains all of stages of their own; allowed there: none"),
    ):
        if wrong:
            raise UserError(said)
    if graph is not None:
        apply_tuning(plan, graph)


def _adapters_beside(plan: Plan, graph: ModelGraph | None) -> Iterator[tuple[bool, str]]:
    """What adapters of products of experts do not go with."""
    if graph is None or plan.tuning.lora_rank is None:
        return
    targets = plan.tuning.lora_targets
    products = {op.name: op for block in graph.blocks.values() for op in block.operators}
    gated = "expert_up" in products and products["expert_up"].columns[0][0] > 1
    halves = {"gate_proj", "up_proj"} & {*targets}
    grouped = graph.is_mixture and bool(halves or "down_proj" in targets)
    yield (
        grouped and len(halves) == 1 and (gated or halves == {"gate_proj"}),
        f"plan.lora_targets = {', '.join(halves)}: experts have gates and ups as one; allowed: both or none",
    )
    yield (
        grouped and plan.mesh.expert_tensor_parallel > 1,
        f"plan.etp = {plan.mesh.expert_tensor_parallel} with adapters of experts: are not cut; allowed: 1",
    )
    yield (
        grouped and bool(plan.tuning.lora_dropout),
        (
            f"plan.lora_dropout = {plan.tuning.lora_dropout} with adapters of experts: PEFT has none there either; "
            "allowed: 0, or lora_targets = q_proj, k_proj, v_proj, o_proj"
        ),
    )


def _four_bits(plan: Plan, graph: ModelGraph | None) -> Iterator[tuple[bool, str]]:
    """What matrices in 4 bits do not go with: blocks that share scales are not cut."""
    used, data = plan.tuning.frozen_dtype == "nf4", plan.data_parallel
    name = "plan.frozen_dtype = nf4"
    mixed = graph is not None and graph.is_mixture
    yield used and mixed, f"{name}: grouped products of experts read no 4 bits; allowed: bf16"
    yield used and plan.mesh.tp > 1, f"{name} with tp = {plan.mesh.tp}: blocks in 4 bits are not cut; allowed: 1"
    yield used and data.zero > 1, f"{name} with zero = {data.zero}: shards in 4 bits are not gathered; allowed: 0, 1"
    yield (
        used and plan.offload.offload_parameters != "none",
        f"{name} with offload_parameters: weights in 4 bits stay on the device; allowed: none",
    )
    yield used and data.kind == "single_process", f"{name} with kind = single_process; allowed: processes of their own"


def _refuse_alone(plan: Plan) -> None:
    """Replicas that step on their own synchronise by all-reduce, with whole states or fully sharded ones.

    Replicas of parameter servers are one rank each.
    """
    data, mesh = plan.data_parallel, plan.mesh
    if data.servers is not None:
        for name, size in (("tp", mesh.tp), ("pp", mesh.pp), ("cp", mesh.cp)):
            if size > 1:
                raise UserError(
                    f"plan.{name} = {size} with servers = {data.servers}: in a real run a replica of parameter "
                    "servers is one rank; allowed: 1"
                )
        if data.zero:
            raise UserError(
                f"plan.zero = {data.zero} with servers = {data.servers}: states are on the servers; allowed: 0"
            )
        return
    if data.zero == 1 or (plan.mesh.cp > 1 and not data.zero):
        raise UserError(
            f"plan.sync = {data.sync} with zero = {data.zero}, cp = {plan.mesh.cp}: gradients are still shared "
            "within a replica; allowed: zero 2 or 3 with hsdp, or zero 0 without cp"
        )


def is_decoder(graph: ModelGraph) -> bool:
    """Whether a model is one stack of causal layers between one embedding and one head."""
    blocks = [graph.blocks[name] for name in set(graph.layers)]
    layered = [op for block in blocks for op in block.operators]
    apart = any(block.scope or block.passes for block in (*blocks, graph.embedding, graph.head))
    causal = all(op.attention.causal for op in layered if op.attention is not None)
    return causal and not apart and all(op.kind != "embedding" for op in layered)


def _refuse_further(plan: Plan, graph: ModelGraph, schedule: Schedule) -> None:
    """Layers that predict further tokens must be on the stage of the head, whose weights they use again."""
    further = sum(name in graph.auxiliary for name in graph.layers)
    last = Layout.of(plan).stage_layers(len(graph.layers))[-1]
    if last < further:
        raise UserError(
            f"plan.layers: the last stage has {last}, the model predicts further tokens with {further}, which stand "
            f"beside the head in a real run; allowed: a last stage of {further} or more"
        )
    if is_split(schedule):
        raise UserError(
            f"plan.schedule = {plan.schedule} with a model that predicts further tokens: torch cannot split the "
            "backward of weights that a stage uses several times; allowed: a schedule without W"
        )


def spreads_experts(plan: Plan, graph: ModelGraph | None) -> bool:
    """Whether ranks of a stage hold different experts, or share tokens as tensor-parallel ranks do."""
    return graph is not None and graph.is_mixture and (plan.mesh.ep > 1 or plan.mesh.tp > 1)


def _refuse_mixers(graph: ModelGraph) -> None:
    """Files of state-space layers name none that predict further tokens."""
    if graph.auxiliary:
        raise UserError(
            f"model {graph.name}: predicts further tokens behind state-space layers; allowed: "
            "num_nextn_predict_layers = 0"
        )


def check_apart(strategy: Strategy, graph: ModelGraph | None, *, compiled: bool) -> None:
    """Raise UserError where documents of a sequence cannot be kept apart."""
    for wrong, said in (
        (graph is None, "a model of your own masks its attention itself"),
        (graph is not None and bool(graph.auxiliary), "further tokens are predicted across documents"),
        (strategy.reduction in ("stages", "one_process"), "stages of their own, and kind = single_process"),
        (compiled, "--compile: documents differ in every microbatch"),
    ):
        if wrong:
            raise UserError(f"--apart: {said}; allowed: --across, or --no-pack")


def _refuse_tensor(tp: int, graph: ModelGraph) -> None:
    if reason := explain_no_copies(graph, tp):
        raise UserError(f"plan.tp = {tp}: {reason}")
    for block in graph.blocks.values():
        for op in block.operators:
            whole = any("heads" in names for weight in op.weights for _, names in weight.size)
            if op.kind == "norm" and op.region == "tensor" and whole:
                raise UserError(
                    f"plan.tp = {tp}: {op.name} of {graph.name} normalises over all heads at once; allowed: 1"
                )
