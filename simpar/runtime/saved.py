"""Which checkpoints a folder has, and whether a job can resume from one. No torch here."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from simpar import files
from simpar.calls import Strict
from simpar.errors import UserError
from simpar.runtime.job import RunJob
from simpar.units import Count

PREFIX, MANIFEST = "step-", "manifest.json"
VERSION = 1
DELAYED = "delayed"
"""Prefix of the names of host updates that the parameters do not have yet."""


class Manifest(Strict):
    """The origin of a checkpoint, and the size in bytes and digest of every file."""

    version: int
    model: str
    optimizer: str
    step: Count
    plan: dict[str, Any]
    files: dict[str, tuple[int, str]] = Field(min_length=1)


def list_complete(folder: Path) -> list[Path]:
    """Folders of complete checkpoints, oldest first."""
    named = (path for path in folder.glob(f"{PREFIX}*") if path.name.removeprefix(PREFIX).isdecimal())
    return sorted(path for path in named if (path / MANIFEST).is_file())


def find_newest(folder: Path) -> tuple[Path, dict[str, Any]] | None:
    """The newest complete checkpoint with a readable manifest, and that manifest. Raises UserError if none has one."""
    fault = None
    for path in reversed(list_complete(folder)):
        try:
            return path, read_manifest(path)
        except UserError as error:
            fault = error
    if fault is not None:
        raise fault
    return None


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a checkpoint. Raises UserError if it cannot be read."""
    document = files.load(path / MANIFEST)
    data = document.data
    if not isinstance(data, dict) or data.get("version") != VERSION:
        version = data.get("version") if isinstance(data, dict) else None
        raise UserError(f"{path / MANIFEST}: version = {version!r}: allowed: {VERSION}, a checkpoint of simpar run")
    try:
        files.parse(Manifest, document)
    except UserError as error:
        first = str(error).splitlines()[0]
        raise UserError(f"{first}; remove the checkpoint {path} to use an older one") from None
    return data


def next_step(path: Path, manifest: Mapping[str, Any], job: RunJob) -> int:
    """The step at which a job resumes from a checkpoint. Raises UserError if it cannot."""
    optimizer, done = job.plan.numerics.optimizer, int(manifest["step"])
    if manifest["optimizer"] != optimizer:
        raise UserError(
            f"{path}: has states of {manifest['optimizer']}, the plan's optimizer is {optimizer}; "
            "allowed: the same, or another --checkpoint folder"
        )
    there = (manifest["plan"].get("offload") or {}).get("offload_delayed", False)
    if there != job.plan.offload.offload_delayed:
        raise UserError(
            f"{path}: was written with plan.offload_delayed = {str(there).lower()}; allowed: the same, because of "
            "delayed updates the last one is under way, or another --checkpoint folder"
        )
    if done >= job.steps:
        raise UserError(f"{path}: {done} steps are done; allowed: --steps above {done}")
    return done


def check_continuation(job: RunJob) -> int:
    """The step at which a job starts. Raises UserError if it cannot, or must not, resume from its checkpoints."""
    if job.checkpoints is None:
        return 0
    folder = Path(job.checkpoints.folder)
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--checkpoint {folder}: is a file; allowed: a folder")
    checkpoint = find_newest(folder)
    if checkpoint is None:
        return 0
    if not job.checkpoints.resume:
        raise UserError(f"{checkpoint[0]}: is already there; allowed: --resume, or another --checkpoint folder")
    return next_step(*checkpoint, job)
