"""Fit the rates at which kernels that dispatch tokens move them: by multiprocessor, up to NICs and ports.

Usage: python benchmarks/fit_dispatch.py

Times of DeepEP's normal kernels by multiprocessors, tokens and nodes (NVIDIA AIConfigurator, Apache-2.0: sglang,
wideep_deepep_normal_perf): 7,168 wide, 8 of 256 experts, tokens out in 8 bits with a scale for 128 of them, back in
16, at most four nodes of H100 and one of H200 (what the table has of more is a copy). Eight nodes take three times
what DeepEP's own README says and are left out, as is Blackwell, of which there are single nodes only. A kernel on s
multiprocessors takes the longest of

    copies by rank / (s near) + copies by node / (s far), copies of other nodes / NIC, copies of other ranks / port

of bytes: what multiprocessors hand on inside a node and put on the network, and the links. One ``near`` and two ``far``
(dispatch, combine) for all devices, a share of ports by device, one of NICs. Prints what
:mod:`simpar.cost.collectives.parameters` has for 20 multiprocessors, what DeepEP takes by default.
"""

from __future__ import annotations

import argparse
import csv
import gzip
from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares
from tables import DATA

from simpar.plan.routing import Routing
from simpar.units import GB, US

HIDDEN, ROUTING, SMS = 7168, Routing(8, 256), 20
WIDTH = {"dispatch": HIDDEN * (1 + 4 / 128), "combine": 2.0 * HIDDEN}  # bytes of a token
DEVICES = ("h100_sxm", "h200_sxm")
PORT, NIC = 450, 50  # GB/s
START = (20.0, 10.0, 10.0, 0.9)


@dataclass(frozen=True)
class Points:
    """Times of one device: multiprocessors, nodes, bytes of one copy of all tokens, seconds, whether it combines."""

    device: str
    sms: NDArray[np.float64]
    nodes: NDArray[np.float64]
    size: NDArray[np.float64]
    seconds: NDArray[np.float64]
    combines: NDArray[np.bool_]

    def log_errors(self, near: float, far: tuple[float, float], nic: float, port: float) -> NDArray[np.float64]:
        """Logarithms of predicted over measured; rates in GB/s, shares of NICs and ports."""
        ranks = 8 * self.nodes
        by_rank = np.array([count * ROUTING.holds(1 / count) for count in ranks])
        by_node = np.array([count * ROUTING.holds(1 / count) for count in self.nodes])
        far_rate = np.where(self.combines, far[1], far[0])
        held = by_rank / near + np.where(self.nodes > 1, by_node / far_rate, 0.0)
        links = [by_node * (1 - 1 / self.nodes) / (nic * NIC), by_rank * 7 / 8 / (port * PORT)]
        per_byte = np.max([held / self.sms, *links], axis=0)
        return np.asarray(np.log(self.size * per_byte / GB / self.seconds))


def read() -> list[Points]:
    """Batches of 2,048 tokens and more by device."""
    found: dict[str, list[tuple[float, ...]]] = defaultdict(list)
    with gzip.open(DATA / "kernels_aic_ep_alltoall.csv.gz", "rt") as file:
        for row in csv.DictReader(file):
            sizes = row["hidden_size"], row["num_topk"], row["num_experts"]
            if (row["op_name"], row["kernel_source"], *sizes) != ("normal", "deepep", "7168", "8.0", "256"):
                continue
            nodes, tokens = float(row["node_num"]), float(row["num_token"])
            if row["system"] not in DEVICES or not 2048 <= tokens <= 16384:
                continue
            if nodes > (4 if row["system"] == DEVICES[0] else 1):
                continue
            for what, width in WIDTH.items():
                taken_us = float(row[f"{what}_transmit_us"])
                point = float(row[f"{what}_sms"]), nodes, tokens * width, taken_us * US, what == "combine"
                found[row["system"]].append(point)
    columns = {device: [np.array(each) for each in zip(*points, strict=True)] for device, points in found.items()}
    return [Points(device, *each[:4], each[4].astype(bool)) for device, each in sorted(columns.items())]


def main() -> None:
    """Fit, and print rates, shares and errors."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    points = read()

    def errors(x: NDArray[np.float64]) -> list[NDArray[np.float64]]:
        near, out, back, nic, *ports = np.exp(x)
        each = zip(points, ports, strict=True)
        return [point.log_errors(near, (out, back), nic, port) for point, port in each]

    start = np.log([*START, *[0.6] * len(points)])
    fit = least_squares(lambda x: np.concatenate(errors(x)), start, loss="soft_l1", f_scale=0.05)
    near, out, back, nic, *ports = np.exp(fit.x)
    both = 2 / (1 / out + 1 / back)  # as many bytes go either way
    print(f"dispatch_gb_per_s {SMS * near:.0f}, dispatch_far_gb_per_s {SMS * both:.0f}", end=" ")
    print(f"({SMS * out:.0f} out, {SMS * back:.0f} back)")
    print(f"share of NICs {nic:.3f}")
    for point, port, each in zip(points, ports, errors(fit.x), strict=True):
        middle, most = np.quantile(np.abs(np.expm1(each)) * 100, [0.5, 0.9])
        print(f"{point.device}: {len(each)} times, share of ports {port:.3f}, error {middle:.1f} %, p90 {most:.1f}")


if __name__ == "__main__":
    main()
