"""Limits of a whole step: a generator that takes no time, responses of one token, lengths without a tail."""

import pytest

import simpar
from simpar.hardware.device import load_device
from simpar.posttraining.iterations import Piece
from simpar.posttraining.simulate import make_setting, post_train
from simpar.profiles import yaml_text

MODEL, PLAN, TRAINING = "qwen2.5-0.5b", {"zero": 3, "micro_batch": 1}, {"seq_len": 2048, "global_batch": 32}
LENGTHS = {"prompt": {"fixed": 128}, "response": {"mean": 200, "p99": 800}}
SECTION = {"prompts": 8, "samples": 4, "lengths": LENGTHS, "steps": 1}
NO_HOST = {"overhead": "0 s", "sequence_overhead": "0 s"}


def simulated(**values):
    """Figures of one step on one node of 8 H100, and of another one where pools are split."""
    return post_train(MODEL, simpar.Cluster("dgx-h100"), PLAN, TRAINING, {**SECTION, **values}).figures


@pytest.fixture
def faster(tmp_path):
    """A split pool of devices whose rates, and what a kernel takes to start, are so many times better."""

    def make(times):
        device = load_device("h100-sxm-80gb")
        chip = {
            "name": "chip",
            "peak_flop_per_s": {dtype: f"{rate * times:g} FLOP/s" for dtype, rate in device.peak_flop_per_s.items()},
            "memory_bandwidth": f"{device.memory_bandwidth * times:g} B/s",
            "kernels": {"kernel_latency_us": device.kernels["kernel_latency_us"] / times},
        }
        path = tmp_path / f"{times:g}.yaml"
        path.write_text(yaml_text({"name": "fast", "like": "dgx-h100", "device": chip}))
        return {"placement": "split", "rollout": {"nodes": 1, "hardware": str(path), "engine": NO_HOST}}

    return make


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_with_a_generator_that_takes_no_time_a_step_is_training_alone(algorithm, faster):
    """What is left are passes, training and new weights, as long as on devices that take their time to generate."""
    waits = []
    for times in (1, 1e3, 1e6):
        figures = simulated(algorithm=algorithm, **faster(times))
        parts = figures.parts_s
        alone = sum(parts.passes.values()) + parts.training + parts.weights
        assert figures.speed.step_time_s == pytest.approx(parts.waiting + alone, rel=1e-9)
        waits.append((parts.waiting, parts.training, parts.passes))
    (usual, *own), (_, *middle), (least, *fast) = waits
    assert own == middle == fast
    assert usual > alone
    assert least < 1e-4 * alone
    assert waits[1][0] < 2e-3 * usual


def test_responses_of_one_token_end_with_their_prompts():
    """Each of eight replicas computes the four prompts of its group once, and nothing is decoded."""
    lengths, engine = {"prompt": {"fixed": 128}, "response": {"fixed": 1}}, {"prefix_sharing": False}
    values = {"lengths": lengths, "rollout": {"engine": engine}}
    setting = make_setting(MODEL, simpar.Cluster("dgx-h100"), PLAN, TRAINING, {**SECTION, **values})
    figures = simulated(**values)
    prompts_ns = setting.served.times.with_prompts_ns(0, [Piece(128, 0)] * 4)
    made = figures.generation
    assert figures.parts_s.waiting == pytest.approx(prompts_ns * 1e-9, rel=1e-9)
    assert (made.inside.iterations, made.inside.key_share, made.inside.prompt_share) == (1, 0, 1)
    assert made.tail == 0


@pytest.mark.parametrize("synchrony", [{}, {"steps_off": 1}])
def test_lengths_without_a_tail_are_fixed_ones(synchrony):
    """A log-normal whose 99th percentile is its mean; no replica waits for another, and it is the limit of a tail."""
    pool = {"placement": "split", "rollout": {"nodes": 1}, "synchrony": synchrony}

    def of(**response):
        return simulated(lengths={"prompt": {"fixed": 128}, "response": response}, **pool)

    fixed, none, short, long = of(fixed=200), of(mean=200, p99=200), of(mean=200, p99=202), of(mean=200, p99=800)
    assert none.model_copy(update={"setup": fixed.setup}) == fixed
    assert fixed.generation.tail == 0
    assert 0 < short.generation.tail < 0.05 * long.generation.tail
    assert fixed.speed.step_time_s < short.speed.step_time_s < long.speed.step_time_s
