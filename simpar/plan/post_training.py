"""What a step of reinforcement learning is, and how its parts are placed: the section ``post_training`` of a scenario.

Training itself is the rest of the scenario: ``training.global_batch`` responses an optimizer update, of at most
``training.seq_len`` tokens with their prompt, split as ``plan`` says.
"""

from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from simpar.calls import Strict
from simpar.units import US, Count, PositiveFraction, Seconds

ALGORITHMS = ("grpo", "ppo")
APART = ("critic", "reference", "reward", "teacher")
"""Models that may have devices of their own."""
Placement = Literal["colocated", "split", "hybrid"]
Padding = Literal["none", "longest", "context"]


class Lengths(Strict):
    """How many tokens a text has: exactly one of ``fixed``, ``mean`` (with ``p99``), ``histogram`` and ``file``.

    ``mean`` and ``p99`` are those of a log-normal: one of a hundred texts is longer than ``p99``. A ``histogram`` maps
    lengths to weights; a ``file`` has one length a line. A length that would not fit in the context is cut to it.
    """

    fixed: Count | None = None
    mean: float | None = Field(default=None, ge=1, allow_inf_nan=False)
    p99: float | None = Field(default=None, ge=1, allow_inf_nan=False)
    histogram: dict[Count, float] | None = Field(default=None, description="length in tokens: weight")
    file: str | None = Field(default=None, description="a text file with one length in tokens a line")

    @field_validator("histogram", mode="before")
    @classmethod
    def _keys_of_json(cls, given: object) -> object:
        """JSON has no keys that are numbers."""
        if not isinstance(given, dict):
            return given
        return {int(key) if isinstance(key, str) and key.isdecimal() else key: each for key, each in given.items()}

    @model_validator(mode="after")
    def _one_distribution(self) -> Self:
        given = [name for name in ("fixed", "mean", "histogram", "file") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"lengths: give one of fixed, mean (with p99), histogram, file; given: {given or 'none'}")
        if (self.mean is None) != (self.p99 is None):
            raise ValueError("lengths: mean and p99 belong together; give both")
        if self.mean is not None and self.p99 is not None and self.p99 < self.mean:
            raise ValueError(f"p99 = {self.p99:g}: allowed: at least the mean, {self.mean:g}")
        weights = ({1: 1.0} if self.histogram is None else self.histogram).values()
        if min(weights, default=0.0) < 0 or not 0 < sum(weights) < float("inf"):
            raise ValueError("histogram: needs weights that are not negative, one of them above 0")
        return self


class Texts(Strict):
    """Lengths of prompts and of responses, drawn independently of each other.

    Where they are trained on, ``padding`` "none" packs responses into rows of the context; with "longest" each has a
    row as long as the longest of its step, with "context" a row of the context. A drawn prompt has at least
    ``least_prompt`` tokens: by default what the towers of its model make of its images and sounds, and one of text.
    """

    prompt: Lengths
    response: Lengths
    least_prompt: Count | None = Field(
        default=None, description="tokens of the shortest prompts; default those of images and sounds, and 1"
    )
    padding: Padding = "none"


class RolloutEngine(Strict):
    """How one replica serves; defaults are those of vLLM 0.11 on devices of 70 GiB and more, as RL frameworks run it.

    An iteration works on at most ``token_budget`` tokens and ``max_sequences`` sequences. Weights, workspace and cache
    may take ``memory_fraction`` of the device (NeMo-RL's default; verl's is 0.5); the cache has blocks of ``block``
    tokens. With ``prefix_sharing`` the samples of a group share the cache of their prompt. ``graphs``: kernels of an
    iteration are launched as one, up to ``graph_tokens`` tokens; those of larger ones one by one. With ``logprobs``
    the engine returns the log-probability of every token. ``tuned_experts``: it has tiles tuned for the model's experts
    on the device, as for popular mixtures; else it takes its usual ones. ``overhead`` is what the host adds to an
    iteration, ``sequence_overhead`` what it adds for each sequence in it: scheduling, and taking what was sampled (0
    for an engine that does both beside the device's work).
    """

    token_budget: Count = 8192
    max_sequences: Count = 1024
    memory_fraction: PositiveFraction = 0.6
    cache_dtype: Literal["bf16", "fp8"] | None = Field(
        default=None, description="dtype of keys and values; default bf16"
    )
    block: Count = 16
    prefix_sharing: bool = True
    graphs: bool = True
    graph_tokens: Count = 512
    logprobs: bool = True
    tuned_experts: bool = False
    overhead: Seconds = 0.0005
    sequence_overhead: Seconds = 12 * US


