"""What a run does beside its steps: resuming, running out of memory, snapshots of allocations, traces that explain."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpu_checks.here import Here, Row, Size, simpar, write_json
from gpu_checks.steps import Layout, scenario

FILE = "behaviour.json"
HALF, WHOLE = 3, 6
SMALL = Size((1024, 8), seq_len=1024)  # its states are written in seconds
CLOSE = 1e-3  # of a loss: backward passes of attention add in another order every time


def measure(here: Here) -> None:
    """Run what the folder lacks."""
    path = here.folder / FILE
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    plan = here.folder / "behaviour" / "scenario.json"
    write_json(plan, scenario(Layout("one device"), here.size if here.dry else SMALL))
    checks = {"resume": _resume, "traces": _traces}
    if not here.dry:
        checks["memory"] = _out_of_memory
    for name, check in checks.items():
        if name not in found:
            found[name] = check(plan, here)
            write_json(path, found)


def _run(plan: Path, here: Here, folder: str, steps: int, *flags: str) -> dict[str, Any]:
    """What a run said and measured."""
    out = plan.with_name(folder)
    said = simpar(
        "run", str(plan), "--steps", str(steps), "--warmup", "1", "--nproc", "1", "--device", here.device,
        "-o", str(out), *flags,
    )  # fmt: skip
    report = out / "report.json"
    return {"said": said, **(json.loads(report.read_text())["measured"] if report.exists() else {})}


def _resume(plan: Path, here: Here) -> dict[str, Any]:
    saved = ("--checkpoint", str(plan.with_name("checkpoint")))
    whole = _run(plan, here, "whole", WHOLE)
    again = _run(plan, here, "again", WHOLE)
    first = _run(plan, here, "resumed", HALF, *saved)
    second = _run(plan, here, "resumed", WHOLE, *saved)
    return {"whole": whole, "again": again, "first": first, "resumed": second}


def _traces(plan: Path, here: Here) -> dict[str, Any]:
    flags = ("--trace-steps", "1", *(() if here.dry else ("--memory-snapshot",)))
    found = _run(plan, here, "traced", HALF, *flags)
    files = {path.name: path.stat().st_size for path in sorted(plan.with_name("traced").iterdir())}
    return {**found, "files": files}


def _out_of_memory(plan: Path, here: Here) -> dict[str, Any]:
    too_large = json.loads(plan.read_text())
    too_large["training"]["global_batch"] = too_large["plan"]["micro_batch"] = 512
    path = plan.with_name("too-large.json")
    write_json(path, too_large)
    return _run(path, here, "too-large", HALF)


def rows(here: Here) -> Iterator[Row]:
    """What was found."""
    path = here.folder / FILE
    found = json.loads(path.read_text()) if path.exists() else {}
    if "resume" in found:
        each = found["resume"]
        if said := next((run["said"] for run in each.values() if run["said"]), ""):
            yield Row("behaviour", "resume", sound=False, note=said)
        else:
            losses = {name: run["losses"] for name, run in each.items()}
            for name, what in (("again", "the same run again"), ("resumed", "a run that was resumed")):
                error = max(abs(a / b - 1) for a, b in zip(losses[name][-HALF:], losses["whole"][-HALF:], strict=True))
                yield Row(
                    "behaviour", f"losses of {what}", error=error, sound=error <= CLOSE, note="largest difference"
                )
            peaks = each["first"]["peak_memory_bytes"], each["whole"]["peak_memory_bytes"]
            yield Row("behaviour", "peak of a run that saves", *peaks, peaks[0] / peaks[1] - 1, "bytes")
    if "traces" in found:
        each = found["traces"]
        kinds = [word for word in ("trace-", "memory-") if any(name.startswith(word) for name in each["files"])]
        wanted = 1 if here.dry else 2
        note = each["said"] or ", ".join(each["files"])
        yield Row("behaviour", "files of traces", sound=len(kinds) == wanted and not each["said"], note=note)
    if "memory" in found:
        said = found["memory"]["said"]
        yield Row("behaviour", "a step that does not fit", sound="out of memory" in said, note=said)
