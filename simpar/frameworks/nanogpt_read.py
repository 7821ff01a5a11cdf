"""nanoGPT back to a plan: ``train.py [CONFIG.py] --key=value``, and its configs, which assign values to names.

A config is Python that the script would execute; here its assignments of plain values are read, and nothing runs.
"""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from simpar import files
from simpar.architectures.catalogue import config_of
from simpar.errors import UserError
from simpar.frameworks.overrides import command_of
from simpar.frameworks.reader import Reader
from simpar.frameworks.recipe_values import SIGNS
from simpar.frameworks.recipes import ConfigReader
from simpar.frameworks.target import Imported, Sized, plan_said
from simpar.frameworks.words import WordTable

USUAL: dict[str, Any] = {
    "init_from": "scratch", "eval_only": False, "dataset": "openwebtext",
    "gradient_accumulation_steps": 40, "batch_size": 12, "block_size": 1024,
    "n_layer": 12, "n_head": 12, "n_embd": 768, "dropout": 0.0, "bias": False, "compile": True,
}  # fmt: skip
"""What decides, by the names of train.py (karpathy/nanoGPT 3adf61e)."""
IDLE = (
    "out_dir", "eval_interval", "log_interval", "eval_iters", "always_save_checkpoint", "wandb_*", "learning_rate",
    "max_iters", "weight_decay", "beta1", "beta2", "grad_clip", "decay_lr", "warmup_iters", "lr_decay_iters", "min_lr",
)  # fmt: skip
DECIDING = {"device": "what it trains on: time and memory", "backend": "how gradients are reduced: time"}
DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
SHIPPED: dict[str, dict[str, Any]] = {
    "train_gpt2.py": {"batch_size": 12, "block_size": 1024, "gradient_accumulation_steps": 40},
    "train_shakespeare_char.py": {
        "dataset": "shakespeare_char", "gradient_accumulation_steps": 1, "batch_size": 64, "block_size": 256,
        "n_layer": 6, "n_head": 6, "n_embd": 384, "dropout": 0.2,
    },
    "finetune_shakespeare.py": {
        "dataset": "shakespeare", "init_from": "gpt2-xl", "batch_size": 1, "gradient_accumulation_steps": 32,
    },
}  # fmt: skip
"""What decides in the configs that nanoGPT ships in its folder ``config``."""
WORDS = {"openwebtext": 50304, "shakespeare": 50304, "shakespeare_char": 65}
"""Vocabularies of its data sets; where no meta.pkl says another, GPT-2's, rounded up."""
TELLING = ("block_size", "n_layer", "n_head", "n_embd", "init_from", "eval_iters", "decay_lr", "lr_decay_iters",
           "always_save_checkpoint", "compile", "eval_only")  # fmt: skip
"""Names by which nanoGPT's arguments are known: others' scripts are called train.py, too."""
_GIVEN = re.compile(r"--([a-z]\w*)=(.*)", re.DOTALL)
_ASSIGNED = re.compile(rf"^({'|'.join(TELLING)}|gradient_accumulation_steps)\s*=[^=]", re.MULTILINE)
_ELSE = re.compile(r"^\s*(def|class|from)\b", re.MULTILINE)
RUNNING = ("exec", "eval", "globals", "vars", "setattr")
"""Calls that may set any name."""


def is_config(text: str) -> bool:
    """Whether a text in Python is a config of nanoGPT: assignments alone, with names of its own."""
    return _ELSE.search(text) is None and _ASSIGNED.search(text) is not None


def read(text: str, name: str) -> Imported:
    """The plan in a config, or in a command that starts train.py. Raises UserError."""
    notes: list[str] = []
    if name.endswith(".py"):
        given = _assigned(text, name)
    else:
        script, after = _after_script(command_of(text, name, _starts)) or ("", ())
        given = _of_script(script, name, notes)
        for word in after:
            match = _GIVEN.fullmatch(word)
            given |= {match[1]: _literal(match[2])} if match else _of_file(word, name)
    return _plan(ConfigReader(given, name), notes)


def _of_script(script: str, source: str, notes: list[str]) -> dict[str, Any]:
    """What a script that lies here has other values for than nanoGPT's own, before it reads its arguments."""
    path = files.look_beside(script, source)
    text = "" if path is None else files.read_text(path)
    if "configurator" not in text:
        notes.append(f"{script} is taken for nanoGPT's: it is not here.")
        return {}
    own = _assigned(text.partition("configurator")[0].rpartition("\n")[0], str(path))
    return {key: value for key, value in own.items() if key in USUAL and value != USUAL[key]}


def _of_file(word: str, source: str) -> dict[str, Any]:
    """The values of a config that a command names; of those that nanoGPT ships, if it is not here."""
    path = files.look_beside(word, source)
    parts = PurePath(word).parts
    if path is None and parts[:-1] == ("config",) and parts[-1] in SHIPPED:
        return SHIPPED[parts[-1]]
    path = path or files.find_beside(word, source)
    return _assigned(files.read_text(path), str(path))


def _literal(text: str) -> Any:
    """A value of a command, as ``configurator.py`` takes it: Python's, else a text."""
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return text


def _assigned(text: str, source: str) -> dict[str, Any]:
    """Values that are assigned to names, as far as they are plain: numbers, texts, truth values and sums of them."""
    try:
        body = ast.parse(text).body
    except SyntaxError as error:
        raise UserError(f"{source}:{error.lineno}: not valid Python ({error.msg})") from None
    return dict(_values(body, source))


