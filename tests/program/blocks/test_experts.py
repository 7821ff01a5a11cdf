"""Steps of a mixture of experts: what travels, who holds what, and what the fullest rank costs."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import combinations

import pytest

from simpar.architectures.training import Training
from simpar.engine import reference
from simpar.hardware.catalogue import load_cluster
from simpar.layout.action_table import schedule_of
from simpar.plan.plan import Plan
from simpar.program.blocks.block_view import RankBlock
from simpar.program.blocks.phases import Phase
from simpar.program.blocks.rank_view import RankView
from simpar.program.blocks.segments import make_segment, without_held
from simpar.program.blocks.steps import BlockSteps, block_steps
from simpar.program.job import TrainingJob
from simpar.program.lower import Lowered, lower
from simpar.program.perturbation import Perturbation
from simpar.report.result import Result
from simpar.simulation import make_job, simulate
from simpar.stacks.stack import load_stack
from simpar.units import to_ns
from tests.cost.account import stage_static_memory

MODEL, SEQ = "mixtral-8x7b", 4096
HIDDEN, FFN, TOPK, LAYERS = 4096, 14336, 2, 32
STACK = load_stack("megatron")


def job(nodes: int = 1, model: str = MODEL, **plan: object) -> TrainingJob:
    """A job on DGX H100."""
    return make_job(model, load_cluster("dgx-h100", nodes), Plan(**plan), Training(seq_len=SEQ, global_batch=64))


def steps(**plan: object) -> BlockSteps:
    """Steps of a Mixtral layer."""
    made = job(**plan)
    return block_steps(RankBlock.of(made.graph.blocks["layer_moe"], RankView.of(made)))


def sent(phase: Phase, group: str) -> list[tuple[str, float]]:
    """(operation, bytes) of every collective in a kind of group."""
    uses = [step.collective for step in phase.steps if step.collective]
    return [(use.op, use.size_bytes) for use in uses if use.group == group]


def test_every_copy_of_every_token_travels_there_and_back() -> None:
    """Two all-to-alls a pass, each of tokens x top-k x hidden x 2 bytes; fp32 scores go out, their gradients back."""
    found = steps(ep=8)
    copies, scores = (("all_to_all", size * SEQ * TOPK) for size in (2.0 * HIDDEN, 4.0))
    assert sent(found.forward, "ep") == [copies, scores, copies]
    assert sent(found.backward, "ep") == [copies, copies, scores]


@pytest.mark.parametrize("plan", [{"token_dispatch": "per_rank"}, {"token_dispatch": "per_node"}])
def test_libraries_send_scores_with_copies(plan: dict[str, object]) -> None:
    """One kernel moves both."""
    found = steps(ep=8, **plan)
    assert [len(sent(phase, "ep")) for phase in (found.forward, found.backward)] == [2, 2]


@pytest.mark.parametrize(
    ("plan", "graphs", "exchanges"),
    [
        ({"ep": 8}, (), 2), ({"ep": 8}, ("attention",), 2), ({"ep": 8}, ("step",), 0), ({}, (), 0),
        ({"ep": 8, "capacity_factor": 1.0}, (), 0), ({"ep": 8, "token_dispatch": "per_rank"}, (), 0),
    ],
)  # fmt: skip
def test_exchanges_of_unknown_sizes_keep_the_host_busy(
    plan: dict[str, object], graphs: tuple[str, ...], exchanges: int
) -> None:
    """Two a pass, unless a cap says the sizes, a library finds them on the device, or the step is captured whole."""
    made = job(**plan)
    issued = []
    for host_s in (0.0, 0.001):
        experts = made.stack.experts.model_copy(update={"exchange_host_s": host_s})
        launch = made.stack.launch.model_copy(update={"graphs": graphs})
        stack = made.stack.model_copy(update={"experts": experts, "launch": launch})
        view = RankView.of(replace(made, stack=stack))
        found = block_steps(RankBlock.of(made.graph.blocks["layer_moe"], view))
        issued.append((found.forward.issue_s, found.backward.issue_s))
    for before, after in zip(*issued, strict=True):
        assert after - before == pytest.approx(0.001 * exchanges)


@pytest.mark.parametrize(("ep", "local"), [(2, True), (8, False)])
def test_python_sorts_a_piece_of_every_sender_for_every_expert(ep: int, local: bool) -> None:
    """8 experts: ep x 8 / ep pieces of tokens, of scores and of outputs; none where a rank has one expert.

    A forward takes host and device one after the other, a backward the longer of both.
    """
    made = job(ep=ep, fused_permutation=False)
    found = {}
    for piece_s in (0.0, 0.001):
        stack = made.stack.model_copy(update={"experts": made.stack.experts.model_copy(update={"piece_s": piece_s})})
        view = RankView.of(replace(made, stack=stack))
        found[piece_s] = block_steps(RankBlock.of(made.graph.blocks["layer_moe"], view))
    before, after = found[0.0], found[0.001]
    waited = [
        sum(float(step.duration_s) for step in each.forward.steps if step.kind == "host") for each in (before, after)
    ]
    assert (before.forward.issue_s, after.forward.issue_s) == (0.0, 0.0)
    fused = steps(ep=ep).forward
    assert waited[0] > fused.issue_s > 0  # more launches, and all of them while the device idles
    assert waited[1] - waited[0] == pytest.approx(0.001 * 3 * 8 * local)
    assert after.backward.issue_s - before.backward.issue_s == pytest.approx(0.001 * 3 * 8 * local)
    assert before.backward.issue_s > 0


@pytest.mark.parametrize("ep", [2, 4, 8])
def test_a_token_travels_once_to_a_rank(ep: int) -> None:
    """Ranks that hold any of two experts drawn out of eight: the mean over all 28 pairs."""
    pairs = list(combinations(range(8), TOPK))
    ranks = sum(len({expert // (8 // ep) for expert in pair}) for pair in pairs) / len(pairs)
    ((_, size), _) = sent(steps(ep=ep, token_dispatch="per_rank").forward, "ep")
    assert size == pytest.approx(2.0 * SEQ * ranks * HIDDEN)


def test_a_token_is_dispatched_once_to_a_node() -> None:
    """As many bytes as to ranks, by an operation that says how tokens are routed; inside a node it takes as long."""
    for model, op in (("mixtral-8x7b", "dispatch 2 8 1 1"), ("deepseek-v3", "dispatch 8 256 4 8")):
        phases = []
        for kind in ("per_rank", "per_node"):
            made = job(2, model, ep=8, token_dispatch=kind)
            block = RankBlock.of(made.graph.blocks["layer_moe"], RankView.of(made))
            phases.append(sent(block_steps(block).forward, "ep"))
        assert [size for _, size in phases[0]] == [size for _, size in phases[1]]
        assert [name for name, _ in phases[1]] == [op] * 2


@pytest.mark.parametrize(("ep", "faster"), [(8, 1.0), (16, 0.9)])
def test_dispatch_across_nodes_is_faster(ep: int, faster: float) -> None:
    """The same to a part in a thousand inside a node, where only what small messages do differs."""
    times = [
        simulate(
            "qwen3-30b-a3b",
            load_cluster("dgx-h100", 2),
            Plan(ep=ep, token_dispatch=kind, recompute="full"),
            Training(seq_len=SEQ, global_batch=16),
        ).step_time_s
        for kind in ("per_rank", "per_node")
    ]
    assert times[1] / times[0] == pytest.approx(faster, rel=1e-3) if ep == 8 else times[1] < faster * times[0]


def test_tensor_parallel_ranks_route_their_own_rows() -> None:
    """With sequence parallelism each of two ranks sends half of the tokens."""
    copies, scores = (("all_to_all", size * SEQ * TOPK / 2) for size in (2.0 * HIDDEN, 4.0))
    assert sent(steps(ep=8, tp=2).forward, "ep") == [copies, scores, copies]


def test_slices_of_an_expert_gather_what_arrived() -> None:
    """With experts in two slices, arrived tokens are gathered and partial sums scattered, both ways."""
    found = steps(ep=4, tp=2, etp=2)
    whole = 2.0 * SEQ * TOPK * HIDDEN
    assert sent(found.forward, "etp") == [("all_gather", whole), ("reduce_scatter", whole)]
    assert sent(found.backward, "etp") == [("all_gather", whole), ("reduce_scatter", whole)]


def test_without_expert_parallelism_tokens_are_gathered_before_they_are_copied() -> None:
    """Mixtral under plain tensor parallelism moves what a dense layer moves."""
    size = 2.0 * SEQ * HIDDEN
    found = steps(tp=4)
    assert not sent(found.forward, "ep")
    assert sent(found.forward, "etp") == [("all_gather", size), ("reduce_scatter", size)]
    assert sent(steps(tp=4, sequence_parallel=False).forward, "etp") == [("all_reduce", size)]


def test_capacity_pads_what_travels() -> None:
    """A capacity factor of 1.5 sends and computes 1.5 times the mean."""
    plain, padded = steps(ep=8), steps(ep=8, capacity_factor=1.5)
    assert sent(padded.forward, "ep")[0][1] == 1.5 * sent(plain.forward, "ep")[0][1]
    product = [next(s for s in each.forward.steps if s.name == "expert_up") for each in (plain, padded)]
    assert product[1].duration_s == pytest.approx(1.5 * product[0].duration_s, rel=0.05)


@pytest.mark.parametrize(
    ("plan", "dense_shards", "expert_shards"),
    [
        ({"ep": 8, "zero": 1}, 16, 2),
        ({"ep": 8, "tp": 2, "zero": 1}, 8, 2),
        ({"ep": 4, "tp": 2, "etp": 2, "zero": 1}, 8, 2),
    ],
)
def test_optimizer_states_of_experts_are_shared_by_fewer(
    plan: dict[str, object], dense_shards: int, expert_shards: int
) -> None:
    """Experts shard over the ranks that hold them: tp x cp x dp / (ep x etp); everything else over dp x cp."""
    made = job(nodes=2, **plan)
    tp, etp, ep = made.layout.mesh.tp, made.layout.mesh.expert_tensor_parallel, made.layout.mesh.ep
    experts = LAYERS * 8 // ep * 3 * HIDDEN * FFN / etp
    attention = LAYERS * 2 * HIDDEN * (HIDDEN + 1024) / tp
    tables = 2 * 32000 * HIDDEN / tp
    routers = LAYERS * HIDDEN * 8
    expected = 12 * ((attention + tables + routers) / dense_shards + experts / expert_shards)
    held = stage_static_memory(made.graph, made.layout, made.training, made.stack, 0)
    assert held.bytes_of("optimizer_states") == pytest.approx(expected, rel=1e-3)


def lowered(seed: int = 0, **plan: object) -> Lowered:
    """The program of a small mixture on two nodes."""
    made = job(nodes=2, model="small-mixture", **plan)
    cluster = load_cluster("dgx-h100", 2)
    return lower(made, cluster, schedule_of(made.layout, made.training), perturbation=Perturbation(seed=seed))


def test_only_sampled_loads_unfold() -> None:
    """Forced balance and the expected load keep one class; a draw makes a class of every expert rank."""
    assert lowered(ep=4).quotient.num_classes == 1
    assert lowered(ep=4, expert_imbalance=0.5).quotient.num_classes == 1
    assert lowered(ep=4, expert_imbalance=0.5, expert_load="sampled").quotient.num_classes == 4


def test_imbalance_costs_time_and_depends_on_the_seed_only_when_sampled() -> None:
    """An uneven mixture is slower; draws differ by seed and repeat."""
    uneven = {"ep": 4, "expert_imbalance": 1.0}
    spans = {
        (load, seed): reference.run(lowered(seed, **uneven, expert_load=load).program).makespan_ns
        for load in ("expected", "sampled")
        for seed in (1, 2)
    }
    assert reference.run(lowered(ep=4).program).makespan_ns < min(spans.values())
    assert spans["expected", 1] == spans["expected", 2]
    assert spans["sampled", 1] != spans["sampled", 2]


@cache
def result(**plan: object) -> Result:
    """A simulated step of Qwen3 30B on four nodes, once for all tests."""
    training = Training(seq_len=SEQ, global_batch=256)
    return simulate("qwen3-30b-a3b", load_cluster("dgx-h100", 4), Plan(zero=1, **plan), training, with_timeline=False)


def test_exchanges_are_reported() -> None:
    """Bytes are layers x microbatches x (4 all-to-alls of copies, 2 of scores); overlap hides most of the time."""
    plain, beside = result(ep=32), result(ep=32, ep_overlap=True)
    assert plain.communication["ep"].bytes_per_rank == 48 * 8 * SEQ * 8 * (4 * 2.0 * 2048 + 2 * 4.0)
    assert plain.time_breakdown_s.total_s == pytest.approx(plain.step_time_s)
    assert beside.communication["ep"].bytes_per_rank == plain.communication["ep"].bytes_per_rank
    assert beside.time_breakdown_s.exposed_ep < 0.7 * plain.time_breakdown_s.exposed_ep
    assert beside.step_time_s < plain.step_time_s


def test_the_load_of_the_fullest_rank_is_reported() -> None:
    """With its spread, where tokens are routed unevenly; a step under a power law is the slower one."""
    even = result(ep=8)
    uneven = result(ep=8, expert_imbalance=1.2, expert_distribution="power_law")
    assert even.why.expert_load is None
    assert uneven.why.expert_load is not None
    assert uneven.why.expert_load.fullest > 1 + uneven.why.expert_load.deviation > 1.1
    assert uneven.step_time_s > even.step_time_s
    assert any("expert ranks" in line for line in uneven.why.binds)
    assert Result.from_dict(uneven.to_dict()).why.expert_load == uneven.why.expert_load


def test_an_exchange_holds_multiprocessors_of_the_kernels_beside_it() -> None:
    """Kernels lose the share that it holds for as long as it runs; one that is waited for takes nothing from them."""
    exchange_ns = 1_000_000
    for overlap, share in ((True, 20 / 132), (False, 0.0)):
        phase = replace(steps(ep=8, ep_overlap=overlap).forward, issue_s=0.0)
        segment = make_segment(phase, lambda use: exchange_ns if use.group == "ep" else 0)
        alone_s = sum(step.duration_s for step in phase.steps if step.collective is None)
        times = zip(segment.steps, segment.start_ns, segment.finish_ns, strict=True)
        kernels_ns = sum(int(finish - start) for step, start, finish in times if step.collective is None)
        assert kernels_ns == pytest.approx(alone_s * 1e9 + 3 * exchange_ns * share, rel=1e-4)


@pytest.mark.parametrize(("overlap", "factor"), [(True, 2.0), (False, 1.0)])
def test_launches_take_longer_where_two_microbatches_are_launched(overlap: bool, factor: float) -> None:
    """Those of kernels, not what the host does for an exchange; a block takes the longer of host and device."""
    made, issued = job(ep=8, ep_overlap=overlap), []
    launch = made.stack.launch.model_copy(update={"host_time_per_kernel_s": 1e-3})
    for each, host_s in ((1.0, 0.0), (2.0, 0.0), (2.0, 3e-3)):
        experts = made.stack.experts.model_copy(update={"overlap_launches": each, "exchange_host_s": host_s})
        stack = made.stack.model_copy(update={"experts": experts, "launch": launch})
        found = block_steps(RankBlock.of(made.graph.blocks["layer_moe"], RankView.of(replace(made, stack=stack))))
        issued.append(found.forward.issue_s)
        phase = found.forward.then(found.backward)
        device_ns = make_segment(replace(phase, issue_s=0.0), lambda _: 1_000_000).duration_ns
        both = make_segment(phase, lambda _: 1_000_000)
        assert both.duration_ns == max(device_ns, to_ns(phase.issue_s)) > device_ns
    assert issued[1] == pytest.approx(factor * issued[0])
    assert issued[2] == pytest.approx(issued[1] + 2 * 3e-3)


def test_overlap_pays_where_exchanges_are_long() -> None:
    """Qwen3 30B on two nodes of H100 and NCCL's all-to-all, 64 sequences a rank: published are 41.25 and 31.31 s."""
    cluster, training = load_cluster("dgx-h100", 2), Training(seq_len=SEQ, global_batch=1024)
    apart, beside = (
        simulate(
            "qwen3-30b-a3b", cluster, Plan(ep=16, zero=1, ep_overlap=overlap), training, stack="nemo",
            with_timeline=False,
        ).step_time_s
        for overlap in (False, True)
    )  # fmt: skip
    assert apart == pytest.approx(41.25, rel=0.12)
    assert beside == pytest.approx(31.31, rel=0.12)
    assert 1.2 < apart / beside < 1.35


