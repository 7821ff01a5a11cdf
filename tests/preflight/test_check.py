"""A launch that is checked: verdict, neighbours, the text with other flags, and what is refused."""

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml

import simpar
from simpar.cli import run

SCENARIO = Path(__file__).parents[2] / "scenarios" / "llama-3-8b-8-h100.yaml"
DOCS = Path(__file__).parents[2] / "docs" / "check.md"
SIZES = (
    "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention "
    "--num-query-groups 8 --vocab-size 128256 --seq-length 2048"
)
LAYOUT = (
    "--tensor-model-parallel-size 2 --sequence-parallel --micro-batch-size 1 --global-batch-size 8 --bf16"
)
COMMAND = f"torchrun --nproc-per-node=8 pretrain_gpt.py {SIZES} {LAYOUT} --use-distributed-optimizer --data-path 'my d'"
HARDWARE = ["--hardware", "dgx-h100", "--model", "llama-3-8b"]


def checked(capsys, *arguments):
    """Exit code and the JSON of a check."""
    code = run(["check", "--json", "-", *arguments])
    return code, json.loads(capsys.readouterr().out)


def test_command(capsys):
    """A command that fits: its figures are those of simulate, its neighbours fit, and its flags come back in order."""
    code, found = checked(capsys, *HARDWARE, "--", *shlex.split(COMMAND))
    assert (code, found["from"], found["is_sure"]) == (0, "megatron", True)
    plan = simpar.Plan(tp=2, zero=1, micro_batch=1, stack="megatron", sequence_parallel=True, grad_dtype="fp32",
                       overlap_grad_reduce=False, overlap_param_gather=False)  # fmt: skip
    training = simpar.Training(seq_len=2048, global_batch=8)
    alone = simpar.simulate(simpar.Model("llama-3-8b"), simpar.Cluster("dgx-h100", nodes=1), plan, training)
    assert found["step_time_s"] == alone.step_time_s
    assert found["step_time_interval_s"][0] < found["step_time_s"] < found["step_time_interval_s"][1]
    assert 1 <= len(found["neighbours"]) <= 3
    assert all(one["fits"] and one["fit_probability"] >= 0.95 for one in found["neighbours"])
    before, after = (re.findall(r"--[a-z-]+", text) for text in (COMMAND, found["patched"]))
    assert [flag for flag in after if flag in before] == [flag for flag in before if flag in after]
    assert "'my d'" in found["patched"]
    assert found["neighbours"][0]["step_time_s"] < found["step_time_s"]


def test_patched_command_is_the_neighbour(capsys):
    """What is pasted back has the step time that was promised."""
    _, first = checked(capsys, *HARDWARE, "--", *shlex.split(COMMAND))
    _, second = checked(capsys, *HARDWARE, "--", *shlex.split(first["patched"]))
    assert second["step_time_s"] == first["neighbours"][0]["step_time_s"]
    assert second["plan"]["mesh"] == first["neighbours"][0]["plan"]["mesh"]


def test_does_not_fit(capsys):
    """Replicas of 8 billion parameters with all their states are too large for a device: exit code 3, and what fits."""
    large = COMMAND.replace("size 2 --sequence-parallel", "size 1").replace(
        "--use-distributed-optimizer ", ""
    )
    code, found = checked(capsys, *HARDWARE, "--", *shlex.split(large))
    assert (code, found["fits"], found["is_sure"]) == (3, False, False)
    assert found["neighbours"]
    assert found["patched"]
    assert run(["check", *HARDWARE, "--", *shlex.split(found["patched"])]) == 0
    assert run(["check", *HARDWARE, "--", *shlex.split(large)]) == 3
    assert "DOES NOT FIT" in capsys.readouterr().out


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
        (["--", "python", "pretrain_gpt.py", *SIZES.split(), *LAYOUT.split()], "give --nodes N"),
        (["--fits-with", "1.5", "--", *shlex.split(COMMAND)], "--fits-with 1.5: allowed"),
        (["--", *shlex.split(COMMAND.replace("=8", "=6"))], "starts 6 ranks; a node of dgx-h100 has 8"),
        (["nowhere.sh"], "nowhere.sh"),
        ([str(SCENARIO)], "simpar simulate"),
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


def test_hardware_is_needed(capsys):
    """No command says what it runs on."""
    assert run(["check", "--", *shlex.split(COMMAND)]) == 2
    assert "--hardware" in capsys.readouterr().err


def blocks(kind):
    """Blocks of code of the page, by their language."""
    return re.findall(rf"```{kind}\n(.*?)```", DOCS.read_text(), re.DOTALL)


def test_examples_of_the_page_run(tmp_path, monkeypatch, capsys):
    """The command, the step of GitHub Actions and the check in the Slurm script do what they say."""
    command, script = blocks("bash")
    assert run(shlex.split(command, comments=True)[1:]) == 0
    (tmp_path / "train.sbatch").write_text(script)
    monkeypatch.chdir(tmp_path)
    steps = yaml.safe_load(blocks("yaml")[0])["jobs"]["check"]["steps"]
    step = next(each["run"] for each in steps if each.get("run", "").startswith("simpar"))
    assert run(shlex.split(step)[1:]) == 0
    line = next(line for line in script.splitlines() if line.startswith("simpar"))
    words = shlex.split(line.partition("||")[0].replace("$0", "train.sbatch"))
    assert run([*words[1:], "-o", "better.sbatch"]) == 0
    assert "4 x dgx-h100" in capsys.readouterr().out
    better = (tmp_path / "better.sbatch").read_text().splitlines()
    assert [line for line in better if line.startswith("#SBATCH")] == [
        line for line in script.splitlines() if line.startswith("#SBATCH")
    ]
