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
NARROW = ("post_training.rollout.precision=fp8_blockwise", "post_training.passes.reference=false",
          "post_training.passes.critic=qwen2.5-1.5b")  # fmt: skip
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
@pytest.mark.parametrize("settings", [(), SPLIT, NARROW])
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


def test_a_critic_without_experts_has_no_expert_parallelism():
    """Megatron refuses it for dense models; the mixture that is trained has it."""
    flags = {**CORE, "plan.tp": 1, "plan.ep": 8, "model": "olmoe-1b-7b", "training.seq_len": 4096}
    short = [f"post_training.lengths.{each}" for each in ("prompt.mean=100", "prompt.p99=200", "response.mean=500")]
    others = ("post_training.algorithm=ppo", NARROW[2], *short, "post_training.lengths.response.p99=2000")
    text = made("verl", *others, flags=flags, lossy=True).files["command.sh"]
    assert "actor.megatron.expert_model_parallel_size=8" in text
    assert "critic.megatron.expert_model_parallel_size=1" in text


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


def test_a_critic_is_trained_in_the_layout_of_the_policy():
    """Without its words verl would train one of another model, in a layout of its own."""
    ppo = ("post_training.algorithm=ppo",)
    for flags in ({}, {**CORE, "plan.recompute": "full"}):
        words = re.findall(r"^  (\S+?)=(\S+) ", made("verl", *ppo, flags=flags).files["command.sh"], re.MULTILINE)
        said = {key.lstrip("+"): value for key, value in words}
        assert said["critic.model.path"] == said["actor_rollout_ref.model.path"]
        actor = {key.removeprefix("actor_rollout_ref.actor."): value for key, value in said.items()}
        for key in ("strategy", "ppo_max_token_len_per_gpu", *(key for key in actor if key.startswith("megatron."))):
            assert said[f"critic.{key}"] == actor[key]
    assert "critic" not in made("verl").files["command.sh"]


def test_eight_bits_are_said_as_the_frameworks_say_them():
    """Weights by blocks in both; NeMo-RL asks for corrected ratios, and has its own key for the cache."""
    narrow = "post_training.rollout.precision=fp8_blockwise"
    assert "rollout.quantization=fp8 " in made("verl", narrow).files["command.sh"]
    data = read_yaml(made("nemo-rl", narrow).files["config.yaml"], "config.yaml")
    assert data["policy"]["generation"]["vllm_cfg"]["precision"] == "fp8"
    assert data["loss_fn"]["use_importance_sampling_correction"] is True
    cache = "post_training.rollout.engine.cache_dtype=fp8"
    flags = {**CORE, "plan.pp": 1}
    data = read_yaml(made("nemo-rl", narrow, cache, flags=flags).files["config.yaml"], "config.yaml")
    assert data["policy"]["generation"]["vllm_cfg"]["kv_cache_dtype"] == "fp8"
    assert "kv_cache_dtype=fp8 " in made("verl", cache).files["command.sh"]


@pytest.mark.parametrize(("target", "name"), [("verl", "command.sh"), ("nemo-rl", "config.yaml")])
def test_dtypes_of_states_come_back(target, name):
    """By vLLM's own word; nothing is said of what is usual."""
    text = made(target, "post_training.rollout.states.dtype=fp32").files[name]
    text = text if name != "command.sh" else text.split("\n", 2)[2].replace('"$@"', "")
    assert read(text, name, target).rollout.section["rollout"]["states"] == {"dtype": "fp32"}
    assert "mamba" not in made(target).files[name]


@pytest.mark.parametrize(
    ("target", "settings", "said"),
    [
        (
            "nemo-rl",
            ("post_training.rollout.engine.cache_dtype=fp8",),
            r"cache_dtype = fp8; allowed: bf16, or on policy",
        ),
        ("verl", ("plan.precision=fp32",), r"verl: plan.precision = fp32; allowed: bf16 or fp16"),
        ("nemo-rl", ("plan.precision=fp8",), r"plan.precision = fp8: allowed in exports of RL steps: bf16"),
        ("verl", ("post_training.rollout.precision=fp8",), r"cannot say rollout.precision = fp8 \(both frameworks"),
        ("verl", ("post_training.passes.reward=qwen2.5-1.5b",), r"cannot say passes.reward = qwen2.5-1.5b"),
        ("nemo-rl", ("post_training.passes.old_policy=false",), r"cannot say passes.old_policy = false"),
        ("nemo-rl", ("post_training.passes.critic=qwen2.5-1.5b",), r"cannot say passes.critic = qwen2.5-1.5b"),
        ("verl", ("post_training.rollout.engine.graph_tokens=256",), r"cannot say rollout.engine.graph_tokens = 256"),
        ("verl", ("post_training.rollout.states.shared=true",), r"cannot say rollout.states.shared = true"),
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


def test_padding_and_passes_have_their_keys():
    """Packed by tokens, or samples of a micro-batch; passes in micro-batches of their own."""
    padded = ("post_training.lengths.padding=context", "post_training.passes.micro_batch=4")
    command = made("verl", *padded).files["command.sh"]
    for each in ("actor_rollout_ref.model.use_remove_padding=False", "actor_rollout_ref.actor.use_dynamic_bsz=False",
                 "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1",
                 "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4"):  # fmt: skip
        assert f"  {each} \\\n" in command
    assert "log_prob_max_token_len_per_gpu=65536" in made("verl", padded[1]).files["command.sh"]
    data = read_yaml(made("nemo-rl", "post_training.lengths.padding=longest", padded[1]).files["config.yaml"], "a")
    assert (data["policy"]["sequence_packing"]["enabled"], data["policy"]["logprob_batch_size"]) == (False, 4)
    with pytest.raises(UserError, match="padding = longest"):
        made("verl", "post_training.lengths.padding=longest")
    with pytest.raises(UserError, match="padding = context"):
        made("nemo-rl", padded[0])


def test_the_command_line_exports(tmp_path, capsys):
    """Files in a folder, and notes."""
    assert {*OF_POST_TRAINING} == {*TARGETS}
    assert run(["export", "grpo-qwen2.5-7b-16-h100", "--to", "nemo-rl", "-o", str(tmp_path)]) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"config.yaml", "command.sh"}
    assert "note: qwen2.5-7b stands for the path of your checkpoint" in capsys.readouterr().out
    assert run(["export", "gpt2-laptop", "--to", "verl", "-o", str(tmp_path)]) == 2
    assert "no section post_training" in capsys.readouterr().err
