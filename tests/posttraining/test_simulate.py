"""The whole step: accounts that add up, the command line, and input that is refused in one line."""

import json
from functools import cache

import pytest

import simpar
from simpar.cli import run
from simpar.errors import UserError
from simpar.posttraining.simulate import make_setting, post_train
from tests.posttraining.small import SMALL_STEP, as_options

MODEL, PLAN = "qwen2.5-0.5b", {"zero": 3, "micro_batch": 1}
LENGTHS = {"prompt": {"fixed": 128}, "response": {"mean": 200, "p99": 800}}
SECTION = {"prompts": 8, "samples": 4, "lengths": LENGTHS, "steps": 2}
TRAINING = {"seq_len": 2048, "global_batch": 16}


@cache
def cluster():
    """One node of 8 H100."""
    return simpar.Cluster("dgx-h100")


def simulated(**values):
    """The answer for the small section with other values."""
    return post_train(MODEL, cluster(), PLAN, TRAINING, {**SECTION, **values})


SPLIT = {"placement": "split", "rollout": {"nodes": 1}}
HYBRID = {**SPLIT, "placement": "hybrid"}


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"algorithm": "ppo", "passes": {"reference": True, "reward_s": 0.01}},
        {"synchrony": {"steps_off": 1, "in_flight": True}},
        SPLIT,
        {**SPLIT, "synchrony": {"steps_off": 2}},
        HYBRID,
        {**HYBRID, "synchrony": {"steps_off": 1, "in_flight": True}},
        {**SPLIT, "synchrony": {"steps_off": 1, "in_flight": True, "recompute_cache": False}},
    ],
)
def test_both_accounts_add_up_to_the_step(values):
    """Of the training devices and of a replica; and responses are as many as are asked for."""
    figures = simulated(**values).figures
    parts, made, step = figures.parts_s, figures.generation, figures.speed.step_time_s
    trained = parts.waiting + parts.switch + sum(parts.passes.values()) + parts.training + parts.weights
    assert trained == pytest.approx(step, rel=1e-9)
    assert made.generating + made.waiting + made.weights + made.away == pytest.approx(step, rel=1e-9)
    assert figures.speed.samples_per_s * step == pytest.approx(32)
    count = figures.staleness.allowed + 1 if figures.staleness.allowed == 2 else 2  # of whole cycles
    assert sum(figures.speed.steps_s) == pytest.approx(count * step)
    assert figures.staleness.largest <= figures.staleness.allowed


def test_the_training_part_is_that_of_the_simulator():
    """Two updates of packed rows, and a pass that is a step without training."""
    setting = make_setting(MODEL, cluster(), PLAN, TRAINING, SECTION)
    side = setting.trained
    figures = simulated().figures
    assert side.updates == 2
    assert figures.parts_s.training == pytest.approx(2 * side.usual.step_time_s, rel=0.2)  # lengths differ by step
    rows = side.usual_rows
    training = simpar.Training(seq_len=2048, global_batch=rows, documents=side.documents)
    assert side.usual.step_time_s == simpar.simulate(MODEL, cluster(), PLAN, training).step_time_s
    assert 0.2 < side.batch(setting.trained.documents and _lengths(setting)).passes_s["old log-probabilities"] / (
        2 * side.usual.step_time_s
    ) < 0.6  # fmt: skip


def _lengths(setting):
    from simpar.posttraining.lengths import draw_step

    return draw_step(setting.section, 2048, 0).total


def test_skipping_iterations_changes_no_time():
    """Both forms of a real engine give the same history."""
    setting = make_setting(MODEL, cluster(), PLAN, TRAINING, {**SECTION, "steps": 1})
    assert setting.run() == setting.run(skips=False)


def test_engines_agree_and_seeds_decide():
    """The same seed gives the same integers under every engine, another one other lengths."""
    setup = (MODEL, cluster(), PLAN, TRAINING)
    first, second = (post_train(*setup, SECTION, engine=name).to_json() for name in ("plain", "reference"))
    assert first == second
    assert post_train(*setup, {**SECTION, "seed": 1}).to_json() != first


