"""Commands of Megatron-Bridge that name a recipe: its training and performance launchers."""

import ast
import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from simpar import files
from simpar.errors import UserError
from simpar.frameworks.overrides import assigned
from simpar.frameworks.reader import value_of
from simpar.frameworks.shell_untold import how_to_give
from simpar.frameworks.shell_words import UNKNOWN
from simpar.frameworks.words import ReadWords, WordTable, is_off

OVER = "comm_overlap."

SECTIONS = frozenset((
    "model", "train", "validation", "optimizer", "optimizer_config_override_provider", "scheduler", "ddp", "dataset",
    "tokenizer", "logger", "checkpoint", "rng", "dist", "rerun_state_machine", "profiling", "comm_overlap",
    "mixed_precision", "peft", "straggler", "nvrx_straggler", "inprocess_restart", "ft", "tensor_inspect", "inference",
))  # fmt: skip
"""Sections of a Megatron-Bridge config (``training/config.py``, ConfigContainer)."""
TELLING = {
    "train": ("train_iters", "global_batch_size", "micro_batch_size", "manual_gc"),
    "model": ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size", "seq_length"),
}  # fmt: skip
"""Fields by which a YAML of such sections is one of Bridge's."""
LAUNCHERS = ("train.sh", "run_recipe.py", "setup_experiment.py", "run_script.py", "launch_with_nemo_run.py")
FIELDS = {
    "train.global_batch_size": ("--global_batch_size", "-gb"), "train.micro_batch_size": ("--micro_batch_size", "-mb"),
    "dataset.seq_length": ("--seq_length", "-sl"), "model.tensor_model_parallel_size": ("--tensor_model_parallel_size",
    "-tp"), "model.pipeline_model_parallel_size": ("--pipeline_model_parallel_size", "-pp"),
    "model.context_parallel_size": ("--context_parallel_size", "-cp"),
    "model.virtual_pipeline_model_parallel_size": ("--virtual_pipeline_model_parallel_size", "-vp"),
    "model.expert_model_parallel_size": ("--expert_model_parallel_size", "-ep"),
    "model.expert_tensor_parallel_size": ("--expert_tensor_parallel_size", "-etp", "-et"),
    "model.pipeline_model_parallel_layout": ("--pipeline_model_parallel_layout",),
    "model.cuda_graph_impl": ("--cuda_graph_impl",), "model.cuda_graph_scope": ("--cuda_graph_scope",),
    "model.moe_flex_dispatcher_backend": ("--moe_flex_dispatcher_backend",),
}  # fmt: skip
"""Flags of both launchers for fields (``scripts/training/run_recipe.py``, ``scripts/performance``)."""
THE_VALUE = object()
SWITCHED: dict[tuple[str, ...], dict[str, Any]] = {
    ("--use_megatron_fsdp",): {"ddp.use_megatron_fsdp": True, "ddp.keep_fp8_transpose_cache": False,
                               "ddp.data_parallel_sharding_strategy": "optim_grads_params"},
    ("--nccl_ub",): {"ddp.nccl_ub": True, "ddp.average_in_collective": False},
    ("--moe_a2a_overlap",): {f"{OVER}overlap_moe_expert_parallel_comm": True, f"{OVER}delay_wgrad_compute": True,
                             "model.moe_shared_expert_overlap": False},
    ("--recompute_num_layers", "-rl"): {"model.recompute_granularity": "full", "model.recompute_method": "block",
                                        "model.recompute_num_layers": THE_VALUE},
    ("--recompute_modules",): {"model.recompute_granularity": "selective", "model.recompute_modules": THE_VALUE},
    ("--activation_offload_layers", "-ol"): {"model.cpu_offloading": True, "model.cpu_offloading_weights": False,
                                             "model.cpu_offloading_num_layers": THE_VALUE},
}  # fmt: skip
"""What flags of the performance launcher set, several fields each, where they are on
(``scripts/performance/utils/overrides.py``)."""
LISTS = ("model.recompute_modules", "model.cuda_graph_scope")
"""Fields whose flags are lists, with commas."""
TENSOR, PIPELINE, VIRTUAL = (f"model.{each}_model_parallel_size" for each in ("tensor", "pipeline", "virtual_pipeline"))
RECIPE, MODEL = ("--recipe",), ("--model",)
FAMILY, STEM = ("-m", "--model_family_name"), ("-mr", "--model_recipe_name")
NAMING = (
    RECIPE, MODEL, FAMILY, STEM, ("--mode", "--task"), ("-g", "--gpu"), ("-c", "--compute_dtype"),
    ("-cv", "--config_variant"), ("-ng", "--num_gpus", "--nodes", "--devices"),
    ("-gn", "--gpus-per-node", "--gpus_per_node"),
)  # fmt: skip
"""Flags that name a recipe, or say how many ranks are started."""
SHORT = {
    "-a": "--account", "-p": "--partition", "-t": "--time_limit", "-i": "--container_image", "-d": "--dryrun",
    "-ms": "--max_steps", "-nh": "--nemo_home", "-cm": "--custom_mounts", "-ce": "--custom_env_vars", "-E": "--env",
    "-cs": "--custom_srun_args", "-cb": "--custom_bash_cmds", "-vb": "--enable_vboost", "-lgc": "--lock_gpu_freq",
    "-lmc": "--peak_mem_clk", "-en": "--enable_nsys", "-pyp": "--pytorch_profiler", "-mh": "--record_memory_history",
    "-wdk": "--wandb_key", "-wdp": "--wandb_project_name", "-wde": "--wandb_entity_name",
    "-wdj": "--wandb_experiment_name", "-wds": "--wandb_save_dir", "-l": "--log_dir",
}  # fmt: skip
"""Short names of other flags (``scripts/performance/argument_parser.py``)."""
LAUNCH_WORDS = WordTable(
    idle=(
        "domain", "use_recipes", "nemo_home", "detach", "max_retries", "dryrun", "dry_run", "max_steps", "lr",
        "min_lr", "distributed_timeout_minutes", "warmup_iters", "pretrained_checkpoint", "save_*", "load_*",
        "most_recent_k", "c4_*", "dataset_*", "index_mapping_dir", "head_only", "tokenizer_*", "vocab_size",
        "hf_token", "offline", "account", "partition", "time_limit", "time", "preempt_time", "container_image",
        "custom_*", "env", "gres", "additional_slurm_params", "packager", "enable_pct_binding", "kubeflow_*", "csp",
        "*_nsys", "export_nsys_*", "pytorch_profiler", "profiling_*", "nsys_*", "record_memory_history", "wandb_*",
        "log_dir", "dump_env", "list_config_variants", "is_long_convergence_run", "retry_on_testing_failure",
        "golden_values_path", "*_threshold", "skip_first_percent_time", "*_loss_tolerance", "step_func",
        "no_gpu_resource_request", "mount", "srun_arg", "experiment_name", "submission_dry_run", "wait", "local",
        "script", "launcher", "ssh_tunnel", "host", "user", "remote_job_dir", "identity", "tail_logs", "dataset",
    ),
    deciding={
        **dict.fromkeys(("hidden_size", "num_layers", "num_moe_experts", "first_k_dense_replace"),
                        "another model than the recipe's: time and memory"),
        "optimizer_type": "another optimizer than the recipe's: memory and time",
        "use_tokendrop": "tokens beyond a capacity are dropped: time of experts",
        "deterministic": "kernels with a fixed order of sums: time",
        "packed_sequence": "documents that are packed into sequences: time",
        "data": "documents of other data than the recipe's: time",
        **dict.fromkeys(("lock_gpu_freq", "peak_mem_clk", "enable_vboost"), "the device's clocks: time"),
    },
)  # fmt: skip
"""Flags of the launchers that set no field of a plan."""
MODES = {"pretrain": "pretrain", "sft": "sft", "lora": "peft"}
PACKAGES = ("perf_recipes", "recipes")
"""Folders of recipes; of names in both, the first has them."""


