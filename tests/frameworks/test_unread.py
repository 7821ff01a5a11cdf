"""Front ends that are known by name and not read."""

import json

import pytest
import yaml

from simpar.errors import UserError
from simpar.preflight.given import given_text, given_words

SIZES = "--batch_size 8 --micro_batch_size 8 --hidden-size 4096 --num-attention-heads 32"


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (f"colossalai run --nproc_per_node 8 benchmark.py -p 3d {SIZES}", "ColossalAI"),
        (f"torchrun applications/Colossal-LLaMA/train.py {SIZES}", "ColossalAI"),
        ("python -m levanter.main.train_lm --config_path config/gpt2_small.yaml", "Levanter"),
        ("python -m src.maxdiffusion.train_wan src/maxdiffusion/configs/base_wan_14b.yml", "MaxDiffusion"),
        (
            "python run_flax_ner.py --model_name_or_path bert-base-cased",
            "transformers' scripts for Flax and TensorFlow",
        ),
        ("python run_t5_mlm_flax.py --model_type t5", "transformers' scripts for Flax and TensorFlow"),
        (
            "python examples/tensorflow/language-modeling/run_clm.py --model_name_or_path gpt2",
            "transformers' scripts for Flax and TensorFlow",
        ),
        ("mpirun -np 16 python examples/finetuning.py --base-model a --seq-length 8192", "llm-recipes (okoge-kaz)"),
        ("python3 -m benchmarks.benchmark_runner xpk --model_name=llama3_1_8b", "MaxText's benchmark runner"),
        (f"srun train_esm2 {SIZES} --num-nodes 2", "BioNeMo"),
        ("python3 -m verl.trainer.main config=examples/config.yaml worker.actor.global_batch_size=128", "EasyR1"),
        ("uv run -m skyrl_train.entrypoints.main_base trainer.policy.model.path=a", "SkyRL"),
        (
            "python3 training/main_sync_ppo.py allocation_mode=sglang.d4p1m1+d2p2m1 actor.path=a",
            "AReaL before its configs of one actor",
        ),
        (f"ray job submit -- python3 -m relax.entrypoints.train --global-batch-size 16 {SIZES}", "Relax"),
        ("torchrun --nproc_per_node=8 -m RL2.trainer.ppo actor.model_name=a actor.sp_size=2", "RL2"),
        ("uv run rl --trainer @ train.toml --orchestrator @ orch.toml --inference @ infer.toml", "prime-rl"),
        (
            "python examples/start_agentic_pipeline.py --config_path a",
            "ROLL's agentic pipelines, distillation, DPO and SFT",
        ),
        ("torchrun train_fsdp2.py a.yaml --optimization.use_flash_attn True", "MindSpeed's FSDP2 back end"),
        ("python3 main.py training=gpt3/126m stages=[training] launcher_scripts_path=/x", "NeMo Framework Launcher"),
        (
            "torchrun --standalone --nproc_per_node=8 -m scripts.chat_sft -- --run=x",
            "nanochat's stages behind base_train",
        ),
        ("torchrun --standalone --nproc_per_node=8 train_gpt.py", "modded-nanogpt"),
        (
            "torchrun --nproc_per_node 8 -m flame.train --job.config_file fla.toml --training.batch_size 32",
            "flame (fla-org)",
        ),
        ("torchrun --nproc-per-node 8 -m open_lm.main --model open_lm_1b --global-batch-size 64 --fsdp", "OpenLM"),
        ("torchrun --nproc_per_node=8 main_training_llama.py --model_variant=llama2_7b --batch_size=2", "fms-fsdp"),
        ("lightning run model --accelerator=cuda --devices=8 pretrain/tinyllama.py --devices 8", "TinyLlama"),
        ("python -m axlearn.common.launch_trainer_main --module=text.gpt.c4_trainer --config=a", "AXLearn"),
        ("python -m t5x.train --gin_file=x.gin", "T5X"),
        ("torchrun --standalone --nproc_per_node=8 modded-nanogpt/train_gpt2.py --depth 2", "modded-nanogpt"),
        ("python -u train_lm.py --config_path config/llama.yaml", "Levanter"),
        (f"bash -c 'torchrun -m xtuner.v1.train.cli.sft --config a.py {SIZES}'", "XTuner"),
        ("torchrun --nproc-per-node 8 tasks/train_vlm.py configs/qwen3.yaml", "VeOmni's tasks beside those on texts"),
        ("torchrun open_instruct/olmo_core_finetune.py --model_name_or_path a --max_seq_length 8", "OLMo-core"),
        ("torchrun train.py --max_context_width=8 --gradient_checkpointing=True", "AWS's example of FSDP (train.py)"),
        (
            "torchrun -m FlagEmbedding.finetune.embedder.decoder_only.base --model_name_or_path a --train_group_size 8",
            "trainers of embeddings (FlagEmbedding, Tevatron, E5)",
        ),
        (
            "deepspeed train.py --model_name_or_path a --per_device_train_batch_size 8 --q_max_len=32 --p_max_len=156",
            "trainers of embeddings (FlagEmbedding, Tevatron, E5)",
        ),
        (
            "python training/dist_clm_train.py --model-name a --num-layers 8 --seq-length 2048",
            "OpenChatKit's pipelines",
        ),
        ("torchrun medusa/train/train.py --model_name_or_path a --medusa_num_heads 3", "Medusa's heads"),
        ("accelerate launch -m eagle.train.main --basepath a --configpath b.json", "EAGLE's drafts"),
        ("torchrun torchrun_main.py --model_config configs/llama_7b.json --batch_size 16", "GaLore's torchrun_main.py"),
        ("accelerate launch train_text_to_image_lora.py --pretrained_model_name_or_path a --max_length 8", "diffusers"),
        ("torchrun llm_studio/train.py -Y cfg.yaml", "H2O LLM Studio"),
        ("ludwig train --config model.yaml", "Ludwig"),
        ("mlx_lm.lora --model a --train --batch-size 4", "MLX LM"),
        ("python run_mindformer.py --config a.yaml --run_mode finetune", "MindFormers"),
        ("python -m scripts.performance.llm.pretrain_llama3_8b -g h100 -c fp8 -ng 8", "NeMo 2's performance scripts"),
        ("torchrun -m apps.mamba.train config=apps/mamba/configs/mamba_1B.yaml", "Lingua's other apps"),
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
        ({"model": {"type": "llama"}, "trainer": {"num_train_steps": 10}}, "Levanter"),
        ({"run": {"model_type": "llm_finetuning_aws"}, "trainer": {"devices": 8}}, "SageMaker HyperPod"),
        ({"trainer": {"devices": 8}, "model": {"peft": {}, "backward_fetch_policy": "pre"}}, "SageMaker HyperPod"),
        ({"per_device_batch_size": 1, "diffusion_scheduler_config": {}, "remat_policy": "FULL"}, "MaxDiffusion"),
        ({"experiment_name": "a", "trial_name": "b", "model": {"path": "c"}}, "AReaL before its configs of one actor"),
        (
            {"architecture": {}, "llm_backbone": "a", "problem_type": "b", "training": {"batch_size": 3}},
            "H2O LLM Studio",
        ),
        ({"train": {"seq_length": 64, "batch_size": 16}, "tokenizer": {}, "scheduler": {}, "method": {}}, "trlX"),
        ({"max_steps": 9, "model": {"name": "a"}, "data": {"batch_size": 8, "micro_batch_size": 1}}, "prime-rl"),
        ({"teacher": {"kind": "hf"}, "loss_functions": [], "sequence_length": 8192}, "DistillKit"),
        ({"job_name": "a", "pipeline": {"task_0": {"script": "b.sh"}}}, "Model Optimizer's launcher"),
        (
            {
                "recipe": {"_target_": "megatron.bridge.recipes.llama.llama3_8b_pretrain_config", "peft": "lora"},
                "train": {"micro_batch_size": 1, "global_batch_size": 8},
                "model": {"tensor_model_parallel_size": 4},
            },
            "NVIDIA's Nemotron (overrides of a recipe of Megatron-Bridge)",
        ),
        ({"input_features": [], "output_features": [], "adapter": {"type": "lora"}}, "Ludwig"),
        ({"model": "a", "train": True, "iters": 600, "num_layers": 16, "batch_size": 4}, "MLX LM"),
        ({"runner_config": {"batch_size": 4}, "context": {}, "parallel_config": {}}, "MindFormers"),
        ({"model_name_or_path": "a", "train_group_size": 8}, "trainers of embeddings (FlagEmbedding, Tevatron, E5)"),
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
        ("files = 'data/fineweb10B/fineweb_train_*.bin'\nimport torch\n", ".py", "modded-nanogpt"),
        ("from mmengine.config import read_base\nmax_length = 2048\n", ".py", "XTuner"),
        ("SEQ_LEN = 2048\nparallel = dict(zero1=8)\n", ".py", "InternEvo"),
        ("[model]\ndim = 4096\n[distributed]\ndp_shard = 8\n", ".toml", "KempnerForge"),
        ("from trl import (\n    GRPOConfig,\n    GRPOTrainer,\n)\n", ".py", r"TRL's trainers that generate \(.*\)"),
        ("max_steps = 9\n[orchestrator]\nx = 1\n[trainer]\nx = 1\n[inference]\nx = 1\n", ".toml", "prime-rl"),
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


