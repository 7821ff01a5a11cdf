"""Attention to a block of which every query sees a band: what is seen, and the same numbers from every kernel."""

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from simpar.architectures.details import Details  # noqa: E402
from simpar.architectures.graph import AttentionPattern as Mask  # noqa: E402
from simpar.runtime import banded, context  # noqa: E402
from simpar.runtime.attention import CoreAttention, Place  # noqa: E402
from simpar.runtime.banded import Band, PositionRange, band  # noqa: E402
from simpar.runtime.context import ContextRank  # noqa: E402

HEADS, KV_HEADS, HEAD_DIM, LENGTH = 4, 2, 6, 16
WAYS = [("contiguous", None), ("zigzag", None), ("striped", None), ("zigzag", 5), ("striped", 3), ("contiguous", 6)]


def written_out(length: int, left: int | None, right: int | None, keys: int | None = None) -> torch.Tensor:
    """A band as a mask, bool[length, keys or length]; a limit of None or less than 0 is none."""
    ahead = torch.arange(keys or length) - torch.arange(length)[:, None]
    low = length if left is None or left < 0 else left
    high = (keys or length) if right is None or right < 0 else right
    return (ahead >= -low) & (ahead <= high)


@given(
    start=st.tuples(st.integers(0, 12), st.integers(0, 12)), step=st.integers(1, 3),
    lengths=st.tuples(st.integers(1, 5), st.integers(1, 5)), window=st.one_of(st.none(), st.integers(1, 9)),
)  # fmt: skip
def test_a_band_is_what_the_positions_say(start, step, lengths, window):
    """Cut to its rows and columns, a band equals the mask written out; outside of them nothing is seen."""
    query, key = (PositionRange(each, step, length) for each, length in zip(start, lengths, strict=True))
    distance = query.positions()[:, None] - key.positions()[None, :]
    expected = (distance >= 0) & (distance < (window or 1000))
    found, seen = torch.zeros_like(expected), band(query, key, window)
    if seen is not None:
        size, keys = (part.stop - part.start for part in (seen.rows, seen.columns))
        assert size == keys or lengths[0] != lengths[1]
        found[seen.rows, seen.columns] = written_out(size, seen.left, seen.right, keys)
        assert min(found[seen.rows].sum(1)) > 0
        part = seen.mask(0, size, "cpu")
        every = torch.ones(size, keys) > 0
        assert torch.equal(found[seen.rows, seen.columns], every if part is None else part)
        if seen.is_simple:
            assert torch.equal(found[seen.rows, seen.columns], every.tril() if seen.is_causal else every)
    assert torch.equal(found, expected)


@given(
    start=st.integers(0, 12), step=st.integers(1, 3), length=st.integers(0, 6),
    part=st.tuples(st.integers(0, 20), st.integers(0, 12)),
)  # fmt: skip
def test_what_of_a_run_is_in_a_part(start, step, length, part):
    """The positions themselves, behind as many as lie before the part."""
    whole, inside = PositionRange(start, step, length), slice(part[0], sum(part))
    before, found = whole.within(inside)
    every = [start + step * index for index in range(length)]
    assert [found.start + step * index for index in range(found.length)] == [
        each for each in every if inside.start <= each < inside.stop
    ]
    assert not found.length or before == sum(each < inside.start for each in every)