def overrides_alone(data: Mapping[str, Any]) -> str | None:
    """What to do with a YAML that is values over a recipe of Bridge, which it does not name; None for other files."""
    parts = {name: data.get(name) for name in TELLING}
    named = [
        f"{name}.{key}={part[key]}"
        for name, part in parts.items() if isinstance(part, Mapping)
        for key in TELLING[name] if key in part
    ]  # fmt: skip
    if not named or not set(map(str, data)) <= SECTIONS:
        return None
    how = f"simpar check -- python run_recipe.py --recipe NAME {' '.join(named)} ..."
    told = "values over a recipe of Megatron-Bridge, which it does not name"
    return f"{told}; allowed: the recipe with these as words behind it: {how}, or a recipe as FILE.py:RECIPE"


def starts(words: Sequence[str]) -> bool:
    """Whether a command is one of Bridge's launchers, with a recipe or a model."""
    named = any(value_of(words, each) for each in (RECIPE, STEM)) or (value_of(words, MODEL) and "--mode" in words)
    return bool(named) and any(_is_launcher(word) for word in words)


def _is_launcher(word: str) -> bool:
    """One of Bridge's, or a copy of one (``custom_setup_experiment.py``)."""
    name = PurePath(word).name
    return name in LAUNCHERS or name.endswith(("_setup_experiment.py", "_run_recipe.py"))


