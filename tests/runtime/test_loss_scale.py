"""fp16: the scale of the loss and what is left out are those of torch's GradScaler over transformers' one process."""

import json
from itertools import pairwise

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
SLOW, APART = 0.1, 1.75 * 2.0**20
"""A rate, and a first scale from which two replicas leave out different steps."""


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


class OneProcess:
    """transformers' model in halves, with parameters in fp32 under torch's scaler, on one of ``ranks`` shares of data.

    Gradients are means of those of replicas, which overflow in themselves.
    """

    def __init__(self, folder, replicas=1, rank=0, ranks=1, first=FIRST, rate=RATE):
        graph = read(json.loads((folder / "config.json").read_text()), "tiny")
        source = open_source(Data(), Training(**SHAPE), graph.dims["vocab"], 0)
        self.loader = Loader(source, SHAPE["global_batch"], rank, ranks, 0)
        self.replicas, self.rows = replicas, SHAPE["global_batch"] // ranks
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=rate)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=first)

    def step(self, step):
        """One step: its loss and the scale that it had."""
        total, scale = 0.0, self.scaler.get_scale()
        for row in torch.from_numpy(self.loader.batch(step)).split(1):
            halves = {name: parameter.half() for name, parameter in self.model.named_parameters()}
            logits = torch.func.functional_call(self.model, halves, (row[:, :-1],)).logits.float().flatten(0, 1)
            loss = torch.nn.functional.cross_entropy(logits, row[:, 1:].flatten()) / self.rows
            self.scaler.scale(loss * self.replicas).backward()
            total += float(loss.detach())
        for parameter in self.model.parameters():
            parameter.grad.div_(self.replicas)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        return total, scale


def by_one_process(folder, replicas):
    """Losses and scales of all steps."""
    alone = OneProcess(folder, replicas)
    return zip(*(alone.step(step) for step in range(STEPS)), strict=True)


def by_replicas(folder, count, period):
    """Mean losses of replicas that scale and step on their own, and meet in their mean; the scales of each."""
    each = [OneProcess(folder, rank=rank, ranks=count, first=APART, rate=SLOW) for rank in range(count)]
    losses, scales = [], []
    for step in range(STEPS):
        done = [one.step(step) for one in each]
        losses.append(sum(loss for loss, _ in done) / count)
        scales.append([scale for _, scale in done])
        if (step + 1) % period == 0:
            with torch.no_grad():
                for same in zip(*(one.model.parameters() for one in each), strict=True):
                    mean = sum(same) / count
                    for parameter in same:
                        parameter.copy_(mean)
    return losses, list(zip(*scales, strict=True))


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
                ["4", "--dp", "4", "--zero", "3", "--hsdp", "2"],
            )
        ),
    ],
)  # fmt: skip
def test_every_layout_leaves_out_the_same_steps(forked, tmp_path, layout):
    """The first steps overflow; losses are those of one process, whose norms round otherwise, over the others, too."""
    files_of("llama", MODELS["llama"], tmp_path / "in")
    alone = "1" in layout[:2] or {"--tp", "--pp"} & {*layout}
    losses, scales = map(list, by_one_process(tmp_path / "in", 1 if alone else int(layout[1])))
    done = forked("run", *flags(tmp_path / "in", "--steps", STEPS, *layout))
    assert done.returncode == 0, done.stderr
    rows = read_log(tmp_path / "log/log.jsonl")
    assert [row["loss_scale"] for row in rows] == scales
    assert scales[0] > scales[1] > scales[-1]
    assert [row["loss"] for row in rows] == pytest.approx(losses, abs=1e-3)
    taken = sum(before == after for before, after in pairwise(scales))
    assert taken >= 2  # four replicas leave out more steps than two, and their loss has not fallen yet


@pytest.mark.slow
def test_one_process_of_replicas_scales_as_one(forked, tmp_path):
    """All replicas of DataParallel are one batch, whose gradients overflow together."""
    files_of("llama", MODELS["llama"], tmp_path / "in")
    done = forked("run", *flags(tmp_path / "in", "--steps", STEPS, "--dp", "2", "--set", "plan.kind=single_process"))
    assert done.returncode == 0, done.stderr
    rows = read_log(tmp_path / "log/log.jsonl")
    scales = [row["loss_scale"] for row in rows]
    assert scales[0] > scales[1] > scales[-1]
    assert rows[-1]["loss"] < rows[0]["loss"] - 0.01


def test_replicas_on_their_own_scale_on_their_own(forked, tmp_path):
    """Each leaves out the steps in which its own gradients overflow."""
    files_of("llama", MODELS["llama"], tmp_path / "in")
    losses, scales = by_replicas(tmp_path / "in", 2, 3)
    more = (
        "--nproc",
        "2",
        "--sync",
        "local-sgd",
        "--set",
        "plan.sync_every=3",
        "--loss-scale",
        APART,
        "--learning-rate",
        SLOW,
    )
    done = forked("run", *flags(tmp_path / "in", "--steps", STEPS, *more))
    assert done.returncode == 0, done.stderr
    rows = read_log(tmp_path / "log/log.jsonl")
    assert tuple(row["loss_scale"] for row in rows) == scales[0] != scales[1]
    assert [row["loss"] for row in rows] == pytest.approx(losses, abs=1e-3)


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
        (["--set", "plan.servers=1"], "plan.precision = fp16 with servers = 1"),
        (["--set", "plan.master_weights=false"], "plan.precision = fp16 with master_weights = false"),
    ],
)
def test_what_cannot_be_scaled_is_refused(forked, tmp_path, more, words):
    """One line, before torch starts."""
    files_of("llama", MODELS["llama"], tmp_path / "in")
    done = forked("run", *flags(tmp_path / "in", "--steps", 1, "--nproc", "2", *more))
    assert done.returncode == 2
    assert words in done.stderr
