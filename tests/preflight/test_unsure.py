"""Launches of which a part is where nothing here can read it: files, scripts, hosts."""

import json
import shlex

import pytest

from simpar.cli import run

from .test_check import COMMAND, HARDWARE, LAYOUT, SIZES, checked


@pytest.mark.usefixtures("no_neighbours")
def test_a_sourced_file_that_is_missing_may_decide(tmp_path, monkeypatch, capsys):
    """The verdict is not sure, and says why; with the file it is, and what that file sets is used."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.sh").write_text(f"source ./settings.sh\n{COMMAND.replace('size 2', 'size ${TP:-2}', 1)}\n")
    code, found = checked(capsys, *HARDWARE, "run.sh")
    assert (code, found["fits"], list(found["words"]["not_modelled"])) == (3, True, ["./settings.sh"])
    (tmp_path / "settings.sh").write_text("TP=4\n")
    code, found = checked(capsys, *HARDWARE, "run.sh")
    assert (code, found["plan"]["mesh"]["tp"], found["words"]["not_modelled"]) == (0, 4, {})


@pytest.mark.usefixtures("no_neighbours")
def test_a_script_that_no_reader_knows_may_decide(tmp_path, monkeypatch, capsys):
    """Of a launch of which only accelerate's config is read, the script says the rest."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fsdp.yaml").write_text("distributed_type: FSDP\nnum_processes: 8\nmixed_precision: bf16\n")
    command = ("accelerate", "launch", "--config_file", "fsdp.yaml", "own.py")
    code, found = checked(capsys, *HARDWARE, "--seq-len", "2048", "--global-batch", "8", "--", *command)
    assert (code, list(found["words"]["not_modelled"])) == (3, ["own.py"])


@pytest.mark.usefixtures("no_neighbours")
def test_a_replica_of_several_nodes_is_on_more_than_this_machine(capsys):
    """DeepSpeed finds a hostfile itself: where a node is too small, the number of nodes is asked for."""
    layout = LAYOUT.replace("-parallel-size 2", "-parallel-size 8 --pipeline-model-parallel-size 4")
    command = shlex.split(f"deepspeed pretrain_gpt.py {SIZES} {layout} --deepspeed --zero-stage 1")
    assert run(["check", *HARDWARE, "--", *command]) == 2
    assert "does not say how many nodes it starts: give --nodes N, or --gpus N\n" in capsys.readouterr().err
    _, found = checked(capsys, *HARDWARE, "--nodes", "4", "--", *command)
    assert found["cluster"]["devices"] == 32


@pytest.mark.parametrize("batch", ["$(($A / $B))", "$(( A / B ))", "$C"])
def test_variables_with_what_programs_print_are_named(capsys, tmp_path, batch):
    """A calculation stands on both, another variable on them."""
    file = tmp_path / "job.sh"
    layout = LAYOUT.replace("--micro-batch-size 1", f"--micro-batch-size {batch}")
    file.write_text(f"A=$(cat a)\nB=`cat b`\nC=$((A / B))\npython pretrain_gpt.py {SIZES} {layout}\n")
    assert run(["check", *HARDWARE, str(file)]) == 2
    told = capsys.readouterr().err
    assert told.endswith("allowed: A and B with a value in the text, in place of what a program prints\n")
    assert told.count("\n") == 1


@pytest.mark.usefixtures("no_neighbours")
@pytest.mark.parametrize(
    ("launcher", "of_nodes"), [("torchrun --nproc-per-node 8 --nnodes", "/ 8"), ("mpirun -np", "")]
)
def test_variables_with_the_number_of_nodes_are_asked_for_by_name(capsys, tmp_path, launcher, of_nodes):
    """And are given where the line says."""
    file = tmp_path / "job.sh"
    count = f"$((JOB_GPUS {of_nodes}))"
    file.write_text(f': "${{JOB_GPUS:?set it}}"\n{launcher} {count} python pretrain_gpt.py {SIZES} {LAYOUT}\n')
    assert run(["check", *HARDWARE, str(file)]) == 2
    told = capsys.readouterr().err
    how = f"allowed: JOB_GPUS=VALUE before the command: simpar check -- JOB_GPUS=VALUE {file}"
    assert f"give --nodes N, or --gpus N; {launcher.split()[-1]} is {count}: {how}" in told
    _, found = checked(capsys, *HARDWARE, "--", "JOB_GPUS=16", str(file))
    assert found["cluster"]["devices"] == 16


