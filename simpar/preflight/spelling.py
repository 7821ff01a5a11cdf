"""Options of an export in the words of a text: keys of its YAML, flags of its launcher, FSDP's earlier strategy.

An export writes one spelling. A text may have another one for the same, and edits must be made in that.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from simpar.frameworks.trainer_shape import MICRO_BATCH
from simpar.frameworks.words import plain
from simpar.preflight.patch import LAUNCHED, SWITCH, Edit, keys_of, value_of

IN_TREES = ("yaml", "json")
RESHARDS = "reshard_after_forward"
"""How keys of FSDP 2 end that say whether parameters are sharded again; FSDP 1 has a strategy instead."""
STRATEGY_KEYS = ("fsdp_config.fsdp_sharding_strategy", "fsdp_config.sharding_strategy", "fsdp_config.fsdp_" + RESHARDS,
                 "fsdp")  # fmt: skip
AGAIN = {"shard_grad_op": "full_shard", "hybrid_shard_zero2": "hybrid_shard", "2": "1", "5": "4"}
STRATEGIES = {"true": AGAIN, "false": {kept: again for again, kept in AGAIN.items()}}
"""FSDP 1's strategies by name or number, and what makes them shard parameters again or keep them."""
CHECKPOINTS, OF_TRAINER = "activation_checkpointing", "gradient_checkpointing"
"""How the key of FSDP ends that recomputes layers, and the Trainer's own argument for it, which a text may have."""
SECTIONS = {"fsdp_config.": "--fsdp_", "parallelism_config.": "--"}
"""Sections of Accelerate's config whose keys are flags of its launcher, and how these begin."""


def in_own_words(edit: Edit, text: str, syntax: str | None) -> Edit:
    """An edit of the sequences of a device, by the name that the text has for them (``--micro_batch_size``)."""
    dashes = edit.name[: len(edit.name) - len(edit.name.lstrip("-"))]
    if edit.name.lstrip("-") not in MICRO_BATCH or value_of(text, edit.name, syntax) is not None:
        return edit
    said = (f"{dashes}{name}" for name in MICRO_BATCH)
    own = next((name for name in said if value_of(text, name, syntax) is not None), edit.name)
    return replace(edit, name=own)


def spellings(edits: Sequence[Edit], text: str, syntax: str | None, target: str) -> Iterator[list[Edit]]:
    """The edits in every spelling that a text in ``syntax`` may have for them, that of the export first."""
    yield [*edits]
    if target == "megatron" and syntax in IN_TREES:
        yield [*_in_tree(edits, text)]
    own = [_as_strategy(edit, text, syntax) or _as_argument(edit, text, syntax) or edit for edit in edits]
    if own != [*edits]:
        yield own
    if syntax == "shell" and LAUNCHED.search(text):
        yield [_as_flag(edit) for edit in own]
        yield [_as_flag(_of_launcher(edit)) for edit in own]


def _in_tree(edits: Sequence[Edit], text: str) -> Iterator[Edit]:
    """Flags as the keys of a YAML of arguments, spelt as its own are (``micro_batch_size``, ``--micro-batch-size``)."""
    known = {plain(path.rpartition(".")[2]): path for path in keys_of(text)}
    for edit in edits:
        name = plain(edit.name)
        path = known.get(name)
        if path is None and known:
            like = max(known, key=lambda each: (_shared(each, name), each))
            section, _, key = known[like].rpartition(".")
            own = f"--{name.replace('_', '-')}" if key.startswith("--") else name
            path = f"{section}.{own}" if section else own
        yield replace(edit, name=path or edit.name, value="true" if edit.value is SWITCH else edit.value)


def _shared(one: str, other: str) -> int:
    """The words that two names begin with."""
    pairs = enumerate(zip(one.split("_"), other.split("_"), strict=False))
    return next((at for at, (left, right) in pairs if left != right), min(one.count("_"), other.count("_")) + 1)


def _as_strategy(edit: Edit, text: str, syntax: str | None) -> Edit | None:
    """What shards parameters again as the strategy that the text has instead; None where it has none."""
    if not edit.name.endswith(RESHARDS) or edit.is_gone:
        return None
    wanted: Mapping[str, str] = STRATEGIES.get(str(edit.value).lower(), {})
    for key in STRATEGY_KEYS:
        name = f"--{key.rpartition('.')[2]}" if syntax == "shell" else key
        told = value_of(text, name, syntax)
        words = {word: wanted[word.lower()] for word in re.findall(r"\w+", told or "") if word.lower() in wanted}
        if told and words:
            new = told.strip("'\"")
            for old, instead in words.items():
                new = new.replace(old, instead.upper() if old.isupper() else instead)
            return Edit(name, json.dumps(new) if syntax == "json" else new)
    return None


def _as_argument(edit: Edit, text: str, syntax: str | None) -> Edit | None:
    """What FSDP recomputes as the Trainer's own argument that the text has instead; None where it has none."""
    name = f"--{OF_TRAINER}" if syntax == "shell" else OF_TRAINER
    if not edit.name.endswith(CHECKPOINTS) or edit.is_gone or value_of(text, name, syntax) is None:
        return None
    return replace(edit, name=name)


def _of_launcher(edit: Edit) -> Edit:
    """What shards parameters again as the strategy of a config that the launcher is given."""
    if not edit.name.endswith(RESHARDS) or edit.is_gone:
        return edit
    return Edit("fsdp_config.fsdp_sharding_strategy", "FULL_SHARD" if edit.value == "true" else "SHARD_GRAD_OP")


def _as_flag(edit: Edit) -> Edit:
    """A key of Accelerate's config as the flag of its launcher, which wins over it."""
    name = edit.name.removeprefix("--")
    for section, start in SECTIONS.items():
        if name.startswith(section):
            key = name.removeprefix(section).removeprefix(start.removeprefix("--"))
            return replace(edit, name=f"{start}{key}", value="true" if edit.value is SWITCH else edit.value)
    return edit
