"""A framework that is asked for its config: a package with the entry point of verl, which prints one as Hydra does."""

import pytest

from simpar.errors import UserError
from simpar.preflight.ask import ask_framework
from simpar.preflight.given import given_words

COMMAND = (
    "torchrun --nproc-per-node 8 -m verl.trainer.main_ppo data.train_batch_size=64 trainer.nnodes=1 "
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 actor_rollout_ref.model.path=Qwen/Qwen3-8B "
    "trainer.n_gpus_per_node=8"
)
CONFIG = {
    "data": {"train_batch_size": 96, "max_prompt_length": 512, "max_response_length": 512},
    "actor_rollout_ref": {
        "model": {"path": "Qwen/Qwen3-0.6B"},
        "actor": {"strategy": "fsdp", "ppo_mini_batch_size": 32, "ppo_micro_batch_size_per_gpu": 2},
        "rollout": {"n": 1},
    },
    "trainer": {"nnodes": 1, "n_gpus_per_node": 8},
}
PROGRAM = """
import json, os, sys, time
assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
assert sys.argv[-3:] == ["--cfg", "job", "--resolve"], "it would train"
assert "data.train_batch_size=64" in sys.argv
{answer}
"""


@pytest.fixture
def verl(tmp_path, monkeypatch):
    """Install a package that answers in some way."""

    def install(answer):
        package = tmp_path / "verl" / "trainer"
        package.mkdir(parents=True)
        (package / "main_ppo.py").write_text(PROGRAM.format(answer=answer))
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        return given_words([COMMAND])

    return install


def test_the_config_that_the_framework_resolves_is_read(verl):
    """Its model, not the one of the words that it lays a config over, with a note of what was asked."""
    given = verl(f"print(json.dumps({CONFIG!r}))")
    asked = ask_framework(given)
    assert (given.found.plan.model, asked.found.plan.model) == ("qwen3-8b", "qwen3-0.6b")
    assert asked.found.plan.micro_batch == 2
    assert asked.launch == given.launch
    assert asked.found.notes[0].startswith("Read as verl itself resolves it: python -m verl.trainer.main_ppo data.")


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("time.sleep(60)", "no answer within 0.5 s"),
        ("sys.exit('no such key')", "ended with 1 (no such key)"),
        ("print('{')", "answer of verl.yaml"),
    ],
)
def test_what_is_no_answer_is_said(answer, why, verl):
    """In one line: too late, an error of the framework, no config."""
    given = verl(answer)
    with pytest.raises(UserError) as error:
        ask_framework(given, 0.5 if "sleep" in answer else 60)
    assert why in str(error.value)
    assert "\n" not in str(error.value)


def test_a_framework_that_shows_no_config_is_not_started():
    """Megatron-LM only trains."""
    given = given_words(["torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 2 --tensor-model-parallel-size 2"])
    with pytest.raises(UserError, match="--ask: megatron shows no resolved config; allowed: nemo-1, verl"):
        ask_framework(given)
