"""Arguments of Hugging Face's trainers that a script or a notebook writes in its code; nothing is run.

``SFTConfig(per_device_train_batch_size=2)``, ``LoraConfig(r=16)``, ``AutoModelForCausalLM.from_pretrained(NAME)``,
``FastLanguageModel.get_peft_model(model, r=16)``: keywords of such calls are the arguments, by the names that command
lines have. Names that a file assigns once are followed.
"""

import ast
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import field
from functools import partial
from typing import Any

from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.frameworks.script_branches import CONDITION, branches_of
from simpar.frameworks.script_parser import flags_parsed, parameters_parsed, parsed_arguments
from simpar.frameworks.script_starts import Starts, starts_of
from simpar.frameworks.script_statements import Statements, decides, statements_of, trained_at
from simpar.frameworks.script_values import (
    OF_DEVICE,
    ScriptNames,
    Untold,
    calls_in,
    known_of,
    name_of,
    truth_of,
    value_of,
)

ARGUMENTS = ("SFTConfig", "TrainingArguments", "Seq2SeqTrainingArguments", "UnslothTrainingArguments")
"""Classes whose keywords are the Trainer's arguments."""
TRAINERS = ("SFTTrainer", "Trainer", "Seq2SeqTrainer", "UnslothTrainer")
ENABLES = ("gradient_checkpointing_enable", "prepare_model_for_kbit_training", "prepare_model_for_int8_training")
"""Calls that recompute activations; PEFT's does so unless told not to."""
OTHERS = re.compile(r"^(GRPO|RLOO|DPO|KTO|ORPO|CPO|PPO|Reward|GKD|BCO|OnlineDPO|Nash\w*|XPO|PRM)(Config|Trainer)$")
"""Classes of trainers on preferences, rewards and rollouts."""
OF_UNSLOTH = re.compile(r"^Fast(Language|Vision|Text)?Model$|^FastSentenceTransformer$")
OF_MODEL = re.compile(r"^Auto(Peft)?Model|For(CausalLM|ConditionalGeneration|ImageTextToText|Vision2Seq)$")
LORA = {"r": "lora_r", "target_modules": "lora_target_modules", "modules_to_save": "lora_modules_to_save"}
"""Keywords of PEFT's LoraConfig by the names of arguments."""
PREFERENCES = "(DPO|KTO|ORPO|CPO|Reward|BCO)(Config|Trainer)"
_CALLED = re.compile(rf"\b({'|'.join(ARGUMENTS)}|{PREFERENCES})\(")
_OF_TRL = re.compile(r"^\s*(from|import) (trl|unsloth)\b", re.MULTILINE)
"""Whose trainer takes a model alone."""
PARSERS = ("HfArgumentParser(", "TrlParser(")
"""What takes arguments from the command line, where they are read."""
NO_ARGUMENTS = (
    "model", "tokenizer", "processing_class", "train_dataset", "eval_dataset", "args", "data_collator", "callbacks",
    "formatting_func", "compute_metrics", "peft_config", "quantization_config", "token", "cache_dir", "dataset",
    "preprocess_logits_for_metrics", "optimizers", "model_init", "revision", "use_cache", "trust_remote_code",
    "random_state", "loftq_config", "bias", "task_type", "low_cpu_mem_usage", "dataset_kwargs", "fast_inference",
    "max_lora_rank", "gpu_memory_utilization", "unsloth_force_compile", "return_logits", "config", "device",
)  # fmt: skip
"""Keywords of these calls that say nothing of time and memory, or name what other calls make."""


@dataclass(frozen=True)
class CodeArguments:
    """The ``values`` of arguments by name, and the ``untold`` ones as the code writes them; ``lines`` are of both.

    ``trainer`` is the last class that trains, "" for none; ``of_unsloth`` tells whether Unsloth makes the model.
    ``classes`` are those of arguments that are made, ``emptied`` the arguments that are None. ``does`` is what the code
    does beside them, ``starts`` the processes that it starts, ``conditions`` the word for those that only running
    decides, and ``parsed`` the flags of its own command line, with whether they were asked for.
    """

    values: Mapping[str, Any]
    untold: Mapping[str, str]
    lines: Mapping[str, int] = field(default_factory=dict)
    trainer: str = ""
    of_unsloth: bool = False
    classes: frozenset[str] = frozenset()
    emptied: frozenset[str] = frozenset()
    does: Statements = Statements({}, {}, {})
    starts: Starts = Starts()
    conditions: Mapping[str, str] = field(default_factory=dict)
    parsed: Mapping[str, bool] = field(default_factory=dict)


def has_trainer(text: str) -> bool:
    """Whether a file in Python calls a trainer with arguments in its code."""
    called = _CALLED.search(text) is not None or ("SFTTrainer(" in text and _OF_TRL.search(text) is not None)
    return called and not any(parser in text for parser in PARSERS)


