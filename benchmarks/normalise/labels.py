"""What sources and citations tell: whose software, which machine, of when."""

from __future__ import annotations

import re

from simpar.validation.cells import Row, text

_PAPER = re.compile(r"arxiv[ :]*(\d\d)(\d\d)\.\d{4,5}")


def throttled(row: Row) -> bool:
    """Whether a row is of the B200 whose own tables of products stay at two thirds of other sources' rates."""
    device, source = text(row, "gpu_type").lower(), text(row, "source").lower()
    return re.search(r"\bb200", device) is not None and "simumax" in source


def is_primus(row: Row) -> bool:
    """Whether a run used AMD's Primus on top of Megatron-LM."""
    return "primus" in f"{text(row, 'source')} {text(row, 'citation')}".lower()


def paper_release(row: Row) -> str | None:
    """Year and month ("22.05") of the arXiv paper that a row cites, None without one."""
    found = _PAPER.search(text(row, "citation").lower())
    return f"{found[1]}.{found[2]}" if found else None


def disturbed(row: Row) -> str:
    """Why a row's source calls it disturbed, "" if not."""
    if text(row, "slow_pipeline_bug").lower() == "true":
        return "slow pipeline bug of the trainer"
    if "implementation-bound" in text(row, "notes"):
        return "bound by its implementation, not by the machine"
    return "abnormal by its authors" if "abnormally" in text(row, "notes") else ""
