"""nanoGPT's train.py and its configs: what a command trains, and what is taken from files."""

import pytest

from simpar.errors import UserError
from simpar.frameworks import read
from simpar.frameworks.nanogpt_read import is_config
from simpar.preflight.given import given_words


def test_a_config_that_is_shipped_and_options_behind_it():
    """Later words win; accumulation is of all ranks, so that the batch is the same on any number of them."""
    command = "torchrun --standalone --nproc_per_node=4 train.py config/train_shakespeare_char.py --batch_size=32"
    result = given_words([command])
    found = result.found
    assert (result.text.target, result.launch.world_size) == ("nanogpt", 4)
    assert found.plan.training == {"seq_len": 256, "global_batch": 32}
    assert (found.plan.micro_batch, found.plan.execution.fused_kernels) == (32, "compiled")
    assert found.config == {
        "model_type": "gpt2", "n_layer": 6, "n_head": 6, "n_embd": 384, "n_positions": 256, "vocab_size": 65,
        "resid_pdrop": 0.2, "attn_pdrop": 0.2, "embd_pdrop": 0.2,
    }  # fmt: skip


def test_a_config_of_ones_own(tmp_path):
    """Values that are assigned are worked out, words are accounted for; what is code is refused where it decides."""
    path = tmp_path / "mine.py"
    path.write_text(
        "import time\nrun = str(time.time())\ngradient_accumulation_steps = 5 * 8\nn_embd = 1024\nn_head=16\n"
    )
    result = given_words([str(path)])
    assert (result.text.target, result.found.plan.training) == ("nanogpt", {"seq_len": 1024, "global_batch": 480})
    assert result.found.config is not None
    assert (result.found.config["n_embd"], result.found.config["vocab_size"]) == (1024, 50304)
    assert not is_config("def f():\n    pass\nblock_size = 1\n")
    with pytest.raises(UserError, match=r"mine.py:1: batch_size = size\(\): allowed: a value"):
        read("batch_size = size()\nblock_size = 8\n", "mine.py", "nanogpt")


def test_a_changed_script_has_its_own_values(tmp_path):
    """What train.py assigns before it reads its arguments; one that is not here is taken for nanoGPT's, aloud."""
    script = tmp_path / "train.py"
    script.write_text("n_layer = 24\nbias = False\nexec(open('configurator.py').read())\nn_layer = 1\n")
    text = f"python {script} --compile=False --dtype=float16 --init_from=scratch"
    found = read(text, "run.sh", "nanogpt")
    assert found.config is not None
    assert (found.config["n_layer"], found.plan.numerics.precision) == (24, "fp16")
    assert any("taken for nanoGPT's" in note for note in read("python train.py --n_layer=2", "a", "nanogpt").notes)


def test_gpt2_is_finetuned_with_the_dropout_that_is_said():
    """1,600 features in 48 layers, and none dropped where nothing is said."""
    found = read("python train.py config/finetune_shakespeare.py", "run.sh", "nanogpt")
    assert found.config is not None
    assert (found.config["n_layer"], found.config["n_embd"], found.config["resid_pdrop"]) == (48, 1600, 0.0)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("--batch_size=32", "train.py is no script that is known here"),  # anybody's
        ("config/mine.py", "config/mine.py: no such file"),
        ("config/train_gpt2.py --eval_only=True", "trains nothing"),
        ("config/train_gpt2.py --init_from=gpt3", "init_from = gpt3: allowed: scratch"),
        ("config/train_gpt2.py --dtype=int8", "dtype = int8: allowed: float32"),
    ],
)
def test_what_is_refused(arguments, told):
    """In one line, by its name."""
    with pytest.raises(UserError, match=told):
        given_words([f"python train.py {arguments}"])


@pytest.mark.parametrize(
    "line",
    ["exec(open('other.py').read())", "if True:\n    n_layer = 6", "n_head, n_embd = 6, 384", "batch_size *= 2",
     "from other import *", "for n_layer in (6,):\n    pass"],
)  # fmt: skip
def test_code_that_may_set_what_decides_is_refused(line):
    """Nothing is run, so what it would set is not known."""
    with pytest.raises(
        UserError, match=r"config/own\.py:2: .*: may set what train\.py asks for; allowed: NAME = VALUE"
    ):
        read(f"n_layer = 12\n{line}\nblock_size = 256\n", "config/own.py", "nanogpt")
    told = read(
        "import time\nblock_size = 256\nprint(block_size)\nwandb_run_name = 'a' + str(time.time())\n", "a.py", "nanogpt"
    )
    assert told.plan.training["seq_len"] == 256
