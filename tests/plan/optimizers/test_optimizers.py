"""The contract of every optimizer that is declared, one suite for all."""

from __future__ import annotations

import pytest

from simpar.architectures.catalogue import load_model
from simpar.architectures.training import Training
from simpar.errors import UserError
from simpar.layout.decide import complete_plan
from simpar.plan import optimizers
from simpar.plan.choices.numerics import Numerics
from simpar.plan.choices.target import Workload
from simpar.plan.optimizers import DEFAULT_OPTIMIZER, IN_TORCH, OPTIMIZERS
from simpar.plan.plan import Plan

TARGET = Workload(load_model("gpt2"), Training(seq_len=256, global_batch=8), 2, 8)
SHAPES = ((64, 64), (64, 256), (3000, 1000), (20000, 512))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_is_declared_makes_sense(name):
    """A sentence, states that are not negative, and work or factors only of those that look at shapes."""
    each = OPTIMIZERS[name]
    assert len(each.summary) > 20
    assert min(each.moments, each.others, each.gradient_passes) >= 0
    assert each.by_shape == (each.factored or each.by_matrix is not None)
    assert not (each.on_host and each.by_shape), "processors update value by value"


@pytest.mark.parametrize("name", [name for name, each in OPTIMIZERS.items() if each.by_matrix])
@pytest.mark.parametrize("shape", SHAPES)
def test_work_of_matrices_does_not_know_which_side_is_which(name, shape):
    """A matrix and its transpose take as many FLOP and keep as much, above zero."""

    def of(rows, columns):
        work = OPTIMIZERS[name].by_matrix.work(rows, columns)
        flop = sum(2 * m * n * k * one.pieces * one.repeated for one in work for m, n, k in one.products)
        kept = OPTIMIZERS[name].by_matrix.fp32_values
        return flop + sum(one.decomposition_flop for one in work), kept and float(kept(rows, columns))

    assert of(*shape) == pytest.approx(of(*reversed(shape)))
    assert of(*shape)[0] > 0


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_plans_take_it_or_say_what_else(name):
    """Plain plans do; host updates, parameter servers and widths of moments as declared, and refusals name others."""
    each = OPTIMIZERS[name]
    complete_plan(Plan(optimizer=name, dp=2), TARGET)
    for plan, allowed in (
        (Plan(optimizer=name, dp=2, zero=2, offload_optimizer="cpu"), each.on_host),
        (Plan(optimizer=name, dp=2, sync="asp", servers=1), not each.by_shape),
    ):
        if allowed:
            complete_plan(plan, TARGET)
            continue
        with pytest.raises(UserError, match=f"allowed.*{DEFAULT_OPTIMIZER}"):
            complete_plan(plan, TARGET)
    if each.has_own_width:
        with pytest.raises(ValueError, match="own width"):
            Numerics(optimizer=name, moment_dtype="bf16")
    else:
        Numerics(optimizer=name, moment_dtype="bf16")


@pytest.mark.parametrize("name", IN_TORCH)
def test_torch_keeps_the_states_that_are_declared(name):
    """One step of the class of torch leaves states of these names, as many as the moments that are counted."""
    torch = pytest.importorskip("torch")
    declared = OPTIMIZERS[name].in_torch
    options = {"betas": (0.9, 0.95), "eps": 1e-8, "momentum": 0.9}
    weight = torch.nn.Parameter(torch.ones(4, 4))
    made = getattr(torch.optim, declared.name)([weight], lr=0.1, **{key: options[key] for key in declared.options})
    weight.grad = torch.ones(4, 4)
    made.step()
    kept = {key for key, value in made.state[weight].items() if getattr(value, "shape", None) == weight.shape}
    assert kept == {*declared.states}
    assert len(kept) == OPTIMIZERS[name].moments == OPTIMIZERS[name].others
    assert ("step" in made.state[weight]) == declared.counts_steps


def test_an_unknown_name_gets_a_suggestion():
    """A misspelt optimizer is refused with the nearest name and the list."""
    with pytest.raises(ValueError, match=r"is not an optimizer; did you mean 'lion'\?; allowed: adafactor, adamw"):
        Numerics(optimizer="lions")


@pytest.mark.parametrize("theirs", optimizers.IN_LIBRARIES)
def test_names_of_libraries_are_the_same_optimizers(theirs):
    """They are none of ours, and are replaced by one of ours."""
    assert theirs not in OPTIMIZERS
    assert Plan(optimizer=theirs).numerics.optimizer == optimizers.IN_LIBRARIES[theirs]
    assert optimizers.IN_LIBRARIES[theirs] in OPTIMIZERS


def test_a_new_optimizer_is_one_file(tmp_path, monkeypatch):
    """A file that is dropped into the folder is listed, behind the usual one and by its month."""
    (tmp_path / "new.py").write_text(
        "from simpar.plan.optimizers.optimizer import Optimizer\n"
        "OPTIMIZERS = (Optimizer('new', 'Three moments, all of them new', '2099-01', moments=3, others=3),)\n"
    )
    monkeypatch.setattr(optimizers, "__path__", [*optimizers.__path__, str(tmp_path)])
    listed = list(optimizers._listed())
    assert (listed[0], listed[-1]) == (DEFAULT_OPTIMIZER, "new")
    assert set(listed) == {*OPTIMIZERS, "new"}
