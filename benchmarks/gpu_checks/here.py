"""Where a checklist runs, what its numbers are of, and the rows of its table."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

PROVENANCE = "provenance.json"
PROFILES = {
    "H100 80GB HBM3": "dgx-h100", "H100 PCIe": "h100-pcie-8", "H200": "hgx-h200", "H20": "hgx-h20", "H800": "hgx-h800",
    "A100-SXM4-80GB": "dgx-a100-80gb", "A100-SXM4-40GB": "dgx-a100-40gb", "A100-PCIE": "a100-pcie-8",
    "A100 80GB PCIe": "a100-pcie-8", "GB200": "gb200-nvl72", "GB300": "gb300-nvl72", "B200": "hgx-b200",
    "B300": "hgx-b300", "L40S": "l40s-8", "L4": "l4-8", "A10G": "a10g-8", "RTX 4090": "rtx-4090-8",
    "RTX 3090": "rtx-3090-8", "V100-SXM2": "dgx-v100", "MI300X": "mi300x-8", "MI325X": "mi325x-8",
    "MI355X": "mi355x-8", "MI250X": "mi250x-8",
}  # fmt: skip
"""The shipped profile whose device has these words in torch's name for it."""


@dataclass(frozen=True)
class Row:
    """A line of the table: measured, what it is held against and the relative error; ``sound`` is False where wrong."""

    part: str
    what: str
    measured: float | None = None
    against: float | None = None
    error: float | None = None
    unit: str = ""
    sound: bool = True
    note: str = ""


@dataclass(frozen=True)
class Size:
    """How large things are: of a decoder (hidden, layers), its sequences, and of attention alone."""

    model: tuple[int, int] = (2048, 16)
    vocab: int = 32_768
    seq_len: int = 4096
    batch: int = 8
    attention: tuple[int, int, int, int] = (32, 8, 2048, 128)
    precision: str = "bf16"


TINY = Size((128, 2), 512, 64, 4, (4, 2, 64, 16), "fp32")


@dataclass(frozen=True)
class Here:
    """A folder for results, how many devices there are, and whether it is only a rehearsal.

    Without devices, and no rehearsal, only what the folder has from a machine with some is read.
    """

    folder: Path
    devices: int
    dry: bool

    @property
    def size(self) -> Size:
        """How large things are here."""
        return TINY if self.dry else Size()

    @property
    def device(self) -> str:
        """As torch names it."""
        return "cpu" if self.dry else "cuda"

    @property
    def calibrated(self) -> Path:
        """Where the profile of this machine lies."""
        return self.folder / "here.yaml"

    @cached_property
    def provenance(self) -> dict[str, str]:
        """What the numbers of the folder are of: devices, software, commit and day."""
        path = self.folder / PROVENANCE
        if not path.exists():
            write_json(path, self._found())
        return dict(json.loads(path.read_text()))

    def _found(self) -> dict[str, str]:
        import torch

        root = Path(__file__).parent
        commit = _said("git", "-C", str(root), "rev-parse", "--short", "HEAD")
        changed = _said("git", "-C", str(root), "status", "--porcelain", "--untracked-files=no")
        found = {
            "day": datetime.now(UTC).strftime("%Y-%m-%d"),
            "commit": f"{commit or 'unknown'}{' with changes' if changed else ''}",
            "torch": str(torch.__version__),
        }
        if self.dry:
            return {"devices": "none: a rehearsal on processors, tiny", "device": "", "count": "1", **found}
        nccl = ".".join(map(str, torch.cuda.nccl.version()))
        driver = _said("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").splitlines()
        name = torch.cuda.get_device_name(0)
        return {
            "devices": f"{self.devices} x {name}", "device": name, "count": str(self.devices), **found, "nccl": nccl,
            "cuda": str(torch.version.cuda or torch.version.hip), "driver": driver[0] if driver else "unknown",
        }  # fmt: skip

    @property
    def shipped(self) -> str | None:
        """The name of the shipped profile of this device; None for a device without."""
        name = self.provenance["device"]
        return next((profile for words, profile in PROFILES.items() if name and words in name), None)

    def profile(self, devices: int) -> Path | None:
        """The shipped profile of this device, of a node with so many of them; None for a device without."""
        return None if self.shipped is None else resized(self.shipped, devices, self.folder)