def test_states_that_stay_lie_beside_the_engine():
    """Which takes its room all the same, or does not start; without sleep it lies beside training."""
    usual = simulated().figures
    stays = simulated(weights={"offload": False}).figures
    assert stays.parts_s.switch == 0 < usual.parts_s.switch
    assert stays.memory.cache_tokens == usual.memory.cache_tokens
    side, states = stays.memory.generation, usual.memory.host.parts_bytes["training states"] / 8
    assert side.parts_bytes["training states"] == states
    assert side.fits
    most = simulated(weights={"offload": False}, rollout={"engine": {"memory_fraction": 1.0}}).figures.memory.generation
    assert not most.fits
    assert most.capacity_bytes == cluster().device.memory_bytes
    awake = simulated(weights={"sleep": False}).figures.memory
    assert awake.training.total_bytes - usual.memory.training.total_bytes == usual.memory.generation.capacity_bytes


def test_more_devices_for_generation_shorten_the_wait():
    """A second node of replicas makes fewer sequences a replica."""
    one, two = (simulated(**{**SPLIT, "rollout": {"nodes": nodes}}) for nodes in (1, 2))
    assert two.figures.parts_s.waiting <= one.figures.parts_s.waiting
    assert two.figures.speed.devices == 24


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"prompts": 7}, r"training.global_batch = 16: allowed: divisors of the 28 responses"),
        ({"samples": 1}, r"samples = 1: a group of one"),
        ({"rollout": {"nodes": 1}}, r"rollout.nodes = 1: allowed with placement split or hybrid"),
        ({"placement": "split"}, r"rollout.nodes: needed with placement split"),
        ({"synchrony": {"steps_off": 1}}, r"colocated pools take turns"),
        ({"synchrony": {"in_flight": True}}, r"allowed: with steps_off of 1 or more"),
        ({"rollout": {"engine": {"token_budget": 64}}}, r"max_sequences = 1024: allowed: up to token_budget = 64"),
        ({"weights": {"changed": 0.1}}, r"weights.changed = 0.1: allowed with method = resharded"),
        ({"weights": {"senders": "rank"}}, r"senders = rank: allowed with method = gathered and placement split"),
        ({**SPLIT, "weights": {"senders": "rank", "method": "resharded"}}, r"senders = rank: allowed with method"),
        ({"lengths": {**LENGTHS, "response": {"fixed": 4000}}}, r"4000 tokens behind a prompt of 128"),
    ],
)
def test_bad_input_is_one_line(values, said):
    """With the field, its value and what is allowed."""
    with pytest.raises(UserError, match=said) as refused:
        simulated(**values)
    assert "\n" not in str(refused.value)


FLAGS = (
    "simulate",
    "--model",
    MODEL,
    "--hardware",
    "dgx-h100",
    "--seq-len",
    "2048",
    "--global-batch",
    "16",
    "--zero",
    "3",
)


