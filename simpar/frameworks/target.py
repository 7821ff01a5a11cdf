"""The definition of an export target: its name, version, what it cannot express, and the files it writes."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, fields
from difflib import get_close_matches
from typing import Any

from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.frameworks.rollout_side import RolloutSide
from simpar.frameworks.subject import Loss, Subject
from simpar.frameworks.words import Assumed, ReadWords, plain
from simpar.plan.choices import CHOICES
from simpar.plan.optimizers import IN_TORCH, in_torch
from simpar.plan.plan import Plan
from simpar.plan.routing import Balance

Options = dict[str, Any]
FEATURES = {
    "offload": "options say what a plan offloads; else that is lost",
    "tuning": "options say what of a model is trained; else that is lost",
    **dict.fromkeys(
        (each.name for each in CHOICES if each.section == "execution"),
        "options say what a plan chose there; else that is lost",
    ),
    "segments": "options say segments of layers that are recomputed from their first input; else that is lost",
    "master_dtype": "options say how master weights are kept; else that is lost",
    "shared_expert_overlap": "options say what shared experts run beside; else that is lost",
    "defer_grad_reduce": "it is said whether gradients wait for the last microbatch; else that is lost",
    "a part": "something else runs more of what its stack does: it does not decide what is searched for that",
}
"""Features of a target besides writing files."""
OF_TORCH = {name: in_torch(name).name for name in IN_TORCH}
"""Optimizers of targets that train with ``torch.optim``."""


WAITS = (
    "Gradients of several microbatches are kept whole, and reduced beside the backward of the last one, as this "
    "framework does under FSDP."
)
PYTHON, LAUNCHER = "python", "launcher"
CHECKPOINTING = {
    "memory.recompute=full": "model.gradient_checkpointing_enable()",
    "memory.recompute=none": "model.gradient_checkpointing_disable()",
}
"""What scripts with models of transformers call to recompute, or not to."""


@dataclass(frozen=True)
class Sized:
    """What a plan has by the number of devices that start.

    ``stack_of_one`` is the stack where one device is started, if it is another one. ``shard_ranks`` are the
    data-parallel ranks that share a copy of the states, if there are as many copies as the others make; ``of_nodes``:
    those of a node share one. ``alone`` is what starts one process and no more: :data:`PYTHON`, or the
    :data:`LAUNCHER` whatever its flags say; "" for nothing. ``usual_ranks`` are those that the plan's dp is for, where
    a launcher may start others; a batch that is ``scaled`` is for these, too, and grows with others. ``several``: a
    script starts processes itself, whatever starts it.
    """

    stack_of_one: str = ""
    shard_ranks: int | None = None
    alone: str = ""
    of_nodes: bool = False
    usual_ranks: int | None = None
    scaled: bool = False
    several: bool = False


@dataclass(frozen=True, kw_only=True)
class StatedModel:
    """What a file states of its model, beside a name.

    ``sizes`` are those in the file (by the keys of ``match.SIZES``). ``config`` is the config.json of a model that is
    not shipped, if the file states one. ``dropout`` are the rates of
    :func:`~simpar.architectures.dropout.with_dropout` that the launch has, whatever its model's are.
    """

    sizes: Mapping[str, int] = field(default_factory=dict)
    config: Mapping[str, Any] | None = None
    dropout: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Imported(StatedModel):
    """A plan read from another tool's file, and the file's ``words``: those that were read, and those that were not.

    ``per_replica`` are the sequences of a data-parallel rank's step, if the file gives no global batch and the tool
    takes as many from every rank. ``microbatches`` counts those of a rank's step, if the file gives them instead of a
    micro-batch. ``asks`` maps those of the ``notes`` that a user can answer to what they ask for: "model",
    "micro_batch" or "global_batch" ("" if that is certain). ``expert_balance`` is what keeps the experts of a mixture
    evenly loaded. ``assumed`` is what the file leaves open, with the other likely values. ``sized`` is what follows
    from the number of devices that start; ``written_as`` the target
    whose options it has, if that is not the reader's.
    """

    plan: Plan
    words: ReadWords = field(default_factory=ReadWords)
    notes: tuple[str, ...] = ()
    per_replica: int | None = None
    microbatches: int | None = None
    asks: Mapping[str, str] = field(default_factory=dict)
    expert_balance: Balance = "loss"
    assumed: tuple[Assumed, ...] = ()
    sized: Sized = Sized()
    written_as: str | None = None

    @property
    def ignored(self) -> tuple[str, ...]:
        """Names of the options that were not read."""
        return self.words.ignored

    def global_batch(self, world_size: int) -> int | None:
        """Sequences of a step on ``world_size`` devices; None if the file does not give them. Raises UserError."""
        told, usual = (self.plan.training or {}).get("global_batch"), self.sized.usual_ranks
        if told and self.sized.scaled and usual:
            scaled, rest = divmod(told * world_size, usual)
            if rest or not scaled:
                raise UserError(
                    f"global batch = {told} of {usual} ranks, which grows with them: no whole number on {world_size}; "
                    "allowed: other ranks, or a global batch in the command"
                )
            return int(scaled)
        replicas = self._replicas(world_size)
        return told or (self.per_replica * replicas if self.per_replica and replicas else None)

    def _replicas(self, world_size: int) -> int:
        return world_size // int(self.plan.mesh.sizes.replica_ranks)

    def in_copies(self, plan: Plan, world_size: int, nodes: int | None = None) -> Plan:
        """The plan with as many copies of its states as ``world_size`` devices on ``nodes`` make. Raises UserError."""
        if self.sized.of_nodes and nodes:
            return plan.with_values(hsdp=nodes)
        if not self.sized.shard_ranks:
            return plan
        copies, rest = divmod(self._replicas(world_size), self.sized.shard_ranks)
        if rest or not copies:
            raise UserError(
                f"plan.data_parallel: states shared by {self.sized.shard_ranks} ranks; allowed: a divisor of the "
                f"{self._replicas(world_size)} data-parallel ranks"
            )
        return plan.with_values(hsdp=copies)

    def placed(self, world_size: int, global_batch: int | None = None) -> Plan:
        """The plan on ``world_size`` devices, of which its micro-batch or copies may follow. Raises UserError."""
        plan = self.in_copies(self.plan, world_size)
        if world_size == 1 and self.sized.stack_of_one:
            plan = plan.model_copy(update={"stack": self.sized.stack_of_one})
        batch = global_batch or self.global_batch(world_size)
        if not self.microbatches or not batch or not (replicas := self._replicas(world_size)):
            return plan
        micro, rest = divmod(batch, replicas * self.microbatches)
        if rest or not micro:
            raise UserError(
                f"global batch = {batch}: allowed: a multiple of data-parallel ranks x microbatches = "
                f"{replicas} x {self.microbatches}"
            )
        return plan.model_copy(update={"micro_batch": micro})


@dataclass(frozen=True)
class ImportedStep(Imported):
    """An update of reinforcement learning, with what its launch says beside it."""

    rollout: RolloutSide = RolloutSide()

    @staticmethod
    def of(update: Imported, rollout: RolloutSide) -> "ImportedStep":
        """An update with its rollout."""
        return ImportedStep(**{each.name: getattr(update, each.name) for each in fields(Imported)}, rollout=rollout)


TYPO_SIMILARITY = 0.94
"""Similarity of two names above which one counts as a typing error; options of one tool are less similar."""


def misspelt(left: Iterable[str], wanted: Iterable[str]) -> tuple[str, ...]:
    """Notes on unused names (``left``) that are almost equal to a name that was looked for and not found.

    A flag that is a prefix of another one counts as equal to it.
    """
    known = sorted(wanted)
    result = []
    for name in left:
        like = [each for each in known if name.startswith("--") and each.startswith(f"{name}-")]
        like += get_close_matches(name, known, n=1, cutoff=TYPO_SIMILARITY)
        like = [each for each in like if plain(each) != f"no_{plain(name)}"]  # its opposite is another word
        if like:
            result.append(f"{name} is not read: {like[0]} may be meant.")
    return tuple(result)


def plan_said(values: Mapping[str, Any]) -> Plan:
    """The plan of the values in a file; missing values (None) are left open. Raises ValidationError."""
    return Plan.model_validate({key: value for key, value in values.items() if value is not None})


@dataclass(frozen=True)
class TargetNumerics:
    """Numerics of a framework: its names of ``optimizers``, by simpar's names, and its ``precisions``."""

    optimizers: Mapping[str, str] = field(default_factory=lambda: OF_TORCH)
    precisions: tuple[str, ...] = ("bf16", "fp16", "fp32")


