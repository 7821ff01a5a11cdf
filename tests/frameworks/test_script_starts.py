"""Processes that a script's code starts: the ranks, whatever starts the script."""

import ast

import pytest

from simpar.errors import UserError
from simpar.frameworks.script_starts import DRIVES_ALL, NO_DEVICE, OF_STARTS, starts_of
from simpar.verbs import check

TRAINS = """
def train():
    args = SFTConfig(output_dir="o", per_device_train_batch_size=2, max_length=1024, packing=True)
    trainer = SFTTrainer(model="Qwen/Qwen2.5-0.5B", args=args, train_dataset=data)
    trainer.train()
"""
RAY = "TorchTrainer(train, scaling_config=ScalingConfig({})).fit()\n"


def literal(node):
    """The value of an expression that is a literal; the node of all others."""
    try:
        return ast.literal_eval(node)
    except ValueError:
        return node


@pytest.mark.parametrize(
    ("code", "processes"),
    [
        (RAY.format("num_workers=16, use_gpu=True"), 16), (RAY.format("use_gpu=True"), 1),
        (RAY.format("num_workers=n, use_gpu=True"), None), ("notebook_launcher(train, num_processes=4)", 4),
        ("notebook_launcher(train, (), 2)", 2), ("notebook_launcher(train, (), num_processes=4, num_nodes=2)", 8),
        ("notebook_launcher(train)", None), ("torch.multiprocessing.spawn(train, args=(8,), nprocs=8)", 8),
        ("mp.spawn(train, (), 2, True)", 2), ("mp.spawn(train, nprocs=torch.cuda.device_count())", None),
    ],
)  # fmt: skip
def test_processes_that_a_script_starts(code, processes):
    """Those of Ray Train, Accelerate and torch; none where only running tells."""
    starts = starts_of(ast.parse(code), literal)
    assert (starts.is_any, starts.processes, dict(starts.words)) == (True, processes, {})


def test_what_starts_none():
    """A process of a subprocess, and a call of that name that is none of torch's."""
    for code in ("trainer.train()", "spawn(train)", "subprocess.run(['a'])"):
        assert not starts_of(ast.parse(code), literal).is_any


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (RAY.format("num_workers=2"), {NO_DEVICE}), (RAY.format("num_workers=2, use_gpu=False"), {NO_DEVICE}),
        ("@app.function(gpu='H100:4')\ndef f(): 0", {DRIVES_ALL}), ("@app.cls(gpu='A100-80GB')\nclass A: pass", set()),
        ("@app.function(gpu=modal.gpu.A100(count=2))\ndef f(): 0", {DRIVES_ALL}),
        ("@app.cls(gpu='H100!:8')\nclass A: pass", {DRIVES_ALL}), ("@app.function(gpu='H100:1')\ndef f(): 0", set()),
    ],
)  # fmt: skip
def test_devices_that_are_no_ranks(code, words):
    """Workers without one, and several of one process, decide."""
    assert {*starts_of(ast.parse(code), literal).words} == words
    assert words <= {*OF_STARTS}


@pytest.mark.parametrize("given", ["train.py", "python train.py"])
def test_a_script_that_starts_others_is_answered_for_all(given, tmp_path, monkeypatch):
    """By itself and as a command; a flag that contradicts it is refused, and asked for where the code does not say."""
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "train.py"
    script.write_text(f"from trl import SFTConfig, SFTTrainer\n{TRAINS}{RAY.format('num_workers=16, use_gpu=True')}")
    result = check(given, hardware="dgx-h100").result
    assert (result.setup.cluster["nodes"], result.setup.cluster["devices"]) == (2, 16)
    assert result.setup.training["global_batch"] == 32
    with pytest.raises(UserError, match="16 ranks; allowed: what the text says"):
        check(given, hardware="dgx-h100", gpus=8)
    script.write_text(script.read_text().replace("16", "count()"))
    with pytest.raises(UserError, match="does not say how many nodes it starts"):
        check(given, hardware="dgx-h100")
    assert check(given, hardware="dgx-h100", gpus=4).result.setup.training["global_batch"] == 8