def recipe_of(words: Sequence[str], source: str) -> str:
    """The name of the recipe that a command starts. Raises UserError for a mode without a plan."""
    if recipe := value_of(words, RECIPE):
        return recipe
    if model := value_of(words, MODEL):
        mode = str(value_of(words, ("--mode",)))
        return f"{model}_{MODES[files.choose(mode, MODES, f'--mode of {source}')]}_config"
    stem, task = value_of(words, STEM), value_of(words, ("--task",)) or "pretrain"
    ranks, device = value_of(words, ("-ng", "--num_gpus")), value_of(words, ("-g", "--gpu"))
    bits = (value_of(words, ("-c", "--compute_dtype")) or "bf16").replace("_", "")
    if not ranks or not device:
        raise UserError(f"{source}: --model_recipe_name {stem} needs --num_gpus and --gpu")
    variant = value_of(words, ("-cv", "--config_variant"))
    variant = f"_{variant.lower()}" if variant and variant.lower() != "v1" else ""
    return f"{stem}_{task}_{ranks}gpu_{device}_{bits}{variant}_config"


def changes_of(words: Sequence[str]) -> dict[str, Any]:
    """Fields that a command sets over its recipe: by flags, then by ``key=value``."""
    words = _behind_launcher(words)
    flags = {field: value for field, names in FIELDS.items() if (value := value_of(words, names))}
    result = {field: _value(field, value) for field, value in flags.items()}
    if value_of(words, STEM) and (tensor := result.get(TENSOR)):
        result["model.sequence_parallel"] = tensor != 1
    for names, fields in SWITCHED.items():
        value = value_of(words, names)
        if value is not None and not is_off(value):
            result |= {field: _value(field, value) if told is THE_VALUE else told for field, told in fields.items()}
    return result | assigned(words)


def _value(field: str, text: str) -> Any:
    """A flag's value: a number, none, a list of names, or a name."""
    if field in LISTS:
        return text.split(",")
    return None if text == "None" else int(text) if text.isdecimal() else text


def _behind_launcher(words: Sequence[str]) -> Sequence[str]:
    """The launcher and the words behind it."""
    return words[next(at for at, word in enumerate(words) if _is_launcher(word)) :]


def words_of(words: Sequence[str]) -> ReadWords:
    """The flags of a launcher: those that are read, and the others with their values."""
    after = _behind_launcher(words)[1:]
    given = dict.fromkeys(flag for word in after if re.match(r"--?[A-Za-z]", flag := word.partition("=")[0]))
    read = {name for names in (*FIELDS.values(), *SWITCHED, *NAMING) for name in names}
    left = {SHORT.get(flag, flag): value_of(after, (flag,)) or True for flag in given if flag not in read}
    return ReadWords(tuple(flag for flag in given if flag in read), left)


def file_of(recipe: str, words: Sequence[str], source: str) -> Path:
    """The file that defines a recipe, in the checkout of the launcher or the installed package. Raises UserError."""
    import sys

    if UNKNOWN.search(recipe):
        raise UserError(
            f"{source}: recipe {recipe} of Megatron-Bridge: a value that the file does not say; allowed: "
            f"{how_to_give(recipe, {}, source)}"
        )
    script = next(Path(word) for word in words if _is_launcher(word))
    roots = [Path(), *script.absolute().parents, *Path(source).absolute().parents, *map(Path, filter(None, sys.path))]
    bridge = PurePath("megatron", "bridge")
    folders = (root / part / bridge / package for root in dict.fromkeys(roots) for part in ("src", "")
               for package in PACKAGES)  # fmt: skip
    defines = re.compile(rf"^def {re.escape(recipe)}\(|\bas {re.escape(recipe)}\b", re.MULTILINE)
    for folder in folders:
        for file in sorted(folder.rglob("*.py")) if folder.is_dir() else ():
            if file.name != "__init__.py" and defines.search(file.read_text(encoding="utf-8", errors="replace")):
                return file
    raise UserError(
        f"{source}: recipe {recipe} of Megatron-Bridge: no file here defines it; allowed: in its checkout, or the "
        "recipe as FILE.py:RECIPE"
    )


def recipe_in(script: str) -> str | None:
    """The recipe that a script trains, of a module beside it, as ``FILE.py:RECIPE``; None if it trains none so.

    >>> imports = "from megatron.bridge.training.pretrain import pretrain; from mine import plan"
    >>> recipe_in(f"{imports}; pretrain(plan(), step)")
    'mine.py:plan'
    """
    try:
        nodes = [*ast.walk(ast.parse(script))]
    except (SyntaxError, ValueError, RecursionError):
        return None
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level]
    home = {each.asname or each.name: (str(node.module), each.name) for node in imports for each in node.names}
    for node in nodes:
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args):
            continue
        module, name = home.get(node.func.id, ("", ""))
        made = node.args[0]
        if not module.startswith("megatron.bridge.") or name not in MODES.values() or not isinstance(made, ast.Call):
            continue
        if isinstance(made.func, ast.Name) and made.func.id in home and not made.args and not made.keywords:
            file, recipe = home[made.func.id]
            return f"{file.replace('.', '/')}.py:{recipe}"
    return None
