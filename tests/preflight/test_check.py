"""A launch that is checked: verdict, neighbours, the text with other flags, and what is refused."""

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml

import simpar
from simpar.architectures.catalogue import load_model
from simpar.architectures.dropout import with_dropout
from simpar.cli import run
from tests.gate import some

MODEL = with_dropout(load_model("llama-3-8b"), attention=0.1, hidden=0.1)
SCENARIO, DOCS = (Path(__file__).parents[2] / each for each in ("scenarios/llama-3-8b-8-h100.yaml", "docs/check.md"))
SIZES = (
    "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention "
    "--num-query-groups 8 --vocab-size 128256 --seq-length 2048"
)
LAYOUT = "--tensor-model-parallel-size 2 --sequence-parallel --micro-batch-size 1 --global-batch-size 8 --bf16"
COMMAND = f"torchrun --nproc-per-node=8 pretrain_gpt.py {SIZES} {LAYOUT} --use-distributed-optimizer --data-path 'my d'"
HARDWARE = ["--hardware", "dgx-h100", "--model", "llama-3-8b"]


def checked(capsys, *arguments):
    """Exit code and the JSON of a check."""
    code = run(["check", "--json", "-", *arguments])
    return code, json.loads(capsys.readouterr().out)


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    """Exit code and the JSON of the check of the command as it is."""
    path = tmp_path_factory.mktemp("check") / "found.json"
    code = run(["check", "--json", str(path), *HARDWARE, "--", *shlex.split(COMMAND)])
    return code, json.loads(path.read_text())


def test_command(usual):
    """A command that fits: its figures are those of simulate, its neighbours fit, and its flags come back in order."""
    code, found = usual
    assert (code, found["from"], found["is_sure"]) == (0, "megatron", True)
    plan = simpar.Plan(tp=2, zero=1, micro_batch=1, stack="megatron", sequence_parallel=True, grad_dtype="fp32",
                       overlap_grad_reduce=False, overlap_param_gather=False,
                       fused_kernels="norm+activation+rope")  # fmt: skip
    training = simpar.Training(seq_len=2048, global_batch=8)
    alone = simpar.simulate(MODEL, simpar.Cluster("dgx-h100", nodes=1), plan, training)
    assert found["step_time_s"] == alone.step_time_s
    assert found["step_time_interval_s"][0] < found["step_time_s"] < found["step_time_interval_s"][1]
    assert 1 <= len(found["neighbours"]) <= 3
    assert all(one["fits"] and one["fit_probability"] >= 0.95 for one in found["neighbours"])
    before, after = (re.findall(r"--[a-z-]+", text) for text in (COMMAND, found["patched"]))
    assert [flag for flag in after if flag in before] == [flag for flag in before if flag in after]
    assert "'my d'" in found["patched"]
    assert found["neighbours"][0]["step_time_s"] < found["step_time_s"]


def test_patched_command_is_the_neighbour(usual, capsys, alone):
    """What is pasted back has the step time that was promised."""
    _, first = usual
    alone()
    _, second = checked(capsys, *HARDWARE, "--", *shlex.split(first["patched"]))
    assert second["step_time_s"] == first["neighbours"][0]["step_time_s"]
    assert second["plan"]["mesh"] == first["neighbours"][0]["plan"]["mesh"]


def test_does_not_fit(tmp_path, capsys, alone):
    """Replicas of 8 billion parameters with all their states are too large for a device: exit code 3, and what fits."""
    large = COMMAND.replace("size 2 --sequence-parallel", "size 1").replace("--use-distributed-optimizer ", "")
    path = tmp_path / "found.json"
    code = run(["check", "--json", str(path), *HARDWARE, "--", *shlex.split(large)])
    found = json.loads(path.read_text())
    assert "DOES NOT FIT" in capsys.readouterr().out
    assert (code, found["fits"], found["is_sure"]) == (3, False, False)
    assert found["neighbours"]
    assert found["patched"]
    alone()
    assert run(["check", *HARDWARE, "--", *shlex.split(found["patched"])]) == 0


