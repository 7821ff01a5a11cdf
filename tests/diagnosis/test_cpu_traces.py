"""Traces of ranks whose device is the CPU: operators nest, gloo's spans are the communication, groups are found."""

from pathlib import Path

import pytest

from simpar.diagnosis.answer import explain
from simpar.diagnosis.kineto import EventColumns
from simpar.diagnosis.lanes import innermost
from tests.diagnosis.kineto_files import Rank

US = 0.000001
MAIN, WORKER, OTHER = 1, 2, 3


def config(**groups):
    """What the header says of process groups: description and members."""
    return [
        {"pg_name": str(number), "pg_desc": name, "pg_size": len(ranks), "ranks": list(ranks)}
        for number, (name, ranks) in enumerate(groups.items())
    ]


def save(made, folder, groups):
    """The file with its groups; no device is listed."""
    data = made.data
    made.data = lambda: {
        **data(),
        "deviceProperties": [],
        "distributedInfo": {**data()["distributedInfo"], "pg_config": groups},
    }
    return made.save(folder)


def op(made, name, start, length, tid=MAIN):
    """An operator of the host."""
    made.event("cpu_op", name, start, length, tid=tid)


def gloo(made, kind, start, length, tid):
    """A span of gloo's."""
    made.event("user_annotation", f"gloo:{kind}", start, length, tid=tid)


def test_operators_are_claimed_by_the_innermost(tmp_path):
    """A linear layer's own overhead is the host's, the product inside it is a product; gaps are the host's."""
    made = Rank(0, 1)
    op(made, "autograd::engine::evaluate_function: MmBackward0", 0, 100)
    op(made, "aten::mm", 20, 60)
    op(made, "aten::mul", 120, 30)
    op(made, "aten::norm", 160, 20)
    made.event("user_annotation", "Optimizer.step#AdamW.step", 150, 50, tid=MAIN)
    made.step(0, 200)
    (found,) = explain(save(made, tmp_path, [])).measured.ranks
    assert found.classes_s == pytest.approx({"gemm": 60 * US, "elementwise": 30 * US, "optimizer": 20 * US})
    assert found.host_s == pytest.approx({"host behind": 50 * US, "operators that compute nothing": 40 * US})
    assert sum(found.causes_s.values()) == pytest.approx(200 * US)


def test_innermost_pieces_cover_each_thread_once():
    """Two threads, nested events that stick out by rounding: every moment of a thread goes to one event."""
    import numpy as np

    start, length, lane = np.array([[0, 10, 12, 40, 5], [50, 20, 18, 20, 10], [0, 0, 0, 0, 1]])
    ops = EventColumns(np.arange(5), start, length, lane, np.full(5, -1))
    begin, end, row = innermost(ops)
    spent = np.bincount(row, weights=end - begin)
    assert spent.tolist() == [20, 2, 18, 10, 10]


def test_axes_of_gloo_groups(tmp_path):
    """Functional collectives are tensor-parallel, FSDP's data-parallel, each on threads of its own group."""
    ranks = []
    for rank in range(4):
        made = Rank(rank)
        tp, dp = (
            ((0, 1), (0, 2))
            if rank == 0
            else ((2, 3), (1, 3))
            if rank == 3
            else ((0, 1), (1, 3))
            if rank == 1
            else ((2, 3), (0, 2))
        )
        op(made, "aten::mm backward", 0, 100)
        op(made, "_c10d_functional::all_reduce", 100, 20)
        op(made, "c10d::allreduce_", 105, 10)
        gloo(made, "all_reduce", 110, 90 if rank % 2 else 40, WORKER)
        made.event("user_annotation", "FSDP::post_backward_reduce (layers.0)", 200, 60, tid=MAIN)
        op(made, "c10d::_reduce_scatter_base_", 210, 50)
        gloo(made, "all_reduce", 215, 45, OTHER)
        made.step(0, 300)
        ranks.append(save(made, tmp_path, config(default_pg=range(4), mesh_tp=tp, mesh_shard=dp)))
    found = explain(*ranks).measured
    first = found.ranks[0]
    assert {axis: use.calls for axis, use in first.axes.items()} == {"tp": 1, "dp": 1}
    assert first.axes["tp"].exposed_s == pytest.approx(40 * US)
    assert found.ranks[1].causes_s["waiting"] == pytest.approx(50 * US)
    assert found.job.group_sizes == {"tp": (2,), "dp": (2,)}


