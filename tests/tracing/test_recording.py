"""Operators of one run of a module on the meta device."""

import pytest

torch = pytest.importorskip("torch")

from simpar.errors import UserError  # noqa: E402
from simpar.tracing.masks import Constants  # noqa: E402
from simpar.tracing.nodes import Ref  # noqa: E402
from simpar.tracing.recording import Construction, record  # noqa: E402


class Module(torch.nn.Module):
    """A module of 8 columns whose forward is a function of the module and its input."""

    def __init__(self, forward):
        super().__init__()
        self.inner = torch.nn.Linear(8, 8)
        self.other = torch.nn.Linear(8, 8)
        self.other.weight = self.inner.weight
        self.run = forward

    def forward(self, x):
        """What it was made with."""
        return self.run(self, x)


def recorded(forward):
    """The recording of a module for rows float[4, 8]."""
    with torch.device("meta"):
        return record(Module(forward), (torch.zeros(4, 8),), {})


def ops(recording):
    """Names of its operators, without placeholders."""
    return [call.op for call in recording.calls if call.op != "placeholder"]


def test_composite_operators_are_whole():
    """A linear layer and a norm are one call each, inside their modules; a shared parameter counts once."""
    recording = recorded(lambda own, x: torch.nn.functional.layer_norm(own.other(own.inner(x)), (8,)))
    assert ops(recording) == ["linear", "linear", "layer_norm"]
    assert [call.owners[-1][0] for call in recording.calls[-3:]] == ["inner", "other", ""]
    assert recording.parameters == ("p_inner.weight", "p_inner.bias", "p_other.bias")


def test_sums_of_products_are_their_products():
    """An einsum is recorded as the product that it stands for."""
    assert "bmm" in ops(recorded(lambda own, x: torch.einsum("ij,kj->ik", x, own.inner.weight)))


def test_grouped_products_have_any_dtype():
    """On a device without values only their shape counts."""

    def forward(own, x):
        ends = torch.zeros(1, dtype=torch.int32)
        return torch.nn.functional.grouped_mm(x, own.inner.weight[None], offs=ends)

    assert recorded(forward).calls[-1].value.shape == (4, 8)


def test_a_changed_view_changes_the_whole():
    """A reader of the whole reads a copy with the change; one that nobody reads is not made."""

    def forward(own, x):
        whole = own.inner(x)
        whole[:, :4].add_(1)
        return whole.exp()

    calls = {call.op: call for call in recorded(forward).calls}
    assert calls["copy"].args == (Ref(calls["linear"].name), [Ref(calls["add_"].name)])
    assert calls["exp"].args == (Ref(calls["copy"].name),)
    assert "copy" not in ops(recorded(lambda own, x: own.inner(x)[:, :4].add_(1)))


def test_a_part_that_is_changed_in_place_is_not_copied_onto_itself():
    """``rows[1:] += x`` ends with a copy of the changed part to where it is; other elements are copied."""

    def changes(module, x):
        rows = x + 1
        rows[1:] += 2.0
        rows[:1] = x[:1]
        return rows * 2

    called = ops(recorded(changes))
    assert called.count("add_") == called.count("copy_") == 1


def test_numbers_that_python_asks_for():
    """Those of constants are computed; those that depend on the input are refused."""
    recording = recorded(lambda own, x: own.inner(x) if torch.arange(4).sum() == 6 else x)
    assert ops(recording)[-1] == "linear"
    with pytest.raises(UserError, match=r"depends on data"):
        recorded(lambda own, x: own.inner(x) if x.sum() > 0 else x)


def test_equal_calls_have_equal_results():
    """Each of its own, by the shapes and the numbers that it reads."""

    def forward(own, x):
        one, two = own.inner(x), own.inner(x)
        assert one is not two
        assert one.untyped_storage()._cdata != two.untyped_storage()._cdata
        return one.sum(0), two.sum(1), x.to(torch.float16).exp(), x.exp(), x.transpose(0, 1).exp()

    results = recorded(forward).calls[-9:]
    shapes = [(call.op, tuple(call.value.shape), call.value.dtype) for call in results if call.op in ("sum", "exp")]
    half, whole = torch.float16, torch.float32
    assert shapes == [
        ("sum", (8,), whole), ("sum", (4,), whole), ("exp", (4, 8), half), ("exp", (4, 8), whole),
        ("exp", (8, 4), whole),
    ]  # fmt: skip


def test_values_of_buffers_that_construction_made():
    """Each by its name in recordings; one that was changed in parts is unknown."""
    with torch.device("meta"), Construction.recorded() as construction:
        module = Module(lambda _, x: x)
        module.register_buffer("bias", torch.ones(3, 3).tril().mul_(2))
        parts = torch.ones(3, 3)
        parts[0, 0] = 0
        module.register_buffer("parts", parts)
    made = construction.buffers(module)
    assert [*made.buffers] == ["b_bias"]
    assert Constants(made.calls).value(made.buffers["b_bias"]).tolist() == [[2, 0, 0], [2, 2, 0], [2, 2, 2]]


def test_rows_picked_by_places_are_counted():
    """A mask that no data changes has its number of rows, also one that travelled beside data; others are refused."""

    def masked(own, x):
        return own.inner(x)[torch.arange(4) > 0]

    def beside_data(own, x):
        packed = torch.cat([x, (torch.arange(4) > 1).to(x.dtype)[:, None]], dim=1)
        values, mask = packed.split([8, 1], dim=1)
        return values[mask.bool().squeeze(1)].exp()

    assert tuple(recorded(masked).calls[-1].value.shape) == (3, 8)
    assert tuple(recorded(beside_data).calls[-1].value.shape) == (2, 8)
    with pytest.raises((NotImplementedError, RuntimeError), match="nonzero"):
        recorded(lambda _, x: x[x.sum(1) > 0])


def test_what_is_taken_apart_where_it_was_joined_is_what_was_joined():
    """Not so at other places, along another dim, or of another type."""

    def back(sizes, dim):
        def forward(_, x):
            return torch.cat([x, x[:, :2]], dim=1).split(sizes, dim=dim)[0].exp()

        return [each.op for each in recorded(forward).calls][-3:]

    assert back([8, 2], 1) == ["alias", "alias", "exp"]
    assert back([5, 5], 1) == ["getitem", "getitem", "exp"]
    assert back([2, 2], 0) == ["getitem", "getitem", "exp"]
    assert ops(recorded(lambda _, x: torch.cat([torch.empty(0), x]).exp()))[-2:] == ["cat", "exp"]