STACKS: Mapping[str, tuple[str, ...]] = {
    "torch": ("simpar",),
    "megatron": ("megatron",),
    "megatron-bridge": ("megatron", "nemo", "nemo-24"),
    "nemo-run": ("megatron", "nemo", "nemo-24"),
    "torchtitan": ("torchtitan", "torchtitan-eager"),
    "torchtitan-main": ("torchtitan", "torchtitan-eager"),
    "torchtitan-0.2": ("torchtitan", "torchtitan-eager"),
    "deepspeed": ("deepspeed",),
    "accelerate": ("huggingface", "fsdp"),
    "nanotron": ("nanotron",),
    "sagemaker": ("fsdp", "huggingface"),
    "maxtext": ("maxtext",),
    "transformers": ("huggingface", "fsdp"),
    "trl": ("huggingface", "fsdp"),
    "axolotl": ("huggingface", "fsdp"),
    "llama-factory": ("huggingface", "fsdp"),
}
"""The software stacks of every target: first its own, whose habits it has, then others that it starts; plans made for
these keep their habits. They stand here, so that what runs a stack is known without loading every target."""


@dataclass(frozen=True)
class Target:
    """One framework at one version.

    ``losses`` yields what it cannot express, ``options`` returns its options by their own
    names, ``files`` the text of every file from a subject and its options. ``notes`` tells what the user should know,
    ``how`` what to do before starting it. ``features`` are those of :data:`FEATURES`. ``in_code`` maps choices that are
    no options of it, by their names or with a value behind (``memory.recompute=full``), to what scripts call for them.
    """

    name: str
    description: str
    version: str
    losses: Callable[[Subject], Iterable[Loss]]
    options: Callable[[Subject], Options]
    files: Callable[[Subject, Options], Mapping[str, str]]
    notes: Callable[[Subject], Iterable[str]] = lambda _: ()
    how: str = ""
    features: tuple[str, ...] = ()
    numerics: TargetNumerics = TargetNumerics()
    in_code: Mapping[str, str] = field(default_factory=dict)

    @property
    def stacks(self) -> tuple[str, ...]:
        """Its software stacks: see :data:`STACKS`."""
        return STACKS[self.name]

    @property
    def stack(self) -> str:
        """The software stack whose habits it has."""
        return self.stacks[0]

    @property
    def runs_all(self) -> bool:
        """Whether it runs all that its stack does."""
        return "a part" not in self.features

    def adapts(self, plan: Plan) -> bool:
        """Whether a plan trains a part of its model, and options of the target say which."""
        return plan.tuning.is_used and "tuning" in self.features

    def stack_for(self, plan: Plan) -> str:
        """The stack whose habits a plan has in the target: its own if the target starts it, else the target's."""
        return plan.stack if plan.stack in self.stacks else self.stack
