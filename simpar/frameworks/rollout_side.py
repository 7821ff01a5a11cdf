"""What a launch of reinforcement learning says beside the update: generation, placement, synchrony, passes.

Readers of such launches put it into ``ImportedStep.rollout``. A check simulates the whole step with it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.frameworks.match import find_released

FILTERED = "groups that are filtered out, and generated for nothing, are not modelled"
"""The note on launches that leave groups out of the update."""
IN_TURNS = "turns with tools or users are not modelled: a response is generated at a stretch"
"""That on launches whose responses have several turns."""
SENT_WHOLE = "whole weights are sent, not adapters alone"
"""That on launches of adapters."""
PROMPT_SHARE = 8
"""Where a text gives the tokens of prompt and response together, prompts are assumed to have a part of so many."""


@dataclass(frozen=True)
class RolloutSide:
    """Values of the section ``post_training`` (:mod:`simpar.plan.post_training`) that a text says, without lengths.

    ``longest`` are the tokens that prompts and responses may have. ``apart`` are the devices that only generate, and
    those of a node of them; None where generation takes turns with training. ``answers`` are words of the text,
    without dashes, that the whole step answers and that its update leaves open. ``notes`` say what the section cannot,
    ``refused`` why there is no whole step. ``updates`` are those of a rollout, where the section has no prompts: they
    are as many as these updates train on.
    """

    section: Mapping[str, Any] = field(default_factory=dict)
    longest: tuple[int, int] = (0, 0)
    apart: tuple[int, int] | None = None
    answers: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    refused: str = ""
    updates: int | None = None

    def of_batch(self, responses: int) -> Mapping[str, Any]:
        """The section where an update trains on so many responses. Raises UserError."""
        if "prompts" in self.section or self.updates is None:
            return self.section
        samples = self.section["samples"]
        prompts, rest = divmod(responses * self.updates, samples)
        if rest:
            raise UserError(
                f"--rl: {responses * self.updates} responses of a rollout, {samples} of a prompt: allowed: a multiple"
            )
        return {**self.section, "prompts": prompts}


def side_of(read: Callable[[], RolloutSide], used: set[str]) -> RolloutSide:
    """What ``read`` gives; where it refuses a word, why: the update can be answered all the same.

    Words that it adds to those that are ``used`` are none of the update: it has them as ``answers``.
    """
    before = set(used)
    try:
        side = read()
    except UserError as reason:
        side = RolloutSide(refused=str(reason))
    answers = tuple(sorted(word.lstrip("-") for word in used - before))
    used.intersection_update(before)
    return replace(side, answers=(*side.answers, *answers))


def without_nothing(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values that are not None, in sections too."""
    return {
        key: without_nothing(value) if isinstance(value, Mapping) else value
        for key, value in values.items()
        if value is not None
    }


def shipped(named: str, source: str = "") -> str | None:
    """The shipped model of a name or path, which may lie beside ``source``; None for another one."""
    last = named.rstrip("/").rpartition("/")[2]
    return find_released(named, source) or (find_released(last) if last and "$" not in last else None)


def critic_of(named: str, policy: str, notes: list[str]) -> str | None:
    """The shipped model of a critic; None for one like the policy, also where it is not known, which is noted."""
    model = None if not named or named == policy else shipped(named)
    if model is None and named not in ("", policy):
        notes.append(f"the critic {named} is not shipped: one of the policy's sizes is taken")
    return model


def reward_of(named: str, notes: list[str]) -> str | None:
    """The shipped model of rewards; None, which is noted, for one that is not known."""
    model = shipped(named)
    if model is None:
        told = named or "that the framework takes by itself"
        notes.append(f"left out: the pass of the reward model {told}, which is not shipped, and its weights")
    return model


def both_leave(leaves: Sequence[bool], what: str, notes: list[str]) -> bool:
    """Whether parameters and states leave for the host, where a text says it of each; noted if they differ."""
    if any(leaves) != all(leaves):
        notes.append(f"{what}: one part leaves the devices between phases, and the other stays; both are taken to stay")
    return all(leaves)


def parted(whole: int) -> tuple[int, int]:
    """The longest prompt and response where a text gives both together."""
    prompt = max(1, whole // PROMPT_SHARE)
    return prompt, whole - prompt


def cache_dtype(told: Any) -> str | None:
    """The dtype of an engine's cache of keys and values by its own word; None: that of the weights."""
    return "fp8" if str(told).startswith("fp8") else None


def states_of(told: Any) -> dict[str, str] | None:
    """Recurrent states by vLLM's word for their dtype (``mamba_ssm_cache_dtype``); None: as usual."""
    dtype = {"float32": "fp32", "float16": "bf16", "bfloat16": "bf16"}.get(str(told))
    return {"dtype": dtype} if dtype else None


def number_in(value: Any, what: str, source: str) -> float:
    """A finite number that a text gives. Raises UserError."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise UserError(f"{source}: {what} = {value}: allowed: a number")
    return float(value)
