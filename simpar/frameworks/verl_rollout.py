"""verl's rollout: what its trainers do beside the update of the actor.

Defaults are those of ``verl/trainer/config`` and of ``verl/experimental`` at volcengine/verl b178a3c.
"""

from math import ceil
from typing import Any

from simpar.errors import UserError
from simpar.frameworks.policy_update import Options
from simpar.frameworks.rollout_side import (
    FILTERED,
    IN_TURNS,
    RolloutSide,
    both_leave,
    cache_dtype,
    critic_of,
    reward_of,
    states_of,
    without_nothing,
)
from simpar.frameworks.words import is_off

ROOT = "actor_rollout_ref."
ACTOR, ROLLOUT, CRITIC = f"{ROOT}actor.", f"{ROOT}rollout.", "critic."
UNPADDED = f"{ROOT}model.use_remove_padding"
ENGINES = ("vllm", "sglang")
KEPT = (f"{ACTOR}use_kl_loss", "algorithm.use_kl_in_reward", "critic.model.path", f"{ROLLOUT}gpu_memory_utilization")
"""Words that decide about memory during an update, and that the whole step answers."""
SCORED = {"compute_prox_log_prob": False, "use_rollout_log_probs": True}
"""Where the asynchronous trainer has the log-probabilities of the old policy from."""
FIELDS = {
    "tp": ("tensor_model_parallel_size", 2), "pp": ("pipeline_model_parallel_size", 1),
    "ep": ("expert_parallel_size", 1), "dp": ("data_parallel_size", 1),
}  # fmt: skip


def rollout(given: Options, trainer: str, policy: str, longest: tuple[int, int]) -> RolloutSide:
    """Generation and passes of a trainer, by its module and config. Raises UserError for what no section says."""
    notes: list[str] = []
    engine = str(given.get(f"{ROLLOUT}name") or "vllm")
    if engine not in ENGINES:
        raise UserError(f"{given.source}: {ROLLOUT}name = {engine}: allowed: {', '.join(ENGINES)}")
    samples, minis = given.whole(f"{ROLLOUT}n") or 1, given.whole(f"{ACTOR}ppo_mini_batch_size") or 256
    estimator, has_critic = str(given.get("algorithm.adv_estimator") or "gae"), given.get("critic.enable")
    is_ppo = estimator == "gae" if has_critic is None else bool(has_critic)
    _note_others(given, notes)
    section: dict[str, Any] = {
        "algorithm": "ppo" if is_ppo else "grpo",
        "samples": samples * (given.whole(f"{ROLLOUT}n_agent") or 1),  # Search-R1's, which repeats prompts by it
        "lengths": {"padding": "none" if _is_on(given, UNPADDED, usual=True) else "context"},
        "epochs": given.whole(f"{ACTOR}ppo_epochs") or 1,
        "rollout": _replica(given),
        "weights": {
            "sleep": _is_on(given, f"{ROLLOUT}free_cache_engine", usual=True),
            "offload": _leaves(given, notes),
        },
        "passes": {
            "old_policy": not _is_on(given, "algorithm.rollout_correction.bypass_mode", usual=False),
            "reference": any(_is_on(given, key, usual=False) for key in KEPT[:2]),
            "critic": critic_of(given.text("critic.model.path"), policy, notes) if is_ppo else None,
            "reward": _reward(given, notes),
        },
    }
    whole = given.whole("data.train_batch_size", 0)
    section["prompts"] = 1024 if whole is None else whole
    apart, ahead = _pool(given, trainer, minis, notes)
    if "fully_async" in trainer:
        scored = [_is_on(given, f"async_training.{key}", usual=usual) for key, usual in SCORED.items()]
        section["passes"] = {**section["passes"], "old_policy": scored[0] or not scored[1]}
    return RolloutSide(without_nothing({**section, **ahead}), longest, apart, KEPT, tuple(notes))


def _is_on(given: Options, key: str, *, usual: bool) -> bool:
    value = given.get(key)
    return usual if value is None else not is_off(value)


def _leaves(given: Options, notes: list[str]) -> bool:
    """Whether the actor's parameters and states are on the host while generation runs."""
    engine = "megatron" if any(key.startswith(f"{ACTOR}megatron.") for key in given) else "fsdp_config"
    section = f"{ACTOR}{engine}."
    told = [_is_on(given, f"{section}{part}_offload", usual=False) for part in ("param", "optimizer")]
    return both_leave(told, f"{section}param_offload and optimizer_offload", notes)


