"""What ``simpar run`` leaves in its folder, as the figures of a log: the report of all ranks, or a rank's own rows."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from simpar.diagnosis.log_run import ALLOCATED, DEVICES, GLOBAL_BATCH, RESERVED, SEQ_LEN, STEP_TIME, LogRun, make_run
from simpar.errors import UserError
from simpar.files import load, parse
from simpar.plan.plan import Plan

OWN, REPORT, ROWS = "simpar run", "report.json", "log.jsonl"
RANK = re.compile(r"rank(\d+)\.json")
_REPORT_START = re.compile(r'\{.*"strategy"\s*:.*"measured"\s*:', re.DOTALL)
_RANK_START = re.compile(r'\{\s*"rank"\s*:\s*\d+\s*,\s*"steps"\s*:')
MEMORY = {ALLOCATED: "peak_memory_bytes", RESERVED: "peak_reserved_bytes"}


def is_run_report(text: str) -> bool:
    """Whether the beginning of a file is one of a report of ``simpar run``, or of one rank's measurements."""
    return bool(_RANK_START.match(text) or _REPORT_START.match(text))


def report_of(path: str | Path) -> Path | None:
    """The report of the run that a folder or a rank's file belongs to; None if it has none."""
    path = Path(path)
    folder = path if path.is_dir() else path.parent if RANK.fullmatch(path.name) else None
    if folder is None:
        return None
    return report if (report := folder / REPORT).is_file() else None


def read_run_report(path: str | Path) -> LogRun:
    """The run of a report, or of one rank's file without one. Raises UserError for a damaged file.

    A step is as long as its slowest rank's. Memory is read of CUDA devices alone: on a CPU the report has the growth
    of a process, not of its tensors.
    """
    data = _data(Path(path))
    try:
        if "measured" not in data:
            rows = data["steps"]
            return make_run(str(path), OWN, {row["step"]: {STEP_TIME: row["step_time_s"]} for row in rows}, {}, {})
        return _whole(Path(path), data)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise UserError(f"{path}: is not a report of simpar run ({error!r})") from None


def _whole(path: Path, report: Mapping[str, Any]) -> LogRun:
    measured, training = report["measured"], report["training"]
    times = _times(path.parent, int(report["ranks"])) or {0: {STEP_TIME: float(measured["step_time_s"])}}
    job = {GLOBAL_BATCH: training["global_batch"], SEQ_LEN: training["seq_len"], DEVICES: int(report["ranks"])}
    run = make_run(str(path), OWN, times, {}, job)
    figures = {**run.figures, STEP_TIME: float(measured["step_time_s"])}  # without the warm-up that the run was told
    if report["machine"]["device"] != "cpu":
        figures |= {key: float(measured[name]) for key, name in MEMORY.items()}
    plan = parse(Plan, report["plan"], source=f"{path}: plan")
    differ = plan.pipeline.stages is not None or bool(plan.mesh.sizes.is_pipelined)
    return replace(run, figures=figures, phases_s=tuple(measured["phases_s_by_rank"]), stages_differ=differ)


def _times(folder: Path, ranks: int) -> dict[int, dict[str, float]]:
    """The time of every step, that of the slowest rank: from the files of all ranks, or else rank 0's rows."""
    files = [folder / f"rank{rank}.json" for rank in range(ranks)]
    if not all(file.is_file() for file in files):
        return {}
    ranks_data = [_data(file) for file in files]
    of_ranks: Sequence[Sequence[Mapping[str, Any]]] = [each["steps"] for each in ranks_data if "server" not in each]
    return {
        row[0]["step"]: {STEP_TIME: max(float(each["step_time_s"]) for each in row)}
        for row in zip(*of_ranks, strict=False)
    }


def _data(path: Path) -> Mapping[str, Any]:
    data = load(path).data
    if not isinstance(data, dict):
        raise UserError(f"{path}: is not a report of simpar run")
    return data
