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
}  # fmt: skip
"""Flags of both launchers for fields (``scripts/training/run_recipe.py``, ``scripts/performance``)."""
RECIPE, MODEL = ("--recipe",), ("--model",)
FAMILY, STEM = ("-m", "--model_family_name"), ("-mr", "--model_recipe_name")
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
    flags = {field: value for field, names in FIELDS.items() if (value := value_of(words, names))}
    return {field: int(value) if value.isdigit() else value for field, value in flags.items()} | assigned(words)


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
