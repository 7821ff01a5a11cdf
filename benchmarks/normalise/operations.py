"""Rows of published tables of single kernels and collectives in explicit columns."""

from __future__ import annotations

import re

from simpar.validation.cells import Row, Unmodelled, text

from .clusters import profile_of
from .labels import throttled

DEVICES = (
    (r"a100.*pcie", "a100-pcie-80gb"), (r"a100", "a100-sxm-80gb"), (r"(?<!g)h200", "h200-sxm"),
    (r"h100.*pcie", "h100-pcie"), (r"h[18]00", "h100-sxm-80gb"), (r"a800", "a100-sxm-80gb"), (r"h20\b", "h20-sxm"),
    (r"gb200", "gb200"), (r"b200", "b200-sxm"), (r"gb300", "gb300"), (r"b300", "b300-sxm"),
    (r"mi300x", "mi300x"), (r"mi325x", "mi325x"), (r"mi355x", "mi355x"), (r"v100", "v100-sxm2-32gb"),
)  # fmt: skip
FULL = "full attention FLOP"


def normalised_kernel(row: Row) -> Row:
    """A row of a kernel with explicit columns."""
    name = text(row, "gpu_type").lower()
    device = next((profile for pattern, profile in DEVICES if re.search(pattern, name)), None)
    value_dim = re.search(r"v_head_dim=(\d+)", text(row, "notes"))
    words, dtype = text(row, "direction"), text(row, "dtype").lower()
    cells = {
        "device": "b200-sxm-throttled" if throttled(row) and device else device or "",
        "dtype": "fp8" if re.search("fp8|float8", dtype) else "bf16" if re.search("(bf|fp|float)16", dtype) else dtype,
        "in_step": str("inside a training step" in text(row, "statistic")).lower(),
        "v_head_dim": value_dim[1] if value_dim else "",
    }
    if "attention" in text(row, "op") or text(row, "op").startswith("sdp_"):
        whole = FULL in text(row, "layout") + text(row, "causal")
        cells["flop_count"] = "full" if whole else "seen"
        cells["causal"] = "true" if whole or text(row, "causal").lower() in ("true", "1") else "false"
        cells["direction"] = next((each for each in ("fwd+bwd", "bwd") if each in words), "fwd")
    if not device:
        cells["not_modelled"] = f"no profile for {text(row, 'gpu_type')}" if name else "gpu_type not published"
    elif "best over" in text(row, "statistic"):
        cells["not_modelled"] = "the best of many shapes"
    return {**row, **cells}


def normalised_collective(row: Row) -> Row:
    """A row of a collective with explicit columns."""
    fabric = " ".join(text(row, name) for name in ("fabric", "node_type", "source")).lower()
    try:
        cells = {"hardware": profile_of(text(row, "gpu_type").lower(), fabric)}
    except Unmodelled as reason:
        return {**row, "not_modelled": str(reason)}
    words = f"{text(row, 'fabric')} {text(row, 'algo_or_backend')}".lower()
    if "nvls disabled" in words:
        cells["algorithm"] = "ring"
    elif "sharp" in words and ("infiniband" in words or " ib" in words):
        cells["algorithm"] = "sharp"
    elif text(row, "algo_or_backend") == "NVLS":
        cells["algorithm"] = "nvls"
    return {**row, **cells}