def test_a_layout_of_many_ops_and_neighbours_that_need_too_much(capsys):
    """Where none of the lowest bounds is a small Program, one is simulated all the same, and what is shown fits."""
    many = (
        "torchrun --nproc-per-node 8 pretrain_gpt.py --tensor-model-parallel-size 8 --seq-length 8192 "
        "--micro-batch-size 4 --global-batch-size 64 --bf16 --use-distributed-optimizer"
    )
    code, found = checked(capsys, *HARDWARE, "--", *shlex.split(many))
    assert (code, found["is_sure"]) == (3, False)
    assert found["neighbours"]
    assert all(one["fits"] and one["fit_probability"] >= 0.95 for one in found["neighbours"])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--", "echo", "hello"], "no launch of a framework"),
        (["--", "torchrun", "my/own.py", "--lr", "1"], "my/own.py is no script that is known here"),
        (["--", "python", "pretrain_gpt.py", *SIZES.split(), *LAYOUT.split()], "give --nodes N"),
        (["--fits-with", "1.5", "--", *shlex.split(COMMAND)], "--fits-with 1.5: allowed"),
        (["--", *shlex.split(COMMAND.replace("=8", "=6"))], "plan.dp = 3: does not divide global_batch = 8"),
        (
            ["--seq-len", "4096", "--", *shlex.split(COMMAND)],
            "--seq-len 4096: the command says 2048; allowed: what the text says",
        ),
        (["--global-batch", "16", "--", *shlex.split(COMMAND)], "--global-batch 16: the command says 8;"),
        (
            ["--nodes", "2", "--", *shlex.split(COMMAND)],
            "--nodes 2: means 16 ranks on dgx-h100; the command says 8 ranks;",
        ),
        (
            ["--model", "llama-3-70b", "--", *shlex.split(COMMAND)],
            "has layers 80, hidden 8192, ffn 28672, heads 64; the command says layers 32, hidden 4096, ffn 14336,",
        ),
        (["nowhere.sh"], "nowhere.sh"),
        ([str(SCENARIO)], "--require-fit, which asks for what check asks for with --fits-with 0.5"),
        (["--from", "make", "--", *shlex.split(COMMAND)], "--from make"),
    ],
)
def test_refused(arguments, told, capsys):
    """One line that says what is wrong, and exit code 2."""
    assert run(["check", *HARDWARE, *arguments]) == 2
    said = capsys.readouterr()
    assert told in said.err
    assert len(said.err.splitlines()) == 1
    assert said.out == ""


PLAIN = COMMAND.replace("=8", "=gpu").replace("'my d'", "d").replace("torchrun ", "torchrun --nnodes 1 ")


@pytest.mark.usefixtures("no_neighbours")
@pytest.mark.parametrize(
    "command",
    some([
        COMMAND.replace("=8", "=4"),
        f"CUDA_VISIBLE_DEVICES=0,1,2,3 {PLAIN}",
        f"export CUDA_VISIBLE_DEVICES=4,5,6,7\n{PLAIN}",
        f"export NPROC_PER_NODE=4\n{COMMAND.replace('=8', '=$NPROC_PER_NODE')}",
        f"mpirun -np 4 {PLAIN.removeprefix('torchrun --nnodes 1 --nproc-per-node=gpu ')}",
        f"#SBATCH --nodes=1\n#SBATCH --gpus-per-node=h100:4\n{PLAIN}",
        f"#SBATCH --nodes=1\n#SBATCH --gres=gpu:4\n{PLAIN}",
    ], 2),
)  # fmt: skip
def test_a_part_of_a_node_is_never_answered_for_all_of_it(command, capsys):
    """Four of eight devices, by every way of saying it: data parallel over two pairs."""
    code, found = checked(capsys, *HARDWARE, "--fits-with", "0.5", "--", command)
    assert code in (0, 3)
    assert (found["cluster"]["devices"], found["plan"]["mesh"]["dp"]) == (4, 2)
    assert "4 of the 8 devices of a node of dgx-h100 are used." in found["notes"]