@pytest.mark.parametrize(
    ("data", "suffix"),
    [
        ({"model_max_length": 4096, "tokenizer_class": "LlamaTokenizerFast"}, ".json"),
        ({"micro_batch_size": 1, "optimizer": {"lr": 1e-4}}, ".yaml"),
        ({"trainer": {"devices": 8}, "tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 1}, ".yaml"),
        ({"train_batch_size": 1024, "max_prompt_length": 512, "train_files": "a"}, ".yaml"),
        ({"num_processes": 16, "download": True}, ".yaml"),
        ({"project": {"name": "videollama"}, "tool": {"ruff": {"line-length": 120}}}, ".toml"),
        ({"max_steps": 9, "optim": {"lr": 1e-4}}, ".toml"),
    ],
)
def test_a_word_that_several_have_names_none(data, suffix):
    """A batch, axes of what generates text, a tokenizer's length, a number of processes."""
    as_toml = "".join(f"[{key}]\nx = 1\n" for key in data)
    text = {".json": json.dumps(data), ".yaml": yaml.safe_dump(data), ".toml": as_toml}[suffix]
    with pytest.raises(UserError, match="no config that is known here"):
        given_text(text, f"job{suffix}", suffix=suffix)


def test_a_script_that_is_here_is_refused_by_what_it_imports(tmp_path):
    """Its name says nothing; one that is not here, or imports nothing of these, is only not known."""
    (tmp_path / "OLMo2-1B.py").write_text("import sys\nfrom olmo_core.internal.experiment import main\n")
    (tmp_path / "plain.py").write_text("import torch\n")
    for script, told in (("OLMo2-1B", "is a file of OLMo-core, which is not read"), ("plain", "is no script that is")):
        file = tmp_path / "run.sh"
        file.write_text(f"torchrun ./{script}.py train a --train_module.rank_microbatch_size=16384\n")
        with pytest.raises(UserError, match=told):
            given_words([str(file)])