def test_kernels_keep_what_exchanges_leave_them() -> None:
    """However long an exchange takes, kernels slow down by what it holds at most."""
    phase = steps(ep=8, ep_overlap=True).forward
    kernels_s = [float(step.duration_s) for step in phase.steps]
    for took_ns, slow in ((10**12, 132 / 112), (0, 1.0)):
        prices_ns = [took_ns if step.collective else 0 for step in phase.steps]
        assert without_held(phase, prices_ns, kernels_s) == pytest.approx(slow)


@pytest.mark.parametrize(("hardware", "share"), [("laptop-cpu-4", 1.0), ("gaudi-2-8", 0.0), ("dgx-h100", 20 / 132)])
def test_an_exchange_holds_no_more_than_there_is(hardware: str, share: float) -> None:
    """A CPU's kernels wait for it, engines of matrix machines move tokens by themselves: never less than no time."""
    made = make_job(MODEL, load_cluster(hardware), Plan(ep=4, ep_overlap=True), Training(seq_len=SEQ, global_batch=64))
    phase = block_steps(RankBlock.of(made.graph.blocks["layer_moe"], RankView.of(made))).forward
    assert {step.sms for step in phase.steps if step.collective and step.collective.group == "ep"} == {share}
    kernels_s = [float(step.duration_s) for step in phase.steps]
    took_ns = [10**6 if step.collective else 0 for step in phase.steps]
    slow = min(1 + share * sum(took_ns) / (sum(kernels_s) * 1e9), 1 / (1 - share) if share < 1 else float("inf"))
    assert without_held(phase, took_ns, kernels_s) == pytest.approx(slow)