@pytest.mark.usefixtures("no_neighbours")
def test_a_script_gets_arguments_and_variables(tmp_path, monkeypatch, capsys):
    """What a command gives it is bound; the text to paste is the script, whose own variables change."""
    monkeypatch.chdir(tmp_path)
    text = COMMAND.replace("=8", "=$1").replace("--tensor-model-parallel-size 2", "--tensor-model-parallel-size ${2}")
    (tmp_path / "run.sh").write_text(f"#!/bin/bash\nshift 0\n{text} $MORE\n")
    _, found = checked(capsys, *HARDWARE, "--", "MORE=--recompute-activations", "./run.sh", "4", "2")
    assert (found["cluster"]["devices"], found["plan"]["mesh"]["tp"]) == (4, 2)
    assert found["plan"]["memory"]["recompute"] == "selective"
    _, found = checked(capsys, *HARDWARE, "--", "sbatch", "-N", "2", "--export=ALL,MORE=", "run.sh", "8", "2")
    assert found["cluster"]["devices"] == 8
    assert any("torchrun starts one node: no number of them" in note for note in found["notes"])
    assert run(["check", *HARDWARE, "run.sh"]) == 2
    assert "--tensor-model-parallel-size = ${2}: a value that the file does not say; allowed: arguments" in (
        capsys.readouterr().err
    )


def test_a_script_that_is_missing_is_named(tmp_path, monkeypatch, capsys):
    """Nothing else can be said of what it starts."""
    monkeypatch.chdir(tmp_path)
    assert run(["check", *HARDWARE, "--", "srun", "./gone.sh", "8"]) == 2
    assert "the command:1: ./gone.sh: no such file here" in capsys.readouterr().err


@pytest.mark.usefixtures("no_neighbours")
def test_python_alone_is_one_process(capsys):
    """On one device, unless a flag says what starts more."""
    alone = COMMAND.replace("torchrun --nproc-per-node=8", "python").replace("-parallel-size 2", "-parallel-size 1")
    _, found = checked(capsys, *HARDWARE, "--", alone)
    assert found["cluster"]["devices"] == 1
    assert any("python starts one process" in note for note in found["notes"])
    _, found = checked(capsys, *HARDWARE, "--gpus", "4", "--", alone)
    assert found["cluster"]["devices"] == 4


@pytest.mark.usefixtures("no_neighbours")
def test_a_word_that_decides_leaves_no_verdict_ok(capsys):
    """Collectives through the host's memory are not modelled: the launch fits, and the answer is not sure."""
    code, found = checked(capsys, *HARDWARE, "--", f"NCCL_P2P_DISABLE=1 {COMMAND}")
    assert (code, found["is_sure"], found["fits"]) == (3, False, True)
    assert list(found["words"]["not_modelled"]) == ["NCCL_P2P_DISABLE"]
    assert run(["check", *HARDWARE, "--", f"NCCL_P2P_DISABLE=1 {COMMAND}"]) == 3
    assert "NOT SURE: words of the text decide that are not modelled" in capsys.readouterr().out
    _, found = checked(capsys, "--hardware", "rtx-4090-8", "--", f"NCCL_P2P_DISABLE=1 {COMMAND}")
    assert found["words"]["not_modelled"] == {}  # these cards have no peer-to-peer


@pytest.mark.usefixtures("no_neighbours")
@pytest.mark.parametrize(("hardware", "batch"), [("tpu-v7x-pod", 8), ("tpu-v6e-pod", 4)])
def test_devices_that_jax_shows_twice_are_one(capsys, hardware, batch):
    """A chip of TPU7x is one device here and two of MaxText's, each of which takes the batch of a device."""
    words = (
        "python3 -m maxtext.trainers.pre_train.train configs/base.yml model_name=llama3.1-8b per_device_batch_size=1"
    )
    _, found = checked(capsys, "--hardware", hardware, "--gpus", "4", "--", *words.split())
    assert (found["cluster"]["devices"], found["words"]["not_modelled"]) == (4, {})
    assert f"The global batch is {batch} sequences: {batch // 4} of every data-parallel rank." in found["notes"]
    assert any("2 devices of a chip" in note for note in found["notes"]) == (batch == 8)


