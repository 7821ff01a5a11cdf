"""The shape of a step in the arguments of a trainer: sequences, how long they are, and documents packed into them."""

from collections.abc import Mapping
from typing import Any

from simpar.frameworks.data_sets import pack_documents
from simpar.frameworks.trainer_arguments import TrainerArguments
from simpar.frameworks.words import Assumed

MICRO_BATCH = ("per_device_train_batch_size", "micro_batch_size", "per_gpu_train_batch_size", "train_batch_size")
LENGTH = ("packing_length", "max_length", "max_seq_length", "model_max_length", "cutoff_len", "sequence_len",
          "block_size", "max_seq_len", "seq_length", "seq_len", "max_source_length")  # fmt: skip


def shape_of(
    given: TrainerArguments, usual: int | None, kernel: str, *, joins: bool
) -> tuple[dict[str, Any] | None, tuple[Assumed, ...]]:
    """The shape of a step, with sequences as long as ``usual`` if no length is given, and what is assumed of documents.

    Packed documents attend to themselves only where LLaMA-Factory packs neatly (else it ``joins`` them), and where TRL,
    ms-swift and Axolotl pack for flash kernels, which take the lengths of documents [trl, sft_trainer.py: padding-free;
    axolotl, multipack.py]. Raises UserError.
    """
    shape = {"seq_len": _length(given) or usual, "global_batch": _whole_batch(given)}
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


def _length(given: TrainerArguments) -> int | None:
    """The longest sequence; for a prompt and an answer that are cut one by one, both (qlora.py)."""
    parts = [given.number(key) for key in ("source_max_len", "target_max_len")]
    return given.number(*LENGTH) or sum(part or 0 for part in parts) or None


def _whole_batch(given: TrainerArguments) -> int | None:
    """The sequences of a step of all ranks, which scripts and LLaMA-Factory 1 accumulate what is left of."""
    if given.one("gradient_accumulation_steps") is not None or not given.number(*MICRO_BATCH):
        return None
    return given.number("batch_size", "global_batch_size")