def test_a_wait_for_one_exchange_behind_another_is_no_bubble() -> None:
    """Copies travel between ranks, then among those that share an expert: both are exposed, each as its own kind."""
    step = result(ep=8, tp=2, etp=2).time_breakdown_s
    assert step.bubble == 0.0
    assert step.exposed_ep > 0.0
    assert step.exposed_tp > 0.0


def test_wider_expert_parallelism_trades_memory_for_traffic() -> None:
    """Spread over four nodes the experts take less memory, and their tokens more time."""
    near, far = result(ep=8), result(ep=32)
    assert far.memory.static_memory_bytes < near.memory.static_memory_bytes
    assert far.time_breakdown_s.exposed_ep > near.time_breakdown_s.exposed_ep


def test_a_layer_of_one_expert_is_a_dense_layer() -> None:
    """Experts as wide as the MLP of a dense model, one of them for every token: the same products, a router besides."""
    mixture = job(model="mixtral-8x7b").graph
    block = mixture.blocks["layer_moe"]
    dims = {**mixture.dims, "experts": 1, "num_experts": 1}
    dense = HIDDEN * (HIDDEN + 2 * 1024) + HIDDEN * HIDDEN + 3 * HIDDEN * FFN + 2 * HIDDEN
    assert block.parameters(dims) - HIDDEN == dense


