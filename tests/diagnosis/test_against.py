"""Measured beside predicted: simulated steps written as traces, with one thing changed that must be found and sized."""

from dataclasses import replace

import pytest

from simpar import cli
from simpar.cli.app import console
from simpar.diagnosis.against import compare_with_prediction
from simpar.diagnosis.answer import explain
from simpar.diagnosis.changes import NO_STRAGGLER, ObservedStep, find_changes
from simpar.diagnosis.lost_overlap import LOST, OVERLAPPED, find_lost_overlap
from simpar.diagnosis.measured import AxisUse
from simpar.diagnosis.terminal import longer, print_explanation, sentences
from simpar.errors import UserError
from simpar.scenario import load_scenario
from simpar.simulation import simulate
from tests.diagnosis.kineto_files import data_parallel_step
from tests.diagnosis.predicted_traces import traces

FLAGS = {
    "model": "gpt2", "cluster.hardware": "dgx-h100", "training.seq_len": 1024, "training.global_batch": 64,
    "plan.micro_batch": 4, "stack": "ddp",
}  # fmt: skip
RANKS = (0, 3, 5)


def scenario(**flags):
    """A small data-parallel job on eight devices."""
    return load_scenario(None, {**FLAGS, **flags})


def explained(folder, ran, plan, **options):
    """What is said of a step that ran, beside a plan."""
    made, result = traces(ran, RANKS, 8)
    return explain(*(each.save(folder) for each in made), plan=plan, **options), result


def test_a_step_as_predicted(tmp_path):
    """A trace of the predicted step has its causes and classes."""
    plan = scenario()
    found, result = explained(tmp_path, plan.inputs(), plan, changes=False)
    predicted = found.against
    kernels = found.measured.mean_s("classes_s")
    for name, seconds in predicted.classes_s.items():
        assert kernels.get(name, 0.0) == pytest.approx(seconds, rel=0.01, abs=result.step_time_s / 1000)
    for name in ("compute", "optimizer", "exposed_dp"):
        was = found.measured.mean_s().get(name, 0.0)
        assert was == pytest.approx(predicted.causes_s.get(name, 0.0), abs=0.01 * result.step_time_s)
    assert found.measured.stragglers == ()
    assert predicted.mfu(found.measured) == pytest.approx(result.mfu, rel=0.001)
    again = explain(tmp_path, plan=plan, changes=False)
    assert again.to_dict() == found.to_dict()


def test_memory_by_category(tmp_path):
    """The measured peak stands beside the predicted one and its parts, with what both hold throughout."""
    plan = scenario()
    made, result = traces(plan.inputs(), RANKS, 8)
    curve = result.overview.stages[0].memory.total_bytes
    for held in (curve.min(), curve.max()):
        said = {"Total Allocated": int(held), "Total Reserved": int(held), "Device Type": 1}
        made[1].events.append({"ph": "i", "name": "[memory]", "cat": "cpu_instant_event", "ts": 1, "args": said})
    found = explain(*(each.save(tmp_path) for each in made), plan=plan, changes=False)
    beside = found.against.memory
    (stage,) = result.memory.stages
    assert (beside.rank, beside.peak_bytes) == (RANKS[1], stage.peak_bytes)
    assert beside.measured.allocated_bytes == pytest.approx(beside.peak_bytes, rel=0.01)
    assert beside.measured.least_bytes == pytest.approx(beside.least_bytes, rel=0.01)
    assert beside.parts_bytes["activations"] == stage.activations_bytes
    assert sum(beside.parts_bytes.values()) == pytest.approx(stage.peak_bytes)
    assert found.to_dict()["predicted"]["memory"]["parts_bytes"] == beside.parts_bytes
    said = list(sentences(found))
    (peak,) = (line for line in said if line.startswith("allocated at most"))
    assert "activations" in peak.partition("predicted: ")[2]
    assert any(line.startswith("held throughout") for line in said)


def test_differences_below_the_clock_of_traces_are_none():
    """What rounding leaves of equal times is no difference."""
    assert longer(0.0268, 0.0268 + 1e-12) == "+0 s"
    assert longer(1.0, 1.25) == "-250 ms"


def test_lost_overlap_is_sized(tmp_path):
    """Gradients reduced after the backward instead of under it: the difference is that of the two simulations."""
    plan, lost = scenario(), scenario(**{"plan.overlap_grad_reduce": False})
    ran, meant = (simulate(**each.inputs()).time_breakdown_s.exposed_dp for each in (lost, plan))
    found, _ = explained(tmp_path, lost.inputs(), plan, changes=False)
    first = found.against.differences(found.measured)[0]
    assert first.part == "exposed_dp"
    assert first.more_s == pytest.approx(ran - meant, rel=0.05)


