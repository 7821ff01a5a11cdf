"""mistral-finetune: its YAML, and commands that start its ``train`` with one, as a plan.

Defaults are those of ``finetune/args.py`` and ``model/args.py`` (mistralai/mistral-finetune 1943535).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from simpar.errors import UserError
from simpar.frameworks.data_sets import pack_documents
from simpar.frameworks.match import find_released
from simpar.frameworks.overrides import command_of, is_config, load_beside, mapping, reader_of
from simpar.frameworks.reader import Reader
from simpar.frameworks.target import Imported, plan_said
from simpar.frameworks.words import WordTable
from simpar.plan.choices.tuning import Tuning

MODULE = "train"


def read(text: str, name: str) -> Imported:
    """The plan in a config, or in a command that names one. Raises UserError naming file, option and value."""
    data = mapping(text, name) if is_config(name) else load_beside(_config(command_of(text, name, _starts)) or "", name)
    if not owns(data):
        raise UserError(f"{name}: no config of mistral-finetune: it has model_id_or_path, and data with instruct_data")
    given = reader_of(data, name)
    named = str(given.get("model_id_or_path") or "")
    model = find_released(named, name) if named else None
    note = "" if model else f"The model is {named or 'a folder, which is not named'}: give --model."
    micro, microbatches = given.whole("batch_size") or 1, given.whole("num_microbatches") or 1
    training, documents = pack_documents({"seq_len": given.whole("seq_len") or 2048}, [])
    values: dict[str, Any] = {
        "model": model,
        "stack": "huggingface",
        "zero": 3,
        "defer_grad_reduce": False,
        "micro_batch": micro,
        "precision": "bf16",
        "recompute": "none" if given.get("checkpoint", True) is False else "full",
        "attention_kernel": "flash2",  # of xformers, over the documents of a sequence
        "optimizer": "adamw",
        "training": training,
    }
    if (lora := given.get("lora", {})) not in (None, {}):
        raise UserError(f"{name}: lora = {lora!r}: allowed: a mapping, such as rank: 64")
    if given.get("lora.enable", True) is not False and lora is not None:
        values |= {
            "lora_rank": given.whole("lora.rank") or 16,
            "lora_targets": Tuning().lora_targets,
            "lora_dropout": float(given.get("lora.dropout") or 0.0),
            "frozen_dtype": "bf16",
        }
    else:  # bf16 is sharded, gathered and reduced; the update has fp32 copies (finetune/mixed_precision.py)
        values |= {"parameter_dtype": "bf16", "grad_dtype": "bf16", "reduce_dtype": "bf16", "master_weights": True}
    notes = (note, *given.misspelt())
    return Imported(
        plan_said(values), given.words(), tuple(filter(None, notes)), per_replica=micro * microbatches,
        asks={"model": note} if note else {}, assumed=(documents,),
    )  # fmt: skip


def owns(data: Mapping[str, Any]) -> bool:
    """Whether a mapping is a config of mistral-finetune."""
    of_data = data.get("data")
    return "model_id_or_path" in data and isinstance(of_data, Mapping) and "instruct_data" in of_data


def _config(words: Sequence[str]) -> str | None:
    """The config that a command names, behind the module."""
    at = next((at for at, word in enumerate(words) if word == MODULE and words[at - 1] in ("-m", "--module")), None)
    after = () if at is None else words[at + 1 : at + 2]
    return next((word for word in after if word.endswith((".yaml", ".yml"))), None)


def _starts(words: Sequence[str]) -> bool:
    return _config(words) is not None


READER = Reader(
    name="mistral-finetune",
    description="mistral-finetune: its YAML, and commands of its train with one",
    read=read,
    starts=_starts,
    config=_config,
    owns=owns,
    words=WordTable(
        idle=(
            "data.*", "max_steps", "optim.*", "seed", "log_freq", "eval_freq", "no_eval", "ckpt_freq", "no_ckpt",
            "save_adapters", "num_ckpt_keep", "max_norm", "run_dir", "wandb*", "mlflow*", "lora.scaling", "lora.enable",
        ),
    ),
)  # fmt: skip