def test_tokens_are_sent_in_the_bits_of_products() -> None:
    """Out in 8 bits and a scale for 128, back in 16; cast a token, not a copy, and not again where it arrives."""
    found, block = {}, {}
    cast = STACK.model_copy(update={"experts": STACK.experts.model_copy(update={"sends_cast": True})})
    for name, stack in (("wide", STACK), ("cast", cast)):
        made = make_job(
            MODEL, load_cluster("dgx-h100", 1), Plan(ep=8, precision="fp8_blockwise"),
            Training(seq_len=SEQ, global_batch=64), stack,
        )  # fmt: skip
        view = RankBlock.of(made.graph.blocks["layer_moe"], RankView.of(made))
        found[name], block[name] = block_steps(view), {time.name: time for time in view.times}
    size, narrow = 2.0 * SEQ * TOPK * HIDDEN, 132 / 128
    scores = 4.0 * SEQ * TOPK
    assert [use for _, use in sent(found["wide"].forward, "ep")] == [size, scores, size]
    assert [use for _, use in sent(found["cast"].forward, "ep")] == pytest.approx([size * narrow / 2, scores, size])
    assert [use for _, use in sent(found["cast"].backward, "ep")] == pytest.approx([size * narrow / 2, size, scores])
    assert block["cast"]["expert_up"].forward_s < block["wide"]["expert_up"].forward_s
    assert block["cast"]["expert_down"].backward_input_s < block["wide"]["expert_down"].backward_input_s
    assert block["cast"]["expert_down"].forward_s == block["wide"]["expert_down"].forward_s