@pytest.mark.usefixtures("no_neighbours")
@pytest.mark.parametrize(("model", "most"), [("gpt2", 1024), ("facebook/opt-125m", 2048)])
def test_sequences_beyond_a_checkpoints_positions_decide(model, most, capsys):
    """A trainer loads the table as it is; Megatron-LM makes one as long as it is told."""
    trainer = f"python train.py --model_name_or_path {model} --per_device_train_batch_size 1 --bf16 --block_size"
    for tokens, code in ((most, 0), (2 * most, 3)):
        assert run(["check", "--hardware", "dgx-h100", "--", *trainer.split(), str(tokens)]) == code
        said = capsys.readouterr().out
        assert (f"sequence length: {tokens:,} tokens, " in said, f"has {most:,} positions" in said) == (code == 3,) * 2
    megatron = "torchrun --nproc-per-node 1 pretrain_gpt.py --micro-batch-size 1 --global-batch-size 1 --bf16"
    own = ["--model", "gpt2", "--seq-len", "2048"]
    assert run(["check", "--hardware", "dgx-h100", *own, "--", *megatron.split()]) == 0


TRAINER = "--per_device_train_batch_size 1 --bf16 --block_size 128 --model_name_or_path x"


@pytest.mark.usefixtures("no_neighbours")
def test_towers_that_are_left_out_decide(capsys, tmp_path):
    """A checkpoint with a tower of no known family is answered as its language model, and not as sure."""
    text = {
        "model_type": "llama", "vocab_size": 512, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4,
        "intermediate_size": 128, "num_hidden_layers": 2,
    }  # fmt: skip
    trainer = [
        "python",
        "train.py",
        "--per_device_train_batch_size",
        "1",
        "--bf16",
        "--block_size",
        "128",
        "--model_name_or_path",
        "x",
    ]
    for more, code in (({}, 0), ({"vision_config": {"model_type": "siglip", "hidden_size": 32}}, 3)):
        file = tmp_path / "config.json"
        file.write_text(json.dumps({**text, **more}))
        assert run(["check", "--hardware", "dgx-h100", "--model", str(file), "--", *trainer]) == code
        said = capsys.readouterr().out
        left_out = "text only: vision_config is of no family that is known with it"
        assert (left_out in said, "NOT SURE: words of the text decide" in said) == (code == 3,) * 2


@pytest.mark.usefixtures("no_neighbours")
@pytest.mark.parametrize(
    "before",
    [
        "docker run --rm --gpus all --ipc=host --shm-size 16g --network host --ulimit memlock=-1 image bash -c '{}'",
        "srun -N 1 --overlap --accel-bind=g apptainer exec --nv --bind /a:/b --pwd /x image.sif {}",
        "nsys profile -o x --capture-range=cudaProfilerApi --capture-range-end=stop --trace=cuda --sample=none {}",
        "conda run -n e --no-capture-output {}",
    ],
)
def test_flags_of_containers_and_profilers_decide_nothing(before, tmp_path, capsys):
    """They are known, so that the verdict is as sure as that of the launch inside."""
    (tmp_path / "run.sh").write_text(before.format(COMMAND) + "\n")
    code, found = checked(capsys, *HARDWARE, str(tmp_path / "run.sh"))
    assert (code, found["words"]["unknown"], found["words"]["not_modelled"]) == (0, [], {})
