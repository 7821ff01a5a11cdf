"""Front ends that are known by name and not read."""

import pytest
import yaml

from simpar.errors import UserError
from simpar.preflight.given import given_text

SIZES = "--batch_size 8 --micro_batch_size 8 --hidden-size 4096 --num-attention-heads 32"


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (f"colossalai run --nproc_per_node 8 benchmark.py -p 3d {SIZES}", "ColossalAI"),
        (f"torchrun applications/Colossal-LLaMA/train.py {SIZES}", "ColossalAI"),
        ("python -m levanter.main.train_lm --config_path config/gpt2_small.yaml", "Levanter"),
        ("python -m src.maxdiffusion.train_wan src/maxdiffusion/configs/base_wan_14b.yml", "MaxDiffusion"),
        ("python3 -m benchmarks.benchmark_runner xpk --model_name=llama3_1_8b", "MaxText's benchmark runner"),
        (f"srun train_esm2 {SIZES} --num-nodes 2", "BioNeMo"),
        ("litgpt pretrain pythia-14m", "LitGPT"),
        ("python3 -m verl.trainer.main config=examples/config.yaml worker.actor.global_batch_size=128", "EasyR1"),
        ("uv run -m skyrl_train.entrypoints.main_base trainer.policy.model.path=a", "SkyRL"),
        ("python3 -m areal.launcher.local examples/math.py --config gsm8k.yaml", "AReaL"),
        ("python examples/start_rlvr_pipeline.py --config_path a", "ROLL"),
        ("torchrun train_fsdp2.py a.yaml --optimization.use_flash_attn True", "MindSpeed's FSDP2 back end"),
        ("python3 main.py training=gpt3/126m stages=[training] launcher_scripts_path=/x", "NeMo Framework Launcher"),
        (f"torchrun quickstart/finetuning.py --enable_fsdp --model_name a {SIZES}", "llama-cookbook"),
        ("torchrun -m apps.main.train config=apps/main/configs/llama_1B.yaml", "Lingua"),
    ],
)
def test_a_command_is_refused_by_name(command, name):
    """Even if its flags look like another's, unless a framework is named."""
    with pytest.raises(UserError, match="allowed: those of") as error:
        given_text(f"#!/bin/bash\n{command}\n", "job.sh")
    assert f"job.sh: a launch of {name}, which is not read" in str(error.value)


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (
            {
                "distributed_strategy": {"tensor_model_parallel_size": 8},
                "trainer": {"devices": 32},
                "model": {"encoder_seq_length": 8192, "num_layers": 32},
            },
            "Neuron's NxD Training",
        ),
        ({"model": {"d_model": 4096, "mlp_hidden_size": 22016, "block_type": "sequential"}, "fsdp": {}}, "OLMo"),
        ({"model": {"type": "llama"}, "trainer": {"num_train_steps": 10}}, "Levanter"),
        ({"run": {"model_type": "llm_finetuning_aws"}, "trainer": {"devices": 8}}, "SageMaker HyperPod"),
        ({"trainer": {"devices": 8}, "model": {"peft": {}, "backward_fetch_policy": "pre"}}, "SageMaker HyperPod"),
        ({"model_name": "pythia-160m", "train": {"micro_batch_size": 4}}, "LitGPT"),
        ({"distributed": {"tp_size": 2, "cp_size": 1}, "training": {}}, "Picotron"),
        ({"rlhf_type": "gkd", "micro_batch_size": 1, "train": {"gpus": 4}, "rollout": {"gpus": 4}}, "ms-swift's Ray"),
    ],
)
def test_a_config_is_refused_by_name(data, name):
    """Of others with the same sections, too."""
    with pytest.raises(UserError, match="which is not read; allowed") as error:
        given_text(yaml.safe_dump(data), "job.yaml", suffix=".yaml")
    assert f"a config of {name}, which" in str(error.value)


@pytest.mark.parametrize(
    ("text", "suffix", "name"),
    [
        ("from olmo_core.train import TrainerConfig\n", ".py", "OLMo-core"),
        ("SEQ_LEN = 2048\nparallel = dict(zero1=8)\n", ".py", "InternEvo"),
        ("[model]\ndim = 4096\n[distributed]\ndp_shard = 8\n", ".toml", "KempnerForge"),
        ("data: !include data/x.yaml\ntrainer:\n  mp: x\n", ".yaml", "Levanter"),
    ],
)
def test_other_files_are_refused_by_name(text, suffix, name):
    """Python by what it imports, TOML by its sections, YAML by its tags."""
    with pytest.raises(UserError, match=f"of {name}, which is not read"):
        given_text(text, f"job{suffix}", suffix=suffix)


def test_a_virtual_environment_is_no_reason():
    """What a script sources to set up its programs is not what is missing; another file is."""
    with pytest.raises(UserError, match=r"other\.py is no script that is known here"):
        given_text("source venv/bin/activate\npython other.py\n", "job.sh")
    with pytest.raises(UserError, match="no such file here"):
        given_text("source arguments.sh\npython other.py\n", "job.sh")