@pytest.mark.parametrize(("stages", "name"), [((0, 1), "none"), ((0, 1, 2, 3), "PP:0SEND_F0")])
def test_messages_of_torchs_pipelines(tmp_path, stages, name):
    """Of two stages the other end is plain, of more the span around says it; what the receiver waits is the bubble."""
    world = len(stages)
    sender, receiver = Rank(0, world), Rank(1, world)
    groups = config(default_pg=range(world), mesh_pp=stages)
    sender.event("user_annotation", name, 100, 30, tid=MAIN)
    gloo(sender, "send", 105, 20, MAIN)
    receiver.event("user_annotation", name.replace("0SEND_F0", "1RECV_F0"), 0, 140, tid=MAIN)
    gloo(receiver, "recv", 5, 125, MAIN)
    for made in (sender, receiver):
        op(made, "aten::mm backward", 150, 50)
        made.step(0, 200)
    found = explain(*(save(made, tmp_path, groups) for made in (sender, receiver))).measured
    assert found.ranks[1].causes_s["bubble"] == pytest.approx(105 * US)
    assert found.ranks[1].causes_s["exposed_pp"] == pytest.approx(20 * US)


@pytest.mark.parametrize("mesh", [True, False])
def test_without_other_axes_a_group_is_data_parallel(tmp_path, mesh):
    """DDP's own group has no name: where every axis of the mesh has one rank, it is what is left; as without one."""
    made = []
    for rank in range(2):
        one = Rank(rank, 2)
        op(one, "aten::mm backward", 0, 100)
        op(one, "c10d::allreduce_", 100, 5)
        gloo(one, "all_reduce", 103, 50, WORKER)
        one.step(0, 160)
        axes = {"mesh_tp": (rank,), "mesh_pp": (rank,), "undefined": (0, 1)} if mesh else {}
        groups = config(default_pg=(0, 1), **axes)
        made.append(save(one, tmp_path, groups))
    found = explain(*made).measured
    assert found.ranks[0].causes_s["exposed_dp"] == pytest.approx(50 * US)
    assert not any("could not be matched" in line for line in found.remarks)


def test_clocks_that_drift_are_said(tmp_path):
    """Ends that lie a tenth of a step apart after alignment: the traces may not be of one run."""
    made = []
    for rank in range(2):
        one = Rank(rank, 2)
        one.kernel("gemm_bwd", 0, 100)
        for number in range(6):
            late = 150 * number * rank
            one.collective("allreduce", 200 * number + late, 100, (0, 1), said={"Seq": number})
        one.step(0, 2000)
        made.append(one.save(tmp_path))
    assert any("clocks drift" in line for line in explain(*made).measured.remarks)


def test_traces_that_a_run_left():
    """One step of ranks 0 and 2 of two stages with two replicas on gloo, as torch 2.13 wrote it (slices alone)."""
    found = explain(Path(__file__).with_name("traces")).measured
    assert [each.rank for each in found.ranks] == [0, 2]
    for each in found.ranks:
        assert sum(each.causes_s.values()) == pytest.approx(each.step_time_s)
        assert {axis: use.calls for axis, use in each.axes.items()} == {"pp": 4, "dp": 2}
        assert sum(each.unknown_s.values()) < each.step_time_s / 1000
        assert min(each.classes_s[name] for name in ("gemm", "attention", "optimizer")) > 0
    assert {(one.axis, one.members) for one in found.skewed} == {("pp", (0, 2)), ("pp", (2, 0))}
    assert found.job.group_sizes == {"dp": (2,)}
    assert any("4 of 12 collectives could not be matched" in line for line in found.remarks)


def left_by(rank, folder, groups, host):
    """A rank's file, with its groups and the host that it was on."""
    whole = rank.data
    rank.data = lambda: {**whole(), "host_name": host}
    return save(rank, folder, groups)


def test_an_axis_of_all_ranks_is_not_listed(tmp_path):
    """Of torch such an axis has the default group: its calls are matched, and what its ranks wait is found."""
    made = []
    for rank, length in enumerate((90, 40)):
        one = Rank(rank, 2)
        op(one, "aten::mm backward", 0, 100)
        op(one, "_c10d_functional::all_reduce", 100, 20)
        gloo(one, "all_reduce", 200 - length, length, WORKER)
        one.step(0, 200)
        groups = config(default_pg=(0, 1), mesh_pp=(rank,), mesh_replicate=(rank,), mesh_shard=(rank,))
        made.append(save(one, tmp_path, groups))
    found = explain(*made).measured
    assert found.ranks[0].causes_s["waiting"] == pytest.approx(50 * US)
    assert found.ranks[0].causes_s["exposed_tp"] == pytest.approx(40 * US)
    assert found.job.group_sizes == {"tp": (2,)}
    assert not found.remarks


def test_messages_beside_a_pipeline_of_one_rank_are_a_rings(tmp_path):
    """Ring attention sends keys and values: where the pipeline has one rank, messages are the context's."""
    made = []
    for rank in range(2):
        one = Rank(rank, 2)
        op(one, "aten::mm backward", 0, 100)
        gloo(one, "send", 100, 40, MAIN)
        gloo(one, "recv", 100, 40, MAIN)
        one.step(0, 140)
        made.append(save(one, tmp_path, config(default_pg=(0, 1), mesh_pp=(rank,), mesh_tp=(rank,))))
    found = explain(*made).measured
    assert {axis: use.calls for axis, use in found.ranks[0].axes.items()} == {"cp": 2}
    assert found.ranks[0].causes_s["exposed_cp"] == pytest.approx(40 * US)


