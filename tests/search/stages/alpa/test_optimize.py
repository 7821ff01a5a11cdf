"""The Alpa space as a search: estimates against simulated steps, plans that survive, never worse than uniform."""

from __future__ import annotations

import pytest

import simpar
from simpar.errors import Infeasible, UserError
from simpar.models.hf_config import read
from simpar.search.problem import Constraints, make_problem
from simpar.search.progress import Progress
from simpar.search.result import Counts, SearchResult
from simpar.search.stages.alpa.optimize import AlpaSearch, search_alpa
from simpar.simulation import simulate

TRAINING = simpar.Training(seq_len=2048, global_batch=32)
SMALL = {
    "model_type": "llama", "vocab_size": 32000, "hidden_size": 1024, "num_attention_heads": 16,
    "intermediate_size": 2816, "num_hidden_layers": 4,
}  # fmt: skip


def problem_of(config=SMALL, **options):
    """A small model on one node."""
    return make_problem(read(config, "small"), simpar.Cluster("dgx-h100"), TRAINING, **options)


def nothing(_problem, _watch):
    """A uniform space without plans."""
    return


@pytest.fixture(scope="module")
def found():
    """One search of the Alpa space alone."""
    return search_alpa(problem_of(), Progress(top=3), uniform=nothing)


def test_the_plan_simulates_to_what_was_promised(found, tmp_path):
    """The winner, saved and read again, takes the step that the search reports, and fits."""
    found.best.plan.save(tmp_path / "plan.json")
    plan, problem = simpar.Plan.load(tmp_path / "plan.json"), problem_of()
    result = simulate(problem.graph, problem.cluster, plan, TRAINING)
    assert result.step_time_s == found.best.step_time_s
    assert result.fits
    assert sum(stage.num_devices for stage in plan.pipeline.stages) == problem.cluster.world_size


def test_the_answer_is_the_same_every_time(found):
    """Two searches write the same candidates."""
    again = search_alpa(problem_of(), Progress(top=3), uniform=nothing)
    assert [c.to_dict() for c in again.candidates] == [c.to_dict() for c in found.candidates]


def test_estimates_are_close_to_simulated_steps():
    """The table that cuts are made from is within a few percent of the simulation, in time and in memory."""
    search = AlpaSearch(problem_of(), Progress())
    checked = 0
    for size in (4, 8):
        profile, sizes = search.profile(size)
        for cut in search.cuts_of(profile, sizes, float("inf"))[:3]:
            done = search.simulate(search.plan_of(profile, sizes, cut), "cut")
            assert done is not None, "what should fit does"
            assert cut.estimate_s == pytest.approx(
                done.step_time_s - search.job.stack.launch.step_overhead_s, rel=0.1
            )
            checked += 1
    assert checked >= 4


def test_a_better_uniform_plan_wins(found):
    """The uniform optimum is a candidate like any other, so the answer is never worse."""
    plan = simpar.Plan(zero=1, micro_batch=1)

    def faster(problem, _watch):
        result = simulate(problem.graph, problem.cluster, plan, TRAINING)
        best = found.best
        made = type(best)(
            1, simpar.Plan.model_validate(result.setup.plan), 1e-6, best.mfu, best.peak_memory_bytes
        )
        return SearchResult((made,), Counts(), "time", True, 0.0, 0.0)

    answer = search_alpa(problem_of(), Progress(), uniform=faster)
    assert answer.best.plan.pipeline.stages is None
    assert "uniform" in answer.best.why[0]
    assert answer.details["uniform_best_s"] == 1e-6


def test_a_large_vocabulary_gets_stages_of_its_own_length():
    """With a head as heavy as several layers, the last stage holds fewer layers than the others."""
    heavy = {**SMALL, "vocab_size": 256000, "num_hidden_layers": 14}
    problem = problem_of(heavy, constraints=Constraints(fixed={"pp": 4, "micro_batch": 2}))
    answer = search_alpa(problem, Progress(), uniform=nothing)
    stages = answer.best.plan.pipeline.stages
    per_device = [stage.layers / stage.num_devices for stage in stages]
    assert len(stages) == 4
    assert per_device[-1] < min(per_device[1:-1])


VISION_FIRST = {
    "model_type": "llava",
    "text_config": {**SMALL, "num_hidden_layers": 8},
    "vision_config": {
        "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 12, "num_attention_heads": 8,
    },
}  # fmt: skip
PAIR = {
    "model_type": "t5", "vocab_size": 32128, "d_model": 1024, "d_ff": 4096, "d_kv": 64, "num_heads": 16,
    "num_layers": 8, "num_decoder_layers": 8, "tie_word_embeddings": False,
}  # fmt: skip


@pytest.mark.parametrize("config", [VISION_FIRST, PAIR], ids=["vision tower", "encoder-decoder"])
def test_unlike_towers_get_stages_of_their_own_length(config):
    """Cuts where the towers are unlike beat the best uniform plan of as many stages, whose stages have equal layers."""
    fixed = Constraints(fixed={"pp": 4}, schedules=("1f1b",))
    answer = search_alpa(problem_of(config, constraints=fixed), Progress(top=1, brief=True))
    stages = answer.best.plan.pipeline.stages
    assert stages is not None
    assert len({stage.layers for stage in stages}) > 1
    assert answer.best.step_time_s < 0.98 * answer.details["uniform_best_s"]


def test_axes_that_stages_decide_cannot_be_fixed():
    """Tensor parallelism is a choice of every operator here."""
    with pytest.raises(UserError, match="stages decide"):
        search_alpa(problem_of(constraints=Constraints(fixed={"tp": 2})), Progress(), uniform=nothing)
    with pytest.raises(UserError, match="portable"):
        search_alpa(problem_of(constraints=Constraints(portable="megatron")), Progress(), uniform=nothing)


def test_too_little_memory_is_infeasible():
    """A headroom that leaves nothing finds nothing."""
    with pytest.raises(Infeasible):
        search_alpa(problem_of(constraints=Constraints(headroom=0.99)), Progress(), uniform=nothing)
