"""What execution traces say of a step is the step: a replay of the files alone ends when the simulation does."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from simpar.chakra.messages import COLLECTIVES
from simpar.plan.plan import Plan
from simpar.simulation import simulate
from tests.gate import some

from .conftest import PLANS, TRAINING, exported, job_and_cluster
from .replayer import COLLECTIVE, COMPUTE, RECEIVE, SEND, read, replay


def ranks_of(files):
    """Nodes of all ranks of an export."""
    return [read(files[name], int(name.split(".")[1])) for name in sorted(files) if name.endswith(".et")]


def folded_step_us(label, **kinds):
    """The step as it is simulated by default: one rank of each class, blocks as single ops."""
    job, cluster = job_and_cluster(label, **kinds)
    plan, training = Plan.model_validate(PLANS[label]), TRAINING
    return simulate(job.graph, cluster, plan, training, stack=job.stack, with_timeline=False).step_time_s * 1e6


@pytest.mark.parametrize("label", some(PLANS, 6))
def test_a_replay_of_the_files_ends_with_the_step(label):
    """To the rounding of a time to microseconds, with one kernel at a time on every device."""
    ended = replay(exported(label).files)
    assert abs(ended - folded_step_us(label)) <= 0.5
    assert exported(label).step_time_s == pytest.approx(ended / 1e6, abs=0.5e-6)


@pytest.mark.parametrize("label", some(["3d", "gathered", "stages", "mirrored"], ["3d", "stages"]))
def test_a_rank_with_one_call_at_a_time_gets_through(label):
    """No two ranks wait for each other's call, and the step is longer by what no longer overlaps, if any."""
    files = exported(label).files
    assert 1 <= replay(files, one_call=True) / replay(files) <= 1.05


@pytest.mark.parametrize("label", ["3d", "zero-3"])
def test_stacks_that_wait_for_the_host_replay_too(label):
    """What the host launches beside a block is work of the host in the trace."""
    kinds = {"stack": "torchtitan-eager"}
    files = exported(label, **kinds).files
    assert abs(replay(files) - folded_step_us(label, **kinds)) <= 0.5


def test_collectives_that_take_longer_take_the_step_longer():
    """The replay listens to the durations: the law above can fail."""
    files = exported("3d").files
    slow = replay(files, lambda node: node.duration_us * (2 if node.kind == COLLECTIVE else 1))
    assert slow > 1.05 * replay(files)


def test_every_message_has_two_ends():
    """Of every send there is one receive with the same ends, bytes and a tag of its own."""
    for label in ("3d", "ring"):
        ends = {SEND: [], RECEIVE: []}
        for nodes in ranks_of(exported(label).files):
            for node in nodes.values():
                if node.kind in ends:
                    said = [node.said[name] for name in ("comm_tag", "comm_src", "comm_dst", "comm_size")]
                    ends[node.kind].append(said)
                    assert node.said["comm_src" if node.kind == SEND else "comm_dst"] == node.rank
        assert ends[SEND]
        assert sorted(ends[SEND]) == sorted(ends[RECEIVE])
        assert len({tag for tag, *_ in ends[SEND]}) == len(ends[SEND])


def test_collectives_run_in_the_groups_of_the_plan():
    """Tensor-parallel ones between neighbours, those of data parallelism across: names are decimal numbers from 1."""
    files = exported("3d").files
    groups = json.loads(files["comm_groups.json"])
    assert [int(name) for name in groups] == list(range(1, len(groups) + 1))
    seen = Counter()
    for nodes in ranks_of(files):
        for node in nodes.values():
            if node.kind == COLLECTIVE:
                seen[node.name.split()[0], tuple(groups[node.said["pg_name"]])] += 1
                assert node.said["is_cpu_op"] is False
    assert {group for kind, group in seen if kind == "tp"} == {(0, 1), (2, 3), (4, 5), (6, 7)}
    assert {group for kind, group in seen if kind == "dp"} == {(0, 2), (1, 3), (4, 6), (5, 7)}


def test_bytes_are_those_that_a_rank_has_before():
    """An all-gather counts a shard, a reduce-scatter the whole: under ZeRO-3 both move the same parameters."""
    moved = Counter()
    for node in ranks_of(exported("zero-3").files)[0].values():
        if node.kind == COLLECTIVE:
            moved[COLLECTIVES[node.said["comm_type"]]] += node.said["comm_size"]
    parameters = job_and_cluster("zero-3")[0].graph.num_parameters()
    assert 2 <= moved["reduce_scatter"] / parameters <= 4.1, "2 or 4 bytes a gradient"
    assert 3.5 <= moved["all_gather"] * 8 / parameters <= 4.1, "2 bytes a parameter, forward and backward"


def test_kernels_in_a_row_are_one_node():
    """No two short kernels follow each other with nothing else between them."""
    nodes = ranks_of(exported("ddp").files)[0]
    followers = Counter(each for node in nodes.values() for each in node.after)
    for node in nodes.values():
        if node.kind == COMPUTE and len(node.after) == 1:
            before = nodes[node.after[0]]
            alone = before.kind == COMPUTE and followers[before.id] == 1
            assert not alone or before.duration_us >= 49


def test_nodes_stand_in_the_order_of_the_schedule():
    """Ids rise with the start: what a slot takes first is what the schedule says."""
    for nodes in ranks_of(exported("interleaved").files):
        assert list(nodes) == list(range(len(nodes)))
        assert all(max(node.after, default=-1) < node.id for node in nodes.values())
