"""Functions that stand for fused kernels."""

from dataclasses import replace

import pytest

from simpar.tracing.fused import convolution_draft, kernel_name, recurrence_draft, whole_kernels
from simpar.tracing.nodes import Ref
from simpar.tracing.raw_operators import DraftWeight
from tests.tracing.drafts import TOKENS, call

torch = pytest.importorskip("torch")


def standing_for(func_name):
    """A function as transformers makes one that stands for a kernel of that name."""

    def causal(hidden_states, weight, bias=None, activation=None):
        return func_name, hidden_states

    return causal


conv = standing_for("causal_conv1d_fn")
other = standing_for("selective_state_update")


class Mixer(torch.nn.Module):
    """A module whose forward calls functions of its own file."""

    def forward(self, x):
        """A convolution, and a kernel that is not recorded whole."""
        return conv(x, weight=x, activation="silu"), other(x, x)


def test_a_kernel_is_noted_with_what_it_reads():
    """Its arguments in order, the missing ones as None; what stood there is put back."""
    before, calls = conv, []

    def note(op, given, like):
        calls.append((op, given, like))
        return "noted"

    with whole_kernels(Mixer(), note):
        made, left = Mixer()(1)
    assert made == "noted"
    assert left == ("selective_state_update", 1)
    assert calls == [("convolution", (1, 1, None), 1)]
    assert conv is before


def test_names_of_kernels():
    """Only functions that say which kernel they stand for have one."""
    assert kernel_name(conv) == "causal_conv1d_fn"
    assert [kernel_name(each) for each in (kernel_name, Mixer, 3)] == ["", "", ""]


def test_kernels_are_operators():
    """A convolution of every channel with its weights, and a pass with the sizes of its state."""
    x = call("x", "linear", sizes=(2, 8, 4, 16), shape=(((1, ("batch",)),), ((1, ("seq",)),), ((4, ()),), ((16, ()),)))
    turned = call("c", "convolution", sizes=(2, 64, 8), shape=(((1, ("batch",)),), ((64, ()),), ((1, ("seq",)),)))
    draft = convolution_draft(turned, ("x",), (DraftWeight("w", "w", 256, "vector"),), ())
    assert (draft.rows, draft.columns, draft.pieces[0].kind) == (TOKENS, 64, "matrix")
    keys = replace(x, name="k", sizes=(2, 8, 2, 32))
    scan = replace(x, name="s", op="scan", args=(Ref("x"), Ref("k"), Ref("k"), 128))
    made = recurrence_draft(scan, {"x": x, "k": keys}, ("x", "k"), ())
    assert (made.rows, made.columns) == (TOKENS, 64)
    sizes = {"mamba_heads": 4, "mamba_head_dim": 16, "mamba_groups": 2, "state": 32, "chunk": 128}
    assert dict(made.dims) == sizes