def _cells(text: str, name: str) -> list[str]:
    """The code of each cell of a notebook. Raises UserError."""
    try:
        cells = json.loads(text)["cells"]
        return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UserError(f"{name}: no notebook: allowed: JSON with cells") from None


_FOR_SHELL = re.compile(r"%%(bash|sh|shell|script bash)\b")
_ENVIRONMENT = re.compile(r"""\s*(?:%env\s+(\w+)[=\s]\s*|os\.environ\[["'](\w+)["']\]\s*=\s*)["']?([^"']*)["']?\s*$""")
"""A variable that a cell sets for the shell."""


def shell_of_notebook(text: str, name: str) -> str:
    """What the cells of a notebook give to a shell: lines behind ``!``, cells of bash, files that are written.

    Raises UserError.
    """
    result: list[str] = []
    for source in _cells(text, name):
        first, _, rest = source.lstrip().partition("\n")
        if _FOR_SHELL.match(first):
            result.append(rest)
        elif first.startswith("%%writefile"):
            result.append(f"cat > {first.split()[-1]} <<'END_OF_CELL'\n{rest.rstrip()}\nEND_OF_CELL")
        else:
            result += _shell_lines(source)
    return "\n".join(result) + "\n" if result else ""


def _shell_lines(source: str) -> Iterator[str]:
    """The lines of a cell that a shell gets, and variables that are set for it."""
    goes_on = False
    for line in source.splitlines():
        own = line.lstrip()
        if goes_on or own.startswith("!"):
            yield line if goes_on else own[1:]
            goes_on = line.rstrip().endswith("\\")
        elif match := _ENVIRONMENT.match(line):
            yield f"export {match[1] or match[2]}='{match[3].strip()}'"
        elif own.startswith("%cd "):
            yield own[1:]


_OF_SHELL = re.compile(r"[!%]|(pip3?|conda|apt|apt-get) install\b")
"""How lines begin that a notebook gives to a shell, or takes as such."""


def code_of_notebook(text: str, name: str) -> str:
    """The code of a notebook, cell by cell, without lines for the shell. Raises UserError."""
    sources = _cells(text, name)
    return "\n".join(line for source in sources for line in _python_lines(source)) + "\n"


def _python_lines(source: str) -> Iterator[str]:
    """The lines of a cell; those for the shell, which may go on behind a backslash, do nothing."""
    if source.lstrip().startswith("%%"):
        return
    goes_on = False
    for line in source.splitlines():
        own = line.lstrip()
        is_shell = goes_on or _OF_SHELL.match(own) is not None
        yield "" if goes_on else f"{line[: len(line) - len(own)]}pass" if is_shell else line
        goes_on = is_shell and line.rstrip().endswith("\\")


