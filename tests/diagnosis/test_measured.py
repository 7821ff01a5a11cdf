"""Traces of known content: every category is found and sized, over one rank and over several."""

import json

import pytest

import simpar
from simpar import cli
from simpar.diagnosis.answer import explain
from simpar.diagnosis.kineto import read_kineto
from simpar.diagnosis.traffic import collective_uses
from tests.diagnosis.kineto_files import Rank, data_parallel_step

US = 0.000001


def explained(folder, ranks, **options):
    """The explanation of ranks, written out as files."""
    return explain(*(each.save(folder) for each in ranks), **options).measured


def test_a_step_is_claimed_once(tmp_path):
    """Kernels by class, the hidden sum in none of the causes, 100 us of launching; the parts sum to the step."""
    (found,) = explained(tmp_path, [data_parallel_step(0)]).ranks
    assert found.step_time_s == pytest.approx(3200 * US)
    assert found.classes_s == pytest.approx({"attention": 1400 * US, "gemm": 1600 * US, "optimizer": 100 * US})
    assert found.causes_s == pytest.approx({"compute": 3000 * US, "optimizer": 100 * US, "host": 100 * US})
    assert found.axes["dp"].busy_s == pytest.approx(800 * US)
    assert found.axes["dp"].size_bytes == 2000


def test_lost_overlap_is_sized(tmp_path):
    """The same sum after the backward is exposed, all 800 us of it."""
    (found,) = explained(tmp_path, [data_parallel_step(0, overlapped=False)]).ranks
    assert found.causes_s["exposed_dp"] == pytest.approx(800 * US, rel=0.05)
    assert sum(found.causes_s.values()) == pytest.approx(found.step_time_s)


@pytest.mark.parametrize("shifts", [[0, 0, 0, 0], [0, 5e6, -3e6, 70]])
def test_a_straggler_is_found_and_sized(tmp_path, shifts):
    """Rank 2 is 30 % slower: it is named, with its factor, and what the others wait, whatever their clocks say."""
    slow = [1.0, 1.0, 1.3, 1.0]
    ranks = [data_parallel_step(r, slow=slow, overlapped=False, shift_us=shifts[r]) for r in range(4)]
    found = explained(tmp_path, ranks)
    (one,) = found.stragglers
    assert (one.rank, one.slowdown) == (2, pytest.approx(1.3, rel=0.01))
    assert one.waited_for_s == pytest.approx(3 * 900 * US, rel=0.05)
    for each in found.ranks:
        assert each.causes_s["exposed_dp"] == pytest.approx(800 * US, rel=0.05)
        assert each.causes_s.get("waiting", 0.0) == pytest.approx(0 if each.rank == 2 else 900 * US, rel=0.05)
    worst = found.skewed[0]
    assert (worst.axis, worst.kind, worst.last_rank, worst.number) == ("dp", "all_reduce", 2, 1)
    assert worst.waited_s == pytest.approx(2700 * US, rel=0.01)
    assert found.offset_ns == tuple(round(1000 * (shift - shifts[0])) for shift in shifts)
    assert any("clocks" in line for line in found.remarks) == any(shifts)


@pytest.mark.parametrize("world_size", [2, 4])
def test_a_rank_whose_host_is_late_is_named(tmp_path, world_size, capsys):
    """Rank 1 launches 1,500 us after the others: it is the host's fault, and its kernels are as fast as theirs."""
    late = [0, 1500, 0, 0][:world_size]
    ranks = [data_parallel_step(r, late_us=late, world_size=world_size, overlapped=False) for r in range(world_size)]
    found = explained(tmp_path, ranks)
    (one,) = found.stragglers
    assert (one.rank, one.because, one.slowdown) == (1, "host", pytest.approx(1.0))
    assert one.host_s == pytest.approx(1600 * US, rel=0.02)
    assert one.usual_host_s == pytest.approx(100 * US, rel=0.02)
    assert one.longest_s == pytest.approx(1500 * US, rel=0.02)
    assert one.waited_for_s == pytest.approx((world_size - 1) * 1500 * US, rel=0.02)
    assert cli.run(["explain", str(tmp_path)]) == 0
    assert "rank 1 is waited for: its device waits 1.60 ms for its host, 100 us on the median other rank" in said(
        capsys
    )


