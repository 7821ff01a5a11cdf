"""TRL's trainers that generate (``trl grpo``, ``trl rloo``, and scripts with their configs): the update of the policy.

Defaults are those of ``trl/trainer/grpo_config.py`` and ``rloo_config.py`` at huggingface/trl f2cd577.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from simpar.frameworks.policy_update import BESIDE, NOTE, ROLLOUT, open_lengths
from simpar.frameworks.reader import Reader
from simpar.frameworks.rollout_side import side_of
from simpar.frameworks.target import Imported, ImportedStep
from simpar.frameworks.trainer_arguments import TrainerArguments, TrainerCommand
from simpar.frameworks.trainer_habits import SFT, TRL
from simpar.frameworks.trainer_read import Habits, plan_of
from simpar.frameworks.trainer_readers import NAMES, arguments_in, stage_of_trl, starts_where
from simpar.frameworks.trainer_words import PREFERENCE, WORDS
from simpar.frameworks.trl_rollout import ENGINE_WORDS, OnlineTrainer, longest_texts, rollout, server_of
from simpar.frameworks.words import ReadWords, WordTable

STAGES = {"grpo": OnlineTrainer(samples=8, beta=0.0), "rloo": OnlineTrainer(samples=2, beta=0.05)}
"""TRL's trainers that generate and score by functions or models, without a critic."""
TELLING = ("num_generations", "reward_funcs", "steps_per_generation", "generation_batch_size")
"""Options that only they have."""
UNTOLD = {"recompute": "TRL's configs checkpoint unless told not to; those of earlier releases did not"}
OF_OTHERS = ("rlhf_type", "finetuning_type", "base_model", "adapter", "rl", "trl")
"""Options of front ends over them, which have their own readers."""


def read(text: str, name: str) -> Imported:
    """The update of a trainer of TRL's that generates. Raises UserError naming file, option and value."""
    given, command = arguments_in(text, name, "TRL's GRPO and RLOO", _is_own, _owns)
    trainer = STAGES[_stage(command)]
    longest = longest_texts(given)
    given.one("generation_batch_size")  # says nothing of a batch of the update
    result = plan_of(given, _habits(command), command)
    stays = _weigh_others(given, trainer, has_adapters=result.plan.tuning.lora_rank is not None)
    training = {**(result.plan.training or {}), "seq_len": sum(longest)}
    update = replace(
        result,
        plan=result.plan.with_values(training=training, **_loss(given, result)),
        words=given.words() + _of_other_files(result.words, given.words()),
        notes=(NOTE, *stays, *result.notes),
        assumed=(open_lengths(sum(longest)), *(each for each in result.assumed if each.key != "seq_len")),
        written_as="",
    )
    server = None if command is None else server_of(text, name)
    return ImportedStep.of(update, side_of(lambda: rollout(given, trainer, longest, server), given.used))


def _loss(given: TrainerArguments, result: Imported) -> dict[str, Any]:
    """Pieces of the loss: Liger's of GRPO takes one sequence at a time (``chunk_size=1``)."""
    if given.on("use_liger_kernel", "use_liger_loss"):
        return {"loss_chunks": result.plan.micro_batch}
    return {}


def _of_other_files(words: ReadWords, own: ReadWords) -> ReadWords:
    """The words of other files than the arguments, such as DeepSpeed's config."""
    told = {*own.used, *own.unread}
    return ReadWords(
        tuple(word for word in words.used if word not in told),
        {word: value for word, value in words.unread.items() if word not in told},
    )


def _weigh_others(given: TrainerArguments, trainer: OnlineTrainer, *, has_adapters: bool) -> tuple[str, ...]:
    """Leave the words by which an engine or a reference has memory beside the update; a note on one that none says."""
    told = [key for key in ENGINE_WORDS if given.get(key) is not None]
    is_beside = trainer.generates_by_vllm(given) and not trainer.is_served(given)
    if is_beside and not given.on("vllm_enable_sleep_mode"):
        given.leave(told[0])
    if not trainer.penalty(given) or has_adapters:
        return ()
    given.leave("beta")
    unsaid = f"beta is {trainer.beta:g} where nothing is said: only --rl answers for the reference on the devices."
    return () if given.values_.get("beta") is not None else (unsaid,)


def _stage(command: TrainerCommand | None) -> str:
    """Which of them a command starts, by TRL's own word or the name of a script."""
    if command is None:
        return "grpo"
    told = stage_of_trl(command) or PurePath(command.script).name.lower()
    return "rloo" if "rloo" in told else "grpo"


def _habits(command: TrainerCommand | None) -> Habits:
    """Those of TRL's own scripts, or of scripts with its configs."""
    is_of_trl = command is not None and stage_of_trl(command) is not None
    return replace(TRL if is_of_trl else SFT, length=None, told=UNTOLD)


def _is_own(command: TrainerCommand) -> bool:
    stage = stage_of_trl(command)
    if stage is not None:
        return stage in STAGES
    name, flags = PurePath(command.script).name.lower(), set(command.flags)
    engine = flags & {"use_vllm", "vllm_mode"}
    if flags & set(OF_OTHERS) or "swift" in command.script:
        return False
    return bool(flags & set(TELLING) and engine) or (
        any(each in name for each in STAGES) and bool(flags & set(TELLING) or engine)
    )


def _owns(data: Mapping[str, Any]) -> bool:
    has = any(key in data for key in TELLING) and any(key in data for key in NAMES)
    return has and not any(key in data for key in OF_OTHERS)


OF_ROLLOUT = (
    "num_generations*", "max_completion_length", "max_prompt_length", "ds3_gather*", "generation_*", "min_p",
    "repetition_penalty", "cache_implementation", "use_vllm", "vllm_*", "num_iterations", "epsilon*", "delta",
    "sapo_*", "vespo_*", "importance_sampling*", "reward_*", "multi_objective*", "scale_rewards", "loss_type",
    "sync_ref_model", "ref_model_*", "top_entropy_quantile", "entropy_*", "use_adaptive_entropy",
    "max_tool_calling*", "off_policy_mask*", "use_bias_correction_kl", "num_completions*", "steps_per_generation",
    "disable_dropout", "router_aux_loss_coef", "use_transformers_*", "transformers_continuous*", "shuffle_dataset",
    "normalize_advantages", "token_level_kl", "cosine_*", "format_*", "beta", "callbacks", "pad_to_multiple_of",
    "rloo_k", "reward_clip_range", "model_init_kwargs.*", "wandb_*", "max_len", "parallel_code*", "code_language",
)  # fmt: skip
"""Options of the rollout, of rewards and of the loss without effect on an update."""
DECIDING = {
    **dict.fromkeys(ENGINE_WORDS, ROLLOUT),
    "beta": f"the reference: {BESIDE}",
    "reward_model_name_or_path": f"the reward model: {BESIDE}",
    "cast_lm_head_to_fp32": "the output projection in fp32: time and memory",
    "sync_ref_model": f"the reference: {BESIDE}",
}
"""Those that decide, where they are not answered."""
_OF_UPDATES = {key: what for key, what in WORDS.deciding.items() if what != PREFERENCE and key != "loss_type"}
READER = Reader(
    name="trl-online",
    description="TRL: the update of GRPO and RLOO (trl grpo, scripts with GRPOConfig, and their YAML)",
    read=read,
    takes_files=True,
    starts=starts_where(_is_own),
    owns=_owns,
    has_dotted_flags=False,
    words=WordTable((*WORDS.idle, *OF_ROLLOUT), {**_OF_UPDATES, **DECIDING}, WORDS.off),
)
