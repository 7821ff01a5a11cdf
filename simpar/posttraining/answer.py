"""What a simulated post-training step comes to: speed, where it goes, who waits, memory of both sides. SI units."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from simpar import formats
from simpar.calls import Strict
from simpar.dataclass import dataclass
from simpar.files import write_atomic
from simpar.report.timeline import Timeline


class StepSpeed(Strict):
    """Means over the measured steps, between two arrivals of weights.

    Tokens are those of responses with their prompts, as they are trained on. ``cost_usd_per_step`` is None where no
    price is known.
    """

    step_time_s: float
    samples_per_s: float
    tokens_per_s: float
    tokens_per_s_per_device: float
    devices: int
    steps_s: tuple[float, ...]
    cost_usd_per_step: float | None = None


class TrainingParts(Strict):
    """Seconds of a mean step on the training devices: they sum to the step.

    ``waiting`` is for responses (colocated: the time of generation itself), ``elsewhere`` for passes of models on
    devices of their own, ``switch`` what moves states to the host and back where pools take turns.
    """

    waiting: float
    elsewhere: float = 0.0
    switch: float
    passes: dict[str, float]
    training: float
    weights: float


class IterationsReport(Strict):
    """What replicas do while they generate; ``iterations`` are those of one replica and step, others of the whole run.

    ``key_share`` of the time goes into reading cached keys and values, ``state_share`` into reading and writing states
    of recurrent layers while sequences decode, ``prompt_share`` into iterations with prompts; the rest reads weights,
    computes, communicates and launches. Sequences are those of a replica at a time. ``preempted`` gave up their blocks;
    ``again_tokens`` were computed anew for them and for interrupted ones.
    """

    iterations: float
    mean_sequences: float
    peak_sequences: int
    key_share: float
    state_share: float = 0.0
    prompt_share: float
    preempted: int
    again_tokens: int


class GenerationReport(Strict):
    """The rollout side in a mean step, in seconds of one replica unless said otherwise.

    ``generating`` + ``waiting`` + ``weights`` + ``away`` is the step, on average over replicas; ``away`` is the time in
    which colocated devices score, train and switch. ``tail`` is the part of waiting in which other replicas still
    generate. ``tokens_per_s`` are those of all replicas while they generate.
    """

    replicas: int
    devices_per_replica: int
    generating: float
    waiting: float
    weights: float
    away: float
    tail: float
    tokens_per_s: float
    inside: IterationsReport


class LengthsReport(Strict):
    """Texts of the simulated steps, in tokens; ``cut_share`` of the responses were longer than the context leaves."""

    prompt_mean: float
    response_mean: float
    response_p99: float
    response_longest: int
    cut_share: float


class SideMemory(Strict):
    """Bytes of the fullest device of one side while it works, by part, and what it may take at most."""

    parts_bytes: dict[str, float]
    capacity_bytes: float
    fits: bool

    @property
    def total_bytes(self) -> float:
        """All parts together."""
        return sum(self.parts_bytes.values())


class BothMemories(Strict):
    """Memory of both sides, and of the host of a node with what waits there while generation has the devices.

    ``cache_tokens`` fit in the cache of a replica at a time (0: no layer has keys), beside no states; recurrent layers
    keep ``state_bytes`` of a sequence on a device. ``peak_cache_share`` of the cache was in use at most.
    """

    generation: SideMemory
    training: SideMemory
    host: SideMemory | None = None
    cache_tokens: int
    state_bytes: float = 0.0
    peak_cache_share: float


class AgeReport(Strict):
    """Optimizer steps between the weights that a response was begun with and those that were trained on it."""

    allowed: int
    mean: float
    largest: int


class WeightsReport(Strict):
    """One update of the weights of generation: seconds, and bytes of the fullest device and node (NVLink domain).

    It is ``flows`` over links; what all of them put on ``slowest_link`` takes ``slowest_link_seconds``.
    """

    method: str
    seconds: float
    whole_bytes: float
    received_per_device_bytes: float
    received_per_node_bytes: float
    flows: int = 0
    slowest_link: str = ""
    slowest_link_seconds: float = 0.0


class ModelDevices(Strict):
    """Devices of models of their own, and what these do in a mean step, in seconds that sum to it.

    ``passes`` are scores, ``training`` the critic's updates, ``waiting`` the rest.
    """

    models: tuple[str, ...]
    devices: int
    passes: float
    training: float
    waiting: float
    memory: SideMemory


class PostTrainingFigures(Strict):
    """All figures of an answer."""

    speed: StepSpeed
    parts_s: TrainingParts
    generation: GenerationReport
    lengths: LengthsReport
    memory: BothMemories
    staleness: AgeReport
    weights: WeightsReport
    models_apart: tuple[ModelDevices, ...] = ()
    limits: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    not_modelled: tuple[str, ...] = ()
    setup: dict[str, Any] = Field(default_factory=dict)

    @property
    def fits(self) -> bool:
        """Whether both sides fit."""
        host = self.memory.host
        others = all(each.memory.fits for each in self.models_apart)
        return self.memory.generation.fits and self.memory.training.fits and (host is None or host.fits) and others


@dataclass(frozen=True, repr=False)
class PostTrainingResult:
    """The answer, with the timeline of all simulated steps.

    ``memory`` are curves of (seconds, bytes) for a device of each side, with straight lines between their points; that
    of generation is of ``fullest_replica``.
    """

    figures: PostTrainingFigures
    timeline: Timeline
    memory: Mapping[str, tuple[tuple[float, float], ...]]
    fullest_replica: int

    def __repr__(self) -> str:
        speed = self.figures.speed
        return f"<PostTrainingResult {speed.step_time_s:.3g} s a step, {speed.samples_per_s:.3g} samples/s>"

    @property
    def step_time_s(self) -> float:
        """Seconds of a mean step."""
        return self.figures.speed.step_time_s

    @property
    def samples_per_s(self) -> float:
        """Responses that are trained on per second."""
        return self.figures.speed.samples_per_s

    @property
    def fits(self) -> bool:
        """Whether generation and training both fit."""
        return self.figures.fits

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {formats.POST_TRAINING.key: formats.POST_TRAINING.version} | self.figures.model_dump(mode="json")

    def to_json(self) -> str:
        """The answer as JSON text."""
        return json.dumps(self.to_dict(), allow_nan=False)

    def save(self, path: str | Path) -> None:
        """Write the JSON atomically."""
        write_atomic(path, self.to_json() + "\n")
