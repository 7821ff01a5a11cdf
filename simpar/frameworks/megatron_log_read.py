"""The list of arguments that Megatron-LM prints into its log, back to a plan.

``_print_args`` (NVIDIA/Megatron-LM, megatron/training/arguments.py) prints all arguments, some 850, after they were
checked: most at their defaults, some derived from others. What is at its default, or follows from others, is no word
of the job. What is left is read as the command that says it, by the reader of the front end that has such arguments.
"""

import json
import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from simpar.frameworks.megatron_arguments import CORE_NAMES, ON_BY_DEFAULT
from simpar.frameworks.megatron_kin import MEGATRON_DEEPSPEED, MINDSPEED, OF_DEEPSPEED, OF_MINDSPEED
from simpar.frameworks.megatron_log import ArgumentList, list_of
from simpar.frameworks.megatron_read import READER as MEGATRON
from simpar.frameworks.pai_read import OF_PAI
from simpar.frameworks.pai_read import READER as PAI
from simpar.frameworks.reader import Reader
from simpar.frameworks.target import Imported
from simpar.frameworks.words import ReadWords, WordTable, is_off
from simpar.plan.plan import Plan

DEFAULTS = Path(__file__).with_name("megatron_defaults.json")
"""Destinations and defaults of Megatron-LM's arguments, written by its own parser."""
KIN = ((MEGATRON_DEEPSPEED, OF_DEEPSPEED), (MINDSPEED, OF_MINDSPEED), (PAI, OF_PAI))
"""Front ends whose lists have arguments of their own, and some of these."""
DERIVED = frozenset(
    (
        "_is_global_batch_size_explicitly_specified", "consumed_train_samples", "consumed_valid_samples", "rank",
        "skipped_train_samples", "data_parallel_size", "world_size", "params_dtype", "iteration", "use_dist_ckpt",
        "transformer_pipeline_model_parallel_size", "gtp_weight_remat_size", "variable_seq_lengths", "do_train",
        "do_valid", "do_test", "padded_vocab_size", "model_type", "curr_iteration", "consumed_train_tokens",
        "num_floating_point_operations_so_far", "dataloader_type", "deepspeed_configuration", "curriculum_learning",
        "ds_pipeline_enabled", "use_custom_fsdp", "use_hip", "local_world_size", "align_param_gather",
        "align_grad_reduce",
    )
)  # fmt: skip
"""What Megatron-LM counts itself, or says of this rank; sizes of the world are read beside the arguments."""
OF_EXPERTS = ("moe_", "expert_", "topk", "mlp_type", "create_moe", "enable_expert")
OF_KIN = {"tile_factor": "1", "remote_device": "none", "img_dim": "224", "custom_token_counting": "False"}
"""Defaults of arguments of Megatron-DeepSpeed and of earlier releases."""
DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "uint8": "fp8"}


def read(text: str, name: str) -> Imported:
    """The plan of the list of arguments in a log. Raises UserError."""
    given = list_of(text, name)
    own = {f"--{each}".replace("_", "-") for each in given.values}
    reader = next((each for each, flags in KIN if own & set(flags)), MEGATRON)
    names: dict[str, str] = {}
    words: list[str] = []
    for flag, value, said_by in _flags(given):
        names[flag] = said_by
        words += [flag, *value]
    result = reader.read(f"pretrain_gpt.py {shlex.join(words)}", name)
    account = reader.words.sort(result.words.used, result.words.unread)
    deciding = {word: result.words.unread[word] for word in (*account.deciding, *account.unknown)}
    told = {names.get(word, word) for word in (*result.words.used, *deciding)}
    idle: dict[str, Any] = {each: {} for each in given.values if each not in told}  # an empty value decides nothing
    used = tuple(names.get(word, word) for word in result.words.used)
    world = [each for each in ("world_size", "data_parallel_size") if idle.pop(each, None) is not None]
    note = f"Of {len(given.values)} printed arguments, {len(words and names)} are not at Megatron-LM's defaults."
    asked = tuple(each for each in result.notes if "may be meant" not in each)
    return replace(
        result, plan=_with_ranks(result, given), words=ReadWords((*used, *world), {**idle, **deciding}),
        notes=(note, *asked),
    )  # fmt: skip


