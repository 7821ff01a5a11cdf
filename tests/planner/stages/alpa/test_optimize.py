"""The Alpa space as a search: estimates against simulated steps, plans that survive, never worse than uniform."""

from __future__ import annotations

import pytest

import simpar
from simpar.architectures.hf_config import read
from simpar.errors import Infeasible, UserError
from simpar.planner.problem import Constraints, make_problem
from simpar.planner.progress import SearchProgress
from simpar.planner.stages.alpa import optimize
from simpar.planner.stages.alpa.optimize import AlpaSearch, search_alpa
from simpar.simulation import simulate
from tests.gate import some

TRAINING = simpar.Training(seq_len=2048, global_batch=16)
SMALL = {
    "model_type": "llama", "vocab_size": 32000, "hidden_size": 1024, "num_attention_heads": 16,
    "intermediate_size": 2816, "num_hidden_layers": 4,
}  # fmt: skip
FEW = Constraints(fixed={"micro_batch": "2"})


def problem_of(config=SMALL, **options):
    """A small model on one node."""
    return make_problem(read(config, "small"), simpar.Cluster("dgx-h100"), TRAINING, **options)


@pytest.fixture
def alone(monkeypatch):
    """Stages of their own, with nothing in the uniform space."""
    monkeypatch.setattr(optimize, "search_even_stages", lambda _problem, _progress: None)


@pytest.fixture(scope="module")
def found():
    """One search of the Alpa space alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(optimize, "search_even_stages", lambda _problem, _progress: None)
        return search_alpa(problem_of(constraints=FEW), SearchProgress(top=3))


def test_the_plan_simulates_to_what_was_promised(found, tmp_path):
    """The winner, saved and read again, takes the step that the search reports, and fits."""
    found.best.plan.save(tmp_path / "plan.json")
    plan, problem = simpar.Plan.load(tmp_path / "plan.json"), problem_of()
    result = simulate(problem.graph, problem.cluster, plan, TRAINING)
    assert result.step_time_s == found.best.step_time_s
    assert result.fits
    assert sum(stage.num_devices for stage in plan.pipeline.stages) == problem.cluster.world_size


def test_the_answer_is_the_same_every_time(found, alone):
    """Two searches write the same candidates."""
    again = search_alpa(problem_of(constraints=FEW), SearchProgress(top=3))
    assert [c.to_dict() for c in again.candidates] == [c.to_dict() for c in found.candidates]


def test_candidates_are_what_simulate_says_and_each_is_shown_once(found):
    """Steps and bytes are those of ``simulate``, in the order of the steps; no two rows say the same."""
    problem = problem_of()
    times = [one.step_time_s for one in found.candidates]
    assert times == sorted(times)
    for one in found.candidates:
        again = simulate(problem.graph, problem.cluster, one.plan, TRAINING)
        assert (again.step_time_s, again.peak_memory_bytes) == (one.step_time_s, one.peak_memory_bytes)
    assert len({(one.step_time_s, one.peak_memory_bytes) for one in found.candidates}) == len(times)


@pytest.mark.slow
def test_estimates_are_close_to_simulated_steps():
    """The table that cuts are made from is within a few percent of the simulation, in time and in memory."""
    search = AlpaSearch(problem_of(), SearchProgress())
    checked = 0
    for size in (4, 8):
        for trial in search.cuts_of(search.profile(size), float("inf"))[:3]:
            assert search.simulate(trial), "what should fit does"
            done, _ = search.found[-1]
            overhead_s = search.problem.stack.launch.step_overhead_s
            assert trial.cut.estimate_s == pytest.approx(done.step_time_s - overhead_s, rel=0.1)
            checked += 1
    assert checked >= 4
    assert search.ops == sum(done.num_ops for done, _ in search.found), "what MAX_OPS limits is all of them"


@pytest.mark.slow
def test_the_answer_is_never_worse_than_the_uniform_optimum():
    """It is a candidate like any other, under the restrictions that hold for both."""
    fixed = Constraints(fixed={"pp": "1,2", "micro_batch": "2"}, schedules=("1f1b",))
    answer = search_alpa(problem_of(constraints=fixed), SearchProgress(top=2, brief=True))
    assert answer.best.step_time_s <= answer.details["uniform_best_s"]
    assert all(one.plan.mesh.pp in (1, 2) for one in answer.candidates)
    assert 0 < answer.details["lower_bound_s"] <= answer.best.step_time_s


@pytest.mark.slow
def test_a_large_vocabulary_gets_stages_of_its_own_length(alone):
    """With a head as heavy as several layers, the last stage holds fewer layers than the others."""
    heavy = {**SMALL, "vocab_size": 256000, "num_hidden_layers": 14}
    problem = problem_of(heavy, constraints=Constraints(fixed={"pp": 4, "micro_batch": 2}))
    answer = search_alpa(problem, SearchProgress())
    stages = answer.best.plan.pipeline.stages
    per_device = [stage.layers / stage.num_devices for stage in stages]
    assert len(stages) == 4
    assert per_device[-1] < min(per_device[1:-1])


VISION_FIRST = {
    "model_type": "llava",
    "text_config": {**SMALL, "num_hidden_layers": 8},
    "vision_config": {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 12, "num_attention_heads": 8},
}
PAIR = {
    "model_type": "t5", "vocab_size": 32128, "d_model": 1024, "d_ff": 4096, "d_kv": 64, "num_heads": 16,
    "num_layers": 8, "num_decoder_layers": 8, "tie_word_embeddings": False,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("config", some([VISION_FIRST, PAIR], 1), ids=["vision tower", "encoder-decoder"])
def test_unlike_towers_get_stages_of_their_own_length(config):
    """Cuts where the towers are unlike beat the best uniform plan of as many stages, whose stages have equal layers."""
    fixed = Constraints(fixed={"pp": 4}, schedules=("1f1b",))
    answer = search_alpa(problem_of(config, constraints=fixed), SearchProgress(top=1, brief=True))
    stages = answer.best.plan.pipeline.stages
    assert stages is not None
    assert len({stage.layers for stage in stages}) > 1
    assert answer.best.step_time_s < 0.98 * answer.details["uniform_best_s"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"constraints": Constraints(fixed={"tp": 2})}, "--fix tp: is not an axis of space alpa"),
        ({"constraints": Constraints(fixed={"schedule": "gpipe"})}, "schedule = gpipe: no plan of space alpa"),
        ({"constraints": Constraints(fixed={"micro_batch": "2,5"})}, "micro_batch = 5: no plan of space alpa"),
        ({"constraints": Constraints(portable="megatron")}, "portable megatron"),
        ({"constraints": Constraints(deadline_s=1.0)}, "deadline: space alpa"),
        ({"objective": "cost"}, "allowed: regret, time"),
        ({"base": simpar.Plan(offload_optimizer="cpu")}, "stages"),
        ({"base": simpar.Plan(optimizer="muon")}, "stages"),
    ],
)
def test_what_stages_do_not_have_is_refused(options, words):
    """One line that says what is allowed, before anything is searched."""
    with pytest.raises(UserError, match=words):
        search_alpa(problem_of(**options), SearchProgress())


@pytest.mark.slow
def test_too_little_memory_is_infeasible(alone):
    """A headroom that leaves nothing finds nothing."""
    with pytest.raises(Infeasible):
        search_alpa(problem_of(constraints=Constraints(headroom=0.99)), SearchProgress())
