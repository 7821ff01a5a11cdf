"""ROLL's rollout: engines on the devices that train or on others, references, critics and rewards.

Defaults are those of ``roll/configs/base_config.py`` and ``worker_config.py`` at alibaba/ROLL 8eb27cc2.
"""

import re
from collections.abc import Iterator
from math import ceil
from typing import Any

from simpar.errors import UserError
from simpar.frameworks.policy_update import Options
from simpar.frameworks.rollout_side import (
    FILTERED,
    SENT_WHOLE,
    RolloutSide,
    cache_dtype,
    critic_of,
    number_in,
    states_of,
    without_nothing,
)
from simpar.frameworks.words import is_off

ACTOR, ENGINE, REFERENCE, CRITIC = "actor_train", "actor_infer", "reference", "critic"
ROLES = (ACTOR, ENGINE, REFERENCE, CRITIC)
ENGINES = ("vllm", "sglang")
LISTED = re.compile(r"(?:list\()?\s*(?:range\(\s*(\d+)\s*,\s*(\d+)\s*\)|range\(\s*(\d+)\s*\)|\[([\d,\s]*)\])\s*\)?")
ALLOWED = "device numbers, such as list(range(0,8)) or [0, 1]"


def strategy_of(given: Options, role: str) -> str:
    """The strategy of a role; "" without one."""
    return str(given.get(f"{role}.strategy_args.strategy_name") or "")


def devices_of(given: Options, role: str) -> tuple[int, ...]:
    """The devices of a role, as ROLL evaluates their text; () without any. Raises UserError."""
    key = f"{role}.device_mapping"
    told = given.get(key)
    if told is None:
        return ()
    result: list[int] = []
    parts = [str(told)] if not isinstance(told, str) else told.split("+")
    for part in parts:
        match = LISTED.fullmatch(part.strip())
        if match is None:
            raise UserError(f"{given.source}: {key} = {told}: allowed: {ALLOWED}")
        first, last, count, listed = match.groups()
        if listed is not None:
            result += [int(each) for each in listed.split(",") if each.strip()]
        else:
            result += range(int(first or 0), int(last or count))
    if not result or len(set(result)) < len(result):
        raise UserError(f"{given.source}: {key} = {told}: allowed: {ALLOWED}")
    return tuple(result)


def longest_of(given: Options) -> tuple[int, int]:
    """Tokens that prompts and responses may have. Raises UserError."""
    prompt, answer = given.whole("prompt_length") or 1024, given.whole("response_length")
    whole = given.whole("sequence_length")
    if answer is None and whole is None:
        raise UserError(f"{given.source}: no response_length: allowed: it, or sequence_length")
    if whole is not None and whole <= prompt:
        raise UserError(f"{given.source}: sequence_length = {whole}: allowed: more than prompt_length = {prompt}")
    return prompt, whole - prompt if whole is not None else answer or 0


def responses_of(given: Options) -> int:
    """Responses of a rollout."""
    return (given.whole("rollout_batch_size") or 128) * (given.whole("num_return_sequences_in_group") or 1)


def updated_at_once(given: Options, dp: int) -> int:
    """Samples of an update: those of a rank's backward batch, on all ranks, at most those of the rollout."""
    args = f"{ACTOR}.training_args."
    rank = (given.whole(f"{args}per_device_train_batch_size") or 1) * (
        given.whole(f"{args}gradient_accumulation_steps") or 1
    )
    whole = responses_of(given)
    batch = min(whole, rank * dp)
    if whole % batch or batch % dp:
        raise UserError(f"{given.source}: {whole} responses of a rollout, {batch} of an update on {dp} data-parallel "
                        "ranks: allowed: multiples")  # fmt: skip
    return batch


def packs(given: Options) -> bool:
    """Whether samples are packed, or grouped by length."""
    return any(
        _is_on(given, f"{ACTOR}.{key}") for key in ("use_sequence_packing", "use_dynamic_batching_in_train")
    )  # fmt: skip


