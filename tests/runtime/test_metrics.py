"""Where figures go beside the log: TensorBoard and Weights & Biases, stood in for by modules of the same names."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from simpar.errors import UserError
from simpar.plan.plan import Plan
from simpar.runtime import metrics
from simpar.runtime.job import Measuring, RunJob

ROW = {"step": 7, "loss": 2.5, "step_time_s": 0.5, "phases_s": {"forward": 0.2}, "evaluation_loss": 2.75}


def job(folder, **measuring):
    """A job whose figures go to somewhere."""
    training = {"seq_len": 8, "global_batch": 4}
    return RunJob(
        folder=str(folder), plan=Plan(), model="gpt2", training=training, steps=9, measuring=Measuring(**measuring)
    )


def test_figures_are_those_of_a_row():
    """Losses and seconds as they are, tokens by the second; phases stay in the log."""
    assert metrics.figures(ROW, 32) == {"loss": 2.5, "evaluation_loss": 2.75, "step_time_s": 0.5, "tokens_per_s": 64.0}


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"tensorboard": True}, "--tensorboard: .* pip install tensorboard"),
        ({"wandb": "p"}, "--wandb: .*install wandb"),
    ],
)
def test_a_package_that_is_missing_is_named(tmp_path, monkeypatch, wanted, words):
    """One line with the command that installs it, before anything starts."""
    monkeypatch.setattr(metrics.importlib.util, "find_spec", lambda _: None)
    metrics.check_installed(job(tmp_path))
    with pytest.raises(UserError, match=words):
        metrics.check_installed(job(tmp_path, **wanted))


def test_tensorboard_gets_every_figure(tmp_path, monkeypatch):
    """Steps that will be run again are dropped from its files, as from the log."""
    pytest.importorskip("torch")
    written = []

    class Writer:
        def __init__(self, folder, **options):
            written.append((folder, options["purge_step"]))

        def add_scalar(self, name, value, step):
            written.append((name, value, step))

        def close(self):
            written.append("closed")

    module = ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = Writer
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    (sink,) = metrics.open_sinks(job(tmp_path, tensorboard=True), 3)
    sink.write(7, {"loss": 2.5})
    sink.close()
    assert written == [(str(tmp_path / "tensorboard"), 3), ("loss", 2.5, 7), "closed"]


def test_a_run_at_weights_and_biases_goes_on_after_a_resume(tmp_path, monkeypatch):
    """The same run by its id where the job goes on, a new one where it starts afresh."""
    begun, logged = [], []

    def init(**options):
        begun.append(options)
        return SimpleNamespace(log=lambda row, step: logged.append((step, row)), finish=lambda: logged.append("done"))

    module = ModuleType("wandb")
    module.init = init
    monkeypatch.setitem(sys.modules, "wandb", module)
    for first in (0, 5, 0):
        (sink,) = metrics.open_sinks(job(tmp_path, wandb="mine"), first)
    sink.write(7, {"loss": 2.5})
    sink.close()
    assert [each["project"] for each in begun] == ["mine"] * 3
    assert begun[0]["id"] == begun[1]["id"] != begun[2]["id"]
    assert begun[0]["config"]["training"]["global_batch"] == 4
    assert logged == [(7, {"loss": 2.5}), "done"]
