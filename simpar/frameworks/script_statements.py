"""What a script does with a model beside the arguments of its trainer, which decides and is not modelled.

Parameters that it freezes, another optimizer than the arguments', weights that are quantised by another library, a
compiled model, or a head of classes: the words that stand for them are in :data:`IN_CODE`. Adapters of other kinds than
LoRA's, and those of a folder, are :attr:`Statements.adapters`: never answered as the training of all parameters.
"""

import ast
import math
import re
from collections.abc import Mapping

from simpar.dataclass import dataclass
from simpar.frameworks.script_values import calls_in, name_of

FREEZES, UPDATES, COMPILES, CLASSES, QUANTISES, WIDENS, SEVERAL = (
    "requires_grad", "the optimizer of the code", "torch.compile", "a head of classes", "quantization_config",
    "parameters of another dtype", "several trainings",
)  # fmt: skip
IN_CODE: Mapping[str, str] = {
    FREEZES: "which parameters are trained, as the code says it: memory and time",
    UPDATES: "the optimizer that the code makes: states of other sizes, and the time of the update",
    COMPILES: "kernels and fused operators of a compiled model: time and memory",
    CLASSES: "a head of classes, not of the vocabulary: memory of logits",
    QUANTISES: "weights of layers that another library stores in fewer bits: memory and time",
    WIDENS: "a dtype that the code gives to parameters: memory and time",
    SEVERAL: "the code makes arguments of several trainings that differ: later ones are read over the first",
}
"""What each of the words could change."""
OTHER_ADAPTERS = re.compile(
    r"(IA3|AdaLora|LoHa|LoKr|OFT|BOFT|Vera|FourierFT|LNTuning|VBLoRA|HRA|Bone|MiSS|XLora|Poly|CPT|RandLora|Shira|C3A|"
    r"Road|WaveFT|Gralora|PromptTuning|PrefixTuning|PromptEncoder|AdaptionPrompt|MultitaskPromptTuning|"
    r"TrainableTokens|P?Tuning)Config",
    re.IGNORECASE,
)
"""PEFT's configs of other adapters than LoRA's (peft, ``mapping.py``)."""
_OTHER_BITS = re.compile(
    r"(GPTQ|Awq|Hqq|Eetq|Quanto|TorchAo|FbgemmFp8|CompressedTensors|Higgs|FineGrainedFP8|Aqlm|Vptq|SpQR|FPQuant|"
    r"AutoRound|BitNetQuant)Config"
)
"""transformers' configs of quantised weights beside those of bitsandbytes (``utils/quantization_config.py``)."""
_OF_CLASSES = re.compile(r"For(Sequence|Token)Classification$|ForQuestionAnswering$|ForMultipleChoice$")
_MODEL = re.compile(r"model|net|llm", re.IGNORECASE)


@dataclass(frozen=True)
class Statements:
    """The words of :data:`IN_CODE` that hold of a script, with the code of each, and calls of ``adapters`` by line.

    ``values`` are arguments that are set after their class was made (``args.bf16 = True``).
    """

    words: Mapping[str, str]
    adapters: Mapping[str, int]
    values: Mapping[str, ast.expr]


def statements_of(tree: ast.AST, arguments: tuple[str, ...], *, adapts: bool) -> Statements:
    """What a file in Python says; ``arguments`` are classes of a trainer's, ``adapts`` whether LoRA is asked for."""
    words: dict[str, str] = {}
    adapters: dict[str, int] = {}
    trained = trained_at(tree)
    for node in ast.walk(tree):
        if getattr(node, "lineno", 0) > trained:  # what is saved, merged or asked for an answer
            continue
        if isinstance(node, ast.Call):
            words |= {word: ast.unparse(node)[:60] for word in _words_of_call(node, adapts=adapts)}
            if name := _adapters_of_call(node, adapts=adapts):
                adapters.setdefault(name, node.lineno)
        elif isinstance(node, ast.Assign) and _freezes(node, adapts=adapts):
            words[FREEZES] = ast.unparse(node)
        elif isinstance(node, ast.FunctionDef) and node.name == "create_optimizer":
            words[UPDATES] = f"def {node.name}"
    if made := _made_apart(tree, arguments):
        words[SEVERAL] = made
    return Statements(words, adapters, _set_later(tree, arguments))


