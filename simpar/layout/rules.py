"""The rules of layouts with one mesh for all stages, each once: which layouts break it, and why one does.

A rule yields its refusals in the order in which they are tried. Sizes may be columns: rules by name in ``Rules`` of
choices, which searches ask, compute elementwise in degrees of the mesh, zero, hsdp and sequence_parallel.
"""

from collections.abc import Callable, Mapping
from math import gcd
from typing import Any

import numpy as np

from simpar.architectures.flops import shape_dims
from simpar.architectures.graph import ModelGraph
from simpar.architectures.recompute import FULL, NONE, chosen_layers, modes, of_layer, segment, segment_layers
from simpar.layout.action_table import schedule_of
from simpar.layout.encoder import encoder_refusals
from simpar.layout.layout import Layout
from simpar.plan.choices.context_parallel import shares_states
from simpar.plan.choices.experts import expert_refusals
from simpar.plan.choices.numerics import master_refusals
from simpar.plan.choices.pipeline import CUSTOM, MAX_PASSES, slices_refusals
from simpar.plan.choices.target import Refusals, Workload, fixed_reason, format_divisors
from simpar.plan.choices.tensor_parallel import tensor_refusals
from simpar.plan.optimizers import BY_VALUE, OPTIMIZERS
from simpar.plan.routing import has_sampled_loads
from simpar.plan.schedules import HALF_SCHEDULES, SCHEDULES
from simpar.units import Counts, number

Rule = Callable[[Layout, Workload], Refusals]


def _rows_over(layout: Layout) -> Counts:
    """Tensor-parallel ranks that share the rows of a sequence: 1 without sequence parallelism."""
    ranks: Counts = number(np.where(layout.sequence_parallel, layout.tp, 1))
    return ranks


def _tensor(layout: Layout, target: Workload) -> Refusals:
    return tensor_refusals(layout.tp, target, layout.sequence_parallel)