def test_the_command_line_answers_with_four_lines(capsys, tmp_path):
    """What was simulated, then step, limit, waits and memory; JSON has the same figures, the trace names steps."""
    words = [*FLAGS, "--rl", *SMALL_STEP]
    path, trace = tmp_path / "answer.json", tmp_path / "trace.json"
    assert run([*words, "--json", str(path), "--trace", str(trace)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "replicas of" in lines[0]
    assert [line.split()[0] for line in lines[2:6]] == ["step", "limit", "waits", "memory"]
    data = json.loads(path.read_text())
    assert data["post_training_schema_version"] == 1
    assert any("no measured run" in each for each in data["not_modelled"])
    events = json.loads(trace.read_text())["traceEvents"]
    assert {"generate", "score", "train", "weights"} <= {event["name"].split(" ")[0] for event in events}
    assert all(event["name"][:-1].endswith(" step ") for event in events if event["ph"] == "X")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--rl"], "--rl: the scenario has no section post_training"),
        (["--rl", "--ranks", *SMALL_STEP], "--ranks: is of one"),
        ([*SMALL_STEP, *as_options("post_training.prompts=0")], "post_training.prompts = 0"),
        (["--set", "post_training.prompts=8"], "post_training.lengths"),
        (["--rl", "--over", "plan.zero=1,3"], "--over: is a table of single updates"),
    ],
)
def test_refusals_of_the_command_line_exit_with_2(capsys, words, said):
    """One line on standard error."""
    assert run([*FLAGS, *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.strip().splitlines()) == 1


def test_pictures_show_both_pools(tmp_path, monkeypatch):
    """A page with the picture and the tables, and a picture alone, with a row for each side."""
    monkeypatch.chdir(tmp_path)
    words = [*FLAGS, "--rl", *SMALL_STEP]
    assert run([*words, "--html", "step.html", "--timeline", "step.svg"]) == 0
    page, picture = (tmp_path / "step.html").read_text(), (tmp_path / "step.svg").read_text()
    assert "Both pools over time" in page
    assert "no measured run of reinforcement learning" in page
    assert "<svg" in picture
    for text in (page, picture):
        assert "training" in text
        assert "replica 7" in text


def test_overhead_of_software_is_added_to_new_weights():
    """As often as weights arrive."""
    usual, slow = simulated().figures, simulated(weights={"overhead": 1.5}).figures
    assert slow.parts_s.weights == pytest.approx(usual.parts_s.weights + 1.5)


@pytest.mark.parametrize(
    "words",
    [
        "simulate grpo-qwen2.5-7b-16-h100 --over plan.tp=1,2", "search grpo-qwen2.5-7b-16-h100",
        "compare grpo-qwen2.5-7b-16-h100 gpt2-laptop", "report grpo-qwen2.5-7b-16-h100 -o page.html",
        "export grpo-qwen2.5-7b-16-h100 --to megatron -o out",
    ],
)  # fmt: skip
def test_what_knows_single_updates_alone_refuses_the_section(tmp_path, monkeypatch, capsys, words):
    """In one line, with what is allowed: never an answer about an update of padded sequences."""
    monkeypatch.chdir(tmp_path)
    assert run(words.split()) == 2
    said = capsys.readouterr().err
    assert "has a section post_training, and this knows single updates alone; allowed: simpar simulate" in said
    assert not list(tmp_path.iterdir())


def test_a_hybrid_pool_has_replicas_on_all_devices():
    """One on each of 16; weights reach both pools."""
    setup = (MODEL, cluster(), PLAN, TRAINING)
    setting = make_setting(*setup, {**SECTION, **HYBRID, "weights": {"offload": False}})
    assert (setting.num_joined, setting.num_replicas) == (8, 16)
    others = [make_setting(*setup, {**SECTION, **values, "weights": {"offload": False}}) for values in ({}, SPLIT)]
    assert setting.new_weights.time_ns >= max(other.new_weights.time_ns for other in others)
    assert len(setting.new_weights.updates) == 2
    assert simulated(**HYBRID).figures.speed.devices == 16
    assert simulated(**HYBRID).figures.parts_s.waiting <= simulated().figures.parts_s.waiting


def test_dense_models_beside_a_mixture_are_data_parallel_where_experts_are_spread():
    """A critic and a reward without experts take what they take under the plan without expert parallelism."""
    section = {**SECTION, "algorithm": "ppo", "passes": {"critic": MODEL, "reward": "qwen2.5-1.5b"}}
    sides = {}
    for spread in ({"ep": 8, "etp": 1, "token_dispatch": "per_rank"}, {"ep": 1}):
        plan = {"zero": 1, "micro_batch": 1, **spread}
        sides[spread["ep"]] = make_setting("olmoe-1b-7b", cluster(), plan, TRAINING, section).trained
    spread, alone = (side.batch(_lengths(side)) for side in (sides[8], sides[1]))
    for name in ("values", "reward"):
        assert spread.passes_s[name] == alone.passes_s[name]
    own = {ep: side.updates * side.usual.step_time_s for ep, side in sides.items()}
    assert own[8] != own[1]
    assert spread.training_s - own[8] == pytest.approx(alone.training_s - own[1])
