"""Arguments of Hugging Face's trainers that a script or a notebook writes in its code; nothing is run.

``SFTConfig(per_device_train_batch_size=2)``, ``LoraConfig(r=16)``, ``AutoModelForCausalLM.from_pretrained(NAME)``,
``FastLanguageModel.get_peft_model(model, r=16)``: keywords of such calls are the arguments, by the names that command
lines have. Names that a file assigns once are followed.
"""

import ast
import json
import operator
import re
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any

from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.frameworks.script_starts import Starts, starts_of
from simpar.frameworks.script_statements import Statements, statements_of

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
SUPPORTED = re.compile(r"bf(loat)?16_supported$")
"""Functions that ask the device whether it has bf16."""


class Untold:
    """What only running tells, as the code writes it."""

    def __init__(self, node: ast.expr) -> None:
        self.node = node

    @property
    def text(self) -> str:
        """The expression."""
        return ast.unparse(self.node)


OF_DEVICE = Untold(ast.Constant("which 16 bits the device has"))


@dataclass(frozen=True)
class CodeArguments:
    """The ``values`` of arguments by name, and the ``untold`` ones as the code writes them; ``lines`` are of both.

    ``trainer`` is the last class that trains, "" for none; ``of_unsloth`` tells whether Unsloth makes the model.
    ``classes`` are those of arguments that are made, ``emptied`` the arguments that are None. ``does`` is what the code
    does beside them, ``starts`` the processes that it starts.
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


def code_of_notebook(text: str, name: str) -> str:
    """The code of a notebook, cell by cell, without lines for the shell. Raises UserError."""
    sources = _cells(text, name)
    lines = (line for source in sources if not source.lstrip().startswith("%%") for line in source.splitlines())
    return "\n".join("" if line.lstrip().startswith(("!", "%")) else line for line in lines) + "\n"


def arguments_of_code(text: str, name: str) -> CodeArguments:
    """The arguments in a file's code. Raises UserError naming the line of what is no Python."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        raise UserError(f"{name}{f':{line}' if line else ''}: not Python") from None
    known, reader = _assigned(tree), _Reader()
    try:
        for call in sorted(_calls(tree), key=lambda node: (node.lineno, node.col_offset)):
            reader.take(call, known)
    except RecursionError:
        raise UserError(f"{name}: an expression of too many parts; allowed: values that the code writes out") from None
    does = statements_of(tree, (*ARGUMENTS, "LoraConfig"), adapts="LoraConfig" in reader.classes or reader.of_unsloth)
    for key, given in does.values.items():
        reader.set_later(key, given, known)
    return CodeArguments(
        reader.values, reader.untold, reader.lines, reader.trainer, reader.of_unsloth, frozenset(reader.classes),
        frozenset(reader.emptied), does, starts_of(tree, lambda node: _value(node, known)),
    )  # fmt: skip