def arguments_of_code(text: str, name: str, flags: Mapping[str, Any] | None = None) -> CodeArguments:
    """The arguments in a file's code, which is started with ``flags``, by plain name.

    Raises UserError naming the line of what is no Python.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        raise UserError(f"{name}{f':{line}' if line else ''}: not Python") from None
    try:
        tree, known, untold = _running(tree, flags or {})
        reader, idle = _Reader(), _unused(tree)
        for call in sorted(calls_in(tree), key=lambda node: (node.lineno, node.col_offset)):
            if call not in idle:
                reader.take(call, known)
        adapts = "LoraConfig" in reader.classes or reader.of_unsloth
        does = statements_of(tree, (*ARGUMENTS, "LoraConfig"), adapts=adapts)
        for key, given in does.values.items():
            reader.set_later(key, given, known)
        starts = starts_of(tree, lambda node: value_of(node, known))
    except RecursionError:
        raise UserError(f"{name}: an expression of too many parts; allowed: values that the code writes out") from None
    return CodeArguments(
        reader.values, reader.untold, reader.lines, reader.trainer, reader.of_unsloth, frozenset(reader.classes),
        frozenset(reader.emptied), does, starts, {CONDITION: untold} if untold else {}, flags_parsed(tree, known.asked),
    )  # fmt: skip


def _unused(tree: ast.Module) -> set[ast.AST]:
    """Calls of LoraConfig whose result a name holds that nothing asks for: no trainer gets it."""
    asked = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    made = (node for node in ast.walk(tree) if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call))
    return {
        node.value
        for node in made
        if name_of(getattr(node.value, "func", node.value)) == "LoraConfig"
        and all(isinstance(each, ast.Name) and each.id not in asked for each in node.targets)
    }


def _running(tree: ast.Module, flags: Mapping[str, Any]) -> tuple[ast.Module, ScriptNames, str]:
    """A file without what does not run, what its names stand for, and the first condition that only running decides."""
    parsed, ends = parsed_arguments(tree, flags), trained_at(tree)
    given = parameters_parsed(tree, flags)

    def matters(node: ast.AST) -> bool:
        own = [each for each in calls_in(node) if each.lineno <= ends]
        return any(_says(each) for each in own) or decides(node)

    known, untold = known_of(tree, parsed, given), ""
    for _ in range(2):  # names that only branches assign are known without those that do not run
        tree, untold = branches_of(tree, partial(truth_of, known=known), matters)
        known = known_of(tree, parsed, given, known.asked)
    return tree, known, untold


def _says(call: ast.Call) -> bool:
    """Whether a call has arguments of training."""
    called, of = name_of(call.func), name_of(call.func.value) if isinstance(call.func, ast.Attribute) else ""
    of_model = called == "from_pretrained" and (OF_UNSLOTH.match(of) or OF_MODEL.search(of))
    return called in (*ARGUMENTS, *ENABLES, "LoraConfig", "BitsAndBytesConfig", "get_peft_model") or bool(of_model)


def _parts_of(node: ast.expr, known: ScriptNames) -> Iterator[tuple[Any, ast.expr]]:
    """(Key, value) of ``dict(KEY=VALUE)`` and ``{KEY: VALUE}``; a key of None is one that only running tells."""
    if isinstance(node, ast.Call) and name_of(node.func) == "dict":
        yield from ((None, each) for each in node.args)
        yield from ((each.arg, each.value) for each in node.keywords)
    elif isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            told = None if key is None else value_of(key, known)
            yield told if isinstance(told, str) else None, value


class _Reader:
    """Collects what calls say; a model's first call counts, as later ones load what was trained."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.untold: dict[str, str] = {}
        self.lines: dict[str, int] = {}
        self.trainer, self.of_unsloth, self.has_model = "", False, False
        self.classes, self.emptied = set[str](), set[str]()

    def set_later(self, key: str, given: ast.expr, known: ScriptNames) -> None:
        """An argument that is set after its class was made."""
        self.values.pop(key, None)
        self.untold.pop(key, None)
        self._keep(key, given, known)

    def take(self, call: ast.Call, known: ScriptNames) -> None:
        """Read one call."""
        called, of = name_of(call.func), name_of(call.func.value) if isinstance(call.func, ast.Attribute) else ""
        names: Mapping[str, str] = {}
        if called in TRAINERS or OTHERS.match(called):
            self.trainer = called
            self._take_model(call, known)
        if called in (*ARGUMENTS, "LoraConfig"):
            self.classes.add(called)
        if called == "from_pretrained" and (OF_UNSLOTH.match(of) or OF_MODEL.search(of)) and not self.has_model:
            self.of_unsloth, self.has_model = bool(OF_UNSLOTH.match(of)), True
            names = {"model_name": "model_name_or_path", "pretrained_model_name_or_path": "model_name_or_path"}
            if call.args:
                self._keep("model_name_or_path", call.args[0], known)
        elif called == "LoraConfig":
            names = LORA
        elif called in ENABLES:
            told = {each.arg: value_of(each.value, known) for each in call.keywords}
            self.values.setdefault("gradient_checkpointing", told.get("use_gradient_checkpointing", True) is not False)
            return
        elif called not in (*ARGUMENTS, *TRAINERS, "BitsAndBytesConfig") and not (
            called == "get_peft_model" and OF_UNSLOTH.match(of)
        ):
            return
        for keyword in call.keywords:
            if keyword.arg is not None and keyword.arg not in NO_ARGUMENTS:
                self._keep(names.get(keyword.arg, keyword.arg), keyword.value, known)
            elif keyword.arg is None:
                self._spread(keyword.value, names, known)

    def _take_model(self, call: ast.Call, known: ScriptNames) -> None:
        """The model that a trainer is given by name (``SFTTrainer(model="Qwen/Qwen3-0.6B")``)."""
        given = [*(each.value for each in call.keywords if each.arg == "model"), *call.args[:1]]
        named = next((name for each in given if isinstance(name := value_of(each, known), str)), None)
        if named is not None and not self.has_model:
            self.values["model_name_or_path"], self.has_model = named, True

    def _spread(self, given: ast.expr, names: Mapping[str, str], known: ScriptNames) -> None:
        """Read ``**OPTIONS`` where the file writes them out."""
        meant = (known.of_name(given) or given) if isinstance(given, ast.Name) else given
        parts = dict(_parts_of(meant, known))
        if parts and None not in parts:
            for key, each in parts.items():
                if key not in NO_ARGUMENTS:
                    self._keep(names.get(key, key), each, known)
        elif isinstance(value := value_of(given, known), dict):
            self.values |= {names.get(key, key): each for key, each in value.items() if key not in NO_ARGUMENTS}
        else:
            self.untold[f"**{ast.unparse(given)}"] = ast.unparse(given)

    def _keep(self, key: str, given: ast.expr, known: ScriptNames) -> None:
        value = value_of(given, known)
        self.lines[key] = given.lineno
        if isinstance(value, Untold):
            if value is not OF_DEVICE:
                self.untold[key] = value.text
        elif value is not None:
            self.values[key] = value
        else:
            self.emptied.add(key)
