"""Options of RL frameworks: every key is one of theirs, and their readers find the training layout again."""

import re
from pathlib import Path

import pytest

import simpar
from simpar.cli import run
from simpar.cli.export import OF_POST_TRAINING
from simpar.errors import UserError
from simpar.files import read_yaml
from simpar.frameworks import read
from simpar.posttraining.exports import TARGETS, export_post_training

KEYS = read_yaml((Path(__file__).parent / "rl_keys.yaml").read_text(), "rl_keys.yaml")
SPLIT = ("post_training.placement=split", "post_training.rollout.nodes=1", "post_training.synchrony.steps_off=1",
         "post_training.synchrony.in_flight=true")  # fmt: skip
CORE = {"plan.kind": "ddp", "plan.zero": 1, "plan.tp": 2, "plan.pp": 2, "stack": "megatron", "plan.recompute": "none"}


def made(target, *settings, flags=None, lossy=False):
    """The files for the shipped scenario with some keys set."""
    scenario = simpar.load_scenario("grpo-qwen2.5-7b-16-h100", flags or {}, settings)
    return export_post_training(scenario, target, lossy=lossy)


def keys_of(files):
    """Dotted keys of an export."""
    if "config.yaml" in files:
        data = read_yaml(files["config.yaml"], "config.yaml")
        return {key for key in flat(data) if key != "defaults"}
    words = re.findall(r"^  [+]*([\w.]+)=", files["command.sh"], re.MULTILINE)
    return {*words}


def flat(data, prefix=""):
    """Dotted keys of sections."""
    for key, value in data.items():
        yield from flat(value, f"{prefix}{key}.") if isinstance(value, dict) else [f"{prefix}{key}"]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("settings", [(), SPLIT])
@pytest.mark.parametrize("flags", [{}, CORE], ids=["sharded", "core"])
def test_every_key_is_one_of_the_framework(target, settings, flags):
    """As its configs of the commit that is named declare them; what vLLM is told has vLLM's names."""
    keys = keys_of(made(target, *settings, flags=flags, lossy=True).files)
    known = {*KEYS[target], *(f"{prefix}{each}" for prefix in KEYS[f"{target} vllm"] for each in KEYS["vllm"])}
    assert keys - known == set()
    assert len(keys) > 25


@pytest.mark.parametrize(("target", "name"), [("verl", "command.sh"), ("nemo-rl", "config.yaml")])
@pytest.mark.parametrize("flags", [{}, CORE, {**CORE, "plan.recompute": "full"}], ids=["sharded", "core", "recomputed"])
def test_readers_find_the_training_layout(target, name, flags):
    """Degrees, batch, context and recomputation come back as they were."""
    files = made(target, flags=flags).files
    text = files[name] if name != "command.sh" else files[name].split("\n", 2)[2].replace('"$@"', "")
    plan = read(text, name, target).plan
    scenario = simpar.load_scenario("grpo-qwen2.5-7b-16-h100", flags)
    assert (plan.mesh.tp, plan.mesh.pp) == (scenario.plan.mesh.tp or 1, scenario.plan.mesh.pp or 1)
    assert plan.data_parallel.zero == scenario.plan.data_parallel.zero
    assert plan.micro_batch == scenario.plan.micro_batch
    assert plan.training["seq_len"] == 16384
    assert plan.training["global_batch"] == 512
    assert plan.memory.recompute == scenario.plan.memory.recompute


def test_pools_and_synchrony_have_their_keys():
    """Nodes of both pools, the age of responses, and interruptions."""
    text = made("nemo-rl", *SPLIT).files["config.yaml"]
    data = read_yaml(text, "config.yaml")
    assert data["cluster"]["num_nodes"] == 3
    assert data["policy"]["generation"]["colocated"] == {
        "enabled": False,
        "resources": {"num_nodes": 1, "gpus_per_node": 8},
    }
    assert data["grpo"]["async_grpo"]["max_trajectory_age_steps"] == 1
    assert data["grpo"]["async_grpo"]["in_flight_weight_updates"] is True
    command = made("verl", *SPLIT).files["command.sh"]
    for each in ("trainer.nnodes=2", "rollout.nnodes=1", "async_training.staleness_threshold=1",
                 "async_training.trigger_parameter_sync_step=2", "async_training.partial_rollout=True"):  # fmt: skip
        assert f"  {each} \\\n" in command


@pytest.mark.parametrize(
    ("target", "settings", "said"),
    [
        ("verl", ("post_training.rollout.pp=2",), r"verl: rollouts with pp = 2"),
        ("nemo-rl", ("post_training.algorithm=ppo",), r"algorithm = ppo; allowed: grpo"),
        ("verl", ("post_training.weights.method=resharded",), r"cannot say weights.method = resharded \(--lossy"),
        (
            "nemo-rl",
            ("post_training.samples=12", "training.global_batch=256"),
            r"multiples of post_training.samples = 12",
        ),
        (
            "verl",
            ("post_training.synchrony.steps_off=1", "post_training.synchrony.in_flight=true"),
            "no colocated pools",
        ),
        *(
            (target, ("post_training.placement=hybrid", "post_training.rollout.nodes=1"), "has no placement hybrid")
            for target in ("verl", "nemo-rl")
        ),
    ],
)
def test_what_a_framework_cannot_say_is_refused(target, settings, said):
    """In one line, unless it may be lost."""
    with pytest.raises(UserError, match=said):
        made(target, *settings)


def test_the_command_line_exports(tmp_path, capsys):
    """Files in a folder, and notes."""
    assert {*OF_POST_TRAINING} == {*TARGETS}
    assert run(["export", "grpo-qwen2.5-7b-16-h100", "--to", "nemo-rl", "-o", str(tmp_path)]) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"config.yaml", "command.sh"}
    assert "note: qwen2.5-7b stands for the path of your checkpoint" in capsys.readouterr().out
    assert run(["export", "gpt2-laptop", "--to", "verl", "-o", str(tmp_path)]) == 2
    assert "no section post_training" in capsys.readouterr().err
