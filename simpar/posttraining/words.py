"""What limits a step, what was assumed and what is not modelled, in words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from simpar.plan.choices.mesh import PIPELINE
from simpar.posttraining.answer import GenerationReport, StepSpeed, TrainingParts
from simpar.units import format_seconds, number_of

if TYPE_CHECKING:
    from simpar.plan.post_training import Rollout
    from simpar.posttraining.search import ReplicaChoice
    from simpar.posttraining.simulate import PostTrainingSetting

CLEAR = 0.05
"""A wait below this share of a step is no limit."""
SPARSE = 0.5
"""Replicas are thinned out by their longest responses if they have fewer sequences than this share of the most."""
NEVER_MEASURED = "no measured run of reinforcement learning stands behind these times: there is no interval"


def limits(
    setting: PostTrainingSetting, speed: StepSpeed, parts: TrainingParts, generation: GenerationReport
) -> Iterator[str]:
    """What a step's time goes into, the largest first."""
    step = speed.step_time_s
    if not setting.section.takes_turns:
        training_waits, generation_waits = parts.waiting / step, generation.waiting / step
        if training_waits > generation_waits:
            yield f"generation: training waits for responses {training_waits:.0%} of a step"
        else:
            yield f"training: generation waits for weights {generation_waits:.0%} of a step"
        if min(training_waits, generation_waits) > CLEAR:
            yield (f"taking turns: training waits {training_waits:.0%} of a step and generation {generation_waits:.0%}")
    else:
        shares = {
            "generation": parts.waiting,
            "training": parts.training,
            "scoring": sum(parts.passes.values()),
            "waiting for passes on other devices": parts.elsewhere,
            "moving states to the host and back": parts.switch,
            "moving weights": parts.weights,
        }
        name, largest = max(shares.items(), key=lambda one: one[1])
        yield f"{name}: {format_seconds(largest)}, {largest / step:.0%} of a step"
    if generation.tail > CLEAR * step:
        yield (
            f"the tail: a replica waits {format_seconds(generation.tail)} of a step, {generation.tail / step:.0%}, for "
            "replicas with longer responses"
        )
    if generation.inside.mean_sequences < SPARSE * generation.inside.peak_sequences:
        yield (
            f"long responses: {generation.inside.mean_sequences:.0f} sequences at a time on a replica on average, of "
            f"{generation.inside.peak_sequences} when it is fullest"
        )
    yield f"inside generation: {generation_words(generation)}"


def generation_words(generation: GenerationReport) -> str:
    """What iterations of generation spend their time on."""
    inside = generation.inside
    states = f"{inside.state_share:.0%} reads and writes states, " if inside.state_share else ""
    return (
        f"{inside.key_share:.0%} reads cached keys and values, {states}"
        f"{1.0 - inside.key_share - inside.state_share:.0%} weights, products, communication and launches "
        f"({inside.prompt_share:.0%} in iterations with prompts)"
    )


def replica_words(replica: Rollout | ReplicaChoice) -> str:
    """Layout and precision of a replica in a few words."""
    words = [f"tp{replica.tp}", *([f"{PIPELINE}{replica.stages}"] if replica.stages > 1 else [])]
    words += [f"ep{replica.ep}"] if replica.ep > 1 else []
    words += [replica.precision] if replica.precision != "bf16" else []
    return " ".join(words)


def assumptions(setting: PostTrainingSetting) -> Iterator[str]:
    """What the section left open and what its defaults mean."""
    section, trained = setting.section, setting.trained
    yield from trained.graph.assumed
    given = section.rollout.engine.model_fields_set
    for name, where in (("overhead", "in every iteration"), ("sequence_overhead", "for every sequence in it")):
        if name not in given:
            added = format_seconds(getattr(section.rollout.engine, name))
            yield f"{added} of the host {where} (post_training.rollout.engine.{name})"
    yield from _of_states(setting)
    if (least := section.lengths.least_prompt) and setting.served.towers:
        yield (
            f"towers compute a prompt's images and sounds where its first token is computed; prompts have at least "
            f"{least:,} tokens, theirs and one of text (post_training.lengths.least_prompt)"
        )
    how = "packed into rows of" if trained.is_packed else "padded to"
    yield (
        f"responses {how} {trained.usual_row:,} tokens, {trained.usual_rows:,} rows an update, "
        f"{number_of(trained.updates, 'update')} a step"
    )
    if setting.beside:
        yield f"{'; '.join(setting.beside)}: on devices of their own, in the policy's layout with other replicas"
    replicas = setting.num_replicas
    if section.prompts < replicas:
        yield f"{section.prompts} groups on {replicas} replicas: groups are divided, and replicas share no prompt"
    if section.rollout.precision != trained.plan.numerics.precision:
        yield f"weights are sent in bf16 and quantised to {section.rollout.precision} where they arrive, in no time"


def _of_states(setting: PostTrainingSetting) -> Iterator[str]:
    """What is taken of states of recurrent layers."""
    rollout, served = setting.section.rollout, setting.served
    if not served.state_bytes:
        return
    if rollout.states.dtype is None and any(each.kernels for each in served.layer_states.values()):
        yield "states of recurrent layers in bf16, of Kimi Delta Attention in fp32 (post_training.rollout.states.dtype)"
    if rollout.engine.prefix_sharing and not rollout.states.shared:
        yield (
            "samples of a group compute their prompt each, as engines without shared states do "
            "(post_training.rollout.states.shared)"
        )


def not_modelled(setting: PostTrainingSetting) -> Iterator[str]:
    """What the answer leaves out."""
    yield NEVER_MEASURED
    yield "lengths of a group's samples are drawn independently; no tools, turns with an environment, or aborted groups"
    yield "speculative decoding, engines' own kernels for all-reduces and exchanges of few tokens, pools for prompts"
    if not setting.section.weights.overhead:
        yield "software between the parts of a step: tensors one by one, engines that wake up (weights.overhead)"
    if setting.trained.plan.tuning.is_used:
        yield "adapters are merged, and all weights are sent"
    if not setting.section.takes_turns:
        yield "replicas on training devices while these wait (placement hybrid has them)"
    if setting.num_joined and setting.section.has_pool and setting.section.synchrony.steps_off:
        yield "interrupted sequences of training devices wait for these, and do not move to others"
    if any(layer.window < setting.trained.training.seq_len for layer in setting.served.cached_layers.values()):
        yield "layers with a sliding window keep all tokens in the cache"
    if setting.section.passes.pools:
        yield "responses and scores on their way between devices of several models"
    if setting.trained.critic is not None:
        yield "the critic has the output projection of its model in place of a value head"