def resized(name: str, devices: int, folder: Path) -> Path:
    """A shipped profile with so many devices a node, as a file."""
    from simpar.profiles import load_profile

    path = folder / f"{name}-{devices}.json"
    as_written = load_profile(name, "clusters", "hardware")[0].data
    mine = {**as_written, "name": path.stem, "devices_per_node": devices}
    if "devices_per_switch" in (host := dict(mine.get("host", {}))):
        mine["host"] = {**host, "devices_per_switch": math.gcd(host["devices_per_switch"], devices)}
    write_json(path, mine)
    return path


def _said(*command: str) -> str:
    """What a command prints; nothing where it is not there."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""


def simpar(*arguments: str) -> str:
    """Run a command; empty, or the last line of what it says where it fails."""
    command = [sys.executable, "-m", "simpar", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    return lines[-1] if done.returncode else ""


def slug(name: str) -> str:
    """The name of a layout or a size as that of a file."""
    return name.replace(",", "").replace(" ", "-")


def write_json(path: Path, value: Any) -> None:
    """A file of JSON, with its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2) + "\n")


def predicted_beside(
    what: str, scenario: Path, found: Mapping[str, Any], here: Here, *, part: str = "steps"
) -> Iterator[Row]:
    """Step time and peak that were measured, beside those that each profile predicts.

    ``found`` has step_time_s and peak_memory_bytes.
    """
    ranks = int(found.get("ranks", 1))
    own = here.calibrated if ranks == int(here.provenance["count"]) and here.calibrated.exists() else None
    profiles = {"shipped": here.profile(ranks), "calibrated": own}
    for name, path in profiles.items():
        if path is not None:
            for row in _errors(f"{what}, {name}", scenario, path, found):
                # a calibration refuses what it did not measure: nothing is wrong with the machine then
                yield replace(row, part=part, sound=row.sound or path == own)
    if not any(profiles.values()):
        yield Row(part, f"{what}: step time", found["step_time_s"], unit="s", note="not predicted")
        yield Row(part, f"{what}: peak", found["peak_memory_bytes"], unit="bytes", note="not predicted")


def _errors(what: str, scenario: Path, profile: Path, found: Mapping[str, Any]) -> Iterator[Row]:
    """Step time and peak of a profile's prediction beside what was measured."""
    from simpar.errors import UserError

    try:
        predicted = prediction(json.loads(scenario.read_text()), profile)
    except UserError as error:
        yield Row("steps", what, sound=False, note=str(error))
        return
    for name, unit, figure in (("step time", "s", "step_time_s"), ("peak", "bytes", "peak_memory_bytes")):
        yield Row(
            "steps", f"{what}: {name}", found[figure], predicted[figure], predicted[figure] / found[figure] - 1, unit
        )


def prediction(scenario: Mapping[str, Any], profile: Path) -> dict[str, float]:
    """Step time and peak of a scenario on a profile, under the stack beside it or the runtime's. Raises UserError."""
    from simpar.architectures.hf_config import read
    from simpar.architectures.training import Training
    from simpar.hardware.catalogue import load_cluster
    from simpar.plan.plan import Plan
    from simpar.runtime.prepare import STACK
    from simpar.simulation import simulate

    beside = profile.with_suffix(".stack.yaml")
    plan = {**scenario["plan"], "stack": str(beside) if beside.exists() else STACK}
    result = simulate(
        read(scenario["model"], "measured"), load_cluster(str(profile)), Plan.model_validate(plan),
        Training.model_validate(scenario["training"]),
    )  # fmt: skip
    return {"step_time_s": result.speed.step_time_s, "peak_memory_bytes": result.memory.peak_memory_bytes}


def table(rows: Sequence[Row], provenance: Mapping[str, str]) -> str:
    """The rows as Markdown, with where they come from above."""
    lines = ["# Measured on a GPU", "", *(f"- {name}: {value}" for name, value in provenance.items()), ""]
    lines += ["| part | what | measured | predicted | error | sound | |", "|---|---|---|---|---|---|---|"]
    for row in rows:
        shown = [_written(value, row.unit) for value in (row.measured, row.against)]
        error = "" if row.error is None else f"{row.error:+.2%}"
        cells = [row.part, row.what, *shown, error, "yes" if row.sound else "**no**", row.note.replace("|", "/")]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _written(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    return f"{value / 2.0**30:.3f} GiB" if unit == "bytes" else f"{value:.4f} {unit}"
