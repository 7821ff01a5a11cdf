"""ms-swift's rollout: what ``swift rlhf --rlhf_type grpo`` does beside the update.

vLLM is on the devices that train, or started by ``swift rollout`` on others.

Defaults are those of ``swift/rlhf_trainers/args_mixin.py`` and ``rollout_mixin.py`` at modelscope/ms-swift 3602360.
"""

from collections.abc import Iterator
from typing import Any

from simpar.errors import UserError
from simpar.frameworks.rollout_side import (
    FILTERED,
    IN_TURNS,
    SENT_WHOLE,
    RolloutSide,
    both_leave,
    number_in,
    reward_of,
    without_nothing,
)
from simpar.frameworks.trainer_arguments import TrainerArguments
from simpar.frameworks.trl_rollout import OnlineTrainer, served_by, server_of, steps_of
from simpar.frameworks.words import is_off

MODE, ENGINE = "vllm_mode", "vllm_"
GRPO = OnlineTrainer(samples=8, beta=0.04)
"""Its trainer, which is built on TRL's, with defaults of its own."""
KEPT = ("rlhf_type", "beta", "reward_funcs", "reward_weights", "move_model_batches", "num_infer_workers")
"""Words that decide about the update as those of another loss, and that the whole step answers."""
IDLE = ("vllm_limit_mm_per_prompt", "vllm_server_pass_dataset", "vllm_disable_custom_all_reduce", "vllm_max_model_len",
        "vllm_mm_processor_cache_gb", "vllm_disable_cascade_attn", "vllm_use_async_engine", "vllm_max_lora_rank",
        "vllm_server_timeout", "loss_type")  # fmt: skip
"""Words of the engine and of the loss without effect on a step."""


def server_of_script(text: str, source: str) -> TrainerArguments | None:
    """The arguments of ``swift rollout`` in a script, by vLLM's names; None without one."""
    return server_of(text, source, ("swift", "rollout"), ENGINE)


def rollout(
    given: TrainerArguments, micro: int, longest: tuple[int, int] | None, server: TrainerArguments | None = None
) -> RolloutSide:
    """Generation and passes of GRPO. Raises UserError for what no section says."""
    if not given.on("use_vllm"):
        raise UserError(
            f"{given.source}: no use_vllm: allowed: use_vllm true; generation by transformers is not modelled"
        )
    mode = given.one(MODE)
    if mode == "server" and server is None:
        raise UserError(f"{given.source}: {MODE} = server, and no command says its devices: allowed: a script with "
                        "swift rollout beside it, or colocate")  # fmt: skip
    if mode not in ("colocate", "server"):
        raise UserError(f"{given.source}: {MODE} = {mode}: allowed: colocate, server")
    if longest is None:
        raise UserError(f"{given.source}: no max_length: allowed: it, the longest prompt in tokens")
    for key in IDLE:
        given.get(key)
    notes = list(_notes(given))
    samples, tp = GRPO.samples_in(given), given.number(f"{ENGINE}tensor_parallel_size") or 1
    rounds, steps, whole = steps_of(given, samples)
    model, away = given.one("reward_model"), [given.on(f"offload_{part}") is True for part in ("model", "optimizer")]
    section: dict[str, Any] = {
        "algorithm": "grpo",
        "prompts": whole // samples if whole else None,
        "samples": samples,
        "epochs": given.number("num_iterations") or 1,
        "lengths": {"padding": "none" if given.on("padding_free") else "longest"},
        "rollout": {
            "tp": tp,
            "pp": given.number(f"{ENGINE}pipeline_parallel_size"),
            "engine": _engine(given, (whole or micro * steps) * tp),
        },
        "weights": {
            "sleep": not is_off(given.one("sleep_level")),
            "offload": both_leave(away, "offload_model and offload_optimizer", notes),
        },
        "passes": {"reference": GRPO.penalty(given) != 0, "reward": reward_of(str(model), notes) if model else None},
    }
    apart = None
    if mode == "server" and server is not None:
        apart, section["rollout"] = served_by(server, notes)
        section |= {"placement": "split", "weights": {"senders": "rank", "offload": False}}
        if given.on("async_generate"):
            section["synchrony"] = {"steps_off": 1}
    return RolloutSide(without_nothing(section), longest, apart, KEPT, tuple(notes), updates=steps // rounds)


def _engine(given: TrainerArguments, at_once: int) -> dict[str, Any]:
    """The limits of a replica, which takes all that its ranks generate at once."""
    fraction, budget = given.one(f"{ENGINE}gpu_memory_utilization"), 8192
    return {
        "memory_fraction": number_in(0.9 if fraction is None else fraction, f"{ENGINE}gpu_memory_utilization",
                                     given.source),
        "max_sequences": min(budget, given.number(f"{ENGINE}max_num_seqs") or at_once),
        "token_budget": budget,
        "graphs": not given.on(f"{ENGINE}enforce_eager"),
        "prefix_sharing": given.on(f"{ENGINE}enable_prefix_caching") is not False,
    }  # fmt: skip


def _notes(given: TrainerArguments) -> Iterator[str]:
    """What generation does that the section does not say."""
    if given.on("dynamic_sample"):
        yield FILTERED
    if given.told("multi_turn_scheduler") or given.told("max_turns"):
        yield IN_TURNS
    if given.on(f"{ENGINE}enable_lora"):
        yield SENT_WHOLE
