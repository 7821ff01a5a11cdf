"""Compare the power law of experts' loads with what measured expert layers of few ranks take.

Usage: python benchmarks/check_routing_law.py

AIConfigurator's times of expert layers (SGLang's Triton kernels, Apache-2.0) by expert-parallel ranks: with at most as
many ranks as a token has experts, balanced routing sends every token to every rank. What a rank does for tokens that
arrive (passes over the rows of all their experts) is then the same however skewed the routing is, what it does for
rows of its own experts is not: of p ranks balanced runs take a + b / p, skewed ones a + b L / p with L the load of the
fullest. One and two ranks tell a and b, and L follows without a model of these kernels. Left out are shapes whose
kernels are tuned otherwise for skewed runs (other times on one rank, where skew changes nothing that is computed).
"""

from __future__ import annotations

import csv
import gzip
import os
from collections import defaultdict
from pathlib import Path

import numpy as np

from simpar.plan.plan import Experts
from simpar.plan.routing import Routing, fullest_load

ROOT = Path(__file__).resolve().parent.parent
DATA = Path(os.environ.get("SIMPAR_DATA", ROOT.parent / "shared" / "data"))
LEAST_TOKENS = 8192
ALIKE = (0.9, 1.15)
"""Time of a skewed run on one rank over that of a balanced one where their kernels are tuned alike."""
SHAPE = (
    "system",
    "moe_dtype",
    "num_tokens",
    "hidden_size",
    "inter_size",
    "topk",
    "num_experts",
    "moe_tp_size",
)


def main() -> None:
    """Print measured and expected loads of the fullest rank by exponent and number of ranks."""
    times: dict[tuple[str, ...], dict[tuple[str, int], float]] = defaultdict(dict)
    with gzip.open(DATA / "kernels_aic_moe.csv.gz", "rt", newline="", encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            if row["kernel_source"] != "sglang_fused_moe_triton" or int(row["num_tokens"]) < LEAST_TOKENS:
                continue
            shape = tuple(row[name] for name in SHAPE)
            times[shape][row["distribution"], int(row["moe_ep_size"])] = float(row["latency"])
    loads: dict[tuple[str, float, int], list[tuple[float, float, float]]] = defaultdict(list)
    for shape, found in times.items():
        named = dict(zip(SHAPE, shape, strict=True))
        if named["moe_tp_size"] != "1" or not {("balanced", 1), ("balanced", 2)} <= set(found):
            continue
        alone, half = found["balanced", 1], found["balanced", 2]
        rows, tokens = 2 * (alone - half), 2 * half - alone
        routing = Routing(int(named["topk"]), int(named["num_experts"]))
        for exponent in (1.01, 1.2):
            skewed = f"power_law_{exponent}"
            if not ALIKE[0] < found.get((skewed, 1), 0.0) / alone < ALIKE[1] or rows <= 0 or tokens < 0:
                continue
            choice = Experts(expert_distribution="power_law", expert_imbalance=exponent)
            for ranks in (2, 4, 8):
                if ranks <= routing.topk and (time := found.get((skewed, ranks))):
                    load = fullest_load(routing, choice, ranks)
                    ratio = time / found["balanced", ranks] if ("balanced", ranks) in found else np.nan
                    loads[named["moe_dtype"], exponent, ranks].append(
                        ((time - tokens) / (rows / ranks), load, ratio)
                    )
    for (dtype, exponent, ranks), each in sorted(loads.items()):
        measured, law, ratio = np.nanmedian(np.array(each), axis=0)
        print(
            f"{dtype:10s} {exponent:4g} on {ranks} ranks, {len(each):3d} shapes: load {measured:.2f} measured, "
            f"{law:.2f} by the law; time over balanced {ratio:.2f}"
        )


if __name__ == "__main__":
    main()
