"""A job: everything that the workers of a run need to know, as one JSON file. No torch here."""

import json
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from simpar import files
from simpar.architectures.catalogue import config_of
from simpar.architectures.graph import ModelGraph
from simpar.architectures.training import Training
from simpar.calls import Strict
from simpar.plan.optimizers import MOMENTUM
from simpar.plan.plan import Plan
from simpar.runtime.objective import ENCODER, PAIR, objective_of
from simpar.tracing.code import is_code
from simpar.tracing.library import has_class, pictured_class
from simpar.tracing.load import load_config, load_model
from simpar.units import Count

LOG = "log.jsonl"
KINETO = "trace-rank{rank}.json"
SNAPSHOT = "memory-rank{rank}.pickle"
PICTURES = "a vision tower (images that are made of the tokens)"
"""A part of models that transformers' class computes."""


def sees(graph: ModelGraph) -> bool:
    """Whether a model has a vision tower."""
    return "visual.seq" in graph.dims


class RunInputs(Strict):
    """Input of workers, as a JSON file in the ``folder`` in which they leave their results."""

    FILE: ClassVar[str]
    folder: str

    def save(self) -> Path:
        """Write it into its folder."""
        path = Path(self.folder) / self.FILE
        files.write_atomic(path, self.model_dump_json(indent=2) + "\n")
        return path

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what :meth:`save` wrote. Raises UserError if it is not that."""
        return files.parse(cls, files.load(Path(path)))


class SixteenBits(Strict):
    """What training in 16 bits needs beside a rate: a scale of the loss in fp16, how bf16 parameters are rounded."""

    loss_scale: float = Field(2.0**16, gt=0, allow_inf_nan=False, description="of the first step in fp16")
    rounding: Literal["stochastic", "nearest"] | None = Field(None, description="of parameters that are kept in bf16")


class Learning(Strict):
    """Hyperparameters of the optimizer, and the seed of initial weights, data order and dropout.

    After ``warmup_steps`` the rate follows its ``schedule`` down to ``least_rate`` over ``schedule_steps`` (None: the
    steps of the run); under "wsd" it falls over the last ``decay_steps`` of them (None: a tenth).
    """

    learning_rate: float = Field(1e-4, gt=0, allow_inf_nan=False)
    weight_decay: float = Field(0.0, ge=0, allow_inf_nan=False)
    momentum: float = Field(0.9, ge=0, lt=1, description=f"of {MOMENTUM}")
    clip_norm: float | None = Field(None, gt=0, allow_inf_nan=False, description="largest gradient norm")
    seed: int = Field(0, ge=0, lt=2**31)
    schedule: Literal["constant", "cosine", "linear", "wsd"] = "constant"
    warmup_steps: int = Field(0, ge=0)
    decay_steps: Count | None = None
    schedule_steps: Count | None = None
    least_rate: float = Field(0.0, ge=0, allow_inf_nan=False)
    sixteen_bits: SixteenBits = SixteenBits()
    lora_alpha: float | None = Field(None, gt=0, allow_inf_nan=False, description="of adapters; default their rank")

    @model_validator(mode="after")
    def _falls(self) -> Self:
        if self.least_rate > self.learning_rate:
            raise ValueError(
                f"least_rate (--min-learning-rate) = {self.least_rate:g}: allowed: at most learning_rate = "
                f"{self.learning_rate:g}"
            )
        return self

    @property
    def varies(self) -> bool:
        """Whether the learning rate depends on the step."""
        return self.schedule != "constant" or self.warmup_steps > 0


class WeightedPath(Strict):
    """One of several sources of tokens, and its part of a run's sequences beside the others' weights."""

    path: str
    weight: float | None = Field(None, gt=0, allow_inf_nan=False)


class Data(Strict):
    """Training data: synthetic tokens, token numbers in a file or a folder, or a text and a tokenizer.

    A ``blend`` of several sources of tokens has no ``path``; all of them have a weight, or none: then sequences of all
    are as likely.

    Documents are packed one behind the other, ``apart`` from each other or as one text, or ``pack`` is false: each has
    a sequence of its own. ``validation`` is
    the share of a text's documents that are held out; the ``loss_on`` completions leaves prompts out;
    ``skip_empty`` leaves documents out that have nothing to train on, which are refused without it.
    """

    kind: Literal["synthetic", "tokens", "text"] = "synthetic"
    path: str | None = None
    blend: tuple[WeightedPath, ...] = ()
    tokenizer: str | None = None
    dtype: Literal["uint16", "uint32", "int32", "int64"] = "uint16"
    pack: bool = True
    apart: bool = False
    validation: float = Field(0.0, ge=0, lt=1, allow_inf_nan=False)
    loss_on: Literal["completions", "all"] = "completions"
    skip_empty: bool = False

    @property
    def parts(self) -> tuple["Data", ...]:
        """The data of each source of a blend alone; itself if there is no blend."""
        alone = ({"path": each.path, "blend": ()} for each in self.blend)
        return tuple(self.model_copy(update=each) for each in alone) or (self,)


class CheckpointSettings(Strict):
    """Where and how often states are saved; the ``keep`` newest are kept."""

    folder: str
    every: Count | None = None
    keep: Count = 2
    resume: bool = True
    background: bool = True


class WeightFolders(Strict):
    """Folders of weights in Hugging Face's format: those a run starts from, and those it writes.

    Adapters are written alone, in PEFT's format, or ``merge``: in the weights that they belong to.
    """

    init_from: str | None = None
    save_to: str | None = None
    merge: bool = False


class Machine(Strict):
    """Where ranks run: device, threads of each rank, seconds until a silent peer counts as dead.

    ``processes`` counts those of all nodes together. ``devices`` are the numbers of this node's that ranks use, one
    each (None: the first). Layers are compiled if ``compile`` is set.
    """

    device: Literal["cpu", "cuda"] = "cpu"
    threads: Count = 1
    timeout_s: float = Field(300.0, gt=0, allow_inf_nan=False)
    port: int | None = Field(None, ge=1, le=65535, description="where rank 0 listens; default a free one")
    processes: Count | None = None
    devices: tuple[int, ...] | None = None
    compile: bool = False


class Measuring(Strict):
    """Which steps are measured, traced and evaluated, and where figures go in addition to the log.

    ``held_out`` is a file like the training file; ``wandb`` names a project.
    """

    warmup: int = Field(2, ge=0, description="steps at the start that are not measured")
    trace_steps: int = Field(0, ge=0, description="steps of the Kineto trace, after the warm-up")
    memory_snapshot: bool = False
    evaluate_every: Count | None = None
    evaluate_batches: Count = 1
    held_out: str | None = None
    tensorboard: bool = False
    wandb: str | None = Field(None, min_length=1)


class RunJob(RunInputs):
    """One run of a checked and resolved plan: ``steps`` optimizer steps, with results in ``folder``."""

    FILE: ClassVar[str] = "job.json"
    plan: Plan
    model: str | dict[str, Any]
    training: Training
    steps: Count
    learning: Learning = Learning()
    data: Data = Data()
    checkpoints: CheckpointSettings | None = None
    weights: WeightFolders = WeightFolders()
    machine: Machine = Machine()
    measuring: Measuring = Measuring()
    selective: Literal["attention", "operators"] = "attention"

    @property
    def own_code(self) -> bool:
        """Whether the model is a module:function of the user."""
        return isinstance(self.model, str) and is_code(self.model)

    def graph(self) -> ModelGraph | None:
        """The model's graph; None for a user's model. Raises UserError."""
        if isinstance(self.model, dict):
            return load_config(self.model, str(self.model.get("name", "inline")))
        return None if is_code(self.model) else load_model(self.model)

    @property
    def library_parts(self) -> tuple[str, ...]:
        """Parts that the runtime's decoder does not compute and an installed class of transformers does; () if none."""
        if (graph := self.graph()) is None:
            return ()
        kind = str(config_of(self.model).get("model_type"))
        if sees(graph):
            return (PICTURES, *graph.details.unbuilt) if pictured_class(kind) else ()
        if (objective := objective_of(graph)) != "next":
            return (ENCODER if objective == "masked" else PAIR,) if has_class(kind, objective) else ()
        captured = ("a family that is not declared",) if "notes" in graph.facts else ()
        parts = graph.details.unbuilt or captured
        return parts if parts and has_class(kind) else ()

    def cut_graph(self) -> ModelGraph | None:
        """The graph of a class of transformers of which a pipeline's stages are cut; None where nothing is."""
        parts = self.library_parts if (self.plan.mesh.pp or 1) > 1 else ()
        return None if not parts or {PICTURES, ENCODER, PAIR} & {*parts} else self.graph()

    def built_graph(self) -> ModelGraph | None:
        """The graph that the runtime's decoder builds; None where the model is a module of its own."""
        return None if self.library_parts else self.graph()


def read_log(path: Path) -> list[dict[str, Any]]:
    """Rows of a log; an incomplete last line is left out."""
    if not path.exists():
        return []
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return rows