def _values(body: Sequence[ast.stmt], source: str) -> Iterator[tuple[str, Any]]:
    for node in body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            key = node.targets[0].id
            try:
                yield key, _value(node.value)
            except (ValueError, ArithmeticError, TypeError):
                if key in USUAL:
                    told = " ".join(ast.unparse(node.value).split())[:40]
                    raise UserError(f"{source}:{node.lineno}: {key} = {told}: allowed: a value, no code") from None
        elif _may_set(node):
            told = " ".join(ast.unparse(node).split())[:40]
            raise UserError(f"{source}:{node.lineno}: {told}: may set what train.py asks for; allowed: NAME = VALUE")


def _may_set(node: ast.stmt) -> bool:
    """Whether a statement assigns to an option of train.py, or runs what may."""
    inner = list(ast.walk(node))
    stored = {each.id for each in inner if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    called = {each.func.id for each in inner if isinstance(each, ast.Call) and isinstance(each.func, ast.Name)}
    all_of = any(isinstance(each, ast.ImportFrom) and each.names[0].name == "*" for each in inner)
    return bool(stored & set(USUAL) or called & set(RUNNING)) or all_of


def _value(node: ast.expr) -> Any:
    """The value of an expression of constants. Raises ValueError."""
    if isinstance(node, ast.BinOp) and type(node.op) in SIGNS:
        return SIGNS[type(node.op)](_value(node.left), _value(node.right))
    return ast.literal_eval(node)


def _plan(given: ConfigReader, notes: list[str]) -> Imported:
    if given.get("eval_only"):
        raise UserError(f"{given.source}: eval_only = True: trains nothing; allowed: False")
    micro, pieces, seq_len = (
        given.size(key, USUAL) for key in ("batch_size", "gradient_accumulation_steps", "block_size")
    )
    config = _model(given, seq_len, notes)
    dtype = given.get("dtype")
    if dtype is not None and dtype not in DTYPES:
        raise UserError(f"{given.source}: dtype = {dtype}: allowed: {', '.join(DTYPES)}")
    values: dict[str, Any] = {
        "stack": "ddp",
        "zero": 0,
        "micro_batch": micro,
        "recompute": "none",
        "precision": DTYPES[dtype] if dtype else None,
        "attention_kernel": "sdpa",
        "optimizer": "adamw",
        "optimizer_kernels": "fused",
        "fused_kernels": "compiled" if given.get("compile", USUAL["compile"]) else None,
        "training": {"seq_len": seq_len, "global_batch": micro * pieces},
    }
    return Imported(plan_said(values), given.words(), tuple(notes), config=config, sized=Sized("huggingface"))


def _model(given: ConfigReader, seq_len: int, notes: list[str]) -> Mapping[str, Any]:
    """The config of the GPT-2 that is finetuned, or of a decoder like it. Raises UserError."""
    start = str(given.get("init_from", USUAL["init_from"]))
    sizes = {key: given.size(key, USUAL) for key in ("n_layer", "n_head", "n_embd")}
    rate, biases = given.get("dropout", USUAL["dropout"]), given.get("bias", USUAL["bias"])
    data_set = str(given.get("dataset", USUAL["dataset"]))
    rates = dict.fromkeys(("resid_pdrop", "attn_pdrop", "embd_pdrop"), rate)
    if start.startswith("gpt2"):
        return config_of(files.choose(start, ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"), "init_from")) | rates
    if start not in ("scratch", "resume"):
        raise UserError(f"{given.source}: init_from = {start}: allowed: scratch, resume, gpt2, gpt2-medium, ...")
    if start == "resume":
        notes.append("init_from = resume: the sizes of the checkpoint are taken to be those that are said here.")
    if data_set not in WORDS:
        notes.append(f"The vocabulary has 50304 words unless a meta.pkl in data/{data_set} says another number.")
    if not biases:
        notes.append("bias = False: the biases of GPT-2 are counted all the same, a thousandth of its parameters.")
    words = WORDS.get(data_set, WORDS["openwebtext"])
    return {"model_type": "gpt2", **sizes, "n_positions": seq_len, "vocab_size": words, **rates}


def _after_script(words: Sequence[str]) -> tuple[str, Sequence[str]] | None:
    """The script train.py of a command, and its arguments."""
    at = next((at for at, word in enumerate(words) if word.endswith(".py")), None)
    is_own = at is not None and PurePath(words[at]).name == "train.py"
    return (words[at], words[at + 1 :]) if at is not None and is_own else None


def _starts(words: Sequence[str]) -> bool:
    """Whether a command starts train.py with nothing but configs in Python and nanoGPT's own options."""
    parted = _after_script(words)
    if parted is None:
        return False
    _, after = parted
    given = [match[1] for word in after if (match := _GIVEN.fullmatch(word))]
    configs = [word for word in after if re.fullmatch(r"[^-].*\.py", word)]
    return len(given) + len(configs) == len(after) and bool(configs or set(given) & set(TELLING))


READER = Reader(
    name="nanogpt",
    description="nanoGPT: train.py with its configs in Python and --key=value",
    read=read,
    starts=_starts,
    words=WordTable(idle=IDLE, deciding=DECIDING),
)