@pytest.mark.usefixtures("no_neighbours")
def test_a_word_that_no_table_has_may_decide(capsys):
    """Nobody here knows what it does: the answer is not sure. A variable of the command is none of the framework's."""
    code, found = checked(capsys, *HARDWARE, "--", f"MY_OWN=1 {COMMAND}")
    assert (code, found["is_sure"], found["words"]["unknown"]) == (0, True, [])
    code, found = checked(capsys, *HARDWARE, "--", *shlex.split(COMMAND), "--mystery", "2")
    assert (code, found["is_sure"], found["fits"], found["words"]["unknown"]) == (3, False, True, ["--mystery"])
    assert run(["check", *HARDWARE, "--", *shlex.split(COMMAND), "--mystery", "2"]) == 3
    assert "NOT SURE: words of the text are unknown to simpar and may decide" in capsys.readouterr().out


def test_flags_that_repeat_the_text(usual, capsys, alone):
    """They change nothing, but that a model that is named is not asked for: others of its sizes are as good."""
    words = ["--", *shlex.split(COMMAND)]
    flags = ["--nodes", "1", "--seq-len", "2048", "--global-batch", "8"]
    _, repeated = checked(capsys, "--hardware", "dgx-h100", *flags, *words)
    assert repeated["notes"][0].startswith("The sizes are those of llama-3-8b, llama-3.1-8b")
    (other,) = (each for each in repeated["assumed"] if each["key"] == "model")
    assert other["others"][0]["step_time_s"] < repeated["step_time_s"]  # two matrices of an MLP, not three
    assert {**repeated, "notes": [], "assumed": usual[1]["assumed"]} == usual[1]
    alone()
    _, twin = checked(capsys, *HARDWARE, "--model", "llama-3.1-8b", *words)
    assert (twin["notes"], [each["key"] for each in twin["assumed"]]) == ([], ["dropout"])


@pytest.mark.usefixtures("no_neighbours")
def test_a_model_beside_the_name_of_another(tmp_path, capsys):
    """A config that says its model by name says its sizes, and which of one size it is stays open."""
    (tmp_path / "a.toml").write_text(TORCHTITAN)
    arguments = ["check", "--hardware", "dgx-h100", "--nodes", "1", str(tmp_path / "a.toml")]
    assert run([*arguments, "--model", "llama-3-70b"]) == 2
    assert "a.toml says layers 32, hidden 4096, ffn 14336, heads 32;" in capsys.readouterr().err
    assert run([*arguments, "--model", "llama-3-8b"]) in (0, 3)


def test_a_batch_that_the_text_leaves_to_a_rule(capsys, alone):
    """A flag supplies it: a note says what the text alone would train, and the patched text says what it trains."""
    text = COMMAND.replace("--global-batch-size 8 ", "")
    _, found = checked(capsys, *HARDWARE, "--global-batch", "16", "--", *shlex.split(text))
    assert found["plan"]["training"]["global_batch"] == 16
    assert found["notes"] == [
        "The global batch is 16 sequences; the text as it is would train 4 sequences: 1 of every data-parallel rank."
    ]
    assert "--global-batch-size 16" in found["patched"]
    alone()
    _, again = checked(capsys, *HARDWARE, "--", *shlex.split(found["patched"]))
    best = next(one for one in found["neighbours"] if one["patched"])
    assert again["step_time_s"] == best["step_time_s"]


def test_hardware_is_needed(capsys):
    """No command says what it runs on."""
    assert run(["check", "--", *shlex.split(COMMAND)]) == 2
    assert "--hardware" in capsys.readouterr().err


def blocks(kind):
    """Blocks of code of the page, by their language."""
    return re.findall(rf"```{kind}\n(.*?)```", DOCS.read_text(), re.DOTALL)


