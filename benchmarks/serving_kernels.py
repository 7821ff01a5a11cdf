"""How far the kernels and collectives of a serving engine are from measured ones, by device.

    python benchmarks/serving_kernels.py FOLDER

FOLDER has the tables kernels_aic_gemm, kernels_aic_attention_fwd, kernels_aic_moe and kernels_aic_nccl (.csv.gz):
NVIDIA AIConfigurator's measurements of inference kernels (Apache-2.0). Printed are the median of predicted over
measured time, and the median and 90th percentile of the absolute error. Two numbers of simpar.posttraining.engine come
from here:

    python benchmarks/serving_kernels.py FOLDER --call     # CALL_US: launch and rendezvous of a collective in a graph
    python benchmarks/serving_kernels.py FOLDER --experts  # EXPERT_OVERHEAD: rows around 1
"""

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from simpar.architectures.mixture import Mixture, mixture
from simpar.cost.collectives.choice import collective_time_s
from simpar.cost.kernels import KernelModel
from simpar.cost.operators import operator_times
from simpar.hardware.catalogue import load_cluster
from simpar.hardware.device import load_device
from simpar.layout.sharding import RankDims
from simpar.posttraining.engine import CALL_US
from simpar.posttraining.serving_stack import serving_stack

SYSTEMS = {
    "a100_sxm": ("a100-sxm-80gb", "dgx-a100-80gb"), "h100_sxm": ("h100-sxm-80gb", "dgx-h100"),
    "h200_sxm": ("h200-sxm", "hgx-h200"), "b200_sxm": ("b200-sxm", "hgx-b200"), "gb200": ("gb200", "gb200-nvl72"),
    "b300_sxm": ("b300-sxm", "hgx-b300"), "l40s": ("l40s", "l40s-8"),
    "rtx_pro_6000_server": ("rtx-pro-6000", "rtx-pro-6000-8"), "gb300": ("gb300", "gb300-nvl72"),
}  # fmt: skip
PRECISIONS = {"bfloat16": "bf16", "fp8": "fp8", "fp8_block": "fp8_blockwise"}
HOST_MS = 1.0
"""The shortest product that hides its launch by the host, which takes up to 0.3 ms here (that of Grace)."""
CAST_BYTES, CAST_CLOCKS = 3.0, 0.54
"""An element read in 16 bits and written in 8, and clocks of a multiprocessor: 8-bit products grow by 0.51 to 0.55 of
them an element of their input on six devices from H100 to GB300, whatever their bandwidth, and by the memory's time on
L40S and RTX PRO 6000 [vLLM, static_scaled_fp8_quant, which layers with static scales call]."""
UNGATED_HIDDEN, UNGATED_EXPERTS = 2688, 512
"""Shapes of Nemotron 3, whose experts have no gate [NVIDIA AIConfigurator, collector, non-gated model patterns]."""
SMALL_BYTES = 2**20
TOKENS = (512, 1024, 2048, 4096, 8192, 16384)
OPS = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
}


def kernels_of(system: str, precision: str = "bf16") -> KernelModel:
    """The kernels of a system as a serving engine runs them, at the clock of short measurements."""
    return KernelModel(load_device(SYSTEMS[system][0]), precision, sustained=False, splits_k=True)


def products(folder: Path) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """Products in bf16, and in 8 bits with the cast of their input: with one scale a tensor, or scales of blocks.

    Measured layers stand alone, and a kernel of their own casts with one scale a tensor; in engines, the kernel that
    writes the input does it. Those with scales of blocks were launched one by one, not from a graph: short ones show
    the host, and are left out.
    """
    table = pd.read_csv(folder / "kernels_aic_gemm.csv.gz")
    stack = serving_stack(graphs=True)
    (op,) = (each for each in mixture("x", Mixture(8, 2, 1024, shared_ffn=8)) if each.name == "shared_down")
    for (system, dtype), rows in table.groupby(["system", "gemm_dtype"]):
        if system not in SYSTEMS or dtype not in PRECISIONS:
            continue
        rows = rows[rows.latency_ms > HOST_MS] if dtype == "fp8_block" else rows
        dims = {"batch": rows.m.to_numpy(), "seq": 1, "hidden": rows.n.to_numpy(), "shared_ffn": rows.k.to_numpy()}
        kernels = kernels_of(system, PRECISIONS[dtype])
        (each,) = operator_times([op], RankDims(dims, dims), kernels, stack)
        cast_s = 0.0
        if dtype == "fp8":
            each_s = max(CAST_BYTES / kernels.bandwidth, CAST_CLOCKS / kernels.clocks_per_s)
            cast_s = kernels.latency_s + rows.m.to_numpy() * rows.k.to_numpy() * each_s
        yield (
            f"products {PRECISIONS[dtype]}",
            system,
            pd.DataFrame({"predicted_s": each.forward_s + cast_s, "measured_s": rows.latency_ms.to_numpy() * 1e-3}),
        )


def attention(folder: Path) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """Attention of whole prompts: causal, all keys, bf16."""
    table = pd.read_csv(folder / "kernels_aic_attention_fwd.csv.gz", low_memory=False)
    table = table[(table.attn_dtype == "bfloat16") & (table.window_size.fillna(0) == 0)]
    for system, rows in table.groupby("system"):
        if system in SYSTEMS:
            shape = tuple(rows[name].astype(float) for name in ("batch_size", "isl", "num_heads", "head_dim"))
            predicted = kernels_of(system).attention_time_s(
                shape, context=rows.isl, seen=rows.isl / 2, backward=False, kv_heads=rows.num_key_value_heads
            )
            yield (
                "attention of prompts",
                system,
                pd.DataFrame({"predicted_s": predicted, "measured_s": rows.latency * 1e-3}),
            )