def rollout(given: Options, dp: int) -> RolloutSide:
    """Generation and passes of an RLVR pipeline. Raises UserError for what no section says."""
    named = strategy_of(given, ENGINE)
    if named not in ENGINES:
        raise UserError(
            f"{given.source}: {ENGINE}.strategy_args.strategy_name = {named}: allowed: {', '.join(ENGINES)}"
        )
    trains, generates = set(devices_of(given, ACTOR)), set(devices_of(given, ENGINE))
    if generates & trains and generates != trains:
        raise UserError(f"{given.source}: {ENGINE}.device_mapping: a part of the devices that train, or more: allowed: "
                        f"those of {ACTOR}, or others")  # fmt: skip
    notes = list(_notes(given))
    samples, batch = given.whole("num_return_sequences_in_group") or 1, updated_at_once(given, dp)
    estimator = str(given.get("adv_estimator") or "gae")
    has_critic, policy = estimator == "gae", given.text("pretrain")
    ahead = number_in(given.get("async_generation_ratio", 0) or 0, "async_generation_ratio", given.source)
    several = responses_of(given) // batch > 1
    penalty = given.get("init_kl_coef", 0.2)
    is_penalised = not (is_off(penalty) or penalty == 0)
    section: dict[str, Any] = {
        "algorithm": "ppo" if has_critic else "grpo",
        "prompts": given.whole("rollout_batch_size") or 128,
        "samples": samples,
        "epochs": given.whole("ppo_epochs") or 1,
        "lengths": {"padding": "none" if packs(given) else "context"},
        "rollout": _replica(given, named),
        "weights": {"offload": True, "sleep": True},
        "passes": {
            "old_policy": not _is_on(given, "force_disable_old_logprobs_recompute")
            and (several or is_penalised or _is_on(given, "enable_old_logprobs_recompute")),
            "reference": is_penalised or _is_on(given, "use_kl_loss") or _is_on(given, "enable_reference"),
            "critic": critic_of(given.text("reward_pretrain"), policy, notes) if has_critic else None,
        },
    }
    section["passes"] |= _apart(given, section["passes"], has_critic=has_critic)
    if generates == trains:
        if ahead:
            raise UserError(f"{given.source}: async_generation_ratio = {ahead:g} on devices that train: allowed: 0, or "
                            f"{ENGINE}.device_mapping of others")  # fmt: skip
        return RolloutSide(without_nothing(section), longest_of(given), None, (), tuple(notes))
    each = min(len(generates), given.whole("num_gpus_per_node") or 8)
    section["placement"] = "split"
    if ahead:
        if ahead != int(ahead):
            notes.append(f"async_generation_ratio = {ahead:g}: whole steps off policy are modelled, {ceil(ahead)} here")
        section["synchrony"] = {"steps_off": ceil(ahead), "in_flight": True}
    return RolloutSide(without_nothing(section), longest_of(given), (len(generates), each), (), tuple(notes))


def _is_on(given: Options, key: str) -> bool:
    value = given.get(key)
    return value is not None and not is_off(value)


def _replica(given: Options, named: str) -> dict[str, Any]:
    """Layout and engine of a replica; the router gives it at most ``max_running_requests`` at a time."""
    config, is_sglang = f"{ENGINE}.strategy_args.strategy_config.", named == "sglang"
    workers = given.whole(f"{ENGINE}.num_gpus_per_worker") or 1
    key = f"{config}{'mem_fraction_static' if is_sglang else 'gpu_memory_utilization'}"
    tp = given.whole(f"{config}tp_size") or workers if is_sglang else given.whole(f"{config}tensor_parallel_size") or 1
    budget = given.whole(f"{config}max_num_batched_tokens") or 8192
    most = given.whole(f"{config}{'max_running_requests' if is_sglang else 'max_num_seqs'}") or 1024
    off = (
        given.get(f"{config}disable_radix_cache") if is_sglang else given.get(f"{config}enable_prefix_caching") is False
    )
    eager = given.get(f"{config}{'disable_cuda_graph' if is_sglang else 'enforce_eager'}")
    return {
        "tp": tp,
        "pp": given.whole(f"{config}pipeline_parallel_size") or 1,
        "ep": tp if _is_on(given, f"{config}enable_expert_parallel") else 1,
        "precision": "fp8_blockwise" if str(given.get(f"{config}quantization")) == "fp8" else None,
        "states": states_of(given.get(f"{config}mamba_ssm_cache_dtype")),
        "engine": {
            "memory_fraction": number_in(given.get(key, 0.9), key, given.source),
            "token_budget": budget,
            "max_sequences": min(budget, most, given.whole("max_running_requests") or 128),
            "prefix_sharing": not off,
            "graphs": not eager,
            "cache_dtype": cache_dtype(given.get(f"{config}kv_cache_dtype")),
            "block": None if is_sglang else given.whole(f"{config}block_size"),
        },
    }


def _apart(given: Options, passes: dict[str, Any], *, has_critic: bool) -> dict[str, int]:
    """Devices of their own of a reference and a critic. Raises UserError for a part of those that train."""
    result, trains = {}, set(devices_of(given, ACTOR))
    for role, is_there in ((REFERENCE, passes["reference"]), (CRITIC, has_critic)):
        own = set(devices_of(given, role)) if is_there else trains
        if not own & trains and own:
            result[f"{role}_devices"] = len(own)
        elif own != trains:
            raise UserError(f"{given.source}: {role}.device_mapping: allowed: the devices of {ACTOR}, or others")
    return result


def _notes(given: Options) -> Iterator[str]:
    """What generation does that the section does not say."""
    if any(key.startswith("rewards.") and key.endswith("strategy_args.strategy_name") for key in given):
        yield "left out: rewards that models of their own generate or score (rewards.*.strategy_args)"
    if any(re.fullmatch(r"rewards\.\w+\.(query|response)_filter_config\.type", key) for key in given) or _is_on(
        given, "is_use_additional_prompts"
    ):
        yield FILTERED
    if given.get(f"{ACTOR}.model_args.lora_rank"):
        yield SENT_WHOLE
    yield "passes of the reference are timed in the layout of actor_train"
