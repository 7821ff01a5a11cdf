"""The machine calibrated; how well the fits meet what was measured."""

from __future__ import annotations

import json
from collections.abc import Iterator

from gpu_checks.here import Here, Row, simpar, write_json

REPORT, FAILED = "calibration.json", "calibration-failed.json"


def measure(here: Here) -> None:
    """Calibrate, where the folder has no profile yet."""
    if here.calibrated.exists():
        return
    said = simpar(
        "calibrate", "-o", str(here.calibrated), "--ranks", str(here.devices), "--device", here.device,
        "--json", str(here.folder / REPORT), *(["--quick"] if here.dry else []),
    )  # fmt: skip
    if said:
        write_json(here.folder / FAILED, said)


def rows(here: Here) -> Iterator[Row]:
    """Errors of the fits."""
    if (failed := here.folder / FAILED).exists():
        yield Row("kernels", "simpar calibrate", sound=False, note=json.loads(failed.read_text()))
    if (report := here.folder / REPORT).exists():
        for part, fit in json.loads(report.read_text())["quality"].items():
            note = f"{fit['samples']} samples, p90 {fit['error_p90']:.1%}"
            yield Row("kernels", part, error=fit["error_median"], note=note)
