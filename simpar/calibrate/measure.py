"""A calibration from request to profiles: start workers, gather their samples, fit. No torch here."""

import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

from simpar.calibrate.fit import Samples, gather_samples
from simpar.calibrate.profile import KnownFacts, Profiles, build
from simpar.calibrate.quiet import Quiet
from simpar.calibrate.request import CalibrationRequest, quick, standard
from simpar.errors import UserError
from simpar.runtime.container import usable_memory_bytes
from simpar.runtime.core_times import CoreTimes
from simpar.runtime.job import Machine
from simpar.runtime.launch import RankLauncher, require_torch, start
from simpar.runtime.request import accelerators
from simpar.runtime.this_machine import usable_cores

WORKER = "simpar.calibrate.worker"
PATIENCE_S = 7200.0
"""Seconds for which ranks wait while the first one measures alone: two minutes on an idle machine, more on others."""


def calibrate(request: CalibrationRequest, known: KnownFacts) -> Profiles:
    """Measure as requested and fit profiles to it. Raises UserError, WorkerFailure."""
    workers = RankLauncher(WORKER, request.save(), Path(request.folder), request.machine)
    before = CoreTimes.now()
    ranks = start(workers, request.ranks)
    quiet = Quiet.of(before, CoreTimes.now(), ranks[0]["repeats"])
    device = {key: value for key, value in ranks[0].items() if key in ("memory_bytes", "num_sms", "l2_bytes")}
    return build(
        Samples(request, gather_samples(ranks)),
        KnownFacts(known.name, known.description, known.memory_bytes, device),
        quiet,
    )


def make_request(ranks: int | None, device: str | None, *, is_quick: bool) -> CalibrationRequest:
    """What to measure on this machine, in a new folder. Raises UserError.

    ``ranks`` defaults to one per CUDA device or, without CUDA, one per core.
    """
    require_torch()
    devices, cores = accelerators(), usable_cores()
    device = device or ("cuda" if devices else "cpu")
    if device not in ("cpu", "cuda"):
        raise UserError(f"--device {device}: allowed: cpu, cuda")
    ranks = ranks or (devices if device == "cuda" else cores)
    if device == "cuda" and devices < ranks:
        raise UserError(f"--device cuda: {ranks} ranks, {devices} CUDA devices; allowed: cpu, or one device a rank")
    machine = Machine.model_validate({"device": device, "threads": max(1, cores // ranks), "timeout_s": PATIENCE_S})
    return (quick if is_quick else standard)(ranks, machine, tempfile.mkdtemp(prefix="simpar-calibrate-"))


def known_facts(request: CalibrationRequest, name: str, date: str | None) -> KnownFacts:
    """Facts that the system gives without measuring. ``date`` is omitted if not given: same input, same text."""
    words = f"{_processor()}, {usable_cores()} cores, torch {metadata.version('torch')}, {request.machine.device}"
    return KnownFacts(name, f"{words}, {date}" if date else words, usable_memory_bytes(), {})


def _processor() -> str:
    """The processor's name in the system."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "processor of unknown name")


def summary(profiles: Profiles) -> dict[str, Any]:
    """The fitted parameters, the quality of the fit, and the samples' description, for people and as JSON."""
    quiet = profiles.quiet
    return {
        "name": profiles.cluster.name,
        "ranks": profiles.cluster.devices_per_node,
        "quality": {
            each.part: {"samples": each.count, "error_median": each.median, "error_p90": each.p90}
            for each in profiles.quality
        },
        "quiet": {"others": quiet.others, "repeats_s": quiet.repeats, "width": quiet.width} if quiet else None,
        "cluster": profiles.cluster.model_dump(mode="json"),
        "stack": profiles.stack.model_dump(mode="json"),
        "request": profiles.samples.request.model_dump(mode="json", exclude={"folder"}),
        "samples": [each.model_dump(mode="json", exclude_defaults=True) for each in profiles.samples.every],
    }
