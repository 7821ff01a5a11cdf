"""The columns that tables of measured runs may have, with their units. Blank means unknown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from simpar.files import suggest

RUN_COLUMNS: Mapping[str, str] = {
    "source": "where the row is from; errors are summed up by it",
    "citation": "paper and table, or repository and file",
    "model_name": "name of the model; released ones are known by it, others by their sizes",
    "n_layers": "layers",
    "hidden": "hidden size",
    "n_heads": "attention heads",
    "n_kv_heads": "heads of keys and values; blank: as many as attention heads",
    "ffn_hidden": "width of the MLP, or of an expert; blank: 4 x hidden where the MLP is not gated",
    "vocab": "size of the vocabulary; blank: that of the model's family",
    "seq_len": "tokens of a sequence",
    "n_experts": "experts of a layer",
    "topk": "experts of a token",
    "tied_embeddings": "true or false",
    "gpu_type": "device, such as H100 SXM 80GB",
    "gpus_per_node": "devices of a node; blank: 8, or 4 on GB200, GB300 and TPUs",
    "n_gpus": "devices of the job",
    "interconnect": "network in words, such as InfiniBand, RoCE or EFA",
    "precision": "bf16, fp16, fp32, fp8, fp8 blockwise, MXFP8, NVFP4 or MXFP4",
    "tp": "tensor-parallel degree",
    "pp": "pipeline-parallel degree",
    "vpp": "model chunks of a pipeline rank",
    "dp": "data-parallel degree; blank: what is left of n_gpus",
    "cp": "context-parallel degree",
    "ep": "expert-parallel degree",
    "zero_stage_or_fsdp": "0 to 3, zero1, FSDP, FSDP 64 (the degree), DDP, distributed optimizer or HYBRID SHARD",
    "micro_batch": "sequences of a microbatch; blank: the fastest that fits",
    "global_batch_seqs": "sequences of an optimizer step; blank: dp x micro_batch x grad_accum",
    "grad_accum": "microbatches of a step and replica",
    "recompute": "none, selective, full, every other layer or selective modules: NAMES",
    "schedule": "a name of `simpar list schedules`, or 1F1B of as many chunks as vpp says",
    "seq_parallel": "true or false; blank: as the stack does it",
    "overlap_notes": "what overlaps, in words",
    "attention_kernel": "flash or unfused; blank: as the stack and device had it",
    "stack": "name of `simpar list stacks`, with a release where it is not the newest, such as nemo@24.05",
    "plan": "plan file, from the folder of the table: what ran, on what; the columns above may then be blank",
    "iteration_time_s": "seconds of a step",
    "tokens_per_s_per_gpu": "tokens of a second and device, where no time is known",
    "tflops_per_gpu": "TFLOP/s of a device, where neither is known",
    "mfu_pct": "percent of the dense peak, where none of these is known",
    "hfu_pct": "the same with what runs twice, which tells partial recomputation",
    "status": "ok, or oom where it ran out of memory",
    "static_mem_gib": "GiB allocated between steps on the fullest device (nanotron: on rank 0)",
    "peak_mem_gib": "GiB at the peak of the same device, reserved unless notes say allocated",
    "fabric_allreduce_gbs": "bus bandwidth of an all-reduce over all ranks, measured inside the job, GB/s",
    "fabric_allgather_gbs": "the same of an all-gather",
    "intra_allreduce_gbs": "the same of an all-reduce inside a node",
    "intra_allgather_gbs": "the same of an all-gather inside a node",
    "slow_pipeline_bug": "true where the trainer is known to have been slowed down; listed apart",
    "peer_pred_iteration_time_s": "seconds that another tool predicted",
    "peer_pred_mem_gib": "GiB that another tool predicted",
    "notes": "anything else, in words",
}
UNREAD = frozenset(["fabric_reducescatter_gbs", "intra_reducescatter_gbs"])
"""Columns without information beyond that of the others."""


def unread(names: Iterable[str]) -> dict[str, str]:
    """Columns of a table of runs that are not read, with the column that may have been meant ("" if none is close)."""
    given = [name for name in names if name]
    free = [name for name in RUN_COLUMNS if name not in given]
    return {
        name: suggest(name, free).removeprefix("; ")
        for name in given
        if name not in RUN_COLUMNS and name not in UNREAD
    }
