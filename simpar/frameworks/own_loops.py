"""Scripts that train in a loop of their own: no reader knows their sizes, but what they call says how they train."""

import re

from simpar.architectures.catalogue import find_model
from simpar.dataclass import dataclass


@dataclass(frozen=True)
class OwnLoop:
    """A kind of loop by its name, and by what its code calls; ``flags`` are those of a plan that trains so."""

    name: str
    calls: str
    flags: str


LOOPS = (
    OwnLoop("Lightning's Trainer in code", r"^\s*(?:from|import) (?:pytorch_)?lightning\b(?s:.*)\bTrainer\(",
            "--stack fsdp --zero 3"),
    OwnLoop("a loop of its own on DeepSpeed", r"\bdeepspeed\.initialize\(", "--stack deepspeed --zero {stage}"),
    OwnLoop("a loop of its own on Accelerate", r"\bAccelerator\(", "--stack huggingface --zero 0"),
    OwnLoop("a loop of its own on PyTorch's FSDP", r"\b(?:FullyShardedDataParallel|fully_shard)\b",
            "--stack fsdp --zero 3"),
    OwnLoop("a loop of its own on PyTorch's DDP", r"\bDistributedDataParallel\b", "--stack ddp --zero 0"),
    OwnLoop("a loop of its own", r"\.backward\(", "--stack ddp --zero 0"),
)  # fmt: skip
"""The first one that holds is said; a script on several of them trains as the first does."""
_OF_OTHERS = re.compile(r"^\s*(?:from|import) (?:megatron|nemo)\b", re.MULTILINE)
_LOADED = re.compile(r"""from_pretrained\(\s*["']([\w./-]+)["']""")
_STAGE = re.compile(r"""["']stage["']\s*:\s*([0-3])\b""")


def loop_in(text: str) -> str | None:
    """What a script trains in, if that is a loop of its own, and which flags say its plan; None for all others."""
    loop = next((each for each in LOOPS if re.search(each.calls, text, re.MULTILINE)), None)
    if loop is None or _OF_OTHERS.search(text):
        return None
    loaded = [name for told in _LOADED.findall(text) if (name := find_model(told))]
    stage = _STAGE.search(text)
    flags = loop.flags.format(stage=stage[1] if stage else "STAGE")
    return (
        f"{loop.name}, whose sizes are not read; allowed: the plan as flags: simpar simulate --model "
        f"{loaded[0] if loaded else 'MODEL'} {flags} --gpus N --seq-len TOKENS --micro-batch SEQUENCES "
        "--global-batch SEQUENCES --hardware GPU"
    )
