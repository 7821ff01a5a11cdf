"""The rollout of TRL's trainers that generate: vLLM beside the trainer's ranks, or served on devices of its own.

Defaults are those of ``trl/trainer/grpo_config.py``, ``trl/generation/vllm_generation.py`` and
``trl/scripts/vllm_serve.py`` at huggingface/trl f2cd577.
"""

from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.frameworks.rollout_side import RolloutSide, cache_dtype, number_in, reward_of, without_nothing
from simpar.frameworks.shell_calls import PRINTING
from simpar.frameworks.shell_shared import script_of
from simpar.frameworks.trainer_arguments import TrainerArguments, split_command
from simpar.frameworks.trainer_readers import SERVES
from simpar.frameworks.words import WordTable

ENGINE_WORDS = ("vllm_gpu_memory_utilization", "vllm_mode", "use_vllm")
"""Words by which an engine keeps memory during the update, the one that says most first."""
KEPT = (*ENGINE_WORDS, "beta", "reward_model_name_or_path")
"""Words that decide about memory during an update, and that the whole step answers."""
PROMPT, COMPLETION = 512, 512
"""Tokens of a prompt (the default of releases that had a limit) and of a completion."""
TOKENS_AT_ONCE = 4096
"""``max_num_batched_tokens`` of the engine beside the trainer."""
MODES = ("colocate", "server")
SERVERS = ("vllm_server_host", "vllm_server_port", "vllm_server_base_url")
GENERATED = "allowed: use_vllm: true; generation by transformers is not modelled"
SERVED = WordTable(
    idle=("model", "revision", "host", "port", "dtype", "max_model_len", "trust_remote_code", "log_level",
          "distributed_executor_backend", "served_model_name", "config", "logprobs_mode", "max_logprobs", "api_key",
          "weight_transfer_config", "enable_sleep_mode", "uvicorn_log_level", "disable_log*", "seed", "tokenizer*",
          "generation_config", "worker_extension_cls"),
    deciding={
        "speculative_config": "drafted tokens", "vllm_model_impl": "kernels of transformers", "model_impl":
        "kernels of transformers", "quantization": "weights in fewer bits", "enable_lora": "adapters beside weights",
        "enable_expert_parallel": "where experts are",
    },
)  # fmt: skip
"""Words of ``trl vllm-serve`` beside those that are read."""


@dataclass(frozen=True)
class OnlineTrainer:
    """A trainer that generates as TRL's do, by its defaults of ``samples`` of a prompt and of ``beta``."""

    samples: int
    beta: float

    def samples_in(self, given: TrainerArguments) -> int:
        """Samples of a prompt."""
        return given.number("num_generations") or self.samples

    def generates_by_vllm(self, given: TrainerArguments) -> bool:
        """Whether vLLM generates."""
        return bool(given.on("use_vllm"))

    def is_served(self, given: TrainerArguments) -> bool:
        """Whether the engine has devices of its own. Raises UserError for another mode."""
        if given.told("vllm_device") is not None:  # of releases before servers: one device of the node
            return True
        mode = given.told("vllm_mode")
        if mode is None:
            return any(given.told(key) is not None for key in SERVERS)
        if mode not in MODES:
            raise given.refused("vllm_mode", ", ".join(MODES))
        return bool(mode == "server")

    def penalty(self, given: TrainerArguments) -> float:
        """The weight of the distance from the reference; 0: there is none."""
        told = given.one("beta")
        return self.beta if told is None else number_in(told, "beta", given.source)


def longest_texts(given: TrainerArguments) -> tuple[int, int]:
    """Tokens that prompts and completions may have; releases without a limit of prompts end at the engine's context."""
    answer = given.number("max_completion_length") or COMPLETION
    prompt, whole = given.number("max_prompt_length"), given.number("vllm_max_model_length", "vllm_max_model_len")
    if prompt is None and whole is not None and whole > answer:
        prompt = min(PROMPT, whole - answer)
    return prompt or PROMPT, answer


