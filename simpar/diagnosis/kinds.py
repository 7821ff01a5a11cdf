"""The kind of a measured file, by its first bytes: a profiler trace, a flight recorder, a memory snapshot, a log."""

import gzip
import re
import zlib
from collections.abc import Sequence
from pathlib import Path

from simpar.diagnosis.memory_samples import RECORDS
from simpar.diagnosis.metrics import EVENTS, FOLDER_LOGS, is_metrics
from simpar.diagnosis.run_report import is_run_report, report_of
from simpar.errors import UserError
from simpar.files import GZIP
from simpar.regular_files import check_is_file
from simpar.units import KIB

TRACE, FLIGHT, LOG, METRICS, REPORT, SNAPSHOT = (
    "trace", "flight recorder", "log", "metrics", "report of a run", "memory snapshot",
)  # fmt: skip
HEAD = 64 * KIB
_PICKLE = re.compile(rb"\x80|\}q\x00|\]q\x00|\([dl]p0\n")
"""How pickles of any protocol begin that hold a dict or a list."""
SNAPSHOT_START = 200
"""Bytes in which a snapshot of torch has its first key."""


TRACES = ("trace*.json", "trace*.json.gz", "*.pt.trace.json", "*.pt.trace.json.gz")
ANY_JSON = ("*.json", "*.json.gz")
_PROFILER = re.compile(r'"(traceEvents|schemaVersion|deviceProperties)"\s*:')
"""Keys with which a profiler's trace begins."""


def files_of(path: str | Path) -> list[str | Path]:
    """A file, or the traces, the report or the log in a folder, by the names that their writers give them.

    Traces of other names (``rank0_trace.json``) are known by how they begin.
    """
    report = report_of(path)
    if not Path(path).is_dir():
        return [path if report is None else str(report)]
    files = _matching(path, TRACES)
    if files:
        return [str(each) for each in files]
    if report is not None:
        return [str(report)]
    if files := _traces_in(path):
        return [str(each) for each in files]
    if not (first := _logs_in(path)):  # W&B, Lightning and others have a folder for every run
        runs = {each.resolve(): each for each in sorted(Path(path).iterdir()) if each.is_dir() and _logs_in(each)}
        if len(runs) > 1:
            names = ", ".join(each.name for each in runs.values())
            raise UserError(f"{path}: has logs in {len(runs)} folders; allowed: one of them: {names}")
        first = _logs_in(next(iter(runs))) if runs else []
    if len(first) > 1 and first[0].match(EVENTS):
        return [str(first[0].parent)]  # of a run that was started again, or that was evaluated at its end
    if len(first) > 1:
        raise UserError(f"{path}: has {len(first)} logs, {first[0].name} and {first[1].name} among them; name one")
    if not first:
        traces, others = ", ".join(TRACES), ", ".join(FOLDER_LOGS)
        inner = [each.name for each in sorted(Path(path).iterdir()) if each.is_dir() and _traces_in(each)]
        allowed = f"one of its folders that have traces: {', '.join(inner)}" if inner else "name the files"
        raise UserError(f"{path}: has no profiler trace ({traces}) and no log ({others}); {allowed}")
    return [str(first[0])]


def _logs_in(folder: str | Path) -> list[Path]:
    """The most telling logs of a folder: one, or several of the same kind."""
    return next(filter(None, (sorted(Path(folder).glob(pattern)) for pattern in FOLDER_LOGS)), [])


def _matching(folder: str | Path, patterns: Sequence[str]) -> list[Path]:
    return sorted({each for pattern in patterns for each in Path(folder).glob(pattern) if each.is_file()})


def _traces_in(folder: str | Path) -> list[Path]:
    """The JSON files of a folder that begin as a profiler's trace."""
    return [each for each in _matching(folder, ANY_JSON) if _PROFILER.search(_text_of(_head(each)))]


def kind_of(path: str | Path) -> str:
    """Which kind a file is of; its reader checks the content. Raises UserError if it cannot be read."""
    if Path(path).is_dir():
        return METRICS
    head = _head(path)
    if head[:2] == GZIP:
        return TRACE  # its reader reports what is wrong
    if _PICKLE.match(head):
        start = head[:SNAPSHOT_START]
        return SNAPSHOT if b"segments" in start or b"total_size" in start or b"device_traces" in head else FLIGHT
    text = _text_of(head)
    if is_run_report(text):
        return REPORT
    if is_metrics(head, text) and not RECORDS.search(text):
        return FLIGHT if re.match(r'\{.*"(entries|comm_lib_version)"\s*:', text) else METRICS
    if text.startswith("{'") or (text.startswith(("{", "[")) and RECORDS.search(text)):
        return LOG  # what Python prints of a dict, and samples of memory
    if text.startswith("{"):
        is_flight = re.search(r'"(entries|comm_lib_version)"\s*:', text) and '"traceEvents"' not in text
        return FLIGHT if is_flight else TRACE
    return TRACE if re.match(r"\[\s*[{\]]", text) or not text else LOG


def _head(path: str | Path) -> bytes:
    """The first bytes of a file, unpacked if that can be. Raises UserError if it cannot be read."""
    check_is_file(path, again=True)
    try:
        with Path(path).open("rb") as stream:
            head = stream.read(HEAD)
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from None
    if head[:2] != GZIP:
        return head
    try:
        return zlib.decompressobj(16 + zlib.MAX_WBITS).decompress(head, HEAD)
    except (zlib.error, gzip.BadGzipFile):
        return head


def _text_of(head: bytes) -> str:
    return head.decode(errors="replace").lstrip("\ufeff \t\r\n")