def _made_apart(tree: ast.AST, classes: tuple[str, ...]) -> str:
    """The class of arguments that a file makes several times with values that differ; "" for none."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and name_of(node.func) in classes]
    told: dict[str, set[tuple[str, ...]]] = {}
    for call in calls:
        told.setdefault(name_of(call.func), set()).add(tuple(sorted(ast.unparse(each) for each in call.keywords)))
    return next((name for name, values in told.items() if len(values) > 1), "")


def decides(part: ast.AST) -> bool:
    """Whether a part of a file has one of the words of :data:`IN_CODE`, or makes adapters of other kinds."""
    calls = [*calls_in(part)]
    frozen = any(isinstance(node, ast.Assign) and _freezes(node, adapts=False) for node in ast.walk(part))
    return frozen or any(_words_of_call(each, adapts=False) or _adapters_of_call(each, adapts=False) for each in calls)


def trained_at(tree: ast.AST) -> float:
    """The line in which a trainer trains; infinity if none says so."""
    calls = (call for call in calls_in(tree) if name_of(call.func) == "train")
    return min((call.lineno for call in calls if "trainer" in _root(call.func).lower()), default=math.inf)


def _words_of_call(call: ast.Call, *, adapts: bool) -> list[str]:
    called, on = name_of(call.func), call.func.value if isinstance(call.func, ast.Attribute) else None
    result = []
    if called == "requires_grad_" and not (adapts and _is_off(call)):
        result.append(FREEZES)
    if called == "compile" and isinstance(on, ast.Name) and on.id == "torch":
        result.append(COMPILES)
    if called in ("from_pretrained", "from_config") and on is not None and _OF_CLASSES.search(name_of(on)):
        result.append(CLASSES)
    if _OTHER_BITS.fullmatch(called):
        result.append(QUANTISES)
    if called in ("half", "bfloat16", "float") and on is not None and _MODEL.search(_root(on)) and not call.args:
        result.append(WIDENS)
    if called == "to" and on is not None and _MODEL.search(_root(on)) and any(map(_is_dtype, _given(call))):
        result.append(WIDENS)
    if any(_makes_optimizer(each) for each in call.keywords):
        result.append(UPDATES)
    return result


def _adapters_of_call(call: ast.Call, *, adapts: bool) -> str:
    """The name of a call that makes adapters of another kind, or of a folder, that are trained; "" for all others."""
    called = name_of(call.func)
    if OTHER_ADAPTERS.fullmatch(called):
        return called
    of = name_of(call.func.value) if isinstance(call.func, ast.Attribute) else ""
    is_trained = any(each.arg == "is_trainable" and not _is_false(each.value) for each in call.keywords)
    return f"{of}.{called}" if called == "from_pretrained" and "Peft" in of and is_trained and not adapts else ""


def _freezes(node: ast.Assign, *, adapts: bool) -> bool:
    """Whether parameters are frozen or not; what is frozen before adapters are put beside it makes no difference."""
    named = any(isinstance(target, ast.Attribute) and target.attr == "requires_grad" for target in node.targets)
    return named and not (adapts and _is_false(node.value))


def _makes_optimizer(keyword: ast.keyword) -> bool:
    """Whether a keyword of a trainer gives it an optimizer: ``optimizers=(optimizer, scheduler)``."""
    if keyword.arg == "optimizers" and isinstance(keyword.value, ast.Tuple) and keyword.value.elts:
        first = keyword.value.elts[0]
        return not (isinstance(first, ast.Constant) and first.value is None)
    return keyword.arg in ("optimizers", "optimizer_cls_and_kwargs")


def _set_later(tree: ast.AST, classes: tuple[str, ...]) -> dict[str, ast.expr]:
    """Attributes of a trainer's arguments that a file sets."""
    assigned = [node for node in ast.walk(tree) if isinstance(node, ast.Assign)]
    made = {
        target.id
        for node in assigned
        if isinstance(node.value, ast.Call) and name_of(node.value.func) in classes
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    return {
        target.attr: node.value
        for node in assigned
        for target in node.targets
        if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id in made
    }


def _given(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(each.value for each in call.keywords if each.arg == "dtype")]


def _is_dtype(node: ast.expr) -> bool:
    return name_of(node) in ("float16", "bfloat16", "float32", "half")


def _is_false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is False


def _is_off(call: ast.Call) -> bool:
    return any(map(_is_false, [*call.args, *(each.value for each in call.keywords)]))


def _root(node: ast.expr) -> str:
    """The name that a chain of attributes and calls begins with, or the class of a model that it makes."""
    while isinstance(node, ast.Attribute | ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""