@pytest.mark.slow
def test_examples_of_the_page_run(tmp_path, monkeypatch, capsys):
    """The command, the line for one launch and the check in the Slurm script do what they say."""
    command, step, script = blocks("bash")
    assert run(shlex.split(command, comments=True)[1:]) == 0
    (tmp_path / "train.sbatch").write_text(script)
    monkeypatch.chdir(tmp_path)
    assert run(shlex.split(step)[1:]) == 0
    line = next(line for line in script.splitlines() if line.startswith("simpar"))
    words = shlex.split(line.partition("||")[0].replace("$0", "train.sbatch"))
    assert run([*words[1:], "-o", "better.sbatch"]) == 0
    assert "4 x dgx-h100" in capsys.readouterr().out
    better = (tmp_path / "better.sbatch").read_text().splitlines()
    assert [line for line in better if line.startswith("#SBATCH")] == [
        line for line in script.splitlines() if line.startswith("#SBATCH")
    ]


DEEPSPEED = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 8,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 3, "overlap_comm": True},
}
TORCHTITAN = """
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 8192
[parallelism]
tensor_parallel_degree = 1
[activation_checkpoint]
mode = "full"
"""
NANOTRON = {
    "model": {"model_config": {
        "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_hidden_layers": 32,
        "num_key_value_heads": 8, "vocab_size": 128256,
    }},
    "optimizer": {"zero_stage": 1, "accumulate_grad_in_fp32": True},
    "parallelism": {"dp": 4, "pp": 2, "tp": 4},
    "tokens": {"micro_batch_size": 1, "batch_accumulation_per_replica": 16, "sequence_length": 8192},
}  # fmt: skip


@pytest.mark.usefixtures("no_neighbours")
@pytest.mark.parametrize(
    ("name", "text", "start", "batch"),
    [
        ("ds.json", json.dumps(DEEPSPEED), "deepspeed --num_gpus 8 train.py --deepspeed", 128),
        ("a.toml", TORCHTITAN, "torchrun --nproc-per-node 8 -m torchtitan.train --job.config_file", 8),
    ],
)
def test_as_many_sequences_of_every_rank(tmp_path, capsys, name, text, start, batch):
    """Without a global batch frameworks take as many sequences of every data-parallel rank: no flag is asked for."""
    (tmp_path / name).write_text(text)
    arguments = [*HARDWARE, "--seq-len", "8192", "--", *start.split(), str(tmp_path / name)]
    _, found = checked(capsys, *arguments)
    assert found["plan"]["training"]["global_batch"] == batch
    assert any(f"The global batch is {batch} sequences" in note for note in found["notes"])


@pytest.mark.usefixtures("no_neighbours")
def test_the_micro_batch_follows_from_batch_and_ranks(tmp_path, capsys):
    """Where DeepSpeed's config says the batch and its microbatches alone."""
    path = tmp_path / "ds.json"
    path.write_text('{"train_batch_size": 64, "bf16": {"enabled": true}, "gradient_accumulation_steps": 4}')
    _, found = checked(capsys, "--hardware", "dgx-h100", "--nodes", "1", "--model", "llama-3.2-1b", "--seq-len", "1024",
                       "--from", "deepspeed", str(path))  # fmt: skip
    assert found["plan"]["micro_batch"] == 2
    assert [note for note in found["notes"] if "micro" in note] == ["The micro-batch is 2: the step has 4 of them."]


@pytest.mark.usefixtures("no_neighbours")
def test_megatrons_default_of_the_batch(capsys):
    """Megatron-LM without --global-batch-size takes a microbatch of every data-parallel rank."""
    _, found = checked(capsys, *HARDWARE, "--", *shlex.split(COMMAND.replace("--global-batch-size 8 ", "")))
    assert found["plan"]["training"] == {"seq_len": 2048, "global_batch": 4}


