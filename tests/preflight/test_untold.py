"""Values that a text leaves to its caller: all that decide are asked for at once, with how to give them."""

import pytest

from simpar.cli import run
from simpar.preflight.untold import untold_values

HARDWARE = ["check", "--hardware", "dgx-h100"]
TRAINER = """torchrun --nproc_per_node $GPUS --nnodes=${NODES} train.py --model_name_or_path $MODEL \\
  --per_device_train_batch_size $BS --gradient_accumulation_steps $((64 / BS / GPUS)) --model_max_length "$LEN" \\
  --bf16 True --output_dir $OUT --learning_rate $LR
"""
MEGATRON = """torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 32 --hidden-size $1 --num-attention-heads 32 \\
  --seq-length 2048 --micro-batch-size ${3} --global-batch-size $GBS --tensor-model-parallel-size $TP --bf16 --save $OUT
"""


@pytest.mark.parametrize(
    ("text", "given", "others"),
    [
        (TRAINER, "GPUS=VALUE NODES=VALUE MODEL=VALUE BS=VALUE LEN=VALUE", "--nproc_per_node, --nnodes, --model_name"),
        (TRAINER.replace("$GPUS", "8").replace("BS /", "2 /").replace("GPUS", "8").replace("$LEN", "512"),
         "NODES=VALUE MODEL=VALUE BS=VALUE", "--nnodes, --model_name_or_path)"),
        (MEGATRON, "GBS=VALUE TP=VALUE", "--hidden-size, --micro-batch-size, --global-batch-size)"),
    ],
)  # fmt: skip
def test_a_script_asks_for_all_values_at_once(tmp_path, capsys, text, given, others):
    """But for those that decide nothing: where it writes, how it learns; values that are given are taken."""
    script = tmp_path / "train.sh"
    script.write_text(text)
    assert run([*HARDWARE, str(script)]) == 2
    said = capsys.readouterr().err
    arguments = " ARGUMENT ARGUMENT ARGUMENT" * (text == MEGATRON)
    assert f"simpar check -- {given} {script}{arguments}, or simpar import" in said
    assert others in said
    assert "OUT" not in said
    values = {"GPUS": "8", "NODES": "1", "MODEL": "gpt2", "BS": "1", "LEN": "512", "GBS": "8", "TP": "8"}
    given = [f"{name}={values[name]}" for name in given.replace("=VALUE", "").split()]
    behind = ["4096", "-", "1"] if arguments else []
    assert run([*HARDWARE, "--", *given, str(script), *behind]) in (0, 3)


def test_a_template_asks_for_all_values_at_once(tmp_path, capsys):
    """A YAML that another program fills in; one value alone is asked for as before."""
    file = tmp_path / "sft.yaml"
    text = "model_name_or_path: gpt2\nper_device_train_batch_size: ${BS}\ngradient_accumulation_steps: {}\nbf16: true\n"
    file.write_text(text.replace("{}", "${GA}"))
    assert run([*HARDWARE, str(file)]) == 2
    assert f"simpar check -- BS=VALUE GA=VALUE {file} (also for gradient_acc" in capsys.readouterr().err
    file.write_text(text.replace("{}", "1"))
    assert run([*HARDWARE, str(file)]) == 2
    assert capsys.readouterr().err.endswith(f"simpar check -- BS=VALUE {file}\n")


def test_nodes_and_ranks_are_asked_for_together(tmp_path, capsys):
    """Where nothing else is left open."""
    script = tmp_path / "train.sh"
    trainer = "train.py --model_name_or_path gpt2 --block_size 512 --bf16 --per_device_train_batch_size 1"
    script.write_text(f"torchrun --nnodes $N --nproc-per-node $P {trainer}\n")
    assert run([*HARDWARE, str(script)]) == 2
    said = capsys.readouterr().err
    assert "--nnodes is ${N}, --nproc-per-node is ${P}: allowed: N=VALUE P=VALUE before the command" in said


def test_values_of_flags():
    """Of either spelling; a flag behind a flag is no value."""
    words = ["a", "--b", "${B}", "--c=${C}", "--d", "--e", "$((F + 1))", "-g", "1"]
    assert untold_values(words) == {"--b": "${B}", "--c": "${C}", "--e": "$((F + 1))"}
