"""The columns that tables of measured runs may have, with their units. Blank means unknown."""

from collections.abc import Mapping, Sequence

from simpar.files import suggest
from simpar.plan.choices import CHOICES, MEASURED, SYNONYMS, name_of
from simpar.units import number_of
from simpar.validation.cells import Row, text

RUN_COLUMNS: Mapping[str, str] = {
    "source": "where the row is from; errors are summed up by it",
    "citation": "paper and table, or repository and file",
    "model_name": "label of the model; without a width (`hidden`) the name of a released one, spaces or hyphens",
    "model": "name of `simpar list models`, a file, or a config as JSON; sizes below replace its own",
    "n_layers": "layers",
    "hidden": "hidden size",
    "n_heads": "attention heads",
    "n_kv_heads": "heads of keys and values; blank: as many as attention heads",
    "ffn_hidden": "width of the MLP, or of an expert; blank: 4 x hidden",
    "vocab": "size of the vocabulary; blank: 32,000 where the MLP is gated, else 51,200",
    "seq_len": "tokens of a sequence",
    "documents": "mean tokens of the documents packed into sequences, or `training.documents` as JSON; blank: one text",
    "n_experts": "experts of a layer",
    "topk": "experts of a token",
    "tied_embeddings": "true or false; blank: false where the MLP is gated",
    "gpu_type": "device, such as H100 SXM 80GB",
    "gpus_per_node": "devices of a node; blank: those of the profile",
    "n_gpus": "devices of the job",
    "interconnect": "InfiniBand, RoCE, EFA, Ethernet (TCP), ..., with NICs of a node and their rate: 8x400 Gb/s",
    "hardware": "name of `simpar list hardware`, or a file, in place of the device and network in words",
    "zero_stage_or_fsdp": "0 to 3, zero1, ZeRO-1 within 8 ranks, FSDP, FSDP 64 (the degree), DDP, HYBRID SHARD, ...",
    "overlap_notes": "of experts' exchange `EP overlap on` or `off` and `all-to-all` are read, other words are printed",
    "global_batch_seqs": "sequences of an optimizer step; blank: dp x micro_batch x grad_accum",
    "grad_accum": "microbatches of a step and replica",
    "seq_parallel": "true or false; blank: as the stack does it",
    "stack": "name of `simpar list stacks`, with a release where it is not the newest, such as nemo@24.05, or a file",
    "plan": "plan file, from the folder of the table: what ran, on what; the columns above may then be blank",
    "assumed": "what the author of the table assumed to fill in the row, in words; it is printed",
    "iteration_time_s": "seconds of a step",
    "tokens_per_s_per_gpu": "tokens of a second and device, where no time is known",
    "tflops_per_gpu": "TFLOP/s of a device, where neither is known",
    "mfu_pct": "percent of the dense peak, where none of these is known",
    "flop_count": "what these two count: model (with full attention), causal (its half) or hardware (recomputed too)",
    "status": "ok, or oom where it ran out of memory",
    "static_mem_gib": "GiB allocated between steps on the fullest device (nanotron: on rank 0)",
    "peak_mem_gib": "GiB at the peak of the same device",
    "peak_mem_counts": "reserved, allocated or device (all that nvidia-smi shows as used); blank: reserved",
    "fabric_allreduce_gbs": "bus bandwidth of an all-reduce over all ranks, measured inside the job, GB/s",
    "fabric_allgather_gbs": "the same of an all-gather",
    "intra_allreduce_gbs": "the same of an all-reduce inside a node",
    "intra_allgather_gbs": "the same of an all-gather inside a node",
    "slow_pipeline_bug": "true where the trainer is known to have been slowed down; listed apart",
    "disturbed": "why the run is known to be disturbed, in words; listed apart",
    "not_modelled": "why the row is not to be predicted, in words; it is counted with this reason",
    "peer_pred_iteration_time_s": "seconds that another tool predicted",
    "peer_pred_tflops_per_gpu": "TFLOP/s of a device that another tool predicted, beside `tflops_per_gpu`",
    "peer_pred_mem_gib": "GiB that another tool predicted",
    **MEASURED,
}
PLAN_COLUMNS: Mapping[str, str] = {
    **{choice.key or choice.name: choice.name for choice in CHOICES},
    **{word: name_of(word) for word in SYNONYMS},
    "seq_parallel": "sequence_parallel",
}
"""Columns that are keys of a plan, with the choices that they are."""
PARTS = ("model", "hardware", "stack")
"""Parts of which a column PART.KEY replaces one field."""
UNREAD = frozenset(["fabric_reducescatter_gbs", "intra_reducescatter_gbs"])
"""Columns without information beyond that of the others."""
NOTES = "notes"
"""A column that is free text by its name, never a misspelt one."""

SUPERSEDED: Mapping[str, tuple[str, ...]] = {
    "hardware": ("gpu_type", "interconnect"),
    "zero": ("zero_stage_or_fsdp",),
    "plan": (
        "gpu_type", "interconnect", "hardware", "stack", "attention_kernel", "model", "n_layers", "hidden", "n_heads",
        "n_kv_heads", "ffn_hidden", "vocab", "n_experts", "topk", "tied_embeddings", "documents", "grad_accum",
        "zero_stage_or_fsdp", "gpus_per_node",
    ),
}  # fmt: skip
"""Columns that are not read in rows with another one."""


def find_unread_columns(rows: Sequence[Row]) -> dict[str, str]:
    """Columns of a table of runs that are not read, or not in all rows, each with a remark.

    The remark is the column that may have been meant ("" if none is close), or in how many rows another replaces it.
    """
    given = [name for name in rows[0] if name]
    free = [name for name in (*RUN_COLUMNS, *PLAN_COLUMNS) if name not in given]
    result = {
        name: "" if name == NOTES else suggest(name, free).removeprefix("; ")
        for name in given
        if not (name in RUN_COLUMNS or name in PLAN_COLUMNS or name in UNREAD or name.split(".")[0] in PARTS)
    }
    for instead, names in SUPERSEDED.items():
        for name in names:
            if count := sum(bool(text(row, instead) and text(row, name)) for row in rows):
                result.setdefault(name, f"in {number_of(count, 'row')} that {instead} describes")
    return result