class RecurrentStates(Strict):
    """What recurrent layers (Mamba-2, linear attention, short convolutions) keep of a sequence in place of its keys.

    ``dtype`` is that of recurrences, read and written with every token (convolutions keep inputs as they are). With
    ``shared`` a group keeps the state behind the whole blocks of its prompt, with which its samples begin (SGLang);
    else every sample computes its prompt, as vLLM 0.11 switches prefix caching off for such models.
    """

    dtype: Literal["bf16", "fp32"] | None = Field(
        default=None, description="dtype of states; default bf16, of Kimi Delta Attention fp32"
    )
    shared: bool = False


class Rollout(Strict):
    """Layout of generation: ``tp`` x ``pp`` devices a replica, as many replicas as there are devices.

    ``nodes`` are those of a pool that only generates; colocated pools have the nodes of training. With ``ep`` greater
    than 1 experts are spread over ``ep`` devices, and attention has ep / tp data-parallel ranks in a replica.
    """

    nodes: Count | None = Field(default=None, description="nodes that only generate; with placement split or hybrid")
    hardware: str | None = Field(default=None, description="hardware profile of a split pool; default that of training")
    tp: Count = 1
    pp: Count = 1
    ep: Count = 1
    precision: str = Field(default="bf16", description="precision of the weights while generating")
    engine: RolloutEngine = RolloutEngine()
    states: RecurrentStates = RecurrentStates()

    @property
    def stages(self) -> int:
        """Pipeline stages of a replica."""
        return self.pp

    @property
    def attention_ranks(self) -> int:
        """Data-parallel ranks of attention in a replica: 1 unless experts are spread over more devices than ``tp``."""
        return max(1, self.ep // self.tp)

    @property
    def devices(self) -> int:
        """Devices of a replica."""
        return self.tp * self.pp * self.attention_ranks

    @model_validator(mode="after")
    def _experts_over_whole_ranks(self) -> Self:
        if self.ep > 1 and self.ep % self.tp:
            raise ValueError(f"ep = {self.ep}: allowed: 1, or a multiple of tp = {self.tp}")
        return self


class Synchrony(Strict):
    """How far generation may run ahead of training.

    Responses of a group may be trained on weights that are up to ``steps_off`` updates newer than those that it was
    begun with; 0 is on policy. With ``in_flight`` new weights (and, colocated, the training of a full batch) interrupt
    sequences, which go on with the new weights (partial rollouts); else replicas finish what they have begun first.
    ``recompute_cache``: what interrupted sequences have in the cache is computed anew under the new weights.
    """

    steps_off: int = Field(default=0, ge=0, le=64)
    in_flight: bool = False
    recompute_cache: bool = True

    @model_validator(mode="after")
    def _interrupts_off_policy_alone(self) -> Self:
        if self.in_flight and not self.steps_off:
            raise ValueError("in_flight = true: such sequences see two versions: allowed: with steps_off of 1 or more")
        return self


class WeightMoves(Strict):
    """How weights reach generation, and what leaves the device while the other side works.

    ``method`` "gathered": every rollout device receives whole tensors and keeps its part, as RL frameworks do;
    "resharded": it receives its part alone. To engines apart whole tensors are broadcast, in one ring with all training
    ranks (``senders`` "ranks": NeMo-RL, verl) or with the one "rank" that sends (OpenRLHF, slime, TRL, AReaL), whose
    NICs are those of a device, not of a node. ``through`` "host": over the host's memory and network, not from device
    to device. ``changed`` is the share of values that are sent, each with a 4-byte position (1: all, without
    positions).
    ``offload``: colocated training states leave for the host's memory while generation runs; ``sleep``: weights and
    cache of generation are freed while training runs. ``overhead`` is what software adds to every arrival of weights:
    tensors one by one, engines that wake up, as logs of yours tell it.
    """

    method: Literal["gathered", "resharded"] = "gathered"
    senders: Literal["ranks", "rank"] = "ranks"
    through: Literal["device", "host"] = "device"
    changed: PositiveFraction = 1.0
    offload: bool = True
    sleep: bool = True
    overhead: Seconds = 0.0


class ScoringPasses(Strict):
    """Passes over finished responses on the training devices, before the update.

    ``old_policy`` and ``reference`` are passes of the model that is trained, with its weights and with those that it
    started from. ``reward``, ``teacher`` and ``critic`` name models (config or shipped name); the critic is trained,
    too, and PPO without a name has one like the policy. ``reward_s`` is the time to score one response by rules, on as
    many of the host's processes as there are devices. ``micro_batch`` is that of passes, which keep nothing for a
    backward pass; by default that of updates.

    ``critic_devices`` and its kin are devices of a model's own, of the training hardware, in the policy's layout: it
    scores there, and a critic is trained there, beside the policy. ``reward_beside_critic``: on those of the critic.
    """

    old_policy: bool = True
    reference: bool = False
    reward: str | None = None
    teacher: str | None = None
    critic: str | None = None
    reward_s: Seconds = 0.0
    micro_batch: Count | None = Field(
        default=None, description="sequences of a pass's micro-batch; default that of the plan"
    )
    critic_devices: Count | None = Field(default=None, description="devices of the critic's own")
    reference_devices: Count | None = Field(default=None, description="devices of the reference's own")
    reward_devices: Count | None = Field(default=None, description="devices of the reward model's own")
    teacher_devices: Count | None = Field(default=None, description="devices of the teacher's own")
    reward_beside_critic: bool = False

    @property
    def pools(self) -> tuple[tuple[tuple[str, ...], int], ...]:
        """Models on devices of their own, those that share some together, and the number of these."""
        result = []
        for name in APART:
            devices = getattr(self, f"{name}_devices")
            if devices is not None:
                beside = ("reward",) if name == "critic" and self.reward_beside_critic else ()
                result.append(((name, *beside), devices))
        return tuple(result)

    @model_validator(mode="after")
    def _devices_of_models(self) -> Self:
        there = {"reference": self.reference, "reward": self.reward, "teacher": self.teacher}
        for name, model in there.items():
            if getattr(self, f"{name}_devices") is not None and not model:
                raise ValueError(f"{name}_devices: allowed with a {name}")
        if self.reward_beside_critic and (
            not self.reward or self.critic_devices is None or self.reward_devices is not None
        ):
            raise ValueError("reward_beside_critic: allowed with reward and critic_devices, without reward_devices")
        return self


class PostTraining(Strict):
    """A step: ``prompts`` groups of ``samples`` responses each, scored, and trained on.

    ``placement`` "colocated": training and generation take turns on the same devices; "split": each has its own;
    "hybrid": they take turns, and further devices only generate.
    ``epochs`` are the times that a batch is trained on. ``steps`` are measured, with lengths drawn from ``seed``; k
    updates off policy, as many more as make whole cycles of k + 1 (responses of one step are trained on in the others).
    """

    algorithm: Literal["grpo", "ppo"] = "grpo"
    prompts: Count
    samples: Count = 8
    epochs: Count = 1
    lengths: Texts
    rollout: Rollout = Rollout()
    placement: Placement = "colocated"
    synchrony: Synchrony = Synchrony()
    weights: WeightMoves = WeightMoves()
    passes: ScoringPasses = ScoringPasses()
    steps: int = Field(default=4, ge=1, le=1000)
    seed: int = Field(default=0, ge=0)

    @property
    def responses(self) -> int:
        """Responses of a step."""
        return self.prompts * self.samples

    @property
    def measured_steps(self) -> int:
        """Steps whose mean is the answer: those asked for, in whole cycles of batches that follow each other."""
        cycle = self.synchrony.steps_off + 1
        return -(-self.steps // cycle) * cycle

    @property
    def takes_turns(self) -> bool:
        """Whether training devices generate, too."""
        return self.placement != "split"

    @property
    def has_pool(self) -> bool:
        """Whether there are devices that only generate."""
        return self.placement != "colocated"

    @model_validator(mode="after")
    def _groups_and_pools(self) -> Self:
        passes = self.passes
        if passes.critic_devices is not None and self.algorithm != "ppo" and passes.critic is None:
            raise ValueError("passes.critic_devices: allowed with a critic: algorithm ppo, or passes.critic")
        if self.algorithm == "grpo" and self.samples < 2:
            raise ValueError("samples = 1: a group of one has no advantage under grpo: allowed: 2 or more, or ppo")
        if self.has_pool != (self.rollout.nodes is not None):
            raise ValueError(
                f"rollout.nodes: needed with placement {self.placement}"
                if self.has_pool
                else f"rollout.nodes = {self.rollout.nodes}: allowed with placement split or hybrid"
            )
        if self.takes_turns and self.rollout.hardware is not None:
            raise ValueError(f"rollout.hardware = {self.rollout.hardware}: allowed with placement split")
        if self.takes_turns and self.synchrony.steps_off and not self.synchrony.in_flight:
            raise ValueError("steps_off: colocated pools take turns: allowed: 0, in_flight = true, or placement split")
        return self