def _reward(given: Options, notes: list[str]) -> str | None:
    """The model that rewards, if one does and is known."""
    for section, path in (("reward_model.", "model.path"), ("reward.reward_model.", "model_path")):
        if _is_on(given, f"{section}enable", usual=False):
            return reward_of(given.text(f"{section}{path}"), notes)
    return None


def _note_others(given: Options, notes: list[str]) -> None:
    """What generation does that the section does not say."""
    if _is_on(given, f"{ROLLOUT}multi_turn.enable", usual=False) or given.get(f"{ROLLOUT}n_agent"):
        notes.append(IN_TURNS)
    if _is_on(given, "algorithm.filter_groups.enable", usual=False):
        notes.append(FILTERED)
    if not _is_on(given, f"{ACTOR}use_dynamic_bsz", usual=False) and _is_on(given, UNPADDED, usual=True):
        notes.append("responses are packed into rows as with use_dynamic_bsz: micro-batches of fixed numbers of "
                     "samples differ in length, and there are more of them")  # fmt: skip


def _replica(given: Options) -> dict[str, Any]:
    """Layout and engine of a replica."""
    size = {axis: given.whole(f"{ROLLOUT}{key}") or usual for axis, (key, usual) in FIELDS.items()}
    whole = size["tp"] * size["dp"]
    if size["ep"] not in (1, whole) or (size["dp"] > 1 and size["ep"] == 1):
        raise UserError(f"{given.source}: {ROLLOUT}expert_parallel_size = {size['ep']}: allowed: the product of tensor "
                        f"and data parallelism, {whole}")  # fmt: skip
    told = f"{ROLLOUT}engine_kwargs.vllm."
    budget = given.whole(f"{ROLLOUT}max_num_batched_tokens") or 8192
    return {
        **{axis: size[axis] for axis in ("tp", "pp", "ep")},
        "precision": "fp8_blockwise" if given.get(f"{ROLLOUT}quantization") else None,
        "states": states_of(given.get(f"{told}mamba_ssm_cache_dtype")),
        "engine": {
            "token_budget": budget,
            "max_sequences": min(budget, given.whole(f"{ROLLOUT}max_num_seqs") or 256),
            "memory_fraction": given.get(f"{ROLLOUT}gpu_memory_utilization", 0.5),
            "prefix_sharing": _is_on(given, f"{ROLLOUT}enable_prefix_caching", usual=True),
            "graphs": not _is_on(given, f"{ROLLOUT}enforce_eager", usual=False),
            "logprobs": _is_on(given, f"{ROLLOUT}calculate_log_probs", usual=False),
            "cache_dtype": cache_dtype(given.get(f"{told}kv_cache_dtype")),
            "block": given.whole(f"{told}block_size"),
        },
    }


def _pool(given: Options, trainer: str, minis: int, notes: list[str]) -> tuple[tuple[int, int] | None, dict[str, Any]]:
    """Devices of trainers that have a pool of its own for rollouts, and how far these run ahead."""
    nodes, each = given.whole("rollout.nnodes"), given.whole("rollout.n_gpus_per_node") or 8
    is_streaming, is_one_off = "fully_async" in trainer, "one_step_off" in trainer
    if not (is_streaming or is_one_off):
        return None, {}
    if nodes is None:
        raise UserError(f"{given.source}: no rollout.nnodes: allowed: it, with a pool of its own for rollouts")
    apart = (nodes * each, each)
    if is_one_off:
        return apart, {"placement": "split", "synchrony": {"steps_off": 1}}
    threshold = given.get("async_training.staleness_threshold", 0.1)
    updates = given.whole("async_training.trigger_parameter_sync_step") or 4
    batches = given.whole("async_training.require_batches") or 1
    if not isinstance(threshold, int | float):
        raise UserError(f"{given.source}: async_training.staleness_threshold = {threshold}: allowed: a number")
    if threshold != int(threshold):
        notes.append(f"async_training.staleness_threshold = {threshold:g}: whole steps off policy are modelled, "
                     f"{ceil(threshold)} here")  # fmt: skip
    partial = _is_on(given, "async_training.partial_rollout", usual=True) and threshold > 0
    synchrony = {"steps_off": ceil(threshold), "in_flight": partial}
    return apart, {"placement": "split", "prompts": minis * batches * updates, "synchrony": synchrony}
