"""A row's words for dtypes of gradients, adapters, what its memory peak counts, and layers without experts."""

from __future__ import annotations

import re

from simpar.units import GB, GIB
from simpar.validation.cells import Row, measurement, text
from simpar.validation.rows import PeakCounts

from .labels import is_primus

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
_DTYPE = r"(?:(fp32|float32|32-bit)|(?:bf16|bfloat16|fp16|float16|16-bit))"
_GRADS = r"(?:main )?grad(?:ient)?s?"
_REDUCTION = r"(?:all-?reduc\w+|reduce-?scatter\w*|reduc\w+|sync\w*)"
_ADDED = (
    rf"{_DTYPE} {_GRADS}[ -]accum\w+",
    rf"{_DTYPE} main {_GRADS}",
    rf"{_GRADS} (?:are )?accumulated? in {_DTYPE}",
    rf"{_GRADS}[ -]accumulation in {_DTYPE}",
    r"accumulate[-_]allreduce[-_]grads[-_]in[-_](fp32)",
)
_REDUCED = (
    rf"{_DTYPE} {_GRADS}[ -]{_REDUCTION}",
    rf"{_DTYPE} {_GRADS}[ -]accum\w+ and {_REDUCTION}",
    rf"{_GRADS}[ -](?:are )?{_REDUCTION} in {_DTYPE}",
    rf"{_DTYPE} reduce-?scatter",
    r"accumulate[-_]allreduce[-_]grads[-_]in[-_](fp32)",
    r"grad[-_]reduce[-_]in[-_](fp32)(?! ?[=:]? ?(?:false|off|no))",
)


def gradient_dtypes(row: Row, *, one_buffer: bool) -> dict[str, object]:
    """A plan's dtypes of gradients, if a row gives them: for accumulation and for reduction.

    With ``one_buffer`` a stack reduces the accumulation buffer, so a word for one holds for both.
    """
    words = " ".join(text(row, name) for name in ("precision", "overlap_notes", "notes")).lower()
    found = {name: _dtype(words, any_of) for name, any_of in (("grad_dtype", _ADDED), ("reduce_dtype", _REDUCED))}
    if one_buffer:
        both = found["grad_dtype"] or found["reduce_dtype"]
        found = {name: dtype or both for name, dtype in found.items()}
    said: dict[str, object] = {name: dtype for name, dtype in found.items() if dtype}
    # main_grads_dtype or grad_reduce_in_bf16 of its configs of mixtures
    if is_primus(row) and text(row, "n_experts"):
        return {"grad_dtype": "bf16", "reduce_dtype": "bf16"} | said
    return said


def _dtype(words: str, patterns: tuple[str, ...]) -> str | None:
    said = next((match for pattern in patterns if (match := re.search(pattern, words))), None)
    return None if said is None else "fp32" if said[1] else "bf16"


def peak_counts(row: Row) -> PeakCounts:
    """What a row's memory peak counts: by its notes, else tensors for Megatron and KempnerForge, reserved for others.

    Source: KempnerInstitute/KempnerForge, kempnerforge/metrics/tracker.py ("mem" is max_memory_allocated).
    """
    notes = text(row, "notes").lower()
    if re.search(r"nvidia-smi|rocm-smi|device memory|nvml", notes):
        return "device"
    if re.search("allocated|reserved|memory_usage", notes):
        return "allocated" if re.search(r"max allocated|\(allocated(?! \d)", notes) else "reserved"
    tensors = text(row, "stack").startswith("megatron") or "kempnerforge" in text(row, "source").lower()
    return "allocated" if tensors else "reserved"


def memory_unit(row: Row) -> float:
    """Bytes per unit of a row's memory columns: GiB, unless the row says decimal GB.

    Frameworks divide by 2^30: a table that prints GB of tensors is 2.5 % off as GiB and 4.6 % as GB (Zero Bubble).
    """
    decimal = r"decimal gb|gb \(?(?:decimal|10\^9|1e9|10\*\*9|1000\^3)"
    return GB if re.search(decimal, text(row, "notes").lower()) else GIB


def dense_layers(row: Row, released: int, *, layers: int, of: int) -> int:
    """How many first layers have no experts: as the row says, else as released.

    A proxy with ``layers`` of ``of`` layers keeps its share of them, at least one, so that it has both kinds.
    """
    words = f"{text(row, 'model_name')} {text(row, 'notes')}".lower()
    if re.search(r"no dense layer|all(?: layers)?(?: are)? moe\b|moe layers only|only moe layers", words):
        return 0
    said = re.search(r"first_k_dense(?:_replace)? ?[=:]? ?(\d+)|\b(\d+) dense (?:first )?(?:layers?|\+)", words)
    if said:
        return int(said[1] or said[2])
    return max(1, round(released * layers / of)) if released and layers < of else released


ROUNDED = 0.01  # rounding of printed shares


def forward_again(row: Row) -> float | None:
    """The share of a forward that runs twice, from the ratio of hardware FLOP/s to model FLOP/s; None if not known.

    A forward is a third of the model FLOP: share = 3 (hfu / mfu - 1).
    """
    model, hardware = measurement(row, "mfu_pct"), measurement(row, "hfu_pct")
    if model is None or hardware is None or not model < hardware <= model * 4 / 3 * (1 + ROUNDED):
        return None
    return 3 * (hardware / model - 1)


_RANK = re.compile(r"(?:lora )?rank[ =]?(\d+)|\br ?= ?(\d+)")
EVERYWHERE = (*ATTENTION, "gate_proj", "up_proj", "down_proj")
_ADAPTED = (
    (r"all linear|linear layers|attention and mlp", EVERYWHERE),
    (r"attention (?:projections|layers|matrices)|qkvo|q,? ?k,? ?v,? ?o", ATTENTION),
)


def is_of_contest(row: Row) -> bool:
    """Whether a run is a submission to MLPerf."""
    words = f"{text(row, 'source')} {text(row, 'citation')}".lower()
    return re.search(r"mlperf|mlcommons", words) is not None


def adapters(row: Row, *, recipe: str = "", eight_bits: bool = False, four_bits: bool = False) -> dict[str, object]:
    """A plan's low-rank adapters: rank and projections from notes, else from the framework's recipes.

    NeMo's have rank 32 at the packed qkv, those of "automodel" 16 at all projections. In contests, weights that are
    frozen beside 8-bit products of Megatron-Core are in ``eight_bits`` without transposed copies [NVIDIA
    Megatron-Bridge, presets of MLPerf's llama2_70b_lora]; NeMo keeps these copies, which take as much as 16 bits.
    Beside weights in ``four_bits`` all projections have rank 64 [QLoRA, arXiv 2305.14314, appendix B.2].
    """
    rank_of, parts_of = (16, EVERYWHERE) if recipe == "automodel" else (32, ATTENTION[:3])
    if four_bits:
        rank_of, parts_of = 64, EVERYWHERE
    words = text(row, "notes").lower()
    rank = _RANK.search(words)
    said = next((parts for pattern, parts in _ADAPTED if re.search(pattern, words)), parts_of)
    frozen = {"frozen_dtype": "fp8"} if eight_bits and is_of_contest(row) else {}
    if four_bits:
        frozen = {"frozen_dtype": "nf4"}
    return {"lora_rank": int(rank[1] or rank[2]) if rank else rank_of, "lora_targets": said, **frozen}