@pytest.mark.parametrize(
    ("name", "text"), some([("a.toml", TORCHTITAN), ("n.yaml", yaml.safe_dump(NANOTRON))], 1, tuples=True)
)
def test_other_degrees_keep_the_batch(tmp_path, capsys, alone, name, text):
    """Where the batch follows from the ranks, text with other degrees says it anew: it is what was simulated."""
    (tmp_path / name).write_text(text)
    _, first = checked(capsys, "--hardware", "dgx-h100", "--nodes", "4", str(tmp_path / name))
    shown = [one for one in first["neighbours"] if one["patched"]]
    assert {one["plan"]["mesh"]["dp"] for one in shown} - {first["plan"]["mesh"]["dp"]}
    alone()
    for one in shown:
        (tmp_path / name).write_text(one["patched"])
        _, again = checked(capsys, "--hardware", "dgx-h100", "--nodes", "4", str(tmp_path / name))
        assert again["plan"]["training"] == first["plan"]["training"]
        assert again["step_time_s"] == one["step_time_s"]


def test_what_a_text_cannot_say_is_named(tmp_path, capsys):
    """DeepSpeed recomputes in code, and parameters that are fetched ahead are no choice there."""
    path = tmp_path / "ds.json"
    path.write_text(json.dumps({**DEEPSPEED, "train_micro_batch_size_per_gpu": 1}))
    written = tmp_path / "found.json"
    arguments = [*HARDWARE, "--nodes", "1", "--seq-len", "16384", str(path)]
    assert run(["check", "--json", str(written), *arguments]) in (0, 3)
    said, found = capsys.readouterr().out, json.loads(written.read_text())
    (unsaid,) = [one["unsaid"] for one in found["neighbours"] if not one["edits"]]
    assert unsaid == ["model.gradient_checkpointing_enable()"]
    assert f"- {unsaid[0]} (in the script's code): " in said


@pytest.mark.usefixtures("no_neighbours")
@pytest.mark.parametrize(
    ("wrong", "meant"),
    some(
        [
            ("--tensor-model-paralel-size", "--tensor-model-parallel-size"),
            ("--tensor-model-parallel", "--tensor-model-parallel-size"),
        ],
        1,
        tuples=True,
    ),
)
def test_typing_errors_are_named(capsys, wrong, meant):
    """A flag that nobody reads and that is nearly one that is missing; flags of another meaning are let through."""
    text = COMMAND.replace("--tensor-model-parallel-size", wrong) + " --eval-micro-batch-size 4 --log-interval 1"
    _, found = checked(capsys, *HARDWARE, "--", *shlex.split(text))
    assert [note for note in found["notes"] if "not read" in note] == [f"{wrong} is not read: {meant} may be meant."]


MIXTURE = (
    "torchrun --nnodes=4 --nproc-per-node=8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 "
    "--ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention --num-query-groups 8 "
    "--vocab-size 32000 --seq-length 2048 --num-experts 8 --moe-router-topk 2 --expert-model-parallel-size 8 "
    "--micro-batch-size 1 --global-batch-size 128 "
    "--bf16 --use-distributed-optimizer"
)


@pytest.mark.usefixtures("no_neighbours")
@pytest.mark.parametrize(
    ("flags", "imbalance"),
    some([
        ("", 0.27), ("--moe-router-force-load-balancing", 0.0), ("--moe-router-enable-expert-bias", 0.02),
        ("--moe-expert-capacity-factor 1.0", 0.0),
    ], 2, tuples=True),
)  # fmt: skip
def test_a_launch_routes_tokens_as_what_balances_its_experts_leaves_them(capsys, flags, imbalance):
    """Unless it forces balance; the answer says what is assumed. With 0.27 the fullest of 8 ranks has 1.38 times."""
    arguments = ["--hardware", "dgx-h100", "--model", "mixtral-8x7b", "--", *shlex.split(f"{MIXTURE} {flags}")]
    _, found = checked(capsys, *arguments)
    assert found["plan"]["experts"]["expert_imbalance"] == imbalance
    said = [note for note in found["notes"] if "Experts' loads" in note]
    assert [f"spread by {imbalance:g} of their mean" in note for note in said] == [True] * bool(imbalance)
    assert any("1.38" in line for line in found["binds"]) == (imbalance == 0.27)


