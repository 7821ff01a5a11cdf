"""Errors of readers name the line of the word that they are about."""

import pytest

from simpar.errors import UserError
from simpar.frameworks import read

DEEPSPEED = '{\n\t"train_micro_batch_size_per_gpu": 2,\n\t"zero_optimization": {\n\t\t"stage": 9\n\t}\n}\n'


@pytest.mark.parametrize(
    ("text", "name", "target", "message"),
    [
        (DEEPSPEED, "ds.json", "deepspeed", "ds.json:4: zero_optimization.stage = 9: allowed: 0, 1, 2, 3"),
        ('{\n"bf16": true,\n"zero_optimization": {"stage": 2}}', "ds.json", "deepspeed", "ds.json:2: bf16 = True: al"),
        (DEEPSPEED.replace("\t", " "), "ds.yaml", "deepspeed", "ds.yaml:4: zero_optimization.stage = 9: allowed"),
        (
            "[model]\nname = 'llama3'\nflavor = '8B'\n[parallelism]\ntensor_parallel_degree = 'two'\n",
            "job.toml", "torchtitan-0.2", "job.toml:5: parallelism.tensor_parallel_degree = ",
        ),
        (
            "torchrun pretrain_gpt.py \\\n --num-layers 8 --hidden-size 64 \\\n --micro-batch-size none",
            "run.sh", "megatron", "run.sh:3: --micro-batch-size = none: allowed",
        ),
    ],
)  # fmt: skip
def test_lines_of_words(text: str, name: str, target: str, message: str) -> None:
    """By dotted key in configs, however they are indented, and by flag in scripts."""
    with pytest.raises(UserError) as caught:
        read(text, name, target)
    assert str(caught.value).startswith(message)


def test_a_file_that_the_text_names_has_its_own_lines(tmp_path) -> None:
    """A launch names its DeepSpeed JSON, in which the fault stands."""
    (tmp_path / "ds.json").write_text(DEEPSPEED)
    script = tmp_path / "run.sh"
    text = "deepspeed train.py --model_name_or_path gpt2 \\\n --per_device_train_batch_size 2 --deepspeed ds.json\n"
    with pytest.raises(UserError) as caught:
        read(text, str(script), "transformers")
    assert str(caught.value).startswith("ds.json:4: zero_optimization.stage = 9")


def test_a_word_on_several_lines_of_a_script_has_none() -> None:
    """Which of them was read is not said rather than guessed."""
    a, b = (f"{name}='--micro-batch-size none'" for name in "AB")
    text = f"{a}\n{b}\npretrain_gpt.py --num-layers 8 --hidden-size 64 $A $B"
    with pytest.raises(UserError) as caught:
        read(text, "run.sh", "megatron")
    assert str(caught.value).startswith("run.sh: --micro-batch-size = none")
