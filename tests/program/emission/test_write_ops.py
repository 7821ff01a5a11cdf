"""What C writes out is what numpy writes out, in every array of a Program and to the last bit."""

import runpy
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from simpar.errors import UserError
from simpar.native import NativeLibrary
from simpar.program.emission import emit, write_ops
from tests.compilers import needs_compiler
from tests.gate import some

FUZZ = runpy.run_path(str(Path(__file__).parents[3] / "benchmarks" / "fuzz.py"))


def parts(value, name=""):
    """(Name, array or other value) of everything in a result."""
    if is_dataclass(value):
        for field in fields(value):
            yield from parts(getattr(value, field.name), f"{name}.{field.name}")
    elif isinstance(value, tuple) and not isinstance(value, str):
        for number, each in enumerate(value):
            yield from parts(each, f"{name}[{number}]")
    else:
        yield name, value


@pytest.fixture
def compared(monkeypatch):
    """How many slots each step had that was lowered since: each was written out twice, and compared."""
    slots, finish = [], emit.Emitter.finish
    source = emit.LIBRARY.source
    libraries = [NativeLibrary(source, worth=0, why_not=why_not) for why_not in ("not here", "")]

    def both(self):
        begins, results = self._begins.copy(), []
        for library in libraries:
            monkeypatch.setattr(emit, "LIBRARY", library)
            self._begins, self._parts = begins.copy(), []
            results.append(finish(self))
        ours, compiled = ([*parts(result)] for result in results)
        assert [name for name, _ in ours] == [name for name, _ in compiled]
        for (name, one), (_, other) in zip(ours, compiled, strict=True):
            if isinstance(one, np.ndarray):
                assert (one.dtype, one.shape) == (other.dtype, other.shape), name
                assert (one == other).all(), name
            else:
                assert one == other, name
        slots.append(len(results[0][2]))
        return results[1]

    monkeypatch.setattr(emit.Emitter, "finish", both)
    return slots


@needs_compiler
@pytest.mark.parametrize("first", some(range(0, 1200, 40), [0]))
def test_random_plans(first, compared):
    """Random plans, stacks and clusters: merged collectives, buffers, offload, stages, exchanges of tokens."""
    for seed in range(first, first + 40):
        try:
            FUZZ["run"](FUZZ["drawn"](seed))
        except UserError:
            continue
    assert len(compared) > 10
    assert max(compared) > 1000


def columns(**changed):
    """A class of one action and one node, which is a collective of group 0 that does not wait."""
    one, none, rows = np.zeros(1, np.int64), np.zeros((2, 0), np.int64), np.zeros(2, np.int64)
    usual = {
        "template": one, "microbatch": one, "stage": one, "label_at": one, "start": one,
        "source_class": np.zeros((1, 1, 0), np.int64), "source_action": np.zeros((1, 0), np.int64),
        "node_at": np.array([0, 1]), "fixed_ns": one, "use": one, "label": one, "flow": np.zeros((1, 5, 1), np.int64),
        "dependency": none, "stream": none, "memory": np.zeros((4, 0), np.int64), "arrival": none[:1], "exit": one,
        "buffer": none, **{f"{name}_at": rows for name in ("dependency", "stream", "memory", "arrival")},
    }  # fmt: skip
    return usual | changed


@needs_compiler
@pytest.mark.parametrize("calls", [(1, 2), (2, 1), (1, 0)])
def test_classes_that_call_a_group_unequally_often(calls):
    """A fault of lowering is an assertion that names the group, not a Program that hangs."""
    made = [
        write_ops.alike_columns(
            np.array([class_id]),
            **columns(
                node_at=np.array([0, count]), use=np.zeros(count, int), fixed_ns=np.zeros(count), label=np.zeros(count)
            ),
        )
        for class_id, count in enumerate(calls)
    ]
    group = SimpleNamespace(kind="data", members=(0, 1), directed=False)
    quotient = SimpleNamespace(num_classes=2, groups=[group])
    begins = np.cumsum([0, *calls])
    with pytest.raises(AssertionError, match=r"classes \(0, 1\) call the data group unequally often"):
        write_ops.write_ops(emit.LIBRARY.load(), made, begins, 0, quotient)
