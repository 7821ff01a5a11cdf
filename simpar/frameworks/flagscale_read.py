"""FlagScale on Megatron-LM: the YAML of an experiment and that of its training, in sections of Megatron's arguments.

Source: FlagOpen/FlagScale da4935e (``run.py``, ``flagscale/runner``, ``examples/*/conf``).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from simpar import files
from simpar.errors import UserError
from simpar.frameworks.megatron_arguments import of_mapping
from simpar.frameworks.megatron_read import of_arguments
from simpar.frameworks.megatron_words import MEGATRON_WORDS
from simpar.frameworks.overrides import command_of, is_config, load_beside, mapping
from simpar.frameworks.reader import Reader, value_of
from simpar.frameworks.target import Imported
from simpar.frameworks.words import ReadWords, WordTable

SECTIONS = ("system", "model", "data")
"""Sections of a training, which may hold others; the names of leaves are Megatron-LM's arguments."""
ENTRY = "experiment.task.entrypoint"
SCRIPTS = ("train_gpt.py", "pretrain_gpt.py")
"""What trains a decoder of text; other scripts have layers and data of their own."""
SCRIPT, PLACE, FILE = "run.py", ("--config-path",), ("--config-name",)
WORDS = MEGATRON_WORDS | WordTable(
    idle=("no_shared_fs", "tokenizer_path", "special_tokens*", "apply_sft*", "config_file", "save_*",
          "norm_init_weight", "rampup_save*", "no_position_embedding",
          "multiple_of", "hidden_dim_multiplier", "log_*", "enable_dataset*", "legacy_tokenizer"),
    deciding={"use_dualpipev": "another schedule of the pipeline: time and memory",
              "moe_fb_overlap": "experts' exchange beside computation: time",
              ENTRY: "which script trains is in the experiment, which is not here: layers of another kind"},
)  # fmt: skip
_REFERENCE = re.compile(r"\$\{experiment\.([\w.]+)\}")


def read(text: str, name: str) -> Imported:
    """The plan of an experiment, of a training, or of a command that names an experiment. Raises UserError."""
    if not is_config(name):
        name = str(_file_of(command_of(text, name, _starts)))
        text = files.read_text(files.find_beside(name, ""))
    data = mapping(text, name)
    if _is_training(data):
        return _imported(data, {}, name)
    experiment = data.get("experiment")
    if not isinstance(experiment, Mapping):
        raise UserError(f"{name}: no experiment of FlagScale: allowed: experiment, or system and model")
    task = experiment.get("task") or {}
    kind, engine = task.get("type") or "train", task.get("backend") or "megatron"
    if (kind, engine) != ("train", "megatron"):
        raise UserError(f"{name}: experiment.task = {kind} by {engine}: allowed: train by megatron")
    script = str(task.get("entrypoint") or SCRIPTS[0])
    if PurePath(script).name not in SCRIPTS:
        raise UserError(f"{name}: {ENTRY} = {script}: not modelled; allowed: {', '.join(SCRIPTS)}")
    listed = data.get("defaults") or []
    named = next((each["train"] for each in listed if isinstance(each, Mapping) and "train" in each), None)
    inner = data.get("train")
    if isinstance(inner, Mapping):
        return _imported(inner, experiment, name)
    if named is None:
        raise UserError(f"{name}: defaults has no train: allowed: - train: NAME, of train/NAME.yaml beside the file")
    return _imported(load_beside(f"train/{named}.yaml", name), experiment, name)


def _imported(data: Mapping[str, Any], experiment: Mapping[str, Any], name: str) -> Imported:
    """The plan of a training, on the devices that its experiment starts."""
    told: dict[str, Any] = {}
    for section in SECTIONS:
        told |= _leaves(data.get(section) or {}, experiment)
    if hetero := next((key for key, value in told.items() if "hetero" in key and value), None):
        raise UserError(f"{name}: {hetero}: meshes of devices of several kinds: not modelled; allowed: one mesh")
    if kind := told.get("peft_type"):
        raise UserError(f"{name}: peft_type = {kind}: adapters of FlagScale are not read; allowed: without")
    told.setdefault("ffn_hidden_size", _width(told))
    result = of_arguments(given := of_mapping(told, name))
    runner = experiment.get("runner") or {}
    nodes, each = (runner.get(key) for key in ("nnodes", "nproc_per_node"))
    replica = int(result.plan.mesh.sizes.replica_ranks)
    if isinstance(nodes, int) and isinstance(each, int) and nodes * each % replica == 0:
        result = replace(result, plan=result.plan.with_values(dp=nodes * each // replica))
    words = given.words() + ReadWords((ENTRY,) if experiment else (), {} if experiment else {ENTRY: "unknown"})
    return replace(result, words=words)


def _leaves(section: Mapping[str, Any], experiment: Mapping[str, Any]) -> dict[str, Any]:
    """Values of a section and of those inside it, by their last names."""
    result: dict[str, Any] = {}
    for key, value in section.items():
        if isinstance(value, Mapping):
            result |= _leaves(value, experiment)
        else:
            result[str(key)] = _settled(value, experiment)
    return result


def _settled(value: Any, experiment: Mapping[str, Any]) -> Any:
    """A value with what it takes from the experiment; as it stands where that does not say it."""
    match = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
    inner: Any = experiment if match else None
    for part in match[1].split(".") if match else ():
        inner = inner.get(part) if isinstance(inner, Mapping) else None
    return inner if match and experiment else value


def _width(told: Mapping[str, Any]) -> int | None:
    """The width of a gated MLP by FlagScale's own arguments (``training/arguments.py`` of its Megatron-LM)."""
    hidden, multiple, factor = (told.get(key) for key in ("hidden_size", "multiple_of", "hidden_dim_multiplier"))
    if not (told.get("swiglu") and isinstance(hidden, int) and isinstance(multiple, int)):
        return None
    width = int(int(4 * hidden * 2 / 3) * (factor if isinstance(factor, int | float) else 1))
    return multiple * -(-width // multiple)


def _is_training(data: Mapping[str, Any]) -> bool:
    system = data.get("system")
    told = {"tensor_model_parallel_size", "precision"} & set(system if isinstance(system, Mapping) else ())
    return bool(told) and isinstance(data.get("model"), Mapping)


def _owns(data: Mapping[str, Any]) -> bool:
    experiment = data.get("experiment")
    return _is_training(data) or (isinstance(experiment, Mapping) and {"exp_name", "runner"} <= set(experiment))


def _starts(words: Sequence[str]) -> bool:
    return any(PurePath(word).name == SCRIPT for word in words) and _file_of(words) is not None


def _file_of(words: Sequence[str]) -> str | None:
    """The experiment's file that a command names: ``run.py --config-path FOLDER --config-name NAME``."""
    folder, named = value_of(words, PLACE), value_of(words, FILE)
    return str(PurePath(folder) / f"{named.removesuffix('.yaml')}.yaml") if folder and named else None


READER = Reader(
    name="flagscale",
    description="FlagScale on Megatron-LM: the YAML of an experiment and of its training",
    read=read,
    starts=_starts,
    config=_file_of,
    owns=_owns,
    words=WORDS,
)
