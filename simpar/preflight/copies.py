"""Copies of weights in 8 bits that Transformer Engine keeps between microbatches: memory that no prediction counts.

Its layers cast weights in the first microbatch of a step and keep what they cast, with its transpose where products
read one layout only (NVIDIA/TransformerEngine, ``pytorch/module/base.py``, get_weight_workspace). Megatron-LM says
which microbatch is the first unless ``--disable-parameter-transpose-cache`` is given (``core/extensions``): up to as
many bytes as the 16-bit weights of a rank.
"""

from collections.abc import Iterable

from simpar.frameworks.words import Account, plain
from simpar.precisions import PRECISIONS
from simpar.report.result import Result
from simpar.units import format_bytes

OF_ENGINE = ("megatron", "nemo")
"""Stacks whose layers are Transformer Engine's."""
WITHOUT = "disable_parameter_transpose_cache"
WORD = "8-bit copies of weights"
MOST_BITS = 8


def of_copies(result: Result, stack: str, words: Iterable[str]) -> tuple[str, Account]:
    """A note on copies that fit beside what is predicted ("" without any), or the word that they may decide.

    ``words`` are those of the text.
    """
    plan = result.plan
    is_low = PRECISIONS[plan.numerics.precision].bits <= MOST_BITS and plan.tuning.lora_rank is None
    if stack not in OF_ENGINE or not is_low or not result.fits or any(plain(word).endswith(WITHOUT) for word in words):
        return "", Account()
    most_bytes = max(stage.parameters_bytes for stage in result.memory.stages)
    if most_bytes <= result.memory.headroom_bytes:
        told = f"up to {format_bytes(most_bytes)} are not counted, and fit beside the rest"
        return f"{WORD}, which Transformer Engine keeps between microbatches: {told}.", Account()
    what = f"Transformer Engine keeps them between microbatches: memory, up to {format_bytes(most_bytes)}"
    return "", Account(deciding={WORD: what})
