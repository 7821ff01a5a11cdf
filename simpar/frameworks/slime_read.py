"""slime: the update of its actor, by Megatron-LM's arguments and its own.

Defaults are those of ``slime/utils/arguments.py`` and ``slime/backends/megatron_utils/arguments.py`` at THUDM/slime
624b824.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from pathlib import PurePath
from typing import Any

from simpar.errors import UserError
from simpar.frameworks.megatron_arguments import Arguments, flags_of
from simpar.frameworks.megatron_layers_said import FURTHER_LAYERS, further_layers
from simpar.frameworks.megatron_read import DROPPED, of_arguments
from simpar.frameworks.megatron_words import MEGATRON_WORDS
from simpar.frameworks.overrides import command_of
from simpar.frameworks.policy_update import (
    NOTE,
    ROLLOUT,
    find_policy,
    groups_of,
    of_names,
    open_lengths,
    samples_of_micro_batch,
    update_of,
)
from simpar.frameworks.predictions import with_predictions
from simpar.frameworks.reader import SPAWNS, Reader
from simpar.frameworks.rollout_side import side_of
from simpar.frameworks.shell_words import UNKNOWN
from simpar.frameworks.slime_rollout import rollout
from simpar.frameworks.target import Imported, ImportedStep
from simpar.frameworks.words import Assumed, ReadWords, WordTable

SCRIPTS = ("train.py", "train_async.py")
TELLING = ("--rollout-batch-size", "--rollout-num-gpus-per-engine", "--rollout-function-path", "--actor-num-nodes",
           "--actor-num-gpus-per-node", "--max-tokens-per-gpu")  # fmt: skip
IDLE = (
    "rollout_*", "no_offload_train", "num_rollout", "num_epoch", "n_samples_per_*", "num_steps_per_rollout",
    "over_sampling*", "dynamic_sampling*", "partial_rollout", "mask_offpolicy*", "custom_*", "buffer_filter*",
    "update_weight*", "disable_rollout*", "disable_compute*", "disable_grpo*", "disable_rewards*", "disable_wandb*",
    "data_source_path", "prompt_data", "apply_chat_template*", "input_key", "label_key", "metadata_key", "tool_key",
    "multimodal_keys", "start_rollout_id", "balance_*", "log_probs_max*", "eval_*", "skip_eval*", "ref_load",
    "ref_ckpt_step", "ref_update*", "save_*", "load_*", "keep_old_actor", "eps_clip*", "value_clip", "kl_*",
    "loss_type", "advantage_estimator", "use_kl_loss", "use_unbiased_kl", "entropy_coef", "gamma", "lambd",
    "normalize_advantages", "use_rollout*", "get_mismatch*", "reset_optimizer*", "use_tis", "tis_*", "use_opsm",
    "opsm_*", "opd_*", "use_wandb", "wandb_*", "log_*", "use_tensorboard", "tb_*", "dump_details", "memory_snapshot*",
    "profile_target", "memory_recorder", "check_weight*", "http_proxy", "use_distributed_post", "rm_*", "reward_key",
    "group_rm", "fetch_*", "min_batch_collection*", "loss_mask_type", "data_pad_size*", "ci_*", "hf_checkpoint",
    "model_name", "megatron_to_hf_mode", "train_backend", "sglang_*", "router_*", "prefill_num*", "use_slime_router",
    "slime_router*", "num_gpus_per_node", "colocate", "offload", "offload_rollout", "offload_train",
    "use_fault_tolerance", "disable_param*", "disable_grad*", "train_env_vars", "use_critic", "num_critic_only*",
    "critic_*", "debug_*", "calculate_per_token_loss", "mtp_loss*", "only_train*", "agent_*", "seed", "node_rank",
    "train_memory_margin*", "prefill_*",
)  # fmt: skip
"""Arguments of the rollout, of rewards and of logging."""
OPEN_DATA = "sequences are as long as the data: micro-batches are taken as full, of one sequence each"


def read(text: str, name: str) -> Imported:
    """The update of slime's actor. Raises UserError naming file, argument and value."""
    words = command_of(text, name, _starts)
    at = next(at for at, word in enumerate(words) if PurePath(word).name in SCRIPTS)
    said = flags_of(words[at + 1 :])
    usual = {"--use-distributed-optimizer": [], "--micro-batch-size": ["1"]} | (
        {} if "--fp16" in said else {"--bf16": []}
    )
    given = Arguments({**usual, **said}, name, script=words[at])
    of_bridge = given.text("--megatron-to-hf-mode") == "bridge"  # whose models have the dropout of their provider
    engine = of_arguments(given, dropout=None if of_bridge else DROPPED)
    named, is_stated = "".join(given.values.get("--hf-checkpoint", [])[:1]), engine.config is not None
    given.has("--hf-checkpoint")
    model, ask = (engine.plan.model, "") if engine.plan.model or is_stated else find_policy(named, name)
    inside, ranks = int(engine.plan.mesh.sizes.replica_ranks), _ranks(given)
    if ranks and ranks % inside:
        raise UserError(f"{name}: --actor-num-nodes x --actor-num-gpus-per-node = {ranks}: allowed: a multiple of "
                        f"{inside}, the ranks of a replica")  # fmt: skip
    batch = _batch(given)
    shape, assumed = _lengths(given, engine, batch * inside // ranks if batch and ranks else batch)
    gathers = given.has("--allgather-cp")
    training = {"seq_len": shape.pop("seq_len", None), "global_batch": batch}
    values: dict[str, Any] = {
        "model": model,
        "dp": ranks // inside if ranks else None,
        **shape,
        **({"cp_method": "all_gather", "cp_balance": "contiguous"} if gathers and engine.plan.mesh.cp > 1 else {}),
        "training": {key: size for key, size in training.items() if size} or None,
    }
    if given.has("--colocate") and not given.has("--no-offload-rollout"):
        given.has("--sglang-mem-fraction-static")  # the engine sleeps during the update
    is_sft = given.text("--loss-type") == "sft_loss"
    notes = () if is_sft else (NOTE,)
    told = of_names(given.words(), said)
    result = update_of(replace(engine, words=ReadWords()), values, told, notes, assumed, ask)
    fills = given.has("--use-dynamic-batch-size")
    result = replace(result, config=engine.config, written_as="" if fills else None)
    if model and not engine.plan.model:  # which is known by its name alone
        result, left = with_predictions(result, model, further_layers(given))
        unread = {} if left is None else {FURTHER_LAYERS: left}
        result = replace(result, words=result.words + ReadWords(unread=unread))
    return result if is_sft else ImportedStep.of(result, side_of(lambda: rollout(given), given.used))


def _ranks(given: Arguments) -> int | None:
    """Ranks of the actor; None where only running would tell, as where a script counts the devices."""
    sizes = {"--actor-num-nodes": 1, "--actor-num-gpus-per-node": 8}
    if any(UNKNOWN.search("".join(given.values.get(flag, []))) for flag in sizes if given.has(flag)):
        return None
    return prod(given.number(flag) or usual for flag, usual in sizes.items())


def _batch(given: Arguments) -> int | None:
    """Samples of a step: as said, or those of a rollout by its steps."""
    whole, steps = given.number("--global-batch-size"), given.number("--num-steps-per-rollout")
    prompts, samples = given.number("--rollout-batch-size"), given.number("--n-samples-per-prompt") or 1
    return whole or (prompts * samples // steps if prompts and steps else None)


def _lengths(given: Arguments, engine: Imported, of_rank: int | None) -> tuple[dict[str, Any], tuple[Assumed, ...]]:
    """Length and micro-batch: samples of the longest length, as many as the tokens of a rank's micro-batch take."""
    prompt, answer = (given.number(f"--rollout-max-{part}-len") or 0 for part in ("prompt", "response"))
    longest = given.number("--rollout-max-context-len") or prompt + answer
    fills, budget = given.has("--use-dynamic-batch-size"), given.number("--max-tokens-per-gpu")
    if fills and budget is None:
        raise UserError(f"{given.source}: --use-dynamic-batch-size without --max-tokens-per-gpu: allowed: both")
    tokens = (budget or 0) * engine.plan.mesh.cp
    groups = groups_of(engine)
    if not longest:
        if not fills:
            return {"seq_len": given.number("--seq-length")}, ()
        return {"seq_len": tokens, "micro_batch": 1}, (Assumed("seq_len", tokens, OPEN_DATA, (tokens // 2,)),)

    def fill(length: int) -> int:
        return samples_of_micro_batch(tokens, length, of_rank, groups)

    micro = {"micro_batch": fill(longest)} if fills else {}
    return {"seq_len": longest, **micro}, (open_lengths(longest, fill if fills else None),)


def _starts(words: Sequence[str]) -> bool:
    flags = {word.partition("=")[0].replace("_", "-") for word in words}
    is_script = any(PurePath(word).name in SCRIPTS for word in words)
    return is_script and any(flag in flags for flag in TELLING)


READER = Reader(
    name="slime",
    description="slime: the update of the actor, as Megatron-LM's arguments and its own",
    read=read,
    starts=_starts,
    written_as="megatron",
    devices=SPAWNS,
    words=MEGATRON_WORDS
    | WordTable(
        idle=IDLE,
        deciding={
            "use_gated_attention": "a gate of attention's output: time and memory",
            "post_*_layernorm": "norms behind attention and MLP: time and memory",
            "sglang_mem_fraction_static": ROLLOUT,
            "custom_generate_function_path": "turns of its own, whose texts no option bounds: time and memory",
            "log_probs_chunk_size": "log-probabilities in pieces: memory of logits",
            "recompute_loss_function": "the loss is computed twice: memory and time",
            "use_opd": "a teacher: its weights and passes",
            "freeze_params*": "which parameters are trained: memory and time",
            "only_train_params*": "which parameters are trained: memory and time",
            "use_routing_replay": "experts of the rollout are chosen again: time",
            "enable_mtp_training": "layers that predict further tokens: time and memory",
            "megatron_deepgemm*": "kernels of products: time",
            "use_stateless_adam": "an optimizer without moments: memory",
        },
    ),
)
