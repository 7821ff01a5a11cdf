"""Front ends that are known by name and not read: they are refused, and never taken for another that looks alike."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from pathlib import PurePath
from typing import Any

from simpar.dataclass import dataclass


def _no_config(_: Mapping[str, Any]) -> bool:
    return False


def _no_command(_: Sequence[str]) -> bool:
    return False


@dataclass(frozen=True)
class Unread:
    """A front end by its name: the words of its commands, the keys of its configs and what its other files say.

    ``words`` is a pattern of a word that a command starts, ``argument`` one of any of its words, ``text`` one of a
    Python file or a TOML; "" for none. ``command`` tells whether its words, from the script on, are of it.
    """

    name: str
    words: str = ""
    config: Callable[[Mapping[str, Any]], bool] = field(default=_no_config)
    text: str = ""
    argument: str = ""
    command: Callable[[Sequence[str]], bool] = field(default=_no_command)


def _in(section: str, *keys: str) -> Callable[[Mapping[str, Any]], bool]:
    """Whether a section has one of the keys."""
    return lambda data: isinstance(part := data.get(section), Mapping) and bool(set(keys) & set(map(str, part)))


def _all(*keys: str) -> Callable[[Mapping[str, Any]], bool]:
    return lambda data: set(keys) <= set(map(str, data))


def _imports(names: str) -> str:
    """The pattern of an import of one of the packages."""
    return rf"^\s*(from|import) ({names})\b"


def _script(name: str, flag: str | None = None) -> Callable[[Sequence[str]], bool]:
    """Whether the words from a script on are one of a name with a flag; without words if that is None."""

    def starts(words: Sequence[str]) -> bool:
        is_its = bool(words) and re.fullmatch(name, PurePath(words[0]).name) is not None
        return is_its and (len(words) == 1 if flag is None else flag in (word.partition("=")[0] for word in words))

    return starts


UNREAD = (
    Unread("ColossalAI", r"colossalai|.*[Cc]olossal[-\w]*/.*\.py", text=_imports("colossalai")),
    Unread("OLMo", text=_imports("olmo")),
    Unread("OLMo-core", r"(.*/)?(olmo_core_finetune|OLMo[\w.]*-sft|Olmo[\w.-]*-SFT)\.py", text=_imports("olmo_core")),
    Unread("Levanter", r"(.*/)?levanter(\.main\..*|/.*\.py)|.*/train_lm\.py", text=_imports("levanter"),
           config=_in("trainer", "num_train_steps", "tracker", "per_device_parallelism", "model_axis_size", "mp"),
           command=_script(r"(train|lora|eval)_lm\.py", "--config_path")),
    Unread("modded-nanogpt", r".*modded-nanogpt.*\.py", text=r"fineweb10B/fineweb_train_|modded-nanogpt",
           command=_script(r"train_gpt(_medium|_simple)?\.py")),
    Unread("KempnerForge", r".*kempnerforge.*",
           text=_imports("kempnerforge") + r"|\[distributed\][^\[]*\bdp_(shard|replicate)\b"),
    Unread("Neuron's NxD Training", config=lambda data: (
        "model" in data and isinstance(data.get("distributed_strategy"), Mapping))),
    Unread("SageMaker HyperPod", config=lambda data: (_in("run", "model_type")(data) and "trainer" in data) or (
        _in("model", "use_smp_model", "auto_wrap_policy", "backward_fetch_policy")(data))),
    Unread("NeMo 2's performance scripts",
           r"(.*/)?scripts[./]performance[./]llm[./](pretrain|finetune|mlperf)_\w+(\.py)?"),
    Unread("NeMo Framework Launcher", argument=r"launcher_scripts_path=.*|stages=\[?\w+\]?"),
    Unread("InternEvo", text=_imports("internlm|internevo") + r"|^parallel = dict\("),
    Unread("nanochat's stages behind base_train", r"(.*/)?scripts[./](mid_train|chat_sft|chat_rl)(\.py)?"),
    Unread("VeOmni's tasks beside those on texts", r"tasks/(\w+/)?train_(?!text\.|torch\.)\w+\.py|veomni\..*"),
    Unread("XTuner", r"(.*/)?xtuner([./].*)?", text=_imports("xtuner|mmengine")),
    Unread("draft models of NeMo Automodel", config=lambda data: {"recipe", "recipe_args"} <= set(data)),
    Unread("AWS's example of FSDP (train.py)", argument=r"--max_context_width(=.*)?"),
    Unread("ms-swift's Ray", config=lambda data: "rlhf_type" in data and isinstance(data.get("train"), Mapping)),
    Unread("MindSpeed's FSDP2 back end", r"train_fsdp2\.py|mindspeed_llm\.fsdp2.*"),
    Unread("MaxDiffusion", r"(.*\.)?maxdiffusion\..*|.*maxdiffusion/.*\.py",
           config=lambda data: "per_device_batch_size" in data and bool(
               {"unet_checkpoint", "diffusion_scheduler_config", "wan_transformer_pretrained_model_name_or_path",
                "flux_name", "timestep_bias"} & set(data))),
    Unread("MaxText's benchmark runner", r"(.*\.)?benchmark_runner(\.py)?"),
    Unread("BioNeMo", r"train_(esm2|evo2|geneformer|amplify)(\.py)?|bionemo[.\-].*"),
    Unread("Lingua's other apps", r"apps\.(?!main\b)\w+\.train"),
    Unread("EasyLM", r"EasyLM\..*"),
    Unread("flame (fla-org)", r"flame\.train", config=lambda data: (
        "model" in data and _in("training", "skip_nan_inf", "context_len")(data))),
    Unread("OpenLM", r"open_lm(\.main|/main\.py)"),
    Unread("fms-fsdp", r"main_training(_\w+)?\.py"),
    Unread("TinyLlama", r"tinyllama(_\w+)?\.py"),
    Unread("AXLearn", r"axlearn\..*"),
    Unread("T5X", r"t5x\..*|(.*/)?t5x/train\.py"),
    Unread("PaddleNLP", r"paddle\.distributed\.launch|.*paddlenlp.*"),
    Unread("fairseq2", r"fairseq2"),
    Unread("EasyR1", r"verl\.trainer\.main"),
    Unread("SkyRL", r"(skyrl_train|skyrl)\..*"),
    Unread("AReaL before its configs of one actor", r"realhf\..*|(.*/)?main_a?sync_ppo\.py",
           text=_imports(r"areal[\w.]*|realhf[\w.]*"), argument=r"allocation_mode=\w+\.d\d.*",
           config=lambda data: _all("experiment_name", "trial_name")(data) and not isinstance(
               data.get("actor"), Mapping)),
    Unread("Relax", r"relax\.entrypoints\..*"),
    Unread("RL2", r"RL2\..*"),
    Unread("TRL's trainers that generate (GRPO, RLOO, PPO)",
           text=r"^\s*(from|import) trl\b[^#]*?\b(GRPO|RLOO|PPO)(Config|Trainer)\b"),
    Unread("prime-rl", r"(uv_)?prime_rl\..*", argument=r"--orchestrator", config=lambda data: (
        {"orchestrator", "trainer"} <= set(data) or ("max_steps" in data and _in("model", "name")(data) and (
            _in("data", "micro_batch_size", "batch_size", "type", "pack_function")(data))))),
    Unread("NVIDIA's Nemotron (overrides of a recipe of Megatron-Bridge)", r"nemotron", config=lambda data: (
        _in("recipe", "_target_")(data) and str(data["recipe"]["_target_"]).startswith("megatron.bridge."))),
    Unread("DistillKit", r"distillkit", config=lambda data: _in("teacher", "kind")(data) and "loss_functions" in data),
    Unread("Model Optimizer's launcher", config=lambda data: (
        "job_name" in data and _in("pipeline", "task_0")(data))),
    Unread("ROLL's agentic pipelines, distillation, DPO and SFT",
           r".*/start_(agentic|dpo|sft|distill|onpolicy)\w*_pipeline\.py",
           config=lambda data: "train_env_manager" in data or _all("student_train", "teacher")(data)),
    Unread("trainers of embeddings (FlagEmbedding, Tevatron, E5)", r"(FlagEmbedding|tevatron)\..*",
           argument=r"--?(train_group_size|train_n_passages|(query|passage|q|p)_max_len|sentence_pooling_method)(=.*)?",
           config=lambda data: bool({"train_group_size", "train_n_passages", "passage_max_len"} & set(data))),
    Unread("OpenChatKit's pipelines", r"(.*/)?dist_(clm|prefixlm)_train\.py"),
    Unread("Medusa's heads", argument=r"--medusa_num_(heads|layers)(=.*)?"),
    Unread("EAGLE's drafts", r"eagle\.train\..*|(.*/)?eagle/train/.*\.py"),
    Unread("GaLore's torchrun_main.py", r"torchrun_main\.py"),
    Unread("transformers' scripts for Flax and TensorFlow",
           r"run_(\w+_)?(flax|tf)(_\w+)?\.py|run_clm_mp\.py|.*(^|/)examples/(flax|tensorflow)/.*\.py"),
    Unread("llm-recipes (okoge-kaz)", command=lambda words: (
        _script("finetuning.py", "--base-model")(words))),
    Unread("diffusers", r"(train_(text_to_image|dreambooth|controlnet|unconditional|instruct_pix2pix|custom_diffusion|"
                        r"lcm_distill|t2i_adapter)\w*|textual_inversion\w*)\.py"),
    Unread("H2O LLM Studio", r".*llm_studio/train\.py",
           config=_all("architecture", "llm_backbone", "problem_type")),
    Unread("trlX", text=_imports("trlx"), config=lambda data: (
        _in("train", "total_steps", "seq_length")(data) and "tokenizer" in data and "scheduler" in data)),
    Unread("Ludwig", r"ludwig", config=_all("input_features", "output_features")),
    Unread("MLX LM", r"mlx_lm(\..*)?", config=lambda data: {"iters", "model"} <= set(data) and bool(
        {"lora_layers", "num_layers", "lora_parameters", "fine_tune_type"} & set(data))),
    Unread("MindFormers", r"run_mindformer\.py", config=_all("runner_config", "context")),
)  # fmt: skip
"""In the order in which they are asked, before the readers."""


def unread_command(words: Sequence[str]) -> str | None:
    """The front end that a command starts and that is not read; None if none is known."""
    script = next((at for at, word in enumerate(words) if word.endswith(".py")), len(words) - 1)
    started = [word for word in words[: script + 1] if not word.startswith("-")]
    for each in UNREAD:
        if each.words and any(
            re.fullmatch(each.words, name) for word in started for name in (word, PurePath(word).name)
        ):
            return each.name
        if each.argument and any(re.fullmatch(each.argument, word) for word in words):
            return each.name
        if each.command(words[script:]):
            return each.name
    return None


def unread_config(data: Mapping[str, Any]) -> str | None:
    """The front end whose config a mapping is and that is not read; None if none is known."""
    return next((each.name for each in UNREAD if each.config(data)), None)


def unread_text(text: str) -> str | None:
    """The front end whose file in Python or TOML this is and that is not read; None if none is known."""
    return next((each.name for each in UNREAD if each.text and re.search(each.text, text, re.MULTILINE)), None)
