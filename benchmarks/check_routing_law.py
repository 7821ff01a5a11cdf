"""Compare the power law of experts' loads, and grouped products, with what measured expert layers of few ranks take.

Usage: python benchmarks/check_routing_law.py

AIConfigurator's times of expert layers (SGLang's Triton kernels, Apache-2.0) by expert-parallel ranks: with at most as
many ranks as a token has experts, balanced routing sends every token to every rank. What a rank does for tokens that
arrive (passes over the rows of all their experts) is then the same however skewed the routing is, what it does for
rows of its own experts is not: of p ranks balanced runs take a + b / p, skewed ones a + b L / p with L the load of the
fullest. One and two ranks tell a and b, and L follows without a model of these kernels. Left out are shapes whose
kernels are tuned otherwise for skewed runs (other times on one rank, where skew changes nothing that is computed).

b is also what both products of all experts take. It is compared with the kernel model at the clock of a short
benchmark, by rows an expert, in 8 bits on Hopper, whose kernels are tuned (in 16 bits they are not).
"""

from __future__ import annotations

import argparse
import csv
import gzip
from collections import defaultdict

import numpy as np
from tables import DATA

from simpar.cost.kernels import KernelModel
from simpar.hardware.device import load_device
from simpar.plan.choices.experts import Experts
from simpar.plan.routing import Routing, max_rank_load
from simpar.units import MS

LEAST_TOKENS = 8192
TUNED = {"h100_sxm": "h100-sxm-80gb", "h200_sxm": "h200-sxm"}
"""Devices whose 8-bit products are compared."""
ALIKE = (0.9, 1.15)
"""Time of a skewed run on one rank over that of a balanced one where their kernels are tuned alike."""
SHAPE = ("system", "moe_dtype", "num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size")


def main() -> None:
    """Print measured and expected loads by exponent and ranks, and times of products over the model's by rows."""
    argparse.ArgumentParser(description=str(__doc__).splitlines()[0]).parse_args()
    times: dict[tuple[str, ...], dict[tuple[str, int], float]] = defaultdict(dict)
    with gzip.open(DATA / "kernels_aic_moe.csv.gz", "rt", newline="", encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            if row["kernel_source"] != "sglang_fused_moe_triton" or row["moe_tp_size"] != "1":
                continue
            shape = tuple(row[name] for name in SHAPE)
            times[shape][row["distribution"], int(row["moe_ep_size"])] = float(row["latency"])
    loads: dict[tuple[str, float, int], list[tuple[float, float, float]]] = defaultdict(list)
    products: dict[tuple[str, int], list[float]] = defaultdict(list)
    for shape, found in times.items():
        named = dict(zip(SHAPE, shape, strict=True))
        if not {("balanced", 1), ("balanced", 2)} <= set(found):
            continue
        alone, half = found["balanced", 1], found["balanced", 2]
        rows, tokens = 2 * (alone - half), 2 * half - alone
        if named["system"] in TUNED and named["moe_dtype"] == "fp8_block" and rows > 0:
            count, width, inner = (int(named[key]) for key in ("num_experts", "hidden_size", "inter_size"))
            per_expert = int(named["num_tokens"]) * int(named["topk"]) / count
            model = KernelModel(load_device(TUNED[named["system"]]), "fp8", sustained=False)
            took_s = model.gemm_time_s(per_expert, 2 * inner, width, batch=count)
            took_s = took_s + model.gemm_time_s(per_expert, width, inner, batch=count)
            products[named["system"], 4 ** round(np.log(per_expert) / np.log(4))].append(rows * MS / float(took_s))
        if int(named["num_tokens"]) < LEAST_TOKENS:
            continue
        routing = Routing(int(named["topk"]), int(named["num_experts"]))
        for exponent in (1.01, 1.2):
            skewed = f"power_law_{exponent}"
            if not ALIKE[0] < found.get((skewed, 1), 0.0) / alone < ALIKE[1] or rows <= 0 or tokens < 0:
                continue
            choice = Experts(expert_distribution="power_law", expert_imbalance=exponent)
            for ranks in (2, 4, 8):
                if ranks <= routing.topk and (time := found.get((skewed, ranks))):
                    load = max_rank_load(routing, choice, ranks)
                    ratio = time / found["balanced", ranks] if ("balanced", ranks) in found else np.nan
                    loads[named["moe_dtype"], exponent, ranks].append(((time - tokens) / (rows / ranks), load, ratio))
    for (dtype, exponent, ranks), each in sorted(loads.items()):
        measured, law, ratio = np.nanmedian(np.array(each), axis=0)
        print(
            f"{dtype:10s} {exponent:4g} on {ranks} ranks, {len(each):3d} shapes: load {measured:.2f} measured, "
            f"{law:.2f} by the law; time over balanced {ratio:.2f}"
        )
    for (system, per_expert), ratios in sorted(products.items()):
        print(f"{system} about {per_expert:4d} rows an expert: {np.median(ratios):.2f} of the model's time")


if __name__ == "__main__":
    main()