def flash_forward(query, key, value, *rest, scale, window_size_left=None, window_size_right=None):
    """aten::_flash_attention_forward as it is documented, in plain products: [batch, seq, heads, head_dim]."""
    causal = rest[5]
    left, right = (-1, 0) if causal else (window_size_left, window_size_right)
    keys, values = (x.repeat_interleave(query.shape[2] // x.shape[2], dim=2) for x in (key, value))
    scores = torch.einsum("bihd,bjhd->bhij", query, keys) * scale
    scores = scores.masked_fill(~written_out(query.shape[1], left, right), -torch.inf)
    lse = scores.logsumexp(-1)
    return torch.einsum("bhij,bjhd->bihd", (scores - lse[..., None]).exp(), values), lse


def flash_backward(gradient, query, key, value, out, lse, *rest, scale, **windows):
    """aten::_flash_attention_backward in the same way: probabilities from the log-sum-exp that is given."""
    causal = rest[5]
    left, right = (-1, 0) if causal else (windows.get("window_size_left"), windows.get("window_size_right"))
    groups = query.shape[2] // key.shape[2]
    keys, values = (x.repeat_interleave(groups, dim=2) for x in (key, value))
    scores = torch.einsum("bihd,bjhd->bhij", query, keys) * scale
    weights = (scores - lse[..., None]).exp() * written_out(query.shape[1], left, right)
    delta = (gradient * out).sum(-1).transpose(1, 2)
    d_scores = weights * (torch.einsum("bihd,bjhd->bhij", gradient, values) - delta[..., None]) * scale
    d_keys = torch.einsum("bhij,bihd->bjhd", d_scores, query)
    d_values = torch.einsum("bhij,bihd->bjhd", weights, gradient)
    d_key, d_value = (x.unflatten(2, (-1, groups)).sum(3) for x in (d_keys, d_values))
    return torch.einsum("bhij,bjhd->bihd", d_scores, keys), d_key, d_value


@pytest.fixture(params=["cpu", "plain", "flash"])
def kernel(request, monkeypatch):
    """Blocks by the kernels of a CPU, by plain products of a few queries, or as CUDA's would, stood in for."""
    if request.param == "plain":
        monkeypatch.setattr(Band, "is_simple", False)
        monkeypatch.setattr(banded, "SCORES_BYTES", 2 * HEADS * LENGTH * 8 * 3)
    if request.param == "flash":
        monkeypatch.setattr(banded, "is_fused", lambda _: True)
        monkeypatch.setattr(torch.ops.aten, "_flash_attention_forward", flash_forward)
        monkeypatch.setattr(torch.ops.aten, "_flash_attention_backward", flash_backward)
    return request.param


@pytest.mark.parametrize(("balance", "window"), WAYS)
def test_blocks_of_all_ranks_join_to_whole_attention(kernel, balance, window, monkeypatch):
    """Output and gradients of each of two ranks, heads shared and padded, are those of attention written out."""
    torch.manual_seed(0)
    shapes = [(2, heads, LENGTH, HEAD_DIM) for heads in (HEADS, KV_HEADS, KV_HEADS)]
    query, key, value = leaves = [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes]
    keys, values = (x.repeat_interleave(HEADS // KV_HEADS, dim=1) for x in (key, value))
    seen = written_out(LENGTH, None if window is None else window - 1, 0)
    scores = (query @ keys.transpose(-1, -2) * HEAD_DIM**-0.5).masked_fill(~seen, -torch.inf)
    expected, upstream = (scores.softmax(-1) @ values, torch.randn(2, HEADS, LENGTH, HEAD_DIM, dtype=torch.float64))
    wanted = torch.autograd.grad(expected, leaves, upstream)
    every = [ContextRank(2, rank, method="all_gather", balance=balance) for rank in range(2)]
    places = [each.positions(LENGTH // 2) for each in every]
    blocks = [torch.stack((key, value))[:, :, :, place].detach() for place in places]
    sent = {}
    monkeypatch.setattr(context, "_travel", lambda *_: enumerate(blocks))
    for here, place in zip(every, places, strict=True):
        monkeypatch.setattr(
            context._Homecoming, "arrived", lambda self, here=here: sent.setdefault(here.rank, self.every)[here.rank]
        )
        ours = [x.detach()[:, :, place].requires_grad_() for x in leaves]
        found = context.attention(*ours, here, window)
        torch.testing.assert_close(found, expected[:, :, place].detach())
        of_query, *_ = torch.autograd.grad(found, ours, upstream[:, :, place])
        torch.testing.assert_close(of_query, wanted[0][:, :, place])
    for rank, place in enumerate(places):
        for number in range(2):
            total = sum(sent[other][rank][number] for other in range(2))
            torch.testing.assert_close(total, wanted[1 + number][:, :, place])


class Watch(TorchDispatchMode):
    """What operators are called, and with tensors of what shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.names, self.shapes = [], []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        """Note and go on."""
        out = function(*args, **(kwargs or {}))
        self.names.append(str(function))
        self.shapes += [tuple(each.shape) for each in (*args, out) if isinstance(each, torch.Tensor)]
        return out


@pytest.mark.parametrize(
    ("window", "here"),
    [(5, ContextRank()), (None, ContextRank(2, 0, method="all_gather")), (5, ContextRank(2, 1, method="all_gather"))],
)
def test_on_a_device_no_scores_are_made(window, here, monkeypatch):
    """Where there are kernels with windows (here without memory) nothing of seq x seq is made, no head copied."""
    monkeypatch.setattr(banded, "is_fused", lambda _: True)
    monkeypatch.setattr(context, "_travel", lambda block, here: enumerate([block] * here.groups))
    monkeypatch.setattr(context._Homecoming, "arrived", lambda self: self.every.get(0, self.total))
    core = CoreAttention(Mask(causal=True, window=window), HEAD_DIM, Place(here), Details())
    sizes = [(1, 64, heads * HEAD_DIM) for heads in (HEADS, KV_HEADS, KV_HEADS)]
    qkv = [torch.empty(s, device="meta", dtype=torch.bfloat16, requires_grad=True) for s in sizes]
    with Watch() as watch:
        core(qkv).sum().backward()
    assert [each.grad.shape for each in qkv] == [each.shape for each in qkv]
    assert not [shape for shape in watch.shapes if shape[-2:] == (64, 64)]
    assert not [name for name in watch.names if "repeat_interleave" in name]
    assert {name for name in watch.names if "flash" in name} == {
        "aten._flash_attention_forward.default", "aten._flash_attention_backward.default",
    }  # fmt: skip


@pytest.mark.parametrize(("fused", "heads"), [(True, KV_HEADS), (False, HEADS)])
def test_heads_are_shared_where_a_kernel_takes_them(fused, heads, monkeypatch):
    """Keys and values go to torch's attention as they are, or copied for a kernel that needs one for each head."""
    monkeypatch.setattr(banded, "is_fused", lambda _: fused)
    given = {}

    def attention(query, key, value, *, enable_gqa, **_):
        given.update(heads=key.shape[1], shared=enable_gqa)
        return query

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", attention)
    core = CoreAttention(Mask(causal=True), HEAD_DIM, Place(), Details())
    core([torch.empty(1, 8, each * HEAD_DIM, device="meta") for each in (HEADS, KV_HEADS, KV_HEADS)])
    assert given == {"heads": heads, "shared": fused}
