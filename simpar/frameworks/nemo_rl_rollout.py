"""NeMo-RL's rollout: what GRPO does beside the update of the policy.

Defaults are those of ``examples/configs/grpo_math_1B.yaml`` at NVIDIA-NeMo/RL 7ea279a.
"""

from typing import Any

from simpar.errors import UserError
from simpar.frameworks.policy_update import Options
from simpar.frameworks.rollout_side import (
    FILTERED,
    RolloutSide,
    cache_dtype,
    number_in,
    parted,
    states_of,
    without_nothing,
)
from simpar.frameworks.words import is_off

GENERATION = "policy.generation."
EIGHT_BITS = ("fp8_blockwise", "mxfp8")
"""Precisions of replicas in 8 bits: scales of 128 x 128 weights, or of blocks of 32 (``vllm_cfg.is_mx``)."""
ENDS = ("num_first_layers_in_bf16", "num_last_layers_in_bf16")
ENGINE, KWARGS = f"{GENERATION}vllm_cfg.", f"{GENERATION}vllm_kwargs."


def rollout(given: Options, longest: int) -> RolloutSide:
    """Generation and passes of a config of GRPO. Raises UserError for what no section says."""
    backend = str(given.get(f"{GENERATION}backend") or "vllm")
    if backend != "vllm":
        raise UserError(f"{given.source}: {GENERATION}backend = {backend}: allowed: vllm")
    notes = [
        told
        for key, told in (
            ("grpo.use_dynamic_sampling", FILTERED),
            ("env.should_use_nemo_gym", "turns with an environment are not modelled"),
        )
        if not is_off(given.get(key))
    ]
    if (given.whole("grpo.max_rollout_turns") or 1) > 1:
        notes.append("turns with an environment are not modelled: a response is generated at a stretch")
    notes += [
        f"{ENGINE}{key} = {given.get(f'{ENGINE}{key}')}: these layers of replicas are timed in 8 bits, too"
        for key in ENDS
        if given.whole(f"{ENGINE}{key}", 0)
    ]
    penalty = given.get("loss_fn.reference_policy_kl_penalty", 0.01)
    is_skipped = not is_off(given.get("grpo.skip_reference_policy_logprobs_calculation"))
    packs = not all(is_off(given.get(f"policy.{each}.enabled")) for each in ("sequence_packing", "dynamic_batching"))
    section = {
        "algorithm": "grpo",
        "prompts": given.whole("grpo.num_prompts_per_step") or 32,
        "samples": given.whole("grpo.num_generations_per_prompt") or 16,
        "lengths": {"padding": "none" if packs else "longest"},
        "rollout": _replica(given),
        "passes": {"reference": not (is_off(penalty) or penalty == 0 or is_skipped)},
    }
    apart = _pool(given)
    whole = min(longest, given.whole(f"{ENGINE}max_model_len") or longest)
    lengths = parted(whole)
    answer = given.whole(f"{GENERATION}max_new_tokens")
    if answer and answer < whole:
        lengths = (whole - answer, answer)
    ahead: dict[str, Any] = {"placement": "split"} if apart else {}
    if apart and not is_off(given.get("grpo.async_grpo.enabled")):
        ahead["synchrony"] = {
            "steps_off": given.whole("grpo.async_grpo.max_trajectory_age_steps") or 1,
            "in_flight": not is_off(given.get("grpo.async_grpo.in_flight_weight_updates")),
            "recompute_cache": not is_off(given.get("grpo.async_grpo.recompute_kv_cache_after_weight_updates")),
        }
    return RolloutSide(without_nothing({**section, **ahead}), lengths, apart, (), tuple(notes))


def _replica(given: Options) -> dict[str, Any]:
    """Layout and engine of a replica."""
    told = str(given.get(f"{ENGINE}precision") or given.get("policy.precision") or "bfloat16")
    budget = given.whole(f"{KWARGS}max_num_batched_tokens")
    fraction = given.get(f"{ENGINE}gpu_memory_utilization", 0.6)
    sequences = given.whole(f"{KWARGS}max_num_seqs")
    most = budget or 8192
    return {
        "tp": given.whole(f"{ENGINE}tensor_parallel_size") or 1,
        "pp": given.whole(f"{ENGINE}pipeline_parallel_size") or 1,
        "ep": given.whole(f"{ENGINE}expert_parallel_size") or 1,
        "precision": (EIGHT_BITS[bool(given.get(f"{ENGINE}is_mx"))]) if told == "fp8" else None,
        "states": states_of(given.get(f"{KWARGS}mamba_ssm_cache_dtype")),
        "engine": {
            "memory_fraction": number_in(fraction, f"{ENGINE}gpu_memory_utilization", given.source),
            "graphs": is_off(given.get(f"{ENGINE}enforce_eager")),
            "cache_dtype": cache_dtype(given.get(f"{ENGINE}kv_cache_dtype")),
            "token_budget": budget,
            "max_sequences": min(most, sequences) if sequences else None,
        },
    }


def _pool(given: Options) -> tuple[int, int] | None:
    """Devices that only generate, and those of a node of them; None where generation takes turns with training."""
    if given.get(f"{GENERATION}colocated.enabled", True) is not False:
        return None
    nodes, each = given.whole("cluster.num_nodes") or 1, given.whole("cluster.gpus_per_node") or 1
    section = f"{GENERATION}colocated.resources."
    devices = given.whole(f"{section}gpus_per_node") or each
    if nodes > 1:
        return (given.whole(f"{section}num_nodes") or 1) * devices, devices
    return devices, devices
