"""How far the kernels and collectives of a serving engine are from measured ones, by device.

    python benchmarks/serving_kernels.py FOLDER

FOLDER has the tables kernels_aic_gemm, kernels_aic_attention_fwd, kernels_aic_moe and kernels_aic_nccl (.csv.gz):
NVIDIA AIConfigurator's measurements of inference kernels (Apache-2.0). Printed are the median of predicted over
measured time, and the median and 90th percentile of the absolute error. Two numbers of simpar.posttraining.engine come
from here:

    python benchmarks/serving_kernels.py FOLDER --call     # CALL_US: launch and rendezvous of a collective in a graph
    python benchmarks/serving_kernels.py FOLDER --experts  # EXPERT_OVERHEAD: its row of 512 tokens
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
from simpar.posttraining.engine import CALL_US, EXPERT_OVERHEAD, serving_stack

SYSTEMS = {
    "a100_sxm": ("a100-sxm-80gb", "dgx-a100-80gb"), "h100_sxm": ("h100-sxm-80gb", "dgx-h100"),
    "h200_sxm": ("h200-sxm", "hgx-h200"), "b200_sxm": ("b200-sxm", "hgx-b200"), "gb200": ("gb200", "gb200-nvl72"),
    "b300_sxm": ("b300-sxm", "hgx-b300"), "l40s": ("l40s", "l40s-8"),
    "rtx_pro_6000_server": ("rtx-pro-6000", "rtx-pro-6000-8"), "gb300": ("gb300", "gb300-nvl72"),
}  # fmt: skip
PRECISIONS = {"bfloat16": "bf16", "fp8": "fp8"}
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
    """Products in bf16 and in fp8 with one scale a tensor, whose casts are kernels of their own."""
    table = pd.read_csv(folder / "kernels_aic_gemm.csv.gz")
    for (system, dtype), rows in table.groupby(["system", "gemm_dtype"]):
        if system in SYSTEMS and dtype in PRECISIONS:
            predicted = kernels_of(system, PRECISIONS[dtype]).gemm_time_s(rows.m, rows.n, rows.k)
            yield (
                f"products {PRECISIONS[dtype]}",
                system,
                pd.DataFrame({"predicted_s": predicted, "measured_s": rows.latency_ms * 1e-3}),
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


def experts(folder: Path) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """Both products and the activation of balanced experts on one device, bf16."""
    table = pd.read_csv(folder / "kernels_aic_moe.csv.gz")
    table = table[(table.moe_dtype == "bfloat16") & (table.distribution == "balanced") & (table.moe_ep_size == 1)]
    stack = serving_stack(graphs=True)
    for system, rows in table.groupby("system"):
        if system not in SYSTEMS:
            continue
        dims = {
            "batch": rows.num_tokens.to_numpy(), "seq": 1, "topk": rows.topk.to_numpy(), "load": 1,
            "hidden": rows.hidden_size.to_numpy(), "experts": rows.num_experts.to_numpy(),
            "num_experts": rows.num_experts.to_numpy(), "expert_ffn": (rows.inter_size // rows.moe_tp_size).to_numpy(),
        }  # fmt: skip
        chosen = [op for op in mixture("x", Mixture(8, 2, 1024)) if op.name.startswith("expert_")]
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
    """Measured over predicted time of experts without overhead, by number of tokens."""
    print("| device | " + " | ".join(f"{tokens:,}" for tokens in TOKENS) + " |\n|---|" + "---|" * len(TOKENS))
    for _, system, rows in experts(folder):
        ratio = rows.measured_s / rows.predicted_s * EXPERT_OVERHEAD
        each = ratio.groupby(rows.tokens).median()
        print(f"| {SYSTEMS[system][0]} | " + " | ".join(f"{each[tokens]:.2f}" for tokens in TOKENS) + " |")


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