def experts(folder: Path, *, tuned: bool = False) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """Both products, the activation and the sum of balanced experts on one device, bf16."""
    table = pd.read_csv(folder / "kernels_aic_moe.csv.gz")
    table = table[(table.moe_dtype == "bfloat16") & (table.distribution == "balanced") & (table.moe_ep_size == 1)]
    stack = serving_stack(graphs=True, tuned=tuned)
    plain = (table.hidden_size == UNGATED_HIDDEN) | (table.num_experts == UNGATED_EXPERTS)
    for (system, ungated), rows in table.groupby(["system", plain]):
        if system not in SYSTEMS:
            continue
        dims = {
            "batch": rows.num_tokens.to_numpy(), "seq": 1, "topk": rows.topk.to_numpy(), "load": 1,
            "hidden": rows.hidden_size.to_numpy(), "experts": rows.num_experts.to_numpy(),
            "num_experts": rows.num_experts.to_numpy(), "expert_ffn": (rows.inter_size // rows.moe_tp_size).to_numpy(),
        }  # fmt: skip
        chosen = [
            op
            for op in mixture("x", Mixture(8, 2, 1024, gated=not ungated))
            if op.name.startswith("expert_") or op.kind == "combine"
        ]
        each = operator_times(chosen, RankDims(dims, dims, dims), kernels_of(system), stack)
        yield (
            "experts, balanced",
            system,
            pd.DataFrame(
                {
                    "predicted_s": sum(one.forward_s for one in each),
                    "measured_s": rows.latency.to_numpy() * 1e-3,
                    "tokens": rows.num_tokens.to_numpy(),
                }
            ),
        )


def collectives(folder: Path, call_us: float = CALL_US) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """NCCL on 2 to 8 devices, messages up to 1 MiB; those are what iterations of few tokens send."""
    table = pd.read_csv(folder / "kernels_aic_nccl.csv.gz")
    table = table[(table.nccl_dtype == "half") & (table.bytes_total <= SMALL_BYTES) & table.op_name.isin(OPS)]
    for (system, op, gpus), rows in table.groupby(["system", "op_name", "num_gpus"]):
        if system not in SYSTEMS:
            continue
        cluster = load_cluster(SYSTEMS[system][1])
        if gpus > cluster.domain_size:
            continue
        cluster = replace(cluster, state={"base_us": call_us})
        predicted = collective_time_s(OPS[op], rows.bytes_total.to_numpy(dtype=float), (1, int(gpus)), cluster)
        yield (
            f"{OPS[op]} up to 1 MiB",
            system,
            pd.DataFrame({"predicted_s": predicted, "measured_s": rows.latency_ms * 1e-3, "bytes": rows.bytes_total}),
        )


def fitted_call_us(folder: Path) -> float:
    """Launch and rendezvous in a captured graph: measured all-reduces of 512 bytes less the predicted hops."""
    rest = [
        (rows.measured_s - rows.predicted_s)[rows.bytes == 512]
        for name, system, rows in collectives(folder, 0.0)
        if name.startswith("all_reduce") and system in ("h100_sxm", "h200_sxm")
    ]
    return float(np.median(np.concatenate(rest)) * 1e6)


def print_by_tokens(folder: Path) -> None:
    """Predicted over measured time of experts by number of tokens, with usual and tuned tiles."""
    print(
        "| device | tiles | " + " | ".join(f"{tokens:,}" for tokens in TOKENS) + " |\n|---|---|" + "---|" * len(TOKENS)
    )
    for tuned in (False, True):
        for system, frames in by_system(experts(folder, tuned=tuned)):
            rows = pd.concat(frames)
            each = (rows.predicted_s / rows.measured_s).groupby(rows.tokens).median()
            named = f"| {SYSTEMS[system][0]} | {'tuned' if tuned else 'usual'} | "
            print(named + " | ".join(f"{each[tokens]:.2f}" for tokens in TOKENS) + " |")


def by_system(parts: Iterator[tuple[str, str, pd.DataFrame]]) -> list[tuple[str, list[pd.DataFrame]]]:
    """Frames of every system."""
    result: dict[str, list[pd.DataFrame]] = {}
    for _, system, rows in parts:
        result.setdefault(system, []).append(rows)
    return list(result.items())


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--call", action="store_true", help="fit launch and rendezvous of a collective")
    parser.add_argument("--experts", action="store_true", help="experts by number of tokens")
    arguments = parser.parse_args()
    if arguments.call:
        print(f"{fitted_call_us(arguments.folder):.1f} us")
        return
    if arguments.experts:
        print_by_tokens(arguments.folder)
        return
    parts: dict[tuple[str, str], list[pd.DataFrame]] = {}
    for make in (products, attention, experts, collectives):
        for name, system, rows in make(arguments.folder):
            parts.setdefault((name, system), []).append(rows)
    print(
        "| kernel | device | rows | predicted / measured | median error | 90th percentile |\n|---|---|---|---|---|---|"
    )
    for (name, system), frames in parts.items():
        rows = pd.concat(frames)
        ratio = (rows.predicted_s / rows.measured_s).to_numpy(dtype=float)
        error = np.abs(ratio - 1.0)
        print(
            f"| {name} | {SYSTEMS[system][0]} | {len(rows):,} | {np.median(ratio):.2f} | {np.median(error):.0%} | "
            f"{np.quantile(error, 0.9):.0%} |"
        )


if __name__ == "__main__":
    main()