def said(capsys):
    """What was printed, without the ends of lines."""
    return " ".join(capsys.readouterr().out.split())


def test_of_two_ranks_the_other_one_is_the_measure(tmp_path):
    """The median of both would hold the slow one: 1.6 times as slow is 1.6 times."""
    ranks = [data_parallel_step(r, slow=[1.0, 1.6], world_size=2, overlapped=False) for r in range(2)]
    (one,) = explained(tmp_path, ranks).stragglers
    assert (one.rank, one.because, one.slowdown) == (1, "kernels", pytest.approx(1.6))


@pytest.mark.parametrize("slow", [1.0, 1.05, 1.09])
def test_ranks_that_are_a_little_slower_are_not_named(tmp_path, slow):
    """Five percent are no fault, though the others wait for them."""
    ranks = [data_parallel_step(r, slow=[1.0, 1.0, slow, 1.0], overlapped=False) for r in range(4)]
    found = explained(tmp_path, ranks)
    assert found.stragglers == ()
    if slow > 1:
        assert found.ranks[0].causes_s["waiting"] == pytest.approx(3000 * (slow - 1) * US, rel=0.05)


def test_waits_under_computation_are_not_counted(tmp_path):
    """What others wait for a rank is never more than they wait with nothing else to do."""
    slow = [1.0, 1.0, 1.6, 1.0]
    found = explained(tmp_path, [data_parallel_step(r, slow=slow) for r in range(4)])
    exposed = sum(each.causes_s.get("waiting", 0.0) for each in found.ranks)
    hidden = sum(each.waited_s for each in found.skewed)
    assert hidden == pytest.approx(3 * 1200 * US, rel=0.05)
    assert exposed == pytest.approx(3 * 200 * US, rel=0.05)
    (one,) = found.stragglers
    assert one.waited_for_s == pytest.approx(exposed)


def test_collectives_have_a_bus_rate(tmp_path):
    """1,000,000 bf16 of four ranks summed in 800 us: 1.5 times the bytes over the links, whoever comes late."""
    slow, ranks = [1.0, 1.0, 1.3, 1.0], []
    for rank in range(4):
        made = data_parallel_step(rank, slow=slow)
        for event in made.events:
            if "In msg nelems" in event["args"]:
                event["args"]["In msg nelems"] = 1_000_000
        ranks.append(made)
    (use,) = collective_uses(explained(tmp_path, ranks).traffic)
    assert (use.axis, use.kind, use.members, use.calls) == ("dp", "all_reduce", 4, 1)
    assert (use.size_bytes, use.cost_s) == (2e6, pytest.approx(800 * US, rel=0.01))
    assert use.bus_bytes_per_s == pytest.approx(1.5 * 2e6 / (800 * US), rel=0.01)


def test_waiting_for_a_stage_is_the_bubble(tmp_path):
    """A message whose receiver waits 700 us for it: 100 us of transfer, the rest bubble."""
    ranks = [Rank(0, 2), Rank(1, 2)]
    about = {"description": "PIPELINE_MODEL_PARALLEL_GROUP", "said": {"Src Rank": 0, "Dst Rank": 1}}
    for rank, begin in ((0, 800), (1, 100)):
        ranks[rank].collective("send" if rank == 0 else "recv", begin, 900 - begin, (0, 1), **about)
        ranks[rank].kernel("gemm_backward", 100 if rank == 0 else 900, 700)
        ranks[rank].step(0, 1600)
    found = explained(tmp_path, ranks)
    assert found.ranks[1].causes_s["bubble"] == pytest.approx(700 * US)
    assert found.ranks[1].causes_s["exposed_pp"] == pytest.approx(100 * US)
    assert "bubble" not in found.ranks[0].causes_s or found.ranks[0].causes_s["bubble"] == 0


