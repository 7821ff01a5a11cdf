"""AReaL's rollout: engines on devices of their own, which run ahead of training by a number of versions.

Defaults are those of ``areal/api/cli_args.py`` at inclusionAI/AReaL 4aef98d.
"""

import re
from collections.abc import Mapping
from dataclasses import field
from math import ceil, prod
from typing import Any

from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.frameworks.policy_update import Options
from simpar.frameworks.rollout_side import (
    FILTERED,
    IN_TURNS,
    SENT_WHOLE,
    RolloutSide,
    cache_dtype,
    critic_of,
    number_in,
    shipped,
    without_nothing,
)
from simpar.frameworks.words import is_off

ACTOR, ROLLOUT = "actor.", "rollout."
DIMENSIONS = "dtpce"
"""Data, tensor, pipeline, context and expert parallelism, as allocations write them."""
ALLOWED = "BACKEND:SIZES, such as sglang:d4t2, fsdp:d8 or megatron:(attn:d4p2t2|ffn:d4p2e4)"
GENERATES = ("sglang", "vllm")
KEPT = ("ref.path", "critic.path")
PLACES = {"critic": "critic", "ref": "reference", "teacher": "teacher"}
"""Names of the section for parts that may have devices of their own."""
"""Words that decide about memory during an update, and that the whole step answers."""
TOGETHER = "colocation"
TURNS = ("max_turns", "tir.max_turns", "workflow.max_turns")
"""Words of episodes that have several turns."""
CONCURRENT = (f"{ROLLOUT}max_concurrent_rollouts", f"{ROLLOUT}consumer_batch_size")
"""Words of how many prompts are generated at a time, on all engines together, the one that wins first."""


@dataclass(frozen=True)
class Allocation:
    """A backend and its sizes by the letters of ``DIMENSIONS``; ``experts`` are those of experts, if they differ."""

    text: str = ""
    backend: str = ""
    sizes: Mapping[str, int] = field(default_factory=dict)
    experts: Mapping[str, int] | None = None

    @property
    def devices(self) -> int:
        """Devices of all replicas: experts lie on those of the rest."""
        return prod(self.sizes[letter] for letter in "dtpc")


def allocation_of(text: str, source: str) -> Allocation:
    """What an allocation says. Raises UserError."""
    match = re.fullmatch(r"(\w+):(?:([a-z0-9]+)|\(attn:([a-z0-9]+)\|ffn:([a-z0-9]+)\))", text)
    sizes = [_sizes(part) for part in match.groups()[1:] if part] if match else [None]
    if match is None or sizes[0] is None or sizes[-1] is None:
        raise UserError(f"{source}: backend = {text or None}: allowed: {ALLOWED}")
    experts = sizes[1] if len(sizes) > 1 else sizes[0] if sizes[0]["e"] > 1 else None
    if len(sizes) == 1 and experts is not None:
        experts = {**experts, "t": 1}
    return Allocation(text, match[1], sizes[0], experts)


def _sizes(text: str) -> dict[str, int] | None:
    """Sizes by letter, 1 where one is not told; None for another text."""
    told = re.findall(r"([a-z])(\d+)", text)
    letters = [letter for letter, _ in told]
    is_whole = "".join(letter + size for letter, size in told) == text and bool(told)
    if not is_whole or len(set(letters)) < len(letters) or not set(letters) <= set(DIMENSIONS):
        return None
    sizes = {letter: int(size) for letter, size in told}
    return {letter: sizes.get(letter, 1) for letter in DIMENSIONS} if min(sizes.values()) > 0 else None


def allocations(given: Options) -> dict[str, Allocation]:
    """The parts of ``allocation_mode``, by which earlier releases place engine and actor; {} without one."""
    told = given.get("allocation_mode")
    if not isinstance(told, str) or not told or any(given.get(f"{part}backend") for part in (ACTOR, ROLLOUT)):
        return {}
    engine, plus, actor = told.partition("+")
    if not plus or "+" in actor:
        raise UserError(f"{given.source}: allocation_mode = {told}: allowed: ENGINE:SIZES+BACKEND:SIZES")
    actor = actor if ":" in actor else f"fsdp:{actor}"
    return {"rollout": allocation_of(engine, given.source), "actor": allocation_of(actor, given.source)}


