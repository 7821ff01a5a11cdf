"""OpenRLHF's rollout: what PPO and its kin do beside the update of the actor, under the names of both generations.

Defaults are those of ``openrlhf/cli/train_ppo_ray.py`` at OpenRLHF/OpenRLHF 3c3be623.
"""

from collections.abc import Mapping
from typing import Any

from simpar.errors import UserError
from simpar.frameworks.rollout_side import RolloutSide, critic_of, number_in, parted, reward_of, without_nothing
from simpar.frameworks.trainer_arguments import TrainerArguments

KEPT = (
    "vllm_gpu_memory_utilization", "vllm.gpu_memory_utilization", "colocate_all_models", "train.colocate_all",
    "colocate_actor_ref", "train.colocate_actor_ref",
)  # fmt: skip
"""Words that decide about memory during an update, and that the whole step answers."""


def rollout(given: TrainerArguments, policy: str, longest: int, *, is_dotted: bool) -> RolloutSide:
    """Generation and passes of a trainer. Raises UserError for what no section says."""
    engines = given.number("vllm.num_engines", "vllm_num_engines")
    if not engines:
        raise UserError(f"{given.source}: no vllm_num_engines: allowed: it, for engines of vLLM generate")
    tp = given.number("vllm.tensor_parallel_size", "vllm_tensor_parallel_size") or 1
    together = bool(given.on("train.colocate_all", "colocate_all_models"))
    is_apart = not together or bool(given.on("train.async_enable", "async_train"))
    estimator = str(given.one("algo.advantage.estimator", "advantage_estimator") or "gae")
    is_ppo, notes = estimator == "gae", list[str]()
    reward = str(given.one("reward.model_name_or_path", "reward_pretrain") or "")
    is_remote = given.one("reward.remote_url", "remote_rm_url", "train.agent_func_path", "agent_func_path") is not None
    if is_remote:
        notes.append("rewards come from elsewhere, in no time (post_training.passes.reward_s)")
    fraction = given.one("vllm.gpu_memory_utilization", "vllm_gpu_memory_utilization")
    key = "vllm_gpu_memory_utilization"
    section: dict[str, Any] = {
        "algorithm": "ppo" if is_ppo else "grpo",
        "prompts": given.number("rollout.batch_size", "rollout_batch_size") or 1024,
        "samples": given.number("rollout.n_samples_per_prompt", "n_samples_per_prompt") or 1,
        "epochs": given.number("train.max_epochs", "max_epochs") or 1,
        "rollout": {
            "tp": tp,
            "engine": {
                "memory_fraction": number_in(0.95 if fraction is None else fraction, key, given.source),
                "graphs": not given.on("vllm.enforce_eager", "enforce_eager"),
                "prefix_sharing": bool(given.on("vllm.enable_prefix_caching", "enable_prefix_caching")),
            },
        },
        "weights": {
            "senders": "rank" if is_apart else None,
            "sleep": bool(given.on("vllm.enable_sleep", "vllm_enable_sleep")),
            "offload": bool(given.on("ds.enable_sleep", "deepspeed_enable_sleep")),
        },
        "passes": {
            "reference": given.one("algo.kl.init_coef", "init_kl_coef") not in (0, 0.0),
            "reward": reward_of(reward, notes) if reward and not is_remote else None,
            "critic": critic_of(str(given.one("critic.model_name_or_path", "critic_pretrain") or reward), policy, notes)
            if is_ppo
            else None,
        },
    }
    if is_apart:
        section |= {"placement": "split", **_ahead(given)}
    if not together:
        section["passes"] |= _apart(given, section["passes"], is_ppo=is_ppo)
    apart = (engines * tp, min(8, engines * tp)) if is_apart else None
    parts = [given.number(f"{part}_max_len") or 1024 for part in ("prompt", "generate")]
    lengths = _parted(given, longest) if is_dotted else (parts[0], parts[1])
    return RolloutSide(without_nothing(section), lengths, apart, KEPT, tuple(notes))


def _parted(given: TrainerArguments, longest: int) -> tuple[int, int]:
    """The longest prompt and response of samples of so many tokens."""
    response = given.number("rollout.max_new_tokens")
    return (longest - response, response) if response and response < longest else parted(longest)


def _ahead(given: TrainerArguments) -> dict[str, Any]:
    """How far a pool of its own runs ahead."""
    if not given.on("train.async_enable", "async_train"):
        return {}
    queue = given.number("train.async_queue_size", "async_queue_size") or 1
    return {"synchrony": {"steps_off": queue, "in_flight": bool(given.on("train.partial_rollout_enable",
                                                                         "partial_rollout"))}}  # fmt: skip


def _apart(given: TrainerArguments, passes: Mapping[str, Any], *, is_ppo: bool) -> dict[str, Any]:
    """Devices of their own that models have where not all share some, in the words of the section."""

    def devices(part: str) -> int:
        nodes = given.number(f"{part}.num_nodes", f"{part}_num_nodes") or 1
        return nodes * (given.number(f"{part}.num_gpus_per_node", f"{part}_num_gpus_per_node") or 8)

    has_reward, result = passes["reward"] is not None, dict[str, Any]()
    if passes["reference"] and not given.on("train.colocate_actor_ref", "colocate_actor_ref"):
        result["reference_devices"] = devices("ref")
    if is_ppo:
        result["critic_devices"] = devices("critic")
    together = is_ppo and bool(given.on("train.colocate_critic_reward", "colocate_critic_reward"))
    if has_reward:
        result |= {"reward_beside_critic": True} if together else {"reward_devices": devices("reward")}
    return result
