"""Traces that are read and simulated: what was written comes back, torch's by hand, bad ones in a line."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import simpar
from simpar.chakra.host_nodes import SCHEMAS
from simpar.chakra.messages import COLLECTIVE, COMPUTE, RECEIVE, SEND, ChakraTrace, TraceNode
from simpar.chakra.sources import replay_files
from simpar.cli.app import app
from simpar.cost.collectives.choice import collective
from simpar.cost.kernels import KernelModel
from simpar.errors import UserError
from tests.gate import some

from .conftest import exported
from .replayer import replay as replayed

MADE = sorted((Path(__file__).parent / "traces").glob("*.json.gz"))
DGX = simpar.Cluster("dgx-h100", nodes=1)


def written(folder, files):
    """Files in a folder."""
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return str(folder)


@pytest.mark.parametrize("label", some(["3d", "ring", "experts-pp"], ["3d", "experts-pp"]))
def test_what_was_exported_takes_as_long_as_it_did(label, tmp_path):
    """Through files, a Program and an engine: as the replayer that knows the files alone, to the microsecond."""
    files = exported(label).files
    found, recording = replay_files([written(tmp_path, files)])
    assert round(found.step_time_s * 1e6, 3) == replayed(files)
    assert found.busiest_rank < 8
    assert max(found.compute_s) < found.step_time_s
    assert len(recording.ranks) == 8


def test_another_cluster_has_other_communication(tmp_path):
    """On the cluster of the export it is what it was, but for contention; on a slower one it is longer."""
    folder = written(tmp_path, exported("ddp").files)
    as_traced, there, slower = (replay_files([folder], name)[0] for name in (None, "dgx-h100", "rtx-4090-8"))
    assert there.step_time_s == pytest.approx(as_traced.step_time_s, rel=0.01)
    assert slower.step_time_s > 1.1 * there.step_time_s
    assert as_traced.compute_s == there.compute_s == slower.compute_s


def trace(folder, ranks, groups=None):
    """Hand-written traces of Chakra in a folder."""
    for rank, nodes in enumerate(ranks):
        (folder / f"t.{rank}.et").write_bytes(ChakraTrace(tuple(nodes)).encode())
    if groups is not None:
        (folder / "comm_groups.json").write_text(json.dumps(groups))
    return str(folder)


def call(number, after=(), duration=5, **said):
    """A collective."""
    said = {"is_cpu_op": False, "comm_type": 0, "comm_size": 64, "pg_name": "1", **said}
    return TraceNode(number, "call", COLLECTIVE, after, 0, duration, said)


def kernel(number, after=(), duration=10):
    """A kernel."""
    return TraceNode(number, "kernel", COMPUTE, after, 0, duration, {"is_cpu_op": False})


def message(kind, number, after=(), tag=3):
    """An end of a message from rank 0 to 1."""
    said = {"comm_src": 0, "comm_dst": 1, "comm_tag": tag, "comm_size": 8, "is_cpu_op": False}
    return TraceNode(number, "message", kind, after, 0, 7, said)


def test_collectives_wait_for_all_and_kernels_for_each_other(tmp_path):
    """By hand: two kernels of rank 1 in a row, 20 us; the call 5; the message 7."""
    ranks = [
        [kernel(0), call(1, (0,)), message(SEND, 2, (1,))],
        [kernel(0), kernel(1), call(2, (0, 1)), message(RECEIVE, 3), kernel(4, (3,), 1)],
    ]
    found, _ = replay_files([trace(tmp_path, ranks, {"1": [0, 1]})])
    assert found.step_time_s == pytest.approx((20 + 5 + 7 + 1) * 1e-6)
    assert found.compute_s == pytest.approx((10e-6, 21e-6))
    assert found.to_dict()["communication"]["all_reduce"] == {"calls": 1, "bytes": 64, "seconds": 5e-6}


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        ([[call(0)], [call(0, comm_size=32)]], "call 0 of group 1: all_reduce of 32 bytes on rank 1, all_reduce of 64"),
        ([[call(0)], [kernel(0)]], "call 0 of group 1, all_reduce: rank 1 does not make it"),
        ([[message(SEND, 0)], [kernel(0)]], "from rank 0 to 1 with tag 3: 1 sent, 0 received"),
        ([[kernel(0)], [message(SEND, 0)]], "t.1.et: node 0 message: a message of ranks 0 and 1 in rank 1"),
        ([[kernel(0, (7,))], [kernel(0)]], "t.0.et: node 0 waits for node 7, which there is not"),
        ([[kernel(0), kernel(0)], []], "t.0.et: two nodes have the same id"),
        ([[kernel(0, (1,)), kernel(1, (0,))], []], "t.0.et: node 0 and others wait for each other"),
        ([[call(0, pg_name="9")], [kernel(0)]], "pg_name = '9' is not in comm_groups.json"),
        ([[call(0, comm_type=77)], [kernel(0)]], "node 0 call: comm_type = 77; allowed: all_gather"),
        ([[call(0, comm_size="much")], [kernel(0)]], "comm_size = 'much': allowed: a whole number"),
        ([[TraceNode(0, "load", 2)], [kernel(0)]], "node 0 load: type 2 is not replayed"),
        (
            [[call(0), call(1, (0,), pg_name="2")], [call(0, pg_name="2"), call(1, (0,))]],
            "the traces never end: ops wait for each other",
        ),
    ],
)
def test_traces_that_contradict_themselves_are_refused(ranks, said, tmp_path):
    """In one line that says where."""
    folder = trace(tmp_path, ranks, {"1": [0, 1], "2": [0, 1]})
    with pytest.raises(UserError) as error:
        replay_files([folder])
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        ({"1": [0, 5]}, "1: rank 5: there are traces of 0..1"),
        ({"1": 3}, "1 = 3: allowed: a list of ranks"),
        ([1], "map"),
    ],
)
def test_groups_are_lists_of_ranks_that_there_are(groups, said, tmp_path):
    """Others are refused."""
    with pytest.raises(UserError) as error:
        replay_files([trace(tmp_path, [[kernel(0)], [kernel(0)]], groups)])
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["a.0.et", "b.0.et"], "rank 0 is also"),
        (["a.0.et", "a.2.et"], "rank 1 is missing among 2 traces"),
        (["a.et"], "says no rank"),
        (["a.0.txt"], r"allowed: *.et of Chakra"),
        (["gone.0.et"], "there is no such file"),
        (["."], "has no *.et"),
    ],
)
def test_names_say_the_rank(names, said, tmp_path):
    """All from 0 on, once each."""
    for name in names:
        if not name.startswith(("gone", ".")):
            (tmp_path / name).write_bytes(ChakraTrace((kernel(0),)).encode())
    with pytest.raises(UserError) as error:
        replay_files([str(tmp_path / name) for name in names])
    assert said in str(error.value)


def tensor(storage, *shape, kind="float", device="cuda:0"):
    """A tensor as torch writes it: value, shape, type."""
    width = {"float": 4, "c10::BFloat16": 2}[kind]
    return [[storage, storage, 0, int(np.prod(shape)), width, device], list(shape), f"Tensor({kind})"]


def node(number, name, schema, inputs=(), outputs=(), parent=1, **attributes):
    """A node as torch writes it."""
    sides = [
        dict(
            zip(
                ("values", "shapes", "types"),
                [list(part) for part in zip(*side, strict=True)] or [[], [], []],
                strict=True,
            )
        )
        for side in (inputs, outputs)
    ]
    said = {"op_schema": schema, **attributes}
    attrs = [{"name": key, "type": "string", "value": value} for key, value in said.items()]
    return {"id": number, "name": name, "ctrl_deps": parent, "inputs": sides[0], "outputs": sides[1], "attrs": attrs}


def mm(number, storage=10, **more):
    """A product of 256 x 512 and 512 x 128 in bf16, whose result has a storage."""
    sizes = ((11, 256, 512), (12, 512, 128), (storage, 256, 128))
    a, b, c = (tensor(*each, kind="c10::BFloat16") for each in sizes)
    return node(number, "aten::mm", "aten::mm(Tensor self, Tensor mat2) -> Tensor", (a, b), (c,), **more)


def all_reduce(number, storage, *, asynchronous=True, **more):
    """A sum of 1,024 floats."""
    schema = (
        "c10d::allreduce_(Tensor[] tensors, __torch__.torch.classes.c10d.ProcessGroup process_group, "
        "Tensor? sparse_indices, bool async_op=True, int timeout=-1) -> (Tensor[], Work)"
    )
    value, shape, kind = tensor(storage, 1024)
    listed = [[value], [shape], f"GenericList[{kind}]"]
    rest = (["<Object>", [], "Object"], ["<None>", [], "None"], [asynchronous, [], "Bool"], [-1, [], "Int"])
    return node(number, "c10d::allreduce_", schema, (listed, *rest), (listed,), **more)


def add(number, storage):
    """A sum in place of 1,024 floats."""
    schema = "aten::add_.Tensor(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)"
    both = tensor(storage, 1024), tensor(99, 1024)
    return node(number, "aten::add_", schema, both, both[:1])


def host_files(folder, rows, ranks=2, groups=({"pg_name": "0", "ranks": [], "group_size": 2},), schema=SCHEMAS[-1]):
    """The same rows as the traces of all ranks."""
    first = [
        node(1, "[pytorch|profiler|execution_trace|process]", ""),
        node(2, "## process_group:init ##", "", ([json.dumps(list(groups)), [], "String"],)),
    ]
    paths = []
    for rank in range(ranks):
        paths.append(folder / f"step-{rank}.json")
        paths[-1].write_text(json.dumps({"schema": schema, "nodes": first + list(rows)}))
    return [str(path) for path in paths]


def product_s():
    """What the product takes on an H100."""
    return float(KernelModel(DGX.device).gemm_time_s(256, 128, 512))


def sum_s():
    """What the sum takes there between two ranks."""
    cluster = DGX.in_training
    return collective("all_reduce", np.array([[0, 1]]), cluster, size_bytes=4096.0).solo_time_s(4096.0, cluster)


def moved_s(count):
    """What a kernel takes that moves so many vectors of 1,024 floats."""
    return float(KernelModel(DGX.device).memory_time_s(4096.0 * count))


def step_s(folder, rows, **more):
    """How long rows take on two H100s."""
    return replay_files(host_files(folder, rows, **more), "dgx-h100")[0].step_time_s


@pytest.mark.parametrize("schema", SCHEMAS)
def test_products_take_what_the_kernel_model_says(schema, tmp_path):
    """By their shapes and type, in all schemas of the format."""
    assert step_s(tmp_path, [mm(3), mm(4)], schema=schema) == pytest.approx(2 * product_s(), abs=2e-9)


def test_a_collective_hides_behind_kernels_that_do_not_need_it(tmp_path):
    """An asynchronous one runs beside them; whoever touches its tensor waits; a synchronous one holds all up."""
    both = product_s() + max(product_s(), sum_s())
    assert step_s(tmp_path, [mm(3), all_reduce(4, 7), mm(5)]) == pytest.approx(both, abs=3e-9)
    waited = product_s() + sum_s() + moved_s(3)
    assert step_s(tmp_path, [mm(3), all_reduce(4, 7), add(5, 7)]) == pytest.approx(waited, abs=3e-9)
    serial = 2 * product_s() + sum_s()
    rows = [mm(3), all_reduce(4, 7, asynchronous=False), mm(5)]
    assert step_s(tmp_path, rows) == pytest.approx(serial, abs=3e-9)


def test_views_room_and_callers_take_nothing(tmp_path):
    """A linear layer is the product that it calls; the view of a weight is free."""
    weight, view = tensor(12, 128, 512, kind="c10::BFloat16"), tensor(12, 512, 128, kind="c10::BFloat16")
    rows = [
        node(
            3, "aten::linear", "aten::linear(Tensor input, Tensor weight) -> Tensor", (weight,), (tensor(10, 256, 128),)
        ),
        node(4, "aten::t", "aten::t(Tensor(a) self) -> Tensor(a)", (weight,), (view,), parent=3),
        node(5, "aten::empty", "aten::empty(SymInt[] size) -> Tensor", (), (tensor(77, 9),)),
        mm(6, parent=3),
    ]
    assert step_s(tmp_path, rows) == pytest.approx(product_s(), abs=1e-9)


def test_kernels_inside_others_count_once_each(tmp_path):
    """A sum that clears its result first is both; work on tensors of the host beside those of the device is none."""
    result = tensor(20, 1024)
    rows = [
        node(3, "aten::sum", "aten::sum(Tensor self) -> Tensor", (tensor(21, 1024),), (result,)),
        node(4, "aten::fill_", "aten::fill_(Tensor(a!) self) -> Tensor(a!)", (result,), (result,), parent=3),
        node(
            5,
            "aten::sqrt",
            "aten::sqrt(Tensor self) -> Tensor",
            (tensor(30, 9, device="cpu"),),
            (tensor(31, 9, device="cpu"),),
        ),
    ]
    assert step_s(tmp_path, rows) == pytest.approx(moved_s(1) + moved_s(2), abs=2e-9)


def test_attention_is_priced_by_its_shape(tmp_path):
    """Causal attention sees half of the keys."""
    arguments = "Tensor query, Tensor key, Tensor value, bool is_causal=False"
    schema = f"aten::_scaled_dot_product_flash_attention({arguments}) -> Tensor"
    heads = tensor(5, 2, 8, 512, 64, kind="c10::BFloat16")

    def took(is_causal):
        rows = [
            node(
                3,
                "aten::_scaled_dot_product_flash_attention",
                schema,
                (heads, heads, heads, [is_causal, [], "Bool"]),
                (heads,),
            )
        ]
        return step_s(tmp_path, rows)

    model = KernelModel(DGX.device)
    for is_causal, seen in ((True, 256.5), (False, 512.0)):
        expected = model.attention_time_s((2, 512, 8, 64), context=512, seen=seen, backward=False)
        assert took(is_causal) == pytest.approx(float(expected), abs=1e-9)


GROUPS = ({"pg_name": "0", "ranks": [], "group_size": 2}, {"pg_name": "1", "ranks": [0], "group_size": 1})


def test_process_groups_are_those_that_nccl_says(tmp_path):
    """Where there are several, the node inside a call names its group."""
    inside = node(5, "record_param_comms", "", parent=4, pg_name="0")
    rows = [all_reduce(4, 7), inside]
    assert step_s(tmp_path, rows, groups=GROUPS) == pytest.approx(sum_s(), abs=1e-9)


CONV = node(3, "aten::convolution", "aten::convolution(Tensor input) -> Tensor", (tensor(1, 9),), (tensor(2, 9),))
DOUBLE = mm(3) | {"inputs": {**mm(3)["inputs"], "types": ["Tensor(double)", "Tensor(double)"]}}


@pytest.mark.parametrize(
    ("rows", "more", "said"),
    [
        ([all_reduce(3, 7)], {"groups": GROUPS}, "node 3 c10d::allreduce_: does not say its process group"),
        ([CONV], {}, "node 3 aten::convolution: has no price; allowed: products, attention"),
        ([DOUBLE], {}, "node 3 aten::mm computes in another type; device h100-sxm-80gb has"),
        ([mm(3)], {"schema": "1.1.1-chakra.1.0.0"}, "schema = '1.1.1-chakra.1.0.0'; allowed: 1.0.2-chakra.0.0.4"),
        ([{"id": 3}], {}, "nodes[2]: KeyError 'attrs'; allowed: id, name"),
        ([7], {}, "nodes[2]: TypeError '7' is not a mapping"),
        ([mm(3), mm(4, parent=5), mm(5, parent=4)], {}, "ctrl_deps: some nodes call each other"),
        ([node(3, "c10d::gather_", "c10d::gather_(Tensor[] a) -> Work")], {}, "node 3 c10d::gather_: is not read"),
        ([], {}, "has no operators"),
        (
            [mm(3)],
            {"groups": ({"pg_name": "0", "ranks": [0, 9], "group_size": 2},)},
            "has rank 9, there are traces of 0..1",
        ),
        ([mm(3)], {"groups": ({"name": "0"},)}, "process_group:init ##: KeyError"),
    ],
)
def test_traces_of_torch_that_cannot_be_read_are_refused(rows, more, said, tmp_path):
    """In one line that names file, node and what is allowed."""
    with pytest.raises(UserError) as error:
        step_s(tmp_path, rows, **more)
    assert said in str(error.value)
    assert "step-" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("data", [b"{", b"[]", b'{"nodes": []}', b'{"schema": "1.1.1-chakra.0.0.4"}', b"\xff\xfe"])
def test_files_that_are_no_traces_are_refused(data, tmp_path):
    """Cut JSON, other JSON, other bytes, gzipped or not."""
    for name, content in (
        ("t.0.json", data),
        ("t.0.json.gz", gzip.compress(data)),
        ("t.0.json.gz", gzip.compress(data)[:9]),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=r"t\.0\.json") as error:
            replay_files([str(tmp_path / name)], "dgx-h100")
        assert "\n" not in str(error.value)


def run(*words):
    """The command in this process."""
    return CliRunner().invoke(app, ["replay", *map(str, words)])


def test_a_trace_that_torch_made_is_replayed():
    """A linear layer of 8 x 32 to 16, its backward, two sums of gradients and a message (torch 2.13, gloo)."""
    found = run(*MADE, "--hardware", "dgx-h100", "--json", "-")
    assert found.exit_code == 0, found.output
    said = json.loads(found.stdout)
    assert said["ranks"] == 2
    assert said["communication"]["all_reduce"]["calls"] == 2
    assert said["communication"]["all_reduce"]["bytes"] == 4 * (32 * 16 + 16)
    assert said["communication"]["send"]["bytes"] == 16
    products = (float(KernelModel(DGX.device, "fp32").gemm_time_s(*shape)) for shape in ((8, 16, 32), (16, 32, 8)))
    assert sum(products) < min(said["compute_s"]) < said["step_time_s"]
    shown = run(*MADE, "--hardware", "dgx-h100")
    assert "a step on 2 ranks" in shown.output


def test_traces_without_times_ask_for_a_cluster():
    """And a cluster must have room for the ranks."""
    assert "--hardware is missing" in str(run(*MADE).exception)
    assert "1 devices for 2 ranks" in str(run(*MADE, "--hardware", "laptop-cpu", "--nodes", 1).exception)


def test_import_says_where_traces_are_read():
    """They say what ran, not a plan."""
    found = CliRunner().invoke(app, ["import", str(MADE[0]), "--from", "chakra"])
    assert "simpar replay" in str(found.exception)


@pytest.mark.slow
def test_torch_writes_what_is_read(tmp_path):
    """Traces made here and now are those that were kept, but for times."""
    pytest.importorskip("torch")
    script = Path(__file__).parent / "tracing.py"
    subprocess.run([sys.executable, str(script), str(tmp_path / "step"), "29877"], check=True, timeout=300)
    made = sorted(map(str, tmp_path.glob("*.json")))
    kept, now = (replay_files([str(each) for each in paths], "dgx-h100")[0] for paths in (MADE, made))
    assert kept.to_dict() == now.to_dict()