def test_messages_inside_and_outside_of_pipeline_actions(tmp_path):
    """Beside torch's pipelines, whose spans are around their messages, others are a ring's."""
    one = Rank(0, 2)
    op(one, "aten::mm backward", 0, 100)
    one.event("user_annotation", "PP:0SEND_F0", 100, 10, tid=MAIN)
    gloo(one, "send", 105, 15, MAIN)
    gloo(one, "send", 130, 30, MAIN)
    one.step(0, 200)
    found = explain(save(one, tmp_path, config(default_pg=(0, 1)))).measured
    assert found.ranks[0].causes_s["exposed_pp"] == pytest.approx(15 * US)
    assert found.ranks[0].causes_s["exposed_cp"] == pytest.approx(30 * US)


def two_stages(folder, asked_for, hosts=("here", "here")):
    """Two messages, the first 10 us on its way; of the second the receiver asks at ``asked_for`` and computes on."""
    sender, receiver = Rank(0, 2), Rank(1, 2, shift_us=0.0 if hosts[0] == hosts[1] else 70.0)
    op(sender, "aten::mm backward", 0, 100)
    gloo(sender, "send", 100, 900, MAIN)
    op(sender, "aten::mm", 110, 390)
    gloo(sender, "send", 500, 500, MAIN)
    gloo(receiver, "recv", 20, 90, MAIN)
    op(receiver, "aten::mm backward", 110, 390)
    gloo(receiver, "recv", asked_for, 900 - asked_for, MAIN)
    op(receiver, "aten::mm", 600, 300)
    for made, end in ((sender, 1000), (receiver, 980)):
        gloo(made, "all_reduce", 900, end - 900, WORKER)
        made.step(0, 1000)
    groups = [config(default_pg=(0, 1), mesh_tp=(rank,), mesh_replicate=(rank,)) for rank in range(2)]
    pairs = zip((sender, receiver), groups, hosts, strict=True)
    return explain(*(left_by(made, folder, listed, host=host) for made, listed, host in pairs)).measured


def test_a_posted_message_is_over_when_it_has_arrived(tmp_path):
    """A sender's span is open until it waits for it: what is idle meanwhile is not its message's."""
    found = two_stages(tmp_path, asked_for=550)
    sender, receiver = found.ranks
    assert sender.causes_s["exposed_pp"] == pytest.approx((10 + 10 + 80) * US)  # two messages, the sum at the end
    assert sender.causes_s["bubble"] == pytest.approx((50 + 20) * US)  # until the other asks; in the sum
    assert sender.causes_s["host"] == pytest.approx((900 - 560) * US)
    assert receiver.causes_s["bubble"] == pytest.approx((80 + 50) * US)
    assert set(found.job.group_sizes) == {"pp"}
    assert {one.last_rank for one in found.skewed if one.kind == "send_recv"} == {0, 1}


def test_ranks_of_one_host_have_one_clock(tmp_path):
    """Ends of a sum lie 20 us apart on one host, which is no difference of clocks; on two hosts clocks are aligned."""
    assert two_stages(tmp_path, asked_for=550).offset_ns == (0, 0)
    assert two_stages(tmp_path, 550, hosts=("here", "there")).offset_ns == (0, 50_000)


@pytest.mark.parametrize(("host", "said"), [("here", True), ("there", False)])
def test_traces_of_other_times_are_said(tmp_path, host, said):
    """Ranks of one host, one traced a second after the other: hardly one run; clocks of two hosts may differ."""
    made = []
    for rank, name in enumerate(("here", host)):
        one = Rank(rank, 2, shift_us=1e6 * rank)
        op(one, "aten::mm backward", 0, 100)
        one.step(0, 200)
        made.append(left_by(one, tmp_path, config(default_pg=(0, 1)), name))
    remarks = explain(*made).measured.remarks
    assert (
        "rank 1 was traced 1.00 s after rank 0 on the same host: these are not traces of one run" in remarks
    ) == said


def test_a_pipeline_of_all_ranks_beside_a_group_of_its_ends(tmp_path):
    """Tied embeddings have a group of the first and last stage: messages are matched all the same."""
    made = []
    for rank, (name, kind) in enumerate((("PP:0SEND_F0", "send"), ("PP:1RECV_F0", "recv"), ("", ""), ("", ""))):
        one = Rank(rank, 4)
        op(one, "aten::mm backward", 0, 100)
        if name:
            one.event("user_annotation", name, 100, 10, tid=MAIN)
            gloo(one, kind, 105, 20, MAIN)
        one.step(0, 200)
        ends = {"undefined": (0, 3)} if rank in (0, 3) else {}
        made.append(save(one, tmp_path, config(default_pg=range(4), mesh_tp=(rank,), **ends)))
    assert not any("could not be matched" in line for line in explain(*made).measured.remarks)
