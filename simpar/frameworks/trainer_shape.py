"""The shape of a step in the arguments of a trainer: sequences, how long they are, and documents packed into them."""

import re
from collections.abc import Mapping
from typing import Any

from simpar.frameworks.data_sets import pack_documents
from simpar.frameworks.trainer_arguments import TrainerArguments
from simpar.frameworks.words import Assumed, WordTable

MICRO_BATCH = ("per_device_train_batch_size", "micro_batch_size", "per_gpu_train_batch_size", "train_batch_size",
               "train_bsz_per_gpu", "batch_size_per_gpu", "batch_size_per_device", "per_device_batch_size",
               "device_batch_size", "train_micro_batch_size", "train_micro_batch_size_per_gpu", "mbs")  # fmt: skip
LENGTH = ("packing_length", "max_length", "max_seq_length", "model_max_length", "cutoff_len", "sequence_len",
          "block_size", "max_seq_len", "seq_length", "seq_len", "max_training_seq_length")  # fmt: skip
BATCH = "batch_size"
SPEAKS = re.compile(r"(?:^|_)(?:bsz|bs|mbs|batch_?size|micro_?batch)(?:_|$)")
"""Names of options that only batches have."""
TWO_PARTS = (("source_max_len", "target_max_len"), ("max_source_length", "max_target_length"))
"""Lengths of a prompt and of an answer that are cut one by one (qlora.py; ChatGLM's ``main.py`` joins them)."""


def shape_of(
    given: TrainerArguments, usual: int | None, kernel: str, *, joins: bool
) -> tuple[dict[str, Any] | None, tuple[Assumed, ...]]:
    """The shape of a step with sequences of ``usual`` tokens (None: not said), and what is assumed of documents.

    Packed documents attend to themselves only where LLaMA-Factory packs neatly (else it ``joins`` them), and where TRL,
    ms-swift and Axolotl pack for flash kernels, which take the lengths of documents [trl, sft_trainer.py: padding-free;
    axolotl, multipack.py]. Raises UserError.
    """
    shape = {"seq_len": usual, "global_batch": _whole_batch(given)}
    training: dict[str, Any] = {key: size for key, size in shape.items() if size}
    packs = given.on("neat_packing") or (
        given.on_any("packing", "sample_packing") and not joins and kernel in ("flash2", "flash3")
    )
    if not packs or "seq_len" not in training:
        return training or None, ()
    training, assumed = pack_documents(training, _data_sets(given))
    return training, (assumed,)


def _data_sets(given: TrainerArguments) -> list[str]:
    """The data sets that the arguments name."""
    named = given.told("dataset", "dataset_name", "datasets")
    listed = named if isinstance(named, list) else [named]
    return [str(each.get("path")) if isinstance(each, Mapping) else str(each) for each in listed if each]


def length_of(given: TrainerArguments, usual: int | None, *, pairs: bool) -> int | None:
    """The longest sequence, or the ``usual`` one; a prompt and its answer are one, but for models of ``pairs``.

    These have an encoder for the first; how long the second is stays unread.
    """
    for source, target in TWO_PARTS:
        if (first := given.number(source)) is not None:
            return first + (0 if pairs else given.number(target) or 0)
    return given.number(*LENGTH) or given.number("target_max_len") or usual


def micro_batch_of(given: TrainerArguments, usual: int, table: WordTable) -> tuple[int, tuple[Assumed, ...]]:
    """Sequences of a device at a time; ``batch_size`` alone is assumed to mean them.

    Raises UserError where nothing says them but a word that is new to the ``table``.
    """
    told = given.number(*MICRO_BATCH)
    if told is None and (batch := given.number(BATCH)):
        why = "batch_size alone is taken for the sequences of one device at a time, as most scripts mean it"
        return batch, (Assumed("micro_batch", batch, why),)
    if told is None:
        for word, value in given.new_words(table, SPEAKS):
            if not isinstance(value, bool):
                raise given.refused_as_new(word, "a batch", f"--{MICRO_BATCH[0]} beside it")
    return told or usual, ()


def _whole_batch(given: TrainerArguments) -> int | None:
    """The sequences of a step of all ranks, which scripts and LLaMA-Factory 1 accumulate what is left of."""
    if given.one("gradient_accumulation_steps") is not None or not given.number(*MICRO_BATCH):
        return None
    return given.number(BATCH, "global_batch_size")
