"""Rows of the table of published collective measurements, as cases on a cluster profile."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from simpar.units import KIB, MIB
from simpar.validation.collectives import LARGE_BYTES, OPS, read_measured_s

# source, device, fabric (parts of the text) -> profile; the first that fits
PROFILES = (
    ("AWS P5", "", "", "aws-p5"),
    ("Azure", "A100", "", "hgx-a100-80gb"),
    ("Azure", "H100", "", "hgx-h100"),
    ("Azure", "H200", "", "hgx-h200"),
    ("CoreWeave", "GB200", "", "gb200-nvl72"),
    ("CoreWeave", "H100", "", "hgx-h100"),
    ("GCP A3", "", "", "gcp-a3-mega"),
    ("NVIDIA GTC", "GB200", "", "gb200-nvl72"),
    ("NVIDIA GTC", "A100", "", "hgx-a100-80gb"),
    ("NVIDIA GTC", "H100", "", "hgx-h100"),
    ("NVIDIA GTC", "B200", "", "hgx-b200"),
    ("NVIDIA GTC", "V100", "", "dgx-v100"),
    ("OCI", "GB200", "", "gb200-nvl72"),
    ("OCI", "GB300", "", "gb300-nvl72"),
    ("OCI", "B300", "", "hgx-b300"),
    ("OCI", "MI300X", "", "mi300x-8"),
    ("OCI", "MI355X", "", "mi355x-8"),
    ("OpenXLA", "GB200", "", "gb200-nvl72"),
    ("OpenXLA", "sm_103", "", "gb300-nvl72"),
    ("OpenXLA", "B200", "", "hgx-b200"),
    ("OpenXLA", "H100", "", "hgx-h100"),
    ("SimuMax", "A100 PCIe", "", "a100-pcie-8"),
    ("SimuMax", "B200", "", "hgx-b200"),
    ("arXiv 2411.13055", "H100", "", "hgx-h100"),
    ("ml-engineering", "A100", "", "hgx-a100-80gb"),
    ("ml-engineering", "B200", "", "hgx-b200"),
    ("ml-engineering", "H200", "", "hgx-h200"),
    ("ml-engineering", "MI300X", "", "mi300x-8"),
    ("public issues", "A100", "p4d", "aws-p4d"),
    ("public issues", "GB200", "", "gb200-nvl72"),
    ("public issues", "H100", "", "hgx-h100"),
    ("vTrain", "A100", "", "hgx-a100-80gb"),
    ("vTrain", "V100", "", "dgx-v100"),
    ("xxrjun", "H100", "", "hgx-h100"),
)


@dataclass(frozen=True)
class Case:
    """One measurement: ``per_domain`` ranks in each of ``domains`` scale-up domains."""

    source: str
    profile: str
    op: str
    algorithm: str
    domains: int
    per_domain: int
    size_bytes: float
    seconds: float


@dataclass(frozen=True)
class Skipped:
    """A row that is not modelled, and why."""

    source: str
    reason: str


def read_cases(path: Path) -> tuple[list[Case], list[Skipped]]:
    """Modelled and other rows of the table."""
    cases, skipped = [], []
    with path.open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            reason = _reason(row)
            case = None if reason else _case(row)
            if case is None:
                skipped.append(Skipped(row["source"], reason or "bandwidth printed as zero or missing"))
            else:
                cases.append(case)
    return cases, skipped


def _reason(row: Mapping[str, str]) -> str | None:
    """Why a row is not modelled, or None."""
    source, fabric = row["source"], row["fabric"]
    if source.startswith("HF Ultra-Scale"):
        return "a network that changed from job to job; jobs carry their own fabric, see calibrated()"
    if source.startswith("SimAI"):
        return "ratios of nominal bandwidth of an unnamed cluster"
    if row["op"] not in OPS:
        return f"{row['op']}: no collective of this library"
    if "NVSHMEM" in row["algo_or_backend"]:
        return "NVSHMEM kernels, not the collective library"
    if OPS[row["op"]] == "send" and (few := _few_channels(row)):
        return few
    if "EFA v4" in fabric:
        return "no profile of this fabric (8 x 400 Gb/s EFA v4)"
    if row["gpu_type"] == "GB300" and source.startswith("OCI") and int(row["n_gpus"]) > 72:
        return "racks joined by a slower network (24 GB/s a device) than the profile's"
    return None if _profile(row) else "hardware not stated"


def _few_channels(row: Mapping[str, str]) -> str | None:
    """Why a test of messages has fewer channels than a message of training, or None.

    NCCL gives a peer fewer channels in a larger communicator, and all of them only to large messages: inside a node
    (8 ranks, then 4) 64 MiB pass at 82, 157 GB/s and 512 MiB at 356, 356. A stage of a pipeline sends in a
    communicator of two, to which neither happens.
    """
    size, alone = float(row["message_bytes"] or LARGE_BYTES), int(float(row["n_nodes"] or 1)) == 1
    if row["n_gpus"] == "80":
        return "a communicator of 80 ranks halves the channels of a message"
    if alone and 128 * KIB < size < 512 * MIB:
        return "communicators of 4 to 72 ranks have few channels for messages of this size"
    return None


def _profile(row: Mapping[str, str]) -> str | None:
    for source, device, fabric, profile in PROFILES:
        if row["source"].startswith(source) and device in row["gpu_type"] and fabric in row["fabric"]:
            return profile
    return None


def _case(row: Mapping[str, str]) -> Case | None:
    op, profile, ranks = OPS[row["op"]], _profile(row), int(float(row["n_gpus"] or 8))
    assert profile is not None, "rows without a profile have a reason"
    size = float(row["message_bytes"] or LARGE_BYTES)
    seconds = read_measured_s(row, ranks, size)
    if seconds is None:
        return None
    domains = _domains(row, profile, ranks)
    per_domain = ranks // domains
    if op == "send":
        domains, per_domain = (2, 1) if domains > 1 else (1, 2)
    return Case(row["source"], profile, op, _algorithm(row), domains, per_domain, size, seconds)


def _domains(row: Mapping[str, str], profile: str, ranks: int) -> int:
    """Scale-up domains: racks of 72 (or the 64 in use) for NVL72, else nodes."""
    if profile.endswith("nvl72"):
        return math.ceil(ranks / 72)
    return int(float(row["n_nodes"] or math.ceil(ranks / 8)))


def _algorithm(row: Mapping[str, str]) -> str:
    """The algorithm that a row pins down, else "auto"."""
    backend, fabric = row["algo_or_backend"], row["fabric"]
    if "SHARP" in fabric and ("InfiniBand" in fabric or "IB" in fabric):
        return "sharp"
    if "NVLS disabled" in backend:
        return "ring"
    if backend == "NVLS" or fabric.endswith("NVLink5 SHARP") or fabric == "NVLink4 SHARP":
        return "nvls"
    if row["source"].startswith("OpenXLA") and row["gpu_type"] == "B200":
        return "ring" if row["op"] == "all_reduce" else "auto"  # its bandwidth is that of its all-gather
    pinned = row["source"].startswith("NVIDIA GTC") and row["op"] == "all_reduce" and "IB" not in fabric
    return "ring" if pinned else "auto"
