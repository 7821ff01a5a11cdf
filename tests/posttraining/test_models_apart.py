"""Models on devices of their own: they score and train beside the policy, which waits for scores alone."""

import pytest

import simpar
from simpar.errors import UserError
from simpar.posttraining.lengths import draw_step
from simpar.posttraining.simulate import make_setting, simulate_setting
from tests.posttraining.test_pools import run

MODEL, TRAINING = "qwen2.5-0.5b", {"seq_len": 2048, "global_batch": 32}
PLAN = {"zero": 3, "micro_batch": 1}
SECTION = {
    "algorithm": "ppo", "prompts": 8, "samples": 4, "steps": 2,
    "lengths": {"prompt": {"fixed": 100}, "response": {"mean": 200, "p99": 900}},
}  # fmt: skip


def setting_of(passes, **section):
    """Both sides of a step on a node of 8."""
    values = {**SECTION, **section, "passes": passes}
    return make_setting(MODEL, simpar.Cluster("dgx-h100", 1), PLAN, TRAINING, values)


def test_updates_wait_for_scores_of_others_and_not_for_their_updates(section_of, replica_of):
    """Of two pools the slower one's scores come first; the critic's update runs beside the next generation."""
    section = section_of(steps=2)
    history = run(section, [replica_of()], scores_ns=0, training_ns=10**9, beside=[(4 * 10**9, 10**9), (10**9, 0)])
    first, second = history.steps
    alone = run(section, [replica_of()], training_ns=10**9)
    assert first.finish_ns - first.ready_ns == 5 * 10**9
    assert second.weights_ns == alone.steps[1].weights_ns + 8 * 10**9
    critic = [each for each in history.intervals if each.stream == -2]
    assert [each.kind for each in critic] == ["score", "train"] * 2
    assert critic[1].start_ns == first.finish_ns - 10**9


def test_a_critic_that_is_slower_than_a_step_holds_the_next_one_up(section_of, replica_of):
    """Its devices score a batch when its own last update is over."""
    section = section_of(steps=3)
    history = run(section, [replica_of()], training_ns=1, beside=[(10, 10**12)])
    critic = [each for each in history.intervals if each.stream == -2]
    for before, after in zip(critic[1::2], critic[2::2], strict=False):
        assert after.start_ns == before.finish_ns
    assert history.steps[1].start_ns < critic[2].start_ns


def test_pools_that_take_no_time_change_nothing(section_of, replica_of):
    """Colocated and split, on policy and off it."""
    for values in ({}, {"placement": "split", "synchrony": {"steps_off": 1, "in_flight": True}}):
        usual, beside = (
            run(section_of(**values), [replica_of() for _ in range(2)], training_ns=10**8, beside=pools)
            for pools in ((), [(0, 0), (0, 0)])
        )
        assert usual.steps == beside.steps


def test_a_critic_on_as_many_devices_takes_what_it_took_beside_the_policy():
    """Its passes and updates are the same; the policy keeps its own, and the step is shorter."""
    both, own = setting_of({}), setting_of({"critic_devices": 8})
    lengths = draw_step(both.section, 2048, 0).total
    together, policy, critic = (
        side.batch(lengths) for side in (both.trained, own.trained, own.trained.apart[0])
    )  # fmt: skip
    assert critic.passes_s["values"] == together.passes_s["values"]
    assert policy.passes_s == {"old log-probabilities": together.passes_s["old log-probabilities"]}
    assert policy.training_s + critic.training_s == pytest.approx(together.training_s)
    results = [simulate_setting(each) for each in (both, own)]
    assert results[1].step_time_s < results[0].step_time_s
    assert [each.figures.speed.devices for each in results] == [8, 16]
    held = [each.trained.states_bytes for each in (both, own)]
    assert held[1] + own.trained.apart[0].states_bytes == pytest.approx(held[0])
    assert results[1].figures.models_apart[0].memory.fits


def test_the_account_sums_to_the_step():
    """On the devices of the policy, of a replica and of every other model."""
    passes = {"critic_devices": 2, "reward": "qwen2.5-1.5b", "reward_beside_critic": True, "reference": True,
              "reference_devices": 1}  # fmt: skip
    for placed in ({}, {"placement": "split", "rollout": {"nodes": 1}}):
        figures = simulate_setting(setting_of(passes, **placed)).figures
        step, parts, one = figures.speed.step_time_s, figures.parts_s, figures.generation
        assert parts.elsewhere > 0
        total = parts.waiting + parts.elsewhere + parts.switch + sum(parts.passes.values())
        assert total + parts.training + parts.weights == pytest.approx(step)
        assert one.generating + one.waiting + one.weights + one.away == pytest.approx(step)
        assert [each.models for each in figures.models_apart] == [("critic", "reward"), ("reference",)]
        for each in figures.models_apart:
            assert each.passes + each.training + each.waiting == pytest.approx(step)
        assert figures.models_apart[1].training == 0 < figures.models_apart[0].training
        assert figures.speed.devices == (8 if not placed else 16) + 3


@pytest.mark.parametrize(
    ("passes", "said"),
    [
        ({"critic_devices": 12}, "post_training.passes.critic_devices = 12: allowed: up to 8, or a multiple of the 8"),
        ({"reference_devices": 4}, "reference_devices: allowed with a reference"),
        ({"reward_devices": 4}, "reward_devices: allowed with a reward"),
        ({"reward_beside_critic": True}, "reward_beside_critic: allowed with reward and critic_devices"),
    ],
)
def test_impossible_devices_are_refused_in_a_line(passes, said):
    """With the field and what is allowed."""
    with pytest.raises(UserError, match=said):
        simulate_setting(setting_of(passes))


def test_devices_of_a_critic_need_one():
    """Under GRPO there is none."""
    with pytest.raises(UserError, match=r"passes\.critic_devices: allowed with a critic"):
        setting_of({"critic_devices": 4}, algorithm="grpo")


def test_a_model_that_does_not_fit_on_its_devices_is_said():
    """A reward of 32B on one device beside a policy of 0.5B."""
    result = simulate_setting(setting_of({"reward": "qwen2.5-72b", "reward_devices": 1}))
    assert not result.fits
    assert not result.figures.models_apart[0].memory.fits