def test_gaps_are_the_hosts_where_it_launched_late(tmp_path):
    """300 us until a launch and 5 us between queued kernels are the host's, 100 us of queued work are not explained."""
    made = Rank(0, 1)
    made.kernel("gemm_bwd", 0, 100, ahead_us=0)
    made.kernel("gemm_bwd", 401, 100, ahead_us=1)
    made.kernel("gemm_bwd", 506, 100, ahead_us=200)
    made.kernel("gemm_bwd", 706, 100, ahead_us=400)
    (found,) = explained(tmp_path, [made]).ranks
    assert found.host_s == pytest.approx({"host behind": 301 * US, "between kernels": 5 * US})
    assert found.causes_s["idle"] == pytest.approx(100 * US)


def test_copies_and_memory(tmp_path):
    """A copy to the host that nothing hides is offload; memory events give the peak and what is held throughout."""
    made = Rank(0, 1)
    made.kernel("gemm_bwd", 0, 100)
    made.event("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", 100, 50, args={"correlation": 9})
    for when, held in enumerate((2, 3, 1)):
        memory = {"Total Allocated": held * 2**30, "Total Reserved": 4 * 2**30, "Device Type": 1}
        made.events.append({"ph": "i", "name": "[memory]", "cat": "cpu_instant_event", "ts": when, "args": memory})
    (found,) = explained(tmp_path, [made]).ranks
    assert found.causes_s["offload"] == pytest.approx(50 * US)
    assert (found.memory.allocated_bytes, found.memory.reserved_bytes) == (3 * 2**30, 4 * 2**30)
    assert found.memory.least_bytes == 2**30


def test_several_steps_are_averaged(tmp_path):
    """Two marked steps of 1 ms with 0.6 ms of kernels: what is said is of one."""
    made = Rank(0, 1)
    for number in (0, 1):
        made.kernel("gemm_bwd", 1000 * number, 600, ahead_us=0)
        made.step(1000 * number, 1000, number)
    (found,) = explained(tmp_path, [made]).ranks
    assert (found.steps, found.step_time_s) == (2, pytest.approx(1000 * US))
    assert found.causes_s["compute"] == pytest.approx(600 * US)


def test_ranks_that_are_missing_are_said(tmp_path):
    """Two ranks of four: which of them nothing is known of."""
    found = explained(tmp_path, [data_parallel_step(rank) for rank in (0, 2)])
    assert any("2 of 4 ranks" in line and "1, 3" in line for line in found.remarks)


@pytest.mark.parametrize(("other", "axes"), [("", {"dp"}), ("mesh_tp", {"other", "tp"})])
def test_the_default_group_is_data_parallel_alone(tmp_path, other, axes):
    """DDP and FSDP without a mesh use the group of all ranks: theirs, and said so, unless another axis is in use."""
    made = Rank(0, 4)
    made.kernel("gemm_bwd", 0, 100)
    made.collective("allreduce", 100, 50, range(4), description="default_pg")
    if other:
        made.collective("allreduce", 150, 50, (0, 1), description=other, group="2")
    found = explained(tmp_path, [made])
    assert set(found.ranks[0].axes) == axes
    assert any("taken as data-parallel" in line for line in found.remarks) == (not other)


def test_members_of_large_groups(tmp_path):
    """Torch cuts long lists of ranks: first, stride and number tell them, where they fit the ends that are left."""
    made = Rank(0, 64)
    made.kernel("gemm_bwd", 0, 100)
    cut = {"Process Group Ranks": "[0, 2, ..., 62]", "Group size": 32, "Global rank start": 0}
    made.collective("allreduce", 100, 10, (0,), said={**cut, "Global rank stride": 2})
    made.collective("allreduce", 120, 10, (0,), said={**cut, "Global rank stride": 3}, group="9")
    found = read_kineto(made.save(tmp_path)).collectives
    assert [each.ranks for each in found] == [tuple(range(0, 64, 2)), ()]


def test_an_explanation_is_saved_as_it_is_printed(tmp_path):
    """As a dictionary, as text and in its file."""
    first = simpar.explain(data_parallel_step(0).save(tmp_path))
    assert first.to_dict() == json.loads(first.to_json())
    first.save(tmp_path / "out.json")
    assert json.loads((tmp_path / "out.json").read_text()) == first.to_dict()