def _context(layout: Layout, target: Workload) -> Refusals:
    """Sequences divide into the chunks of every rank, heads into the Ulysses ranks."""
    graph, seq_len, cp, ulysses = target.graph, target.training.seq_len, layout.cp, layout.ulysses_ranks
    yield (
        (cp > 1) & (graph.has_state and not graph.exchanges_heads),
        lambda: f"plan.cp = {cp}: {graph.name} carries states along the sequence; allowed: 1",
    )
    yield from _state_heads(layout, graph)
    gathers = (layout.cp_method == "all_gather") & (ulysses == 1)
    yield (
        (cp > 1) & graph.chooses_keys & ~np.asarray(gathers, bool),
        lambda: (
            f"plan.cp_method = {layout.cp_method}: {graph.name} chooses keys anywhere in the sequence; allowed: "
            "all_gather, with ulysses = 1"
        ),
    )
    memory, shared = shape_dims(graph, seq_len)["memory"], number(_rows_over(layout))
    yield (
        (cp > 1) & (memory != seq_len) & (memory % (cp * shared) != 0),
        lambda: (
            f"plan.cp = {cp}: {memory} rows of the other tower's output do not divide into {cp} x {shared} equal "
            f"pieces; allowed: {'1' if memory % shared else format_divisors(memory // shared)}"
        ),
    )
    chunks = 2 if layout.cp_balance == "zigzag" and layout.cp_method != "ulysses" else 1
    pieces = number(np.lcm(_rows_over(layout), chunks))
    yield (
        (cp > 1) & (seq_len % (cp * pieces) != 0),
        lambda: (
            f"plan.cp = {cp}: seq_len = {seq_len} does not divide into {cp} x {pieces} equal pieces "
            f"(tp = {layout.tp}, cp_balance = {layout.cp_balance}); allowed: "
            f"{'1' if seq_len % pieces else format_divisors(seq_len // pieces)}"
        ),
    )
    yield (
        (layout.cp_method == "ulysses") & (ulysses != cp),
        lambda: (
            f"plan.ulysses = {ulysses}: cp_method ulysses takes all of cp = {cp}; allowed: {cp}, or cp_method "
            "ring or all_gather for the hybrid"
        ),
    )
    yield (
        cp % ulysses != 0,
        lambda: f"plan.ulysses = {ulysses}: does not divide cp = {cp}; allowed: {format_divisors(int(cp))}",
    )
    heads = graph.dims["heads"] // layout.tp
    kv_heads = number(np.maximum(graph.dims["kv_heads"] // layout.tp, 1))
    yield (
        (heads % ulysses != 0) | ((kv_heads % ulysses != 0) & (ulysses % kv_heads != 0)),
        lambda: (
            f"plan.ulysses = {ulysses}: splits the heads of a rank, which has {heads} ({kv_heads} key-value); "
            f"allowed: {format_divisors(gcd(cp, heads))}"
        ),
    )


def _state_heads(layout: Layout, graph: ModelGraph) -> Refusals:
    """Context ranks share the heads of state-space layers, all of them or none as those of attention."""
    if not graph.exchanges_heads:
        return
    cp, ulysses = layout.cp, layout.ulysses_ranks
    heads, groups = (graph.dims[of] // layout.tp for of in ("mamba_heads", "mamba_groups"))
    yield (
        (cp > 1) & ~shares_states(cp, heads, groups),
        lambda: (
            f"plan.cp = {cp}: so many ranks cannot share the {heads} heads, in {groups} groups, of a rank's "
            "state-space layers; allowed: "
            + ", ".join(str(n) for n in range(1, int(heads) + 1) if shares_states(n, heads, groups))
        ),
    )
    yield (
        (ulysses > 1) & (ulysses != cp),
        lambda: (
            f"plan.ulysses = {ulysses}: {graph.name} has state-space layers, whose heads all of cp = {cp} exchange; "
            f"allowed: 1, {cp}"
        ),
    )


def _experts(layout: Layout, target: Workload) -> Refusals:
    """Experts divide over ep ranks and their ffn over etp; ep x etp divides the ranks of a stage."""
    graph, dims, tp, ep, etp = target.graph, target.graph.dims, layout.tp, layout.ep, layout.expert_tensor_parallel
    yield from expert_refusals(ep, graph)
    if not graph.is_mixture:
        if layout.etp is not None:
            yield layout.etp > 1, lambda: f"plan.etp = {layout.etp}: {graph.name} has no experts; allowed: 1"
        return
    yield (
        layout.replicas_are_independent,
        lambda: (
            f"plan.sync = {layout.sync}: experts are shared among replicas, which therefore step together; "
            "allowed: bsp without servers"
        ),
    )
    ranks = tp * layout.width
    yield (
        (tp % etp != 0) | (dims["expert_ffn"] % etp != 0),
        lambda: (
            f"plan.etp = {etp}: does not divide tp = {tp} and the experts' ffn size {dims['expert_ffn']}; "
            f"allowed: {format_divisors(gcd(tp, dims['expert_ffn']))}"
        ),
    )
    yield (
        ranks % (ep * etp) != 0,
        lambda: (
            f"plan.ep = {ep}: ep x etp = {ep} x {etp} does not divide the tp x cp x dp = {ranks} ranks of a "
            f"stage; allowed: {format_divisors(gcd(ranks // etp, dims['experts']))}"
        ),
    )
    yield (
        (tp > 1) & np.logical_not(layout.sequence_parallel) & ((ep > 1) | (etp < tp)),
        lambda: (
            "plan.sequence_parallel = false: experts with tp > 1 take each token from one rank; allowed: true, or "
            "ep = 1 with etp = tp"
        ),
    )
    beside = fixed_reason(
        "plan.shared_expert_overlap = true: ep_overlap has another microbatch there; allowed: one of them"
    )
    yield bool(layout.shared_expert_overlap and layout.ep_overlap), beside


def _batches(batch: int, dp: Any) -> str:
    near = [str(count * dp) for count in (batch // dp, batch // dp + 1) if count]
    return f"allowed: a multiple of dp, such as {' or '.join(near)}, or a dp that divides {batch}"


def _batch(layout: Layout, target: Workload) -> Refusals:
    dp, micro_batch, batch = layout.dp, layout.micro_batch, target.training.global_batch
    yield batch % dp != 0, lambda: f"plan.dp = {dp}: does not divide global_batch = {batch}; {_batches(batch, dp)}"
    yield (
        batch // dp % micro_batch != 0,
        lambda: (
            f"plan.micro_batch = {micro_batch}: does not divide the {batch // dp} sequences of a rank "
            f"(global_batch {batch} / dp {dp}); allowed: a divisor of {batch // dp}"
        ),
    )


def _stages(layout: Layout, target: Workload) -> Refusals:
    pp, vpp, layers = layout.pp, layout.vpp, len(target.graph.layers) - layout.encoder_layers
    stages = pp * vpp
    yield (
        stages > layers + 2,
        lambda: (
            f"plan.pp = {pp}: pp x vpp = {pp} x {vpp} = {stages} stages for {layers} layers; "
            f"allowed: at most {layers + 2}, with embedding and head in stages of their own"
        ),
    )
    if not (given := layout.layers):
        return
    yield (
        len(given) != stages,
        lambda: f"plan.layers: {len(given)} stages; allowed: one number for each of pp x vpp = {stages}",
    )
    yield sum(given) != layers, lambda: f"plan.layers: {sum(given)} layers in all; allowed: the model's {layers}"
    yield (
        0 in given[1:-1],
        lambda: f"plan.layers: stage {given.index(0, 1)} has none; allowed: 0 in the first and the last",
    )


def _recompute(layout: Layout, target: Workload) -> Refusals:
    """A choice layer by layer covers all layers, and layers that are recomputed together are on one stage."""
    policy, count = layout.recompute, len(target.graph.layers)
    chosen, length = chosen_layers(policy), segment_layers(policy)
    if chosen is None and length is None:
        return
    yield (
        chosen not in (None, count),
        lambda: f"plan.recompute = {policy}: chooses for {chosen} layers: allowed: {count}",
    )
    last, allowed = layout.encoder_layers - 1, format_divisors(gcd(*layout.stage_layers(count)))
    for layers in layout.stage_layers(count):
        first, last = last + 1, last + layers
        for layer in (first, last) if layers else ():
            at, size = segment(of_layer(policy, layer))
            yield (
                (layer == first and at > 0) or (layer == last and at != size - 1),
                fixed_reason(
                    f"plan.recompute = {policy}: the segment of layer {layer} reaches beyond its stage of {layers} "
                    f"layers; allowed: segments of {allowed} layers"
                ),
            )


def _slices(layout: Layout, target: Workload) -> Refusals:
    """Token slices belong to a causal model and divide over their ranks."""
    return slices_refusals(
        target,
        schedule=layout.schedule,
        slices=layout.slices,
        cp=layout.cp,
        rows_over=_rows_over(layout),
        is_sampled=(layout.ep > 1) & has_sampled_loads(layout, 2),
    )


def _schedule(layout: Layout, target: Workload) -> Refusals:
    """The action table has the shape of the layout; raises UserError itself where there is no such table."""
    microbatches, stages = layout.num_microbatches(target.training.global_batch), layout.pp * layout.vpp
    yield (
        stages * microbatches > MAX_PASSES,
        lambda: (
            f"plan.micro_batch = {layout.micro_batch}: {stages} stages x {microbatches} microbatches; allowed: "
            f"{MAX_PASSES} in all, larger micro-batches or more data parallelism"
        ),
    )
    table = schedule_of(layout, target.training)
    passes = microbatches * len(layout.slices or (0,))
    for what, wanted in {"ranks": layout.pp, "stages": stages, "microbatches": passes}.items():
        given = getattr(table, f"num_{what}")
        yield given != wanted, fixed_reason(f"plan.actions: the action table has {given} {what}; allowed: {wanted}")
    has_two_ends = table.num_mirrored > 0
    yield (
        has_two_ends and layout.schedule == CUSTOM,
        lambda: (
            "plan.actions: microbatches enter at both ends of the pipeline; allowed: at the first rank, or "
            f"plan.schedule = {', '.join(HALF_SCHEDULES)}"
        ),
    )
    yield (
        has_two_ends and layout.replicas_are_independent,
        lambda: (
            f"plan.sync = {layout.sync}: {layout.schedule} has two copies of every stage, which reduce "
            "inside the step; allowed: bsp without servers"
        ),
    )


def _data(layout: Layout, target: Workload) -> Refusals:
    kind, zero, hsdp, width = layout.kind, layout.zero, layout.hsdp, layout.width
    are_independent = layout.replicas_are_independent
    if kind == "single_process":
        yield from _single_process(layout, target)
    yield (
        (kind == "fsdp") & (zero < 2) & (width > 1),
        lambda: f"plan.kind = fsdp with zero = {zero}: fsdp shards gradients; allowed: zero 2 or 3",
    )
    yield (
        (hsdp > 1) & (zero == 0),
        lambda: f"plan.hsdp = {hsdp}: makes replicas of sharded states; allowed: with zero 1, 2 or 3",
    )
    yield (
        are_independent & (layout.replicas == 1),
        lambda: (
            f"plan.sync = {layout.sync}: one replica of the states has nobody to cooperate with; allowed: zero 0 "
            "with dp > 1, or hsdp > 1"
        ),
    )
    yield (
        are_independent & (layout.ep > 1),
        lambda: (
            f"plan.sync = {layout.sync}: ep = {layout.ep} spreads the experts of a step over ranks that would step on "
            "their own; allowed: ep 1"
        ),
    )
    yield (
        are_independent and kind == "single_process",
        lambda: f"plan.sync = {layout.sync}: single_process drives all devices in step; allowed: bsp",
    )
    yield width % hsdp != 0, lambda: f"plan.hsdp = {hsdp}: does not divide dp = {width}; allowed: a divisor of it"
    if target.graph.is_mixture:
        copies = layout.expert_copies
        yield (
            copies % hsdp != 0,
            lambda: (
                f"plan.hsdp = {hsdp}: does not divide the {copies} ranks that hold the same experts; allowed: "
                f"{format_divisors(gcd(width, copies))}"
            ),
        )


def _single_process(layout: Layout, target: Workload) -> Refusals:
    for axis in ("tp", "pp", "cp"):
        size = getattr(layout, axis)
        yield size > 1, fixed_reason(f"plan.{axis} = {size}: single_process is pure data parallelism; allowed: 1")
    zero = layout.zero
    yield zero > 0, lambda: f"plan.zero = {zero}: single_process keeps all states on every device; allowed: 0"
    yield (
        target.world_size > target.devices_per_node,
        lambda: (
            f"plan.kind = single_process: {target.world_size} devices; allowed: those of one node, "
            f"{target.devices_per_node}"
        ),
    )


def offload_refusals(layout: Layout, _: object = None) -> Refusals:
    """What is offloaded belongs to ranks that step together, and is not needed on the device."""
    states, parameters = layout.offload_optimizer, layout.offload_parameters
    away, zero, width = states != "none", layout.zero, layout.width
    for name, is_given in (
        ("offload_ratio", layout.offload_ratio < 1),
        ("offload_gradients", bool(layout.offload_gradients)),
        ("offload_delayed", layout.offload_delayed),
    ):
        yield (
            is_given and not away,
            fixed_reason(
                f"plan.{name} = {getattr(layout, name)}: belongs to an offloaded optimizer; allowed: with "
                "offload_optimizer cpu or nvme"
            ),
        )
    yield (
        away and not OPTIMIZERS[layout.optimizer].on_host,
        lambda: (
            f"plan.offload_optimizer = {states}: processors update value by value, not by {layout.optimizer}; allowed: "
            f"with optimizer {', '.join(each.name for each in OPTIMIZERS.values() if each.on_host)}"
        ),
    )
    yield (
        layout.offloads and (layout.kind == "single_process" or layout.replicas_are_independent),
        lambda: (
            "plan.offload: a single process and replicas that step on their own keep states on the device; allowed: "
            "kind ddp or fsdp with sync bsp"
        ),
    )
    yield (
        bool(layout.offload_gradients) & (zero < 2) & (width > 1),
        lambda: (
            f"plan.offload_gradients = true: with zero = {zero} gradients are reduced once a step and stay until "
            "then; allowed: zero 2 or 3, or false"
        ),
    )
    yield (
        (parameters != "none") & (zero < 3) & (width > 1),
        lambda: (
            f"plan.offload_parameters = {parameters}: zero = {zero} keeps whole parameters on every "
            "rank; allowed: zero 3"
        ),
    )
    yield (
        parameters != "none" and (layout.host_share < 1 or layout.offload_delayed),
        lambda: (
            f"plan.offload_parameters = {parameters}: parameters on the host are updated there and "
            "in turn; allowed: offload_optimizer cpu or nvme, offload_ratio 1, offload_delayed false"
        ),
    )


def _early(layout: Layout, _: Workload) -> Refusals:
    """Recomputation ahead of its backward needs passes one at a time, and parameters that stay on the rank."""
    if not layout.recompute_early:
        return
    what, used = "plan.recompute_early = true", modes(layout.recompute)
    yield (
        not {*used} <= {NONE, FULL} or FULL not in used,
        lambda: f"{what}: plan.recompute = {layout.recompute}; allowed: full or every:C",
    )
    yield layout.pp == 1, lambda: f"{what}: plan.pp = 1 has no gradient to wait for; allowed: pp above 1"
    named = SCHEDULES.get(layout.schedule)
    yield (
        layout.runs_slices or named is None or named.pairs,  # tables of the user's may have pairs, too
        lambda: (
            f"{what}: plan.schedule = {layout.schedule} may overlap passes or cut sequences into slices; allowed: "
            "named schedules that do neither"
        ),
    )
    yield (
        (layout.zero == 3) & layout.reshard_after_forward & (layout.width > layout.hsdp),
        lambda: (
            f"{what}: zero = 3 gathers parameters for every pass; allowed: zero 0 to 2, or reshard_after_forward false"
        ),
    )
    yield (
        layout.offloads or bool(layout.ep_overlap),
        lambda: f"{what}: not with offload or ep_overlap; allowed: neither of them",
    )


def _whole_matrices(layout: Layout, _: Workload) -> Refusals:
    """Optimizers with states by the shape of matrices need whole matrices, which parameter servers do not have."""
    yield (
        OPTIMIZERS[layout.optimizer].by_shape and layout.replicas_are_independent,
        lambda: (
            f"plan.optimizer = {layout.optimizer}: its states go by the shape of matrices, which parameter servers "
            f"cut; allowed there: {BY_VALUE}"
        ),
    )


def _matrix_layout(layout: Layout, _: Workload) -> Refusals:
    """Layouts of matrices that tensor parallelism divides, for optimizers that work on whole ones."""
    rule = OPTIMIZERS[layout.optimizer].by_matrix
    what = f"plan.matrix_layout = {layout.matrix_layout}"
    yield (
        layout.matrix_layout is not None and rule is None,
        lambda: f"{what}: plan.optimizer = {layout.optimizer} works value by value; allowed: none",
    )
    yield (
        layout.matrix_layout == "distributed" and rule is not None and rule.shared_work is None,
        lambda: (
            f"{what}: one rank works on a matrix of {layout.optimizer}; allowed: blockwise, duplicated, layer_sharded"
        ),
    )
    yield (
        layout.matrix_layout not in (None, "blockwise") and (layout.kind == "fsdp" or layout.host_share > 0),
        lambda: f"{what}: not with FSDP or optimizers on the host; allowed: blockwise",
    )


def _update(layout: Layout, target: Workload) -> Refusals:
    """An update beside the backward needs gradients that are whole then, on a rank that has their states."""
    if not layout.update_in_backward:
        return
    what = "plan.update_in_backward = true"
    yield (
        layout.num_microbatches(target.training.global_batch) > 1,
        fixed_reason(f"{what}: gradients are added up over microbatches; allowed: one microbatch a rank and step"),
    )
    yield (
        layout.kind != "fsdp" and bool(layout.zero),
        fixed_reason(f"{what}: flat shards are updated together; allowed: kind fsdp, or zero 0"),
    )
    yield (
        layout.host_share > 0 or bool(layout.servers) or bool(layout.hsdp > 1),
        fixed_reason(f"{what}: states are elsewhere; allowed: without offload_optimizer, servers and hsdp"),
    )


def _loss(layout: Layout, target: Workload) -> Refusals:
    """Losses are worked out in pieces where there is a vocabulary."""
    yield (
        (layout.loss_chunks or 1) > 1 and not target.graph.has_vocabulary,
        lambda: f"plan.loss_chunks = {layout.loss_chunks}: {target.graph.name} has no vocabulary; allowed: 1",
    )


RULES: Mapping[str, Rule] = {
    "encoder": encoder_refusals,
    "tensor": _tensor,
    "context": _context,
    "experts": _experts,
    "batch": _batch,
    "stages": _stages,
    "recompute": _recompute,
    "slices": _slices,
    "schedule": _schedule,
    "data": _data,
    "offload": offload_refusals,
    "early": _early,
    "optimizer": _whole_matrices,
    "matrices": _matrix_layout,
    "masters": lambda layout, _: master_refusals(layout, on_host=layout.offload_optimizer != "none"),
    "update": _update,
    "loss": _loss,
}
"""By name, in the order in which they are tried."""
STAGED_RULES = ("batch", "stages", "schedule", "matrices", "masters")
"""Those that hold for stages with devices of their own, too."""