def _with_ranks(result: Imported, given: ArgumentList) -> Plan:
    """The plan with the data-parallel ranks that the list says, where they make up its world."""
    dp, world = given.number("data_parallel_size"), given.number("world_size")
    if dp is None or result.plan.mesh.dp is not None:
        return result.plan
    plan = result.plan.with_values(dp=dp)
    return plan if world in (None, plan.world_size) else result.plan


@cache
def _defaults() -> dict[str, Any]:
    result: dict[str, Any] = json.loads(DEFAULTS.read_text(encoding="utf-8"))
    return result


def _flags(given: ArgumentList) -> Iterator[tuple[str, list[str], str]]:
    """(Flag, values, name in the list) of every argument that is not at its default and follows from no other."""
    table = _defaults()
    values, on, off, flags = (table[key] for key in ("values", "on", "off", "flags"))
    switches = set(on)
    for name, text in given.values.items():
        if name in DERIVED or OF_KIN.get(name) == text or _follows(name, given):
            continue
        regular = flags.get(name, f"--{name}").replace("_", "-")
        if name in switches or name in off:
            if text == str(name in switches):
                yield off.get(name, regular), [], name
        elif name in values:
            value = _plain(text)
            if value != _plain(values[name]) and text != "None":
                yield regular, _listed(value), name
        elif (name in ON_BY_DEFAULT and text == "False") or not is_off(text):
            flag = ON_BY_DEFAULT[name] if text == "False" else f"--{CORE_NAMES.get(name) or name}".replace("_", "-")
            yield flag, [] if text in ("True", "False") else _listed(_plain(text)), name
    if given.vocabulary and given.values.get("vocab_size", "None") == "None":
        yield "--vocab-size", [given.vocabulary], "padded_vocab_size"


def _follows(name: str, given: ArgumentList) -> bool:
    """Whether an argument has the value that Megatron-LM gave it because of others (``validate_args``)."""
    text = given.values[name]
    stages = given.values.get("virtual_pipeline_model_parallel_size", "None")
    no_experts = given.values.get("num_experts", "None") in ("None", "0", "1", "[1]")
    follows = {
        "overlap_p2p_comm": text == "False" and stages in ("None", "1"),
        "overlap_p2p_comm_warmup_flush": stages in ("None", "1"),
        "tensor_parallel_num_weight_shards": text == given.values.get("tensor_model_parallel_size"),
        "expert_tensor_parallel_num_weight_shards": text == given.values.get("expert_tensor_parallel_size"),
        "expert_tensor_parallel_size": no_experts,
        "bias_gelu_fusion": given.is_on("swiglu") or given.values.get("add_bias_linear") == "False",
        "bias_swiglu_fusion": not given.is_on("swiglu"),
        "apply_rope_fusion": given.values.get("position_embedding_type", "rope") != "rope",
        "async_tensor_model_parallel_allreduce": (
            given.is_on("sequence_parallel") or given.values.get("tensor_model_parallel_size") == "1"
        ),
        "encoder_num_layers": text == given.values.get("num_layers"),
        "virtual_pipeline_model_parallel_size": text == "1",
    }
    if name in follows:
        return follows[name]
    teaching = given.is_on("kd") or given.is_on("mos")
    of_teacher = name.startswith("kd_") or name.endswith("_teacher")
    return (no_experts and name.startswith(OF_EXPERTS)) or (of_teacher and not teaching)


def _plain(text: str) -> str:
    """A value as arguments say it: dtypes of torch and members of enumerations by their short names."""
    if match := re.fullmatch(r"torch\.(\w+)", text):
        return DTYPES.get(match[1], match[1])
    if match := re.fullmatch(r"<?[A-Z]\w*\.(\w+)(?:: [^>]*)?>?", text):
        return match[1]
    return re.sub(r"(?<=\d)\.0(?!\d)", "", text) if re.fullmatch(r"\d+\.0", text) else text


def _listed(text: str) -> list[str]:
    """The words of a value; those of a list one by one."""
    if text.startswith("[") and text.endswith("]"):
        return [each.strip().strip("'\"") for each in text[1:-1].split(",") if each.strip()]
    return [text]


def _words(readers: Iterable[Reader]) -> WordTable:
    """What the words of all of them may decide."""
    result = MEGATRON.words
    for each in readers:
        result |= each.words
    return result


READER = Reader(
    name="megatron-log",
    description="Megatron-LM: the arguments that it prints into its log",
    read=read,
    words=_words(each for each, _ in KIN),
    written_as="megatron",
)
