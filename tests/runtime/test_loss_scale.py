"""fp16: the scale of the loss and what is left out are those of torch's GradScaler over transformers' one process."""

import json

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from simpar.architectures.hf_config import read  # noqa: E402
from simpar.architectures.training import Training  # noqa: E402
from simpar.runtime.data import Loader, open_source  # noqa: E402
from simpar.runtime.job import Data, read_log  # noqa: E402
from simpar.runtime.loss_scale import INTERVAL, LossScale  # noqa: E402

from .test_weights import files_of  # noqa: E402
from .tiny_models import MODELS  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
ADAM = ["--optimizer", "adamw", "--learning-rate", "1e-2"]  # counts its updates
SHAPE = {"seq_len": 16, "global_batch": 4}
FIRST, STEPS, RATE = 2.0**24, 10, 1.0


def test_the_scale_moves_as_torchs():
    """Halved where gradients overflow, doubled after 2,000 steps without that, counted anew after either."""
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer, theirs = torch.optim.SGD([weight], lr=0.0), torch.amp.GradScaler("cpu")
    ours = LossScale(2.0**16)
    for step in range(2 * INTERVAL + 10):
        finite = step not in (3, 4, INTERVAL + 1)
        theirs.scale(torch.zeros(()))
        weight.grad = torch.full((1,), 1.0 if finite else torch.inf)
        theirs.step(optimizer)
        theirs.update()
        ours.update(finite=finite)
        assert ours.value == theirs.get_scale()
    assert ours.left_out == 3


def by_one_process(folder, replicas):
    """Losses and scales of transformers' model in halves, with parameters in fp32 under torch's scaler.

    Gradients are means of those of replicas, which overflow in themselves.
    """
    graph = read(json.loads((folder / "config.json").read_text()), "tiny")
    source = open_source(Data(), Training(**SHAPE), graph.dims["vocab"], 0)
    loader = Loader(source, SHAPE["global_batch"], 0, 1, 0)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    scaler, losses, scales = torch.amp.GradScaler("cpu", init_scale=FIRST), [], []
    for step in range(STEPS):
        total = 0.0
        for row in torch.from_numpy(loader.batch(step)).split(1):
            halves = {name: parameter.half() for name, parameter in model.named_parameters()}
            logits = torch.func.functional_call(model, halves, (row[:, :-1],)).logits.float().flatten(0, 1)
            loss = torch.nn.functional.cross_entropy(logits, row[:, 1:].flatten()) / SHAPE["global_batch"]
            scaler.scale(loss * replicas).backward()
            total += float(loss.detach())
        for parameter in model.parameters():
            parameter.grad.div_(replicas)
        scales.append(scaler.get_scale())
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(total)
    return losses, scales


def flags(folder, *more):
    """A run of the same in fp16."""
    shape = ["--seq-len", SHAPE["seq_len"], "--global-batch", SHAPE["global_batch"], "--micro-batch", "1"]
    rate = [
        "--learning-rate",
        RATE,
        "--precision",
        "fp16",
        "--loss-scale",
        FIRST,
        "--optimizer",
        "sgd",
        "--threads",
        "1",
    ]
    model = ["gpt2-laptop", "--model", folder / "config.json", "--init-from", folder, "--set", "cluster=null"]
    return [*model, *shape, *rate, "-o", "log", *more]


@pytest.mark.parametrize(
    "layout",
    [
        ["--nproc", "2", "--zero", "3"],
        *(
            pytest.param(["--nproc", *more], marks=pytest.mark.slow)
            for more in (
                ["1"], ["2"], ["2", "--zero", "1"], ["2", "--zero", "2"], ["2", "--tp", "2"], ["2", "--pp", "2"],
                ["2", "--cp", "2"], ["2", "--set", "plan.offload_optimizer=cpu"],
            )
        ),
    ],
)  # fmt: skip
def test_every_layout_leaves_out_the_same_steps(forked, tmp_path, layout):
    """The first steps overflow; then losses fall as those of one process, whose norms round otherwise."""
    files_of("llama", MODELS["llama"], tmp_path / "in")
    alone = "1" in layout[:2] or {"--tp", "--pp"} & {*layout}
    losses, scales = by_one_process(tmp_path / "in", 1 if alone else 2)
    done = forked("run", *flags(tmp_path / "in", "--steps", STEPS, *layout))
    assert done.returncode == 0, done.stderr
    rows = read_log(tmp_path / "log/log.jsonl")
    assert [row["loss_scale"] for row in rows] == scales
    assert scales[0] > scales[1] > scales[-1]
    assert [row["loss"] for row in rows] == pytest.approx(losses, abs=1e-3)
    assert losses[-1] < losses[0] - 0.01


@pytest.mark.slow
def test_a_checkpoint_keeps_scale_and_steps(forked, tmp_path):
    """A run in two parts has the losses of one, bit for bit."""
    files_of("llama", MODELS["llama"], tmp_path / "in")
    logs = []
    for name, parts in (("whole", [STEPS]), ("parts", [5, STEPS])):
        for steps in parts:
            done = forked("run", *flags(tmp_path / "in", "--steps", steps, "--nproc", "1", "--checkpoint", name, *ADAM))
            assert done.returncode == 0, done.stderr
        logs.append([(row["loss"], row["loss_scale"]) for row in read_log(tmp_path / "log/log.jsonl")])
    assert logs[0] == logs[1]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--sync", "local-sgd", "--set", "plan.sync_every=2"], "plan.precision = fp16 with sync = local-sgd"),
        (["--set", "plan.master_weights=false"], "plan.precision = fp16 with master_weights = false"),
    ],
)
def test_what_cannot_be_scaled_is_refused(forked, tmp_path, more, words):
    """One line, before torch starts."""
    files_of("llama", MODELS["llama"], tmp_path / "in")
    done = forked("run", *flags(tmp_path / "in", "--steps", 1, "--nproc", "2", *more))
    assert done.returncode == 2
    assert words in done.stderr