def rollout(given: Options, longest: tuple[int, int]) -> RolloutSide:
    """Generation and passes of a config. Raises UserError for what no section says."""
    engine = allocations(given).get("rollout") or allocation_of(str(given.get(f"{ROLLOUT}backend") or ""), given.source)
    if engine.backend not in GENERATES or engine.sizes["c"] > 1:
        raise UserError(f"{given.source}: {ROLLOUT}backend = {engine.text}: allowed: {' and '.join(GENERATES)} with d, "
                        "t and p")  # fmt: skip
    notes: list[str] = []
    samples, prompts = given.whole("gconfig.n_samples") or 1, given.whole("train_dataset.batch_size") or 1
    has_critic = any(key.startswith("critic.") for key in given)
    policy = given.text(f"{ACTOR}path")
    section: dict[str, Any] = {
        "algorithm": "ppo" if has_critic else "grpo",
        "prompts": prompts,
        "samples": samples,
        "rollout": {
            "tp": engine.sizes["t"],
            "pp": engine.sizes["p"],
            "ep": _experts(given, engine),
            "precision": "fp8_blockwise" if "fp8" in policy.rpartition("/")[2].lower() else None,
            "engine": _engine(given, engine, prompts, samples),
        },
        "weights": {"offload": bool(given.get("enable_offload") or given.get(f"{ACTOR}offload"))},
        "passes": {
            "old_policy": _is_scored(given),
            "reference": bool(given.get(f"{ACTOR}kl_ctl", 0.1)) and any(key.startswith("ref.") for key in given),
            "critic": critic_of(given.text("critic.path"), policy, notes) if has_critic else None,
            "teacher": _teacher(given, notes),
        },
    }
    if str(given.get(f"{ACTOR}weight_update_mode") or "xccl") == "disk":
        notes.append(f"{ACTOR}weight_update_mode = disk: new weights are timed through the hosts' memory and network")
        section["weights"]["through"] = "host"
    section["passes"] |= _apart(given, {**section["passes"], "critic": has_critic}, notes)
    _note_others(given, notes)
    if given.get(f"{ROLLOUT}scheduling_strategy.type") == TOGETHER:
        return RolloutSide(without_nothing(section), longest, None, KEPT, tuple(notes))
    each = min(engine.devices, given.whole("cluster.n_gpus_per_node") or 8)
    ahead = given.whole(f"{ROLLOUT}max_head_offpolicyness", 0) or 0
    if section["weights"].get("through") != "host":
        section["weights"]["senders"] = "rank"
    section |= {"placement": "split", "synchrony": {"steps_off": ahead, "in_flight": ahead > 0}}
    return RolloutSide(without_nothing(section), longest, (engine.devices, each), KEPT, tuple(notes))


def _is_scored(given: Options) -> bool:
    """Whether log-probabilities of the policy are computed before an update."""
    if given.get(f"{ACTOR}use_decoupled_loss"):
        return given.get(f"{ACTOR}prox_logp_method") != "loglinear"
    return bool(given.get(f"{ACTOR}recompute_logprob"))


def _experts(given: Options, engine: Allocation) -> int:
    """Devices that experts are spread over. Raises UserError for attention of other ranks."""
    told, tp = given.whole(f"{engine.backend}.ep_size") or 1, engine.sizes["t"]
    if given.get(f"{engine.backend}.enable_dp_attention"):
        raise UserError(f"{given.source}: {engine.backend}.enable_dp_attention: allowed: false")
    if told not in (1, tp):
        raise UserError(f"{given.source}: {engine.backend}.ep_size = {told}: allowed: 1, or the tensor-parallel {tp}")
    return told


def _engine(given: Options, engine: Allocation, prompts: int, samples: int) -> dict[str, Any]:
    """The limits of a replica. Episodes at a time are those of all replicas together."""
    is_sglang = engine.backend == "sglang"
    key = "sglang.mem_fraction_static" if is_sglang else "vllm.gpu_memory_utilization"
    own = given.whole("sglang.max_running_requests" if is_sglang else "vllm.max_num_seqs")
    at_once = next(filter(None, map(given.whole, CONCURRENT)), prompts)
    budget = None
    if is_sglang:
        chunk = given.get("sglang.chunked_prefill_size")
        whole = given.whole("sglang.max_prefill_tokens") or 32768
        budget = chunk if isinstance(chunk, int) and not isinstance(chunk, bool) and chunk > 0 else whole
    else:
        budget, own = given.whole("vllm.max_num_batched_tokens"), own or 256
    off = ("sglang.disable_radix_cache", "vllm.no_enable_prefix_caching")[not is_sglang]
    most = min(own or 1024, ceil(at_once * samples / engine.sizes["d"]), budget or 8192)
    return {
        "token_budget": budget,
        "max_sequences": most,
        "memory_fraction": number_in(given.get(key, 0.9), key, given.source),
        "graphs": is_off(given.get("sglang.disable_cuda_graph" if is_sglang else "vllm.enforce_eager")),
        "prefix_sharing": is_off(given.get(off, True)),
        "cache_dtype": cache_dtype(given.get(f"{engine.backend}.kv_cache_dtype")),
        "block": None if is_sglang else given.whole("vllm.block_size"),
    }


def _apart(given: Options, passes: Mapping[str, Any], notes: list[str]) -> dict[str, int]:
    """Devices of their own of models that are not beside the actor, in the words of the section.

    Raises UserError for a critic whose devices are not told, for it trains beside the actor.
    """
    result = {}
    for part, name in PLACES.items():
        if not passes[name] or given.get(f"{part}.scheduling_strategy.type") == TOGETHER:
            continue
        backend = str(given.get(f"{part}.backend") or "")
        if backend:
            result[f"{name}_devices"] = allocation_of(backend, given.source).devices
        elif part == "critic":
            raise UserError(f"{given.source}: critic.backend: missing, a critic on devices of its own; allowed: "
                            f"BACKEND:SIZES, or critic.scheduling_strategy.type = {TOGETHER}")  # fmt: skip
        else:
            notes.append(f"the {name} has devices of its own: here its pass runs on those of the actor")
    return result


def _teacher(given: Options, notes: list[str]) -> str | None:
    named = given.text("teacher.path")
    if not named:
        return None
    model = shipped(named)
    if model is None:
        notes.append(f"left out: the pass of the teacher {named}, which is not shipped")
    return model


def _note_others(given: Options, notes: list[str]) -> None:
    """What generation does that the section does not say."""
    if given.get("dynamic_bs"):
        notes.append(FILTERED)
    if any(key.startswith((f"{ROLLOUT}agent.", "judge_engine.")) or key in TURNS for key in given):
        notes.append(IN_TURNS)
    if given.get(f"{ACTOR}use_lora"):
        notes.append(SENT_WHOLE)
