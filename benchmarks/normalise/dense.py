"""Dense decoders that rows describe by sizes and a name: which family's conventions they follow."""

from __future__ import annotations

import json
import re

from simpar.architectures.reading import GPT_STYLE, LLAMA_STYLE
from simpar.architectures.transformer import Style
from simpar.validation.cells import Row, Unmodelled, number, read_count, text
from simpar.validation.models import GPT_VOCABULARY, STYLE

from .labels import paper_release
from .released import unsized

_GATED = re.compile(r"llama|qwen|mistral|gemma|deepseek|olmo|granite|internlm|yi-|baichuan|palm", re.IGNORECASE)
_PLAIN = re.compile(r"gpt|megatron|bloom|opt|neox|nlg|turing|bert|t5", re.IGNORECASE)
_VOCABULARIES = (
    (re.compile(r"llama[- _]?(v)?3|llama3", re.IGNORECASE), 128256),
    (re.compile(r"llama", re.IGNORECASE), 32000),
    (re.compile(r"qwen", re.IGNORECASE), 152064),
    (re.compile(r"nemotron", re.IGNORECASE), 256000),
    (re.compile(r"mistral", re.IGNORECASE), 32000),
    (re.compile(r"mpt", re.IGNORECASE), 50368),
)
FUSED_SINCE = "23.01"
"""The release from which software that a paper does not name has fused attention.

The first kernel is of May 2022 (arXiv 2205.14135), those in Megatron-LM and PyTorch of 2023.
"""
MAXTEXT_HEAD_DIM = 128


def decoder_columns(row: Row) -> dict[str, str]:
    """The columns that make the dense decoder of a row, beside its sizes. Raises Unmodelled."""
    name = text(row, "model_name") or "model"
    hidden, heads = read_count(row, "hidden"), read_count(row, "n_heads")
    gated = bool(_GATED.search(name))
    ffn = number(row, "ffn_hidden")
    if ffn is None:
        if gated:
            raise Unmodelled("ffn_hidden not published")
        ffn = 4 * hidden
    if not gated and not _PLAIN.search(name) and not re.search("mpt|nemotron", name, re.IGNORECASE):
        gated = abs(ffn - 4 * hidden) > hidden // 8
    head_dim, style = _head_dim(row, name, hidden, heads), _style(row, name, gated=gated)
    usual = LLAMA_STYLE if gated else GPT_STYLE
    columns = {
        "vocab": str(read_count(row, "vocab", _vocabulary(name))), "ffn_hidden": str(int(ffn)),
        "tied_embeddings": json.dumps(style.tied), "model.gated": json.dumps(gated),
        "model.head_dim": str(head_dim) if head_dim * heads != hidden else "",
        "model.positions": "0" if not gated and "mpt" in name.lower() else str(sequence(row)) * (not gated),
        "model.dropout": "true" if not gated and (unfused(row) or "dropout 0." in text(row, "notes")) else "",
    }  # fmt: skip
    kinds = {each: getattr(style, each) for each in sorted(STYLE) if getattr(style, each) != getattr(usual, each)}
    return columns | {
        f"model.{each}": value if isinstance(value, str) else json.dumps(value) for each, value in kinds.items()
    }


def _head_dim(row: Row, name: str, hidden: int, heads: int) -> int:
    """The head dimension: from notes, or MaxText's own, which is the same at any scale, else hidden over heads.

    Source: AI-Hypercomputer/maxtext, base.yml, head_dim beside global_parameter_scale.
    """
    if said := re.search(r"head_dim[ =]?(\d+)", text(row, "notes").lower()):
        return int(said[1])
    if name.lower().startswith("maxtext"):
        return MAXTEXT_HEAD_DIM
    if hidden % heads:
        raise Unmodelled("hidden is not a multiple of n_heads")
    return hidden // heads


def _vocabulary(name: str) -> int:
    return next((size for pattern, size in _VOCABULARIES if pattern.search(name)), GPT_VOCABULARY)


def _style(row: Row, name: str, *, gated: bool) -> Style:
    tied = text(row, "tied_embeddings").lower()
    if "palm" in name.lower():  # one norm for both branches [Chowdhery et al. 2022, arXiv 2204.02311, section 2]
        return Style(tied=True, parallel=True, norms=1)
    if gated:
        bias = bool(re.search("qwen(1.5|2)", name, re.IGNORECASE))
        return Style(tied=tied == "true", qkv_bias=bias)
    if re.search("mpt", name, re.IGNORECASE):
        return Style(norm="weight", gated=False, tied=True, rotary=False)
    if re.search("nemotron", name, re.IGNORECASE):
        return Style(norm="layer", gated=False, tied=False)
    return Style(
        norm="layer", gated=False, tied=tied != "false", qkv_bias=True, output_bias=True, mlp_bias=True, rotary=False
    )


def unfused(row: Row) -> bool:
    """Whether a run had no fused attention kernel."""
    kernel = text(row, "attention_kernel").lower()
    if "unfused" in kernel or "no flash" in kernel:
        return True
    if kernel:
        return False
    if not text(row, "stack") and (paper_release(row) or FUSED_SINCE) < FUSED_SINCE:
        return True
    if is_mixture(row) or _GATED.search(text(row, "model_name")):
        return False
    # Megatron-LM's own attention, before models with gated layers and Hopper brought fused kernels by default
    early = re.search("v100|a100", text(row, "gpu_type").lower()) is not None
    return text(row, "stack") == "megatron-deepspeed" or (early and text(row, "stack") == "megatron")


def sequence(row: Row) -> int:
    """Tokens of a sequence; torchtitan's configs of Llama 3 have 8,192 if a table does not say."""
    return read_count(row, "seq_len", 8192 if text(row, "stack") == "torchtitan" else None)


def is_mixture(row: Row) -> bool:
    """Whether a row, or the released model that it names without sizes, has several experts."""
    if (number(row, "n_experts") or 0) > 1:
        return True
    released = unsized(row)
    return released is not None and released.is_mixture