@pytest.mark.slow
def test_lost_overlap_is_a_change(tmp_path):
    """What the overlap of the plan would gain is what the two simulated steps differ by; as planned nothing is lost."""
    plan, lost = scenario(), scenario(**{"plan.overlap_grad_reduce": False})
    late_s, meant_s = (simulate(**each.inputs()).step_time_s for each in (lost, plan))
    found, _ = explained(tmp_path, lost.inputs(), plan)
    gain = next(each for each in found.changes.gains if each.change == OVERLAPPED)
    assert gain.gain_s == pytest.approx(late_s - meant_s, rel=0.05)
    assert found.changes.fitted.after_s == pytest.approx(late_s, rel=0.01)
    assert LOST in found.changes.remarks
    (tmp_path / "planned").mkdir()
    kept, _ = explained(tmp_path / "planned", plan.inputs(), plan)
    assert LOST not in kept.changes.remarks
    assert OVERLAPPED not in {each.change for each in kept.changes.gains}


@pytest.fixture(scope="module")
def with_straggler(tmp_path_factory):
    """A run whose rank 3 is 25 % slower, explained beside the plan without it; and both simulated steps in s."""
    plan = scenario()
    ran = plan.inputs()
    ran["perturbation"] = ran["perturbation"].model_copy(update={"slow_ranks": {3: 1.25}})
    folder = tmp_path_factory.mktemp("straggler")
    found, result = explained(folder, ran, plan)
    return found, result.step_time_s, simulate(**plan.inputs()).step_time_s


def test_a_straggler_is_named_and_its_gain_simulated(with_straggler):
    """Rank 3, 25 % slower; without it the step takes what the simulation without it says, within 5 %."""
    found, slow_s, even_s = with_straggler
    (one,) = found.measured.stragglers
    assert (one.rank, one.slowdown) == (3, pytest.approx(1.25, rel=0.05))
    gain = next(each for each in found.changes.gains if each.change == NO_STRAGGLER)
    assert gain.gain_s == pytest.approx(slow_s - even_s, rel=0.05)
    assert gain.interval_s[0] <= gain.gain_s <= gain.interval_s[1]
    assert found.changes.gains[0].gain_s >= gain.gain_s
    assert found.changes.fitted.after_s == pytest.approx(slow_s, rel=0.05)


def test_other_changes_are_ranked_with_intervals(with_straggler):
    """Every change that can be has a gain and an interval around it; what cannot be says why, last."""
    gains = with_straggler[0].changes.gains
    can = [each for each in gains if not each.refused]
    assert [each.gain_s for each in can if each.fits] == sorted((e.gain_s for e in can if e.fits), reverse=True)
    for each in can:
        assert each.interval_s[0] <= each.gain_s <= each.interval_s[1]
    assert {"--zero 1", "--recompute full"} <= {each.change for each in gains}
    assert with_straggler[0].to_dict()["changes"]["slow_ranks"] == {"3": pytest.approx(1.25, rel=0.05)}


def test_changes_that_nobody_knows_are_undecided(with_straggler, capsys):
    """Those whose interval holds zero stand apart, behind all that are known, in the JSON and where it is printed."""
    found = with_straggler[0]
    gains = [each for each in found.changes.gains if not each.refused and each.fits]
    for each in gains:
        low, high = each.interval_s
        assert each.undecided == (low <= 0 <= high)
    flags = [each.undecided for each in gains]
    assert flags == sorted(flags)
    assert {each["undecided"] for each in found.to_dict()["changes"]["gains"]} >= {True, False}
    print_explanation(found, console())
    table, _, left = capsys.readouterr().out.partition("undecided (the interval of the gain holds zero): ")
    hopeful = [each.change for each in gains if each.undecided and each.gain_s > 0]
    assert hopeful
    assert left.startswith(hopeful[0])
    assert NO_STRAGGLER in " ".join(table.split())


def test_a_late_host_is_a_change(tmp_path):
    """What a host as fast as the others' would gain was measured twice: its delay, and the longest wait for it."""
    late = [data_parallel_step(r, late_us=[0, 1500, 0, 0], overlapped=False) for r in range(4)]
    measured = explain(*(each.save(tmp_path) for each in late)).measured
    plan = scenario()
    result = simulate(**plan.inputs())
    seen = ObservedStep.of_traces(measured, result)
    assert seen.slow_ranks == {}
    assert seen.slow_hosts_s == {1: pytest.approx((0.0015, 0.0015), rel=0.02)}
    changes = find_changes(replace(seen, slow_hosts_s={1: (0.0016, 0.0014)}), plan, result)
    gain = next(each for each in changes.gains if each.change == "rank 1's host as fast as the others'")
    assert (gain.gain_s, gain.interval_s) == (0.0014, (0.0014, 0.0016))
    assert gain.step_time_s == pytest.approx(measured.step_time_s - 0.0014)
    assert not gain.undecided


def test_slow_kernels_are_sized_as_measured(tmp_path):
    """Of two ranks one takes 1.5 times as long: fitted to is the other, and the step loses what it computes longer."""
    made = [data_parallel_step(r, slow=[1.0, 1.5], world_size=2, overlapped=False) for r in range(2)]
    measured = explain(*(each.save(tmp_path) for each in made)).measured
    plan = scenario(**{"cluster.devices": 2})
    result = simulate(**plan.inputs())
    seen = ObservedStep.of_traces(measured, result)
    assert seen.slow_ranks == {1: pytest.approx(1.5)}
    assert seen.parts_s["kernels"] == pytest.approx(0.003 + 0.0001)
    assert seen.kernels_s == pytest.approx((0.0015, 0.0015))
    gain = next(each for each in find_changes(seen, plan, result).gains if each.change == NO_STRAGGLER)
    assert (gain.gain_s, gain.interval_s) == (seen.kernels_s[0], tuple(sorted(seen.kernels_s)))


