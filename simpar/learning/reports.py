"""Runs of ``simpar run`` as measured layouts: the folder records what ran and how long a step took."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simpar import files
from simpar.architectures.training import Training
from simpar.errors import UserError
from simpar.hardware.catalogue import load_cluster
from simpar.learning.fit import Observed, Peak
from simpar.plan.plan import Plan
from simpar.tracing.code import is_code
from simpar.tracing.load import load_config, load_model
from simpar.validation.cells import Unmodelled
from simpar.validation.profile_overrides import ProfileOverrides
from simpar.validation.rows import Case

JOB, REPORT = "job.json", "report.json"


def is_report(path: str) -> bool:
    """Whether a path is the folder of a run, or its report."""
    return Path(path).is_dir() or Path(path).name == REPORT


def read_report(path: str, chosen: ProfileOverrides) -> Observed:
    """The layout of a run and its median step, from its folder or the report in it.

    Raises UserError for a folder without them, Unmodelled for a user's own model.
    """
    folder = Path(path) if Path(path).is_dir() else Path(path).parent
    job, report = (_data(folder / name) for name in (JOB, REPORT))
    try:
        case = _case(job, report, chosen)
        spread = report["measured"]["step_time_spread_s"]
        time_s = float(report["measured"]["step_time_s"])
        label = f"{report['model']} in {folder.name}"
        peak = _peak(case, report["measured"])
        scatter = (spread["p90"] - spread["p10"]) / (2 * time_s * report["measured"]["steps_measured"] ** 0.5)
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{folder}: is not a folder of simpar run ({error!r})") from None
    return Observed(case, time_s, scatter=scatter, label=label, peak=peak)


def _peak(case: Case, measured: Mapping[str, Any]) -> Peak | None:
    """The reserved memory at the peak; None on a CPU, where the growth of a process is not its tensors."""
    size_bytes = float(measured.get("peak_reserved_bytes") or 0.0)
    return Peak(size_bytes) if size_bytes and load_cluster(case.hardware).device.kind != "cpu" else None


def _data(path: Path) -> Mapping[str, Any]:
    result = files.load(path).data
    if not isinstance(result, dict):
        raise UserError(f"{path}: is not a file of simpar run")
    return result


def _case(job: Mapping[str, Any], report: Mapping[str, Any], chosen: ProfileOverrides) -> Case:
    hardware = chosen.hardware or report["hardware"]
    if hardware is None:
        raise Unmodelled("was run without --hardware; name it here")
    model, ranks = job["model"], int(report["ranks"])
    cluster, machine = load_cluster(hardware), job["machine"]["device"]
    if machine is not None and (machine == "cpu") != (cluster.device.kind == "cpu"):
        raise Unmodelled(f"of another device ({machine}, not {cluster.device.name})")
    if isinstance(model, str) and is_code(model):
        raise Unmodelled(f"{model} is code of yours, which learning does not run")
    graph = load_model(model) if isinstance(model, str) else load_config(model, str(model.get("name", "inline")))
    return Case(
        graph=graph,
        hardware=hardware,
        num_devices=ranks,
        devices_per_node=min(ranks, cluster.profile.devices_per_node),
        training=files.parse(Training, job["training"], source=JOB),
        plan=files.parse(Plan, job["plan"], source=JOB).flat_values(),
        stack=chosen.stack or job["plan"]["stack"] or "simpar",
        stack_changes={},
        fabric={},
    )