def rollout(
    given: TrainerArguments, trainer: OnlineTrainer, longest: tuple[int, int], server: TrainerArguments | None
) -> RolloutSide:
    """Generation and passes of a trainer. Raises UserError for what no section says."""
    if not trainer.generates_by_vllm(given):
        if given.values_.get("use_vllm") is None:
            raise UserError(f"{given.source}: no use_vllm: {GENERATED}")
        raise given.refused("use_vllm", GENERATED.removeprefix("allowed: "))
    notes = list(_notes(given))
    micro, samples = given.number("per_device_train_batch_size") or 8, trainer.samples_in(given)
    iterations = given.number("num_iterations") or 1
    if given.number("steps_per_generation") and given.number("generation_batch_size"):
        raise given.refused("generation_batch_size", "it or steps_per_generation, not both")
    rounds, steps, whole = steps_of(given, samples)
    is_served = server is not None or trainer.is_served(given)
    scores = given.on("vllm_importance_sampling_correction") is not False
    section: dict[str, Any] = {
        "algorithm": "grpo",
        "prompts": whole // samples if whole else None,
        "samples": samples,
        "epochs": iterations,
        "lengths": {"padding": "longest"},
        "weights": {"sleep": is_served or bool(given.on("vllm_enable_sleep_mode")), "offload": False},
        "passes": {
            "old_policy": scores or rounds % (steps * iterations) != 0,
            "reference": trainer.penalty(given) != 0,
            "reward": _reward(given, notes),
        },
    }
    apart = None
    if is_served:
        apart, section["rollout"] = _pool(given, server, notes)
        section["placement"], section["weights"]["senders"] = "split", "rank"
    else:
        section["rollout"] = _beside(given, whole or micro * steps)
    return RolloutSide(without_nothing(section), longest, apart, KEPT, tuple(notes), updates=steps // rounds)


def steps_of(given: TrainerArguments, samples: int) -> tuple[int, int, int | None]:
    """Steps of an update and of a rollout, and responses of this, if they are said. Raises UserError."""
    rounds = given.number("gradient_accumulation_steps") or 1
    steps, whole = given.number("steps_per_generation"), given.number("generation_batch_size")
    if steps and steps % rounds:
        raise given.refused("steps_per_generation", f"a multiple of gradient_accumulation_steps, {rounds}")
    if whole and whole % samples:
        raise given.refused("generation_batch_size", f"a multiple of num_generations, {samples}")
    return rounds, steps or rounds, whole


def _beside(given: TrainerArguments, of_rank: int) -> dict[str, Any]:
    """The engine on the trainer's devices, which takes all that its ranks generate at once."""
    tp = given.number("vllm_tensor_parallel_size") or 1
    fraction = given.one("vllm_gpu_memory_utilization")
    return {
        "tp": tp,
        "engine": {
            "memory_fraction": number_in(0.3 if fraction is None else fraction, ENGINE_WORDS[0], given.source),
            "token_budget": TOKENS_AT_ONCE,
            "max_sequences": min(TOKENS_AT_ONCE, of_rank * tp),
        },
    }


def _pool(
    given: TrainerArguments, server: TrainerArguments | None, notes: list[str]
) -> tuple[tuple[int, int], dict[str, Any]]:
    """Devices of an engine of its own, and its layout. Raises UserError where nothing says how many there are."""
    if given.told("vllm_device") is not None:
        notes.append("vllm_device: one device more than those that train generates")
        fraction = number_in(given.one("vllm_gpu_memory_utilization") or 0.9, ENGINE_WORDS[0], given.source)
        return (1, 1), {"engine": {"memory_fraction": fraction}}
    if server is None:
        raise UserError(f"{given.source}: vllm_mode = server, and no command says its devices: allowed: a script with "
                        "trl vllm-serve beside it, or vllm_mode: colocate")  # fmt: skip
    return served_by(server, notes)


def served_by(server: TrainerArguments, notes: list[str]) -> tuple[tuple[int, int], dict[str, Any]]:
    """Devices and layout of the engine that a command starts, with vLLM's arguments by their names."""
    tp, replicas = (server.number(f"{axis}_parallel_size") or 1 for axis in ("tensor", "data"))
    fraction = server.one("gpu_memory_utilization")
    engine = {
        "memory_fraction": number_in(0.9 if fraction is None else fraction, "--gpu_memory_utilization", server.source),
        "graphs": not server.on("enforce_eager"),
        "prefix_sharing": server.on("enable_prefix_caching") is not False,
        "cache_dtype": cache_dtype(server.one("kv_cache_dtype")),
        "max_sequences": server.number("max_num_seqs"),
        "token_budget": server.number("max_num_batched_tokens"),
    }
    account = SERVED.sort((), server.words().unread)
    notes += [f"the engine's {word}: {what}, not modelled" for word, what in account.deciding.items()]
    notes += [f"the engine's {word} is not read" for word in account.unknown]
    devices = tp * replicas
    return (devices, min(8, devices)), {"tp": tp, "engine": engine}


def server_of(
    text: str, source: str, starts: tuple[str, str] = ("vllm", "serve"), prefix: str = ""
) -> TrainerArguments | None:
    """The arguments of the engine that a script starts (``trl vllm-serve``, ``vllm serve``); None without one.

    A front end ``starts`` it by words of its own, and may have vLLM's arguments behind a ``prefix``.
    """
    for words in script_of(text, source).commands:
        names = [PurePath(word).name for word in words]
        for at, name in enumerate(names):
            serves = name in (*SERVES, "trl.scripts.vllm_serve") or tuple(names[at : at + 2]) == starts
            if serves and names[0] not in PRINTING and (told := split_command(["trl", "serve", *words[at + 1 :]])):
                flags = {key.removeprefix(prefix): value for key, value in told.flags.items()}
                return TrainerArguments(flags, source, told.written)
    return None


def _reward(given: TrainerArguments, notes: list[str]) -> str | None:
    named = given.one("reward_model_name_or_path")
    return reward_of(str(named), notes) if named else None


def _notes(given: TrainerArguments) -> Iterator[str]:
    """What generation does that the section does not say."""
    if given.told("max_tool_calling_iterations") is not None:
        yield "turns with tools are not modelled: a response is generated at a stretch"
    if given.told("vllm_model_impl") not in (None, "vllm", "auto"):
        yield "vllm_model_impl: kernels of transformers, timed as vLLM's own"
    if given.on("load_in_4bit", "load_in_8bit"):
        yield "the engine's weights are taken in 16 bits; TRL quantises them as the trainer's"
    if given.told("vllm_mode", "vllm_device", *SERVERS) is None:
        yield "vllm_mode is not said: colocate, as releases since 1.0 take it; earlier ones took a server"
