"""Kernels against plain products in fp32, each on the same tensors."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from gpu_checks.here import Here, Row, write_json

FILE = "numbers.json"


def measure(here: Here) -> None:
    """Compare them all, and leave the rows in the folder."""
    found = [*_bands(here), _shared_heads(here), _experts(here), _initial(here)]
    write_json(here.folder / FILE, [asdict(row) for row in found])


def rows(here: Here) -> Iterator[Row]:
    """What was found."""
    if (path := here.folder / FILE).exists():
        yield from (Row(**each) for each in json.loads(path.read_text()))


def _bands(here: Here) -> Iterator[Row]:
    """Attention to a block seen whole, causally, through windows, and through the end of one."""
    import torch

    from simpar.runtime import banded
    from simpar.runtime.banded import Band, PositionRange, band

    heads, kv_heads, length, dim = here.size.attention
    torch.manual_seed(0)
    dtype = torch.float32 if here.dry else torch.bfloat16
    query, key, value, gradient = (
        torch.randn(2, each, length, dim, device=here.device).to(dtype) for each in (heads, kv_heads, kv_heads, heads)
    )
    run, before = PositionRange(length, 1, length), PositionRange(0, 1, length)
    cases = {
        "whole": band(run, before, None), "causal": band(run, run, None), "window": band(run, run, length // 4),
        "end of a window": band(run, before, length // 4),
        "strided": band(PositionRange(0, 2, length), PositionRange(1, 2, length), None),
    }  # fmt: skip
    for name, seen in cases.items():
        assert isinstance(seen, Band), "every case sees something"
        q, k, v = query[:, :, seen.rows], key[:, :, seen.columns], value[:, :, seen.columns]
        wide = [x.float() for x in (q, k, v)]
        expected, lse = banded._plain_forward(*wide, seen)
        out, found = banded.forward(q, k, v, seen)
        upstream = gradient[:, :, seen.rows]
        ours = banded.backward(q, k, v, (upstream, out, found), seen)
        theirs = banded._plain_backward(*wide, (upstream.float(), expected, lse), seen)
        pairs = [(out, expected), (found, lse), *zip(ours, theirs, strict=True)]
        fused = "flash" if banded.is_fused(q) else here.device
        yield _close(f"attention, {name} ({fused})", pairs, here)


def _shared_heads(here: Here) -> Row:
    """Attention of grouped heads without and with copies of keys and values."""
    import torch
    from torch.nn import functional

    from simpar.architectures.details import Details
    from simpar.architectures.graph import AttentionPattern as Mask
    from simpar.runtime.attention import CoreAttention, Place

    heads, kv_heads, length, dim = here.size.attention
    dtype = torch.float32 if here.dry else torch.bfloat16
    qkv = [torch.randn(1, length, each * dim, device=here.device).to(dtype) for each in (heads, kv_heads, kv_heads)]
    found = CoreAttention(Mask(causal=True), dim, Place(), Details())(qkv)
    split = [x.float().unflatten(-1, (-1, dim)).transpose(1, 2) for x in qkv]
    copied = [split[0], *(x.repeat_interleave(heads // kv_heads, dim=1) for x in split[1:])]
    expected = functional.scaled_dot_product_attention(*copied, is_causal=True).transpose(1, 2).flatten(-2)
    return _close("attention, heads that are shared", [(found, expected)], here)


def _experts(here: Here) -> Row:
    """Products of all experts at once and one by one, an expert without rows among them."""
    import torch
    from torch.nn import functional

    from simpar.runtime.experts import grouped_product, is_grouped

    hidden, counts = here.size.model[0], torch.tensor([7, 0, 32, 25], device=here.device)
    dtype = torch.float32 if here.dry else torch.bfloat16
    x = torch.randn(64, hidden, device=here.device).to(dtype)
    weight = torch.randn(4, 2 * hidden, hidden, device=here.device).to(dtype)
    found = grouped_product(x, weight, None, counts)
    pieces = zip(x.float().split(counts.tolist()), weight.float(), strict=True)
    expected = torch.cat([functional.linear(*each) for each in pieces])
    how = "one kernel" if is_grouped(x, weight) else "one by one"
    return _close(f"products of experts ({how})", [(found, expected)], here)


def _initial(here: Here) -> Row:
    """Initial weights made on the device and on the host."""
    from simpar.runtime.initial import initial_value

    shape = (here.size.vocab, here.size.model[0])
    found = initial_value("head.lm_head.parts.0.weight", shape, 0, device=here.device)
    expected = initial_value("head.lm_head.parts.0.weight", shape, 0)
    return _close("initial weights, device and host", [(found.cpu(), expected)], here)


def _close(what: str, pairs: Sequence[tuple[Any, Any]], here: Here) -> Row:
    """The largest difference of any pair over the largest number there, and whether rounding explains it."""
    error = max(
        float((ours.float() - theirs.float()).abs().max() / theirs.float().abs().max()) for ours, theirs in pairs
    )
    limit = 0.0001 if here.dry else 0.02
    return Row("numbers", what, error=error, sound=error <= limit, note=f"allowed {limit:g} of the largest")
