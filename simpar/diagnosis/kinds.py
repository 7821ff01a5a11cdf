"""The kind of a measured file, by its first bytes: a profiler trace, a flight recorder, a memory snapshot, a log."""

import gzip
import re
import zlib
from pathlib import Path

from simpar.diagnosis.metrics import FOLDER_LOGS, is_metrics
from simpar.diagnosis.run_report import is_run_report, report_of
from simpar.errors import UserError
from simpar.files import GZIP
from simpar.units import KIB

TRACE, FLIGHT, LOG, METRICS, REPORT, SNAPSHOT = (
    "trace", "flight recorder", "log", "metrics", "report of a run", "memory snapshot",
)  # fmt: skip
HEAD = 64 * KIB
_PICKLE = b"\x80"
SNAPSHOT_START = 200
"""Bytes in which a snapshot of torch has its first key."""


TRACES = ("trace*.json", "trace*.json.gz", "*.pt.trace.json", "*.pt.trace.json.gz")


def files_of(path: str | Path) -> list[str | Path]:
    """A file, or the traces, the report or the log in a folder, by the names that their writers give them."""
    report = report_of(path)
    if not Path(path).is_dir():
        return [path if report is None else str(report)]
    files = sorted({each for pattern in TRACES for each in Path(path).glob(pattern)})
    if files:
        return [str(each) for each in files]
    if report is not None:
        return [str(report)]
    logs = [sorted(Path(path).glob(pattern)) for pattern in FOLDER_LOGS]
    first = next(filter(None, logs), [])
    if len(first) > 1:
        raise UserError(f"{path}: has {len(first)} logs, {first[0].name} and {first[1].name} among them; name one")
    if not first:
        traces, others = ", ".join(TRACES), ", ".join(FOLDER_LOGS)
        raise UserError(f"{path}: has no profiler trace ({traces}) and no log ({others}); name the files")
    return [str(first[0])]


def kind_of(path: str | Path) -> str:
    """Which kind a file is of; its reader checks the content. Raises UserError if it cannot be read."""
    try:
        with Path(path).open("rb") as stream:
            head = stream.read(HEAD)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None
    if head[:2] == GZIP:
        try:
            head = zlib.decompressobj(16 + zlib.MAX_WBITS).decompress(head, HEAD)
        except (zlib.error, gzip.BadGzipFile):
            return TRACE  # its reader reports what is wrong
    if head[:1] == _PICKLE:
        return SNAPSHOT if b"segments" in head[:SNAPSHOT_START] or b"device_traces" in head else FLIGHT
    text = head.decode(errors="replace").lstrip("\ufeff \t\r\n")
    if is_run_report(text):
        return REPORT
    if is_metrics(head, text):
        return FLIGHT if re.match(r'\{.*"(entries|comm_lib_version)"\s*:', text) else METRICS
    if text.startswith("{'"):
        return LOG  # what Python prints of a dict
    if text.startswith("{"):
        is_flight = re.search(r'"(entries|comm_lib_version)"\s*:', text) and '"traceEvents"' not in text
        return FLIGHT if is_flight else TRACE
    return TRACE if re.match(r"\[\s*[{\]]", text) or not text else LOG
