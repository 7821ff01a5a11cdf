"""What to try next: every figure is a simulated step, and the advice is what simulate itself would say."""

import re
from dataclasses import replace

import pytest
from typer.main import get_command

import simpar.cli as cli
from simpar import Training, search
from simpar.cli.flags import complete_commands
from simpar.errors import UserError
from simpar.frameworks import load_target, losses, targets_of
from simpar.inputs import as_model
from simpar.layout.moves import single_changes
from simpar.neighbours import advise, as_flags, flags_of, from_flags, inputs_of
from simpar.plan.choices import CHOICES
from simpar.plan.choices.target import Workload
from simpar.plan.plan import Plan
from simpar.planner import make_problem
from simpar.planner.answer.terminal import describe_baseline
from simpar.program.perturbation import Perturbation
from simpar.report.result import Result
from simpar.report.words import in_brief
from simpar.scenario import load_scenario
from simpar.simulation import simulate, stack_for
from simpar.units import format_seconds
from simpar.workers import Workers
from tests.gate import some

FLAGS = {
    "model": "gpt2", "cluster.hardware": "laptop-cpu-4", "training.seq_len": 128, "training.global_batch": 16,
    "plan.precision": "fp32", "plan.pp": 2, "plan.micro_batch": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def inputs():
    """GPT-2 on four CPU devices, two stages by two replicas."""
    return load_scenario(None, FLAGS).inputs()


@pytest.fixture
def few(monkeypatch):
    """Only neighbours in some choices are tried: a function of the names of these."""

    def only(*names):
        monkeypatch.setattr(
            "simpar.neighbours.single_changes",
            lambda *plan: (each for each in single_changes(*plan) if {*each} <= {*names}),
        )

    return only


@pytest.fixture(scope="module")
def advised(inputs):
    """That step with its neighbours."""
    return advise(simulate(**inputs), inputs)


def test_every_trial_is_what_simulate_gives(inputs, advised):
    """Step time and memory of a trial are those of the changed scenario, typed by hand."""
    trials = {trial.change: trial for trial in advised.why.trials}
    for change, flags in (
        ("--micro-batch 4", {"plan.micro_batch": 4}),
        ("--schedule gpipe", {"plan.schedule": "gpipe"}),
        ("--zero 1", {"plan.zero": 1}),
        ("--pp 4", {"plan.pp": 4}),
        ("--tp 2", {"plan.tp": 2}),
        ("--recompute full", {"plan.recompute": "full"}),
    ):
        typed = simulate(**load_scenario(None, {**FLAGS, **flags}).inputs())
        assert trials[change].step_time_s == typed.step_time_s, change
        assert trials[change].peak_reserved_bytes == typed.memory.peak_reserved_bytes, change
        assert trials[change].fits == typed.fits, change


def test_the_best_that_fits_comes_first(advised):
    """Fitting layouts by step time, then those too large, then those that cannot be."""
    keys = [(bool(t.refused), not t.fits, t.step_time_s or 0.0) for t in advised.why.trials]
    assert keys == sorted(keys)
    assert len({trial.change for trial in advised.why.trials}) == len(keys)


@pytest.mark.parametrize(
    "plan",
    some([{"plan.pp": 1, "plan.recompute": "full"}, {"plan.pp": 1, "plan.tp": 2, "plan.sequence_parallel": True}], 1),
)
def test_no_plan_is_listed_twice(plan, monkeypatch):
    """Changes that resolve to one plan are one trial: optimal that keeps all is none, one rank has no shards."""
    pairs = [
        {"tp": 1, "sequence_parallel": False},
        {"recompute": "optimal", "zero": 1},
        {"recompute": "none", "zero": 1},
    ]
    monkeypatch.setattr("simpar.neighbours._pairs", lambda *_: pairs)
    made = []
    monkeypatch.setattr("simpar.neighbours.simulate", lambda **inputs: made.append(simulate(**inputs)) or made[-1])
    inputs = load_scenario(None, FLAGS | plan).inputs()
    trials = advise(simulate(**inputs), inputs).why.trials
    resolved = [found.setup.plan for found in made]
    distinct = [each for at, each in enumerate(resolved) if each not in resolved[:at]]
    assert len(distinct) < len(resolved)
    assert len([trial for trial in trials if not trial.refused]) == len(distinct)
    assert len({trial.change for trial in trials}) == len(trials)


def test_plans_that_differ_in_what_means_nothing_are_one_trial(few, monkeypatch):
    """Whole gradients of ZeRO-1 wait for nothing, whether they are told to or not."""
    few("zero", "defer_grad_reduce")
    pairs = [{"zero": 1, "defer_grad_reduce": False}, {"zero": 3, "defer_grad_reduce": False}]
    monkeypatch.setattr("simpar.neighbours._pairs", lambda *_: pairs)
    inputs = load_scenario(None, FLAGS | {"plan.zero": 2, "plan.stack": "huggingface"}).inputs()
    tried = {trial.change for trial in advise(simulate(**inputs), inputs).why.trials}
    assert {"--zero 1", "--zero 3 --set plan.defer_grad_reduce=False"} <= tried
    assert "--zero 1 --set plan.defer_grad_reduce=False" not in tried


def test_what_is_assumed_of_a_plan_is_assumed_of_its_neighbours(few):
    """V100s have no units for bf16: a plan that states no precision is fp16's there, whatever else is changed."""
    few("zero")
    said = {"model": "tiny-llama", "cluster.hardware": "dgx-v100", "training.seq_len": 256, "training.global_batch": 8}
    inputs = load_scenario(None, said).inputs()
    result = simulate(**inputs)
    assert result.plan.precision == "fp16"
    trials = {trial.change: trial for trial in advise(result, inputs).why.trials}
    with_it = load_scenario(None, said | {"plan.zero": 3, "plan.precision": "fp16"}).inputs()
    assert trials["--zero 3"].step_time_s == simulate(**with_it).step_time_s


def test_a_layout_that_fits_is_told_before_a_slow_rank(few):
    """Where this one does not fit: mending the rank would not make it."""
    few("zero")
    flags = {
        "model": "llama-3-8b",
        "cluster.hardware": "dgx-h100",
        "training.seq_len": 8192,
        "training.global_batch": 64,
    }
    inputs = load_scenario(None, flags | {"plan.pp": 2, "perturbation.slow_ranks.5": 1.5}).inputs()
    result = simulate(**inputs, with_timeline=False)
    assert not result.fits
    assert dict(in_brief(result))["to do"].startswith("--advise says which layouts near it fit")
    hints = advise(result, inputs).why.hints
    assert hints[0].startswith("--zero 3: fits, ")
    assert hints[-1].startswith("repair or replace rank 5")


@pytest.mark.parametrize(
    ("model", "hardware", "words"),
    [
        ("llama-3-8b", "rtx-4090-8", "fits; simpar search"),
        ("gpt2", "dgx-h100", "is faster and as sure to fit; simpar search"),
    ],
)
def test_advice_without_a_hint_says_that_nothing_near_helps(few, model, hardware, words):
    """Not that ``--advise`` would say more: it was asked."""
    few("recompute")
    flags = {"model": model, "cluster.hardware": hardware, "training.seq_len": 1024, "training.global_batch": 8}
    inputs = load_scenario(None, flags).inputs()
    advised = advise(simulate(**inputs, with_timeline=False), inputs)
    assert not advised.why.hints
    said = dict(in_brief(advised))["to do"]
    assert re.fullmatch(rf"none of the \d layouts near it that were tried {words} finds .*", said)


def test_impossible_layouts_keep_their_reason(few):
    """Three microbatches a replica are no whole number of larger ones, and too few or odd for some schedules."""
    few("micro_batch", "schedule", "vpp")
    inputs = load_scenario(None, FLAGS | {"training.global_batch": 12}).inputs()
    refused = [trial for trial in advise(simulate(**inputs), inputs).why.trials if trial.refused]
    assert refused
    assert all(trial.step_time_s is None and "\n" not in trial.refused for trial in refused)
    assert any("micro_batch" in trial.refused or "allowed" in trial.refused for trial in refused)


def test_pairs_join_two_changes(advised):
    """Where two changes help, their pair is simulated as well."""
    assert any(trial.change.count("--") >= 2 and "--schedule" not in trial.change for trial in advised.why.trials)


def test_processes_give_the_same_advice(inputs, few):
    """Trials in their order, hints, and the name of every trial in its turn."""
    few("micro_batch", "recompute")
    result, names = simulate(**inputs), ([], [])
    alone, shared = (
        advise(result, inputs, told.append, how) for told, how in zip(names, (None, Workers(2)), strict=True)
    )
    assert shared.to_dict() == alone.to_dict()
    assert len(names[0]) > 2
    assert names[0] == names[1]


def test_a_saved_result_gives_the_same_advice(inputs, few):
    """What is needed stands in the JSON."""
    few("micro_batch", "zero", "recompute")
    advised = advise(simulate(**inputs), inputs)
    assert len(advised.why.trials) > 2
    saved = Result.from_json(advised.to_json())
    assert saved.why == advised.why
    assert advise(saved, inputs_of(saved)).why.trials == advised.why.trials


def test_a_result_holds_what_made_ranks_differ(inputs):
    """Slow ranks, jitter and its seed stand in the JSON, and the run can be repeated from there."""
    perturbed = Perturbation(slow_ranks={2: 1.5}, jitter_sigma=0.05, seed=7)
    saved = Result.from_json(simulate(**{**inputs, "perturbation": perturbed}).to_json())
    assert saved.setup.engine["seed"] == 7
    assert saved.setup.perturbation == {"slow_ranks": {"2": 1.5}, "jitter_sigma": 0.05, "jitter_seeds": 1}
    assert inputs_of(saved)["perturbation"] == perturbed


def test_a_result_that_cannot_be_repeated_is_refused(advised):
    """Another step time than the inputs give means that something is not in the file."""
    other = replace(advised, speed=advised.speed.model_copy(update={"step_time_s": 1.0}))
    with pytest.raises(UserError, match="perturbations"):
        inputs_of(other)
    renamed = advised.setup.model_copy(update={"model": {"name": "my-model"}})
    with pytest.raises(UserError, match="my-model"):
        inputs_of(replace(advised, setup=renamed))


BASES = (
    "--model small-llama --hardware l4-8 --tp 4 --dp 2 --seq-len 512 --global-batch 8",
    "--model small-llama --hardware dgx-h100 --pp 4 --dp 2 --schedule interleaved --seq-len 512 --global-batch 8",
    "--model llama-3.2-1b --hardware l4-8 --tp 4 --zero 1 --sequence-parallel --seq-len 1024 --global-batch 8",
    "--model llama-3.2-1b --hardware dgx-h100 --zero 3 --stack fsdp --recompute full --seq-len 2048 --global-batch 16",
    "--model llama-3.2-1b --hardware dgx-h100 --zero 2 --stack torchtitan --cp 2 --seq-len 8192 --global-batch 8",
    "--model llama-3-8b --hardware dgx-h100 --seq-len 4096 --global-batch 16",
    "--model llama-3-8b --hardware dgx-h100 --tp 8 --set plan.kind=ddp --seq-len 4096 --global-batch 8",
    "--model llama-3.2-1b --hardware l4-8 --pp 2 --tp 2 --set plan.layers=[6,10] --seq-len 512 --global-batch 4",
    "--model gpt2 --hardware laptop-cpu-4 --pp 2 --precision fp32 --micro-batch 2 --seq-len 128 --global-batch 8",
)


@pytest.mark.parametrize("base", some(BASES, 1))
def test_the_command_takes_every_hint(base, tmp_path):
    """With the flags of a hint behind it, the command ends in 0, fits, and takes as long as was said."""
    saved, again = (str(tmp_path / name) for name in ("base.json", "again.json"))
    assert cli.run(["simulate", *base.split(), "--json", saved]) == 0
    found = Result.load(saved)
    advised = advise(found, inputs_of(found))
    trials = {trial.change: trial for trial in advised.why.trials}
    tried = [trials[hint.split(": ")[0]] for hint in advised.why.hints]
    for trial, hint in zip(tried, advised.why.hints, strict=True):
        assert cli.run(["simulate", *base.split(), *trial.change.split(), "--require-fit", "--json", again]) == 0
        made = Result.load(again)
        assert made.step_time_s == trial.step_time_s
        assert made.memory.peak_reserved_bytes == trial.peak_reserved_bytes
        assert made.memory.headroom_bytes > 0.01 * made.memory.capacity_bytes
        assert made.step_time_s < found.step_time_s or not found.fits
        assert format_seconds(made.step_time_s) in hint
    assert cli.run(["simulate", saved, *(tried[0].change.split() if tried else ()), "--json", again]) == 0
    assert Result.load(again).step_time_s == (tried[0].step_time_s if tried else found.step_time_s)


def test_choices_that_the_plan_says_are_opened_again(inputs, few):
    """Another degree with replicas that were counted by hand says so in its flags."""
    few("tp", "dp", "micro_batch")
    found = advise(simulate(**{**inputs, "plan": Plan(pp=2, dp=2)}), {**inputs, "plan": Plan(pp=2, dp=2)})
    changes = {trial.change for trial in found.why.trials}
    assert "--tp 2 --set plan.dp=null" in changes
    assert "--micro-batch 2" in changes


def test_every_flag_is_one_of_the_command():
    """Choices that hints write as flags have them: the command reads each."""
    complete_commands()
    command = get_command(cli.app).get_command(None, "simulate")
    spelt = {word for option in command.params for word in (*option.opts, *option.secondary_opts)}
    flags = {choice.name: choice.flag for choice in CHOICES if choice.flag}
    written = {
        as_flags({name: value}).split()[0]
        for name, flag in flags.items()
        for value in ((True, False) if flag.kind is bool else (1,))
    }
    assert {"--tp", "--micro-batch", "--no-sequence-parallel", "--hsdp"} <= written <= spelt


def test_flags_read_as_they_are_typed():
    """Underscores become dashes and switches lose their value; what has no flag is set."""
    assert as_flags({"offload_optimizer": "cpu", "dp": None}) == ("--set plan.offload_optimizer=cpu --set plan.dp=null")
    change = {"micro_batch": 2, "sequence_parallel": False, "schedule": "zb-v"}
    assert as_flags(change) == "--micro-batch 2 --no-sequence-parallel --schedule zb-v"


@pytest.mark.parametrize(
    ("flags", "sure"),
    some([({"zero": 2, "micro_batch": 2}, (0.5, 0.95)), ({"zero": 1, "micro_batch": 2}, (0.0, 0.5))], 1, tuples=True),
)
def test_hints_fit_as_surely_as_is_wanted(flags, sure):
    """Where a layout is crowded or too large every hint is a trial that fits with 95 %, and says how sure it is."""
    facts = {
        "model": "llama-3-8b",
        "cluster.hardware": "dgx-h100",
        "training.seq_len": 4096,
        "training.global_batch": 16,
    }
    inputs = load_scenario(None, facts | {f"plan.{name}": value for name, value in flags.items()}).inputs()
    result = simulate(**inputs)
    assert sure[0] <= result.certainty.fit_probability < sure[1]
    advised = advise(result, inputs)
    hints = advised.why.hints[len(result.why.hints) :]
    trials = {trial.change: trial for trial in advised.why.trials}
    assert hints
    for hint in hints:
        trial = trials[hint.split(":")[0]]
        assert trial.fit_probability >= 0.95
        assert hint.endswith("% sure") or "% sure, in " in hint or ": surer to fit, " in hint
    crowded = [trial for trial in advised.why.trials if trial.fits and trial.fit_probability < 0.95]
    assert crowded


def test_a_layout_that_fits_too_narrowly_is_told_what_is_sure(monkeypatch):
    """Where nothing that is sure gains, the quickest that is sure comes last, with what it costs."""
    facts = {
        "model": "llama-3-8b",
        "cluster.hardware": "dgx-h100",
        "training.seq_len": 4096,
        "training.global_batch": 16,
    }
    inputs = load_scenario(None, facts | {"plan.zero": 2, "plan.micro_batch": 2}).inputs()
    monkeypatch.setattr("simpar.neighbours.single_changes", lambda *_: iter([{"micro_batch": 1}, {"tp": 2}]))
    monkeypatch.setattr("simpar.neighbours._pairs", lambda *_: [])
    (hint,) = advise(simulate(**inputs), inputs).why.hints
    assert re.fullmatch(r"--micro-batch 1: surer to fit, .* instead of \d+ %, 2\.\d% slower \(.* m?s\)", hint)


CASES = (
    ("gpt2", "dgx-h100", "torchtitan", {}, (1024, 64)),
    ("llama-3.2-1b", "dgx-h100", "torchtitan", {"zero": 2, "cp": 2}, (8192, 8)),
    ("llama-3.2-1b", "dgx-h100", "fsdp", {"zero": 3, "recompute": "full"}, (2048, 16)),
    ("llama-3-8b", "dgx-h100", "deepspeed", {"zero": 3}, (4096, 16)),
    ("llama-3-8b", "dgx-h100", "nanotron", {"tp": 4, "zero": 1}, (4096, 16)),
    ("llama-3-8b", "dgx-h100", "megatron", {"tp": 2, "pp": 4}, (4096, 32)),
    ("llama-3-8b", "dgx-a100-40gb", "fsdp", {}, (4096, 16)),
    ("small-llama", "l4-8", "ddp", {"tp": 4}, (512, 8)),
)


@pytest.mark.parametrize("case", some(CASES, 2))
def test_hints_are_what_the_framework_of_the_stack_runs(case):
    """As an export says: no hint is a layout that it cannot run."""
    model, hardware, stack, plan, (seq_len, batch) = case
    keys = {"model": model, "cluster.hardware": hardware, "stack": stack}
    keys |= {"training.seq_len": seq_len, "training.global_batch": batch}
    scenario = load_scenario(None, keys | {f"plan.{name}": value for name, value in plan.items()})
    inputs = scenario.inputs()
    result = simulate(**inputs)
    advised = advise(result, inputs)
    graph, names = scenario.graph(), [n for n in targets_of(stack) if "a part" not in load_target(n).features]

    def lost(found):
        """Fields that each target of the stack loses of a plan that was simulated."""
        return [
            {loss.field for loss in losses(Plan.model_validate(found.setup.plan), graph, scenario.training, name)}
            for name in names
        ]

    own = lost(result)
    hints = advised.why.hints[len(result.why.hints) :]
    if any(hint.startswith("no layout that was tried fits and runs") for hint in hints):
        assert not result.fits
        assert len(hints) == 1
        assert all(trial.not_with for trial in advised.why.trials if trial.fits)
        return
    for hint in hints:
        change = hint.split(": ")[0]
        typed = simulate(**{**inputs, "plan": scenario.plan.with_values(**from_flags(change))})
        assert typed.fits
        can_run = not names or any(not more - before for more, before in zip(lost(typed), own, strict=True))
        assert can_run, hint


@pytest.mark.parametrize(
    "change",
    [
        {"zero": 3},
        {"tp": 4, "sequence_parallel": True, "zero": 1},
        {"pp": 2, "schedule": "zb-h1", "micro_batch": 2, "recompute": "full"},
        {"zero": 2, "kind": "fsdp", "micro_batch": 2},
    ],
    ids=str,
)
def test_flags_of_a_whole_plan_give_it_again(change):
    """A plan that states everything is typed in as few words as lead to it."""
    training = Training(seq_len=1024, global_batch=64)
    whole = simulate("gpt2-large", "dgx-h100", Plan(**change), training)
    target = Workload(as_model("gpt2-large", 1024), training, 8, 8)
    typed = flags_of(whole.plan, Plan(), target, stack_for(Plan()))
    assert from_flags(typed).keys() <= change.keys()
    again = simulate("gpt2-large", "dgx-h100", Plan().with_values(**from_flags(typed)), training)
    assert again.setup.plan == whole.setup.plan


@pytest.mark.slow
def test_baselines_of_a_search_carry_their_plan(tmp_path):
    """What is called pure ZeRO-3 is the plan that was compared: its flags, pasted, give its step."""
    found = search("gpt2-large", "t4-4", Training(seq_len=1024, global_batch=64))
    job = ["--model", "gpt2-large", "--hardware", "t4-4", "--seq-len", "1024", "--global-batch", "64"]
    compared = [one for one in found.details["naive"] if one["loses_s"] is not None]
    assert [one["name"] for one in compared] == ["pure ZeRO-3", "TP = node"]
    for one in compared:
        assert cli.run(["simulate", *job, *one["flags"].split(), "--json", str(tmp_path / "r.json")]) == 0
        assert Result.load(tmp_path / "r.json").step_time_s == pytest.approx(one["step_time_s"], rel=1e-9)
        assert f"{one['name']} ({one['flags']}): " in describe_baseline(one)


@pytest.mark.parametrize(
    ("plan", "flags"), [({"tp": 2}, "--tp 2"), ({"tp": 2, "pp": 2, "rank_order": ("tp", "pp", "cp", "dp")}, None)]
)
def test_flags_are_few_where_the_base_alone_is_impossible(plan, flags):
    """Four sequences do not divide over eight replicas: what is typed is what makes the plan possible, and no more."""
    training = Training(seq_len=128, global_batch=4)
    problem = make_problem("gpt2", "dgx-h100", training)
    with pytest.raises(UserError, match="global_batch"):
        simulate("gpt2", "dgx-h100", {}, training)
    found = simulate("gpt2", "dgx-h100", plan, training, with_timeline=False).plan
    typed = flags_of(found, problem.base, problem.workload, problem.stack)
    assert flags is None or typed == flags
    again = problem.base.with_values(**from_flags(typed))
    assert simulate("gpt2", "dgx-h100", again, training, with_timeline=False).plan == found
    assert len(typed.split()) <= 8
