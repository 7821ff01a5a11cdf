"""Outputs for the figures of every step beside the log: TensorBoard, Weights & Biases. No torch here.

Both are written by rank 0, need a package of their own, and continue after a resume where the run stopped.
"""

import importlib
import importlib.util
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from simpar.errors import UserError
from simpar.files import write_atomic
from simpar.runtime.job import RunJob

FIGURES = ("loss", "evaluation_loss", "learning_rate", "gradient_norm", "step_time_s")
TENSORBOARD, WANDB_ID = "tensorboard", "wandb.id"
FLUSH_S = 10


class Sink(Protocol):
    """Receives the figures of steps."""

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        """Figures of a step by name."""

    def close(self) -> None:
        """End the output."""


def check_installed(job: RunJob) -> None:
    """Raise UserError if the package of an output that a job asks for is not installed."""
    for wanted, flag, package in (
        (job.measuring.tensorboard, "--tensorboard", "tensorboard"),
        (job.measuring.wandb is not None, "--wandb", "wandb"),
    ):
        if wanted and importlib.util.find_spec(package) is None:
            raise UserError(f"{flag}: {package} is not installed: pip install {package}")


def open_sinks(job: RunJob, first: int) -> list[Sink]:
    """The outputs of a job's figures from step ``first`` on."""
    result: list[Sink] = []
    if job.measuring.tensorboard:
        result.append(TensorBoard(Path(job.folder) / TENSORBOARD, first))
    if job.measuring.wandb is not None:
        result.append(WeightsAndBiases(job, first))
    return result


def figures(row: Mapping[str, Any], tokens_per_step: int) -> dict[str, float]:
    """The figures of a row of the log to show: losses, rates, seconds, and tokens per second."""
    shown = {name: float(row[name]) for name in FIGURES if name in row}
    return {**shown, "tokens_per_s": tokens_per_step / float(row["step_time_s"])}


class TensorBoard:
    """Event files for ``tensorboard --logdir``."""

    def __init__(self, folder: Path, first: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer: Any = SummaryWriter(str(folder), purge_step=first, flush_secs=FLUSH_S)

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        """Figures of a step by name."""
        for name, value in figures.items():
            self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write what is left and end the output."""
        self.writer.close()


class WeightsAndBiases:
    """A run of a project at Weights & Biases, or on disk if ``WANDB_MODE=offline``."""

    def __init__(self, job: RunJob, first: int) -> None:
        wandb: Any = importlib.import_module("wandb")
        kept = Path(job.folder) / WANDB_ID
        known = kept.read_text().strip() if first and kept.exists() else uuid.uuid4().hex
        write_atomic(kept, f"{known}\n")
        self.run: Any = wandb.init(
            project=job.measuring.wandb, dir=job.folder, id=known, resume="allow",
            config=job.model_dump(mode="json", include={"plan", "model", "training", "learning"}),
        )  # fmt: skip

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        """Figures of a step by name."""
        self.run.log(dict(figures), step=step)

    def close(self) -> None:
        """Send what is left."""
        self.run.finish()
