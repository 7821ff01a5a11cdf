"""Scripts that train in a loop of their own are refused with the plan in flags."""

import shlex

import pytest

import simpar.cli as cli
from simpar.errors import UserError
from simpar.frameworks.own_loops import LOOPS, loop_in
from simpar.preflight.given import given_file

MODEL = 'model = AutoModelForCausalLM.from_pretrained("mistralai/Mistral-7B-v0.1")\n'
CODES = {
    "Lightning's Trainer in code": "import lightning as L\ntrainer = L.Trainer(devices=8)\n",
    "a loop of its own on DeepSpeed": 'import deepspeed\ndeepspeed.initialize(config={"zero": {"stage": 2}})\n',
    "a loop of its own on Accelerate": "accelerator = Accelerator()\naccelerator.backward(loss)\n",
    "a loop of its own on PyTorch's FSDP": "from torch.distributed.fsdp import fully_shard\nfully_shard(model)\n",
    "a loop of its own on PyTorch's DDP": "model = DistributedDataParallel(model)\nloss.backward()\n",
    "a loop of its own": "loss.backward()\n",
}
PLACES = {"N": "8", "TOKENS": "1024", "SEQUENCES": "8", "GPU": "h100"}


def test_every_kind_of_loop_has_an_example():
    """Those of the table."""
    assert [each.name for each in LOOPS] == list(CODES)


@pytest.mark.parametrize("name", CODES)
def test_the_hint_is_taken_as_it_stands(name, tmp_path, capsys):
    """With its placeholders filled in, the command says a plan of the script's model."""
    (tmp_path / "train.py").write_text(MODEL + CODES[name])
    (tmp_path / "job.sh").write_text("torchrun --nproc-per-node 8 train.py --lr 1e-5\n")
    hints = []
    for file in ("train.py", "job.sh"):
        with pytest.raises(UserError, match=f"train.py: {name}, whose sizes are not read; allowed: ") as error:
            given_file(str(tmp_path / file))
        hints.append(str(error.value).partition("the plan as flags: simpar ")[2])
    assert hints[0] == hints[1]
    text = hints[0].replace("--global-batch SEQUENCES", "--global-batch 64")
    words = [PLACES.get(word, word) for word in shlex.split(text)]
    assert cli.run(words) == 0
    assert capsys.readouterr().out.startswith("mistral-7b (7.24 B) on 1 x dgx-h100 (8 h100-sxm-80gb): dp8")


def test_a_stage_that_the_code_writes_out_is_said():
    """Else it is asked for."""
    assert "--zero 2 " in str(loop_in(CODES["a loop of its own on DeepSpeed"]))
    assert "--zero STAGE " in str(loop_in("deepspeed.initialize(args)"))
    assert "--model MODEL " in str(loop_in("deepspeed.initialize(args)"))


@pytest.mark.parametrize(
    "code", ["x = 1\n", "import megatron.core\nloss.backward()\n", "from nemo.collections import llm\nfully_shard(m)\n"]
)
def test_others_are_no_such_scripts(code):
    """Code without a loop, and that of frameworks which are read."""
    assert loop_in(code) is None