class _Reader:
    """Collects what calls say; a model's first call counts, as later ones load what was trained."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.untold: dict[str, str] = {}
        self.lines: dict[str, int] = {}
        self.trainer, self.of_unsloth, self.has_model = "", False, False
        self.classes, self.emptied = set[str](), set[str]()

    def set_later(self, key: str, given: ast.expr, known: Mapping[str, ast.expr]) -> None:
        """An argument that is set after its class was made."""
        self.values.pop(key, None)
        self.untold.pop(key, None)
        self._keep(key, given, known)

    def take(self, call: ast.Call, known: Mapping[str, ast.expr]) -> None:
        """Read one call."""
        called, of = _name(call.func), _name(call.func.value) if isinstance(call.func, ast.Attribute) else ""
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
            told = {each.arg: _value(each.value, known) for each in call.keywords}
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

    def _take_model(self, call: ast.Call, known: Mapping[str, ast.expr]) -> None:
        """The model that a trainer is given by name (``SFTTrainer(model="Qwen/Qwen3-0.6B")``)."""
        given = [*(each.value for each in call.keywords if each.arg == "model"), *call.args[:1]]
        named = next((name for each in given if isinstance(name := _value(each, known), str)), None)
        if named is not None and not self.has_model:
            self.values["model_name_or_path"], self.has_model = named, True

    def _spread(self, given: ast.expr, names: Mapping[str, str], known: Mapping[str, ast.expr]) -> None:
        """Read ``**OPTIONS`` where the file writes them out."""
        value = _value(given, known)
        if isinstance(value, dict):
            self.values |= {names.get(key, key): each for key, each in value.items() if key not in NO_ARGUMENTS}
        else:
            self.untold[f"**{ast.unparse(given)}"] = ast.unparse(given)

    def _keep(self, key: str, given: ast.expr, known: Mapping[str, ast.expr]) -> None:
        value = _value(given, known)
        self.lines[key] = given.lineno
        if isinstance(value, Untold):
            if value is not OF_DEVICE:
                self.untold[key] = value.text
        elif value is not None:
            self.values[key] = value
        else:
            self.emptied.add(key)


def _calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def _name(node: ast.expr) -> str:
    """The last part of a dotted name; "" for what is none."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _assigned(tree: ast.AST) -> dict[str, ast.expr]:
    """What names stand for that are assigned one value."""
    result: dict[str, ast.expr] = {}
    several = set[str]()
    for node in ast.walk(tree):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(
            node, ast.AnnAssign | ast.AugAssign | ast.For) else []  # fmt: skip
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        for name in (each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)):
            alone = value is not None and len(targets) == 1 and isinstance(targets[0], ast.Name)
            same = name in result and value is not None and ast.dump(result[name]) == ast.dump(value)
            if not alone or (name in result and not same):
                several.add(name)
            elif value is not None:
                result[name] = value
    return {name: value for name, value in result.items() if name not in several}


MOST_STEPS = 20
"""Names that one value may stand on."""
OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
             ast.Div: operator.truediv}  # fmt: skip
MOST = 2**53
"""Beyond it floats leave out whole numbers."""


def _value(node: ast.expr, known: Mapping[str, ast.expr], steps: int = 0) -> Any:
    """What an expression is, :class:`Untold` where only running tells."""
    untold = Untold(node)
    if steps > MOST_STEPS:
        return untold
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str | int | float | None) else untold
    if isinstance(node, ast.Name):
        return _value(known[node.id], known, steps + 1) if node.id in known else untold
    if isinstance(node, ast.Attribute) and _name(node.value) == "torch":
        return node.attr
    if isinstance(node, ast.List | ast.Tuple):
        items = [_value(each, known, steps + 1) for each in node.elts]
        return untold if any(isinstance(each, Untold) for each in items) else items
    if isinstance(node, ast.Dict):
        keys = [_value(each, known, steps + 1) if each is not None else untold for each in node.keys]
        values = [_value(each, known, steps + 1) for each in node.values]
        told = all(isinstance(key, str) for key in keys) and not any(isinstance(each, Untold) for each in values)
        return dict(zip(keys, values, strict=True)) if told else untold
    if isinstance(node, ast.UnaryOp):
        inner = _value(node.operand, known, steps + 1)
        if inner is OF_DEVICE or not isinstance(inner, int | float | str):
            return inner if inner is OF_DEVICE else untold
        return not inner if isinstance(node.op, ast.Not) else -inner if isinstance(inner, int | float) else untold
    if isinstance(node, ast.Call) and SUPPORTED.search(_name(node.func)):
        return OF_DEVICE
    if isinstance(node, ast.IfExp):
        if _value(node.test, known, steps + 1) is OF_DEVICE:
            return OF_DEVICE
        return untold
    return _computed(node, known, steps, untold)


def _computed(node: ast.expr, known: Mapping[str, ast.expr], steps: int, untold: Untold) -> Any:
    """What arithmetic of numbers comes to."""
    if not isinstance(node, ast.BinOp) or type(node.op) not in OPERATORS:
        return untold
    left, right = (_value(each, known, steps + 1) for each in (node.left, node.right))
    numbers = all(isinstance(each, int | float) and abs(each) < MOST for each in (left, right))
    if not numbers or (right == 0 and isinstance(node.op, ast.Div | ast.FloorDiv)):
        return untold
    return OPERATORS[type(node.op)](left, right)