@pytest.mark.usefixtures("no_neighbours")
def test_fine_tuning_routes_tokens_by_a_power_law(capsys):
    """ms-swift's sft on Megatron-LM; pretraining with it has the spread that a loss leaves."""
    layout = (
        "--expert_model_parallel_size 8 --micro_batch_size 1 --global_batch_size 8 --max_length 4096 --packing true"
    )
    found = {}
    for kind in ("sft", "pt"):
        command = f"NPROC_PER_NODE=8 megatron {kind} --model mistralai/Mixtral-8x7B-v0.1 {layout}"
        _, found[kind] = checked(
            capsys, "--hardware", "dgx-h100", "--model", "mixtral-8x7b", "--", *shlex.split(command)
        )
    tuned, balanced = (found[kind]["plan"]["experts"] for kind in ("sft", "pt"))
    assert (tuned["expert_distribution"], tuned["expert_imbalance"]) == ("power_law", 1.01)
    assert (balanced["expert_distribution"], balanced["expert_imbalance"]) == ("normal", 0.27)
    assert any("power law with exponent 1.01" in note for note in found["sft"]["notes"])
    assert found["sft"]["step_time_s"] > found["pt"]["step_time_s"]


def test_what_is_assumed_of_routing_leaves_flags_to_paste(capsys):
    """Proposals are texts that read back as their plans, though routing has no flag."""
    arguments = ["--hardware", "dgx-h100", "--model", "mixtral-8x7b", "--", *shlex.split(MIXTURE)]
    _, found = checked(capsys, *arguments)
    assert found["neighbours"]
    assert all(one["patched"] and not one["unsaid"] for one in found["neighbours"])


@pytest.mark.usefixtures("no_neighbours")
def test_what_was_taken_for_a_model_is_not_said_of_one_that_is_named(capsys, tmp_path):
    """Sizes that no shipped model has are built from the arguments, unless a flag names a model."""
    sizes = COMMAND.replace("--vocab-size 128256", "").replace("14336", "14340")
    text = ["--hardware", "dgx-h100", "--", *shlex.split(sizes)]
    config = {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14340, "num_hidden_layers": 32,
              "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128_256}  # fmt: skip
    (own := tmp_path / "own.json").write_text(json.dumps(config))
    built, named = (checked(capsys, *flags, *text)[1]["notes"] for flags in ([], ["--model", str(own)]))
    assert [note[:26] for note in built[:2]] == ["No shipped model has these", "The vocabulary is not said"]
    assert not any("shipped model" in note or "vocabulary" in note for note in named)


SFT = (
    "CUDA_VISIBLE_DEVICES=0 python sft.py --model_name_or_path meta-llama/Llama-3.1-8B --use_peft --lora_r 16 --bf16 "
    "--packing --max_length 2048 --per_device_train_batch_size 2 --gradient_accumulation_steps 4 "
    "--gradient_checkpointing\n"
)


def test_a_patch_is_a_unified_diff_of_the_file(tmp_path, capsys):
    """It changes what the text with the flags changes, and nothing else is printed."""
    path = tmp_path / "train.sh"
    path.write_text(SFT)
    assert run(["check", "--hardware", "dgx-h100", "--patch", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [f"--- a/{path}", f"+++ b/{path}"]
    (line,) = [line for line in lines if line.startswith("+CUDA")]
    assert "--gradient_checkpointing false" in line


def test_neighbours_of_deepspeed_get_no_options_of_fsdp(tmp_path, capsys):
    """Accelerate's config of DeepSpeed has other keys; a neighbour that changes nothing is not listed."""
    config = "distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 3}\nmixed_precision: bf16\nnum_processes: 8\n"
    (tmp_path / "z3.yaml").write_text(config)
    shape = ["--model", "mistral-7b", "--seq-len", "2048", "--global-batch", "128"]
    assert run(["check", "--hardware", "dgx-a100-80gb", *shape, str(tmp_path / "z3.yaml")]) == 0
    said = capsys.readouterr().out
    assert not [words for words in ("fsdp", "nothing in the text", "Neighbouring") if words in said]