@pytest.mark.parametrize("overlapped", [True, False])
def test_overlap_is_lost_whatever_the_network_is_predicted_to_take(tmp_path, overlapped):
    """Transfers that take ten times as long as predicted, all of them exposed: lost. Under the backward pass: not."""
    plan = scenario()
    inputs = plan.inputs()
    result = simulate(**inputs)
    dp = result.communication["dp"]
    exposed_s, busy_s = 10 * dp.busy_s, 10 * dp.busy_s * (1.2 if overlapped else 1.0)
    made, _ = traces(inputs, RANKS, 8)
    measured = explain(*(each.save(tmp_path) for each in made)).measured
    against = compare_with_prediction(measured, result, inputs["model"])
    lost = find_lost_overlap(measured, against, plan, AxisUse(1.0, 1.0, busy_s, exposed_s, 0.0))
    assert (lost is None) == overlapped
    if lost is not None:
        assert not lost[0].plan.data_parallel.overlap_grad_reduce


@pytest.mark.slow
def test_changes_say_what_the_framework_of_the_stack_cannot_run(tmp_path):
    """As hints of simulate do: torchtitan shards in full or not at all, and Megatron captures graphs."""
    plan = scenario(stack="torchtitan", **{"plan.zero": 3})
    found, _ = explained(tmp_path, plan.inputs(), plan)
    gains = {each.change: each for each in found.changes.gains if each.fits}
    assert gains["--zero 1"].not_with.startswith("torchtitan: zero = 1: ")
    assert gains["--zero 1"].verdict.endswith(", not with torchtitan")
    assert gains["--micro-batch 8"].not_with == ""
    assert not any("graphs" in change for change in gains)
    (tmp_path / "nemo").mkdir()
    plan = scenario(stack="nemo", **{"plan.zero": 1, "plan.micro_batch": 1, "training.seq_len": 128})
    found, _ = explained(tmp_path / "nemo", plan.inputs(), plan)
    (graphed,) = (each for each in found.changes.gains if each.change == "--set plan.graphs=attention+mlp")
    assert graphed.gain_s > 0
    assert (graphed.fits, graphed.not_with) == (True, "")


def test_a_plan_that_is_not_the_traced_one(tmp_path):
    """All the numbers that contradict, in one line."""
    made, _ = traces(scenario().inputs(), RANKS, 8)
    paths = [each.save(tmp_path) for each in made]
    with pytest.raises(UserError) as caught:
        explain(*paths, plan=scenario(**{"cluster.hardware": "a100-pcie-8", "cluster.nodes": 2}))
    said = str(caught.value)
    assert "\n" not in said
    for words in ("ranks: 8 traced, 16 planned", "device: NVIDIA H100 80GB HBM3 traced, a100"):
        assert words.lower() in said.lower()
    with pytest.raises(UserError, match="dp: groups of 8 ranks traced, 4 planned"):
        explain(*paths, plan=scenario(**{"plan.tp": 2}))
    with pytest.raises(UserError, match=r"step time: .* traced"):
        explain(*paths, plan=scenario(**{"training.global_batch": 64 * 64}))


def test_the_command_says_it(tmp_path, capsys):
    """Measured beside predicted in a table, and the first change to try, in 80 columns."""
    made, _ = traces(scenario().inputs(), (0,), 8)
    path = made[0].save(tmp_path, packed=True)
    flags = [
        "--model",
        "gpt2",
        "--hardware",
        "dgx-h100",
        "--seq-len",
        "1024",
        "--global-batch",
        "64",
        "--micro-batch",
        "4",
    ]
    assert cli.run(["explain", str(path), *flags, "--stack", "ddp", "--no-changes"]) == 0
    said = capsys.readouterr().out
    assert "predicted" in said.splitlines()[1]
    assert "1 of 8 ranks" in said
    assert "against predicted" in said


@pytest.mark.slow
def test_profiles_of_ones_own(tmp_path):
    """A stack and a cluster that only files hold are fitted to the run as shipped ones are."""
    cluster, stack = tmp_path / "ours.yaml", tmp_path / "ours.stack.yaml"
    cluster.write_text("like: dgx-h100\nname: ours\n")
    stack.write_text("like: ddp\nname: our-stack\n")
    shipped = scenario()
    own = scenario(**{"cluster.hardware": str(cluster), "stack": str(stack)})
    (made, *_), _ = traces(shipped.inputs(), RANKS, 8)
    path = made.save(tmp_path)
    one, other = (explain(path, plan=plan).changes for plan in (shipped, own))
    assert other.fitted.after_s == pytest.approx(one.fitted.after_s, rel=0.02)
    assert {each.change for each in other.gains if not each.refused} == {
        each.change for each in one.gains if not each.refused
    }
