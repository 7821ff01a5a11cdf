"""``simpar ui``: what is refused before anything is served."""

import socket

import pytest

from simpar.cli import run
from simpar.cli.app import BAD_INPUT
from simpar.cli.ui import with_job
from simpar.scenario import load_scenario


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--port", "70000"], "--port 70000: allowed: 1 to 65535"),
        (["no-such-scenario"], "unknown scenario"),
        (["--model", "no-such-model"], "unknown model"),
    ],
)
def test_bad_input_is_one_line(capsys, arguments, words):
    """Exit code 2 and what is allowed."""
    assert run(["ui", "--no-open", *arguments]) == BAD_INPUT
    assert words in capsys.readouterr().err


def test_a_port_in_use_is_refused(capsys):
    """The port is named."""
    pytest.importorskip("uvicorn")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert run(["ui", "gpt2-laptop", "--no-open", "--port", port]) == BAD_INPUT
    assert f"--port {port}: is in use" in capsys.readouterr().err


def test_without_the_web_stack_it_says_what_to_install(capsys, monkeypatch):
    """One line."""
    monkeypatch.setattr("simpar.cli.ui.find_spec", lambda _: None)
    assert run(["ui", "gpt2-laptop", "--no-open"]) == BAD_INPUT
    assert 'pip install ".[ui]"' in capsys.readouterr().err


def test_the_page_starts_with_the_job_that_readme_starts_with():
    """Llama 3 8B under ZeRO-3 on a DGX H100; flags replace what they name, and those of a plan its ZeRO."""
    start = load_scenario(None, with_job({"model": None}, []), [])
    assert (start.model, start.cluster.hardware, start.plan.zero) == ("llama-3-8b", "dgx-h100", 3)
    assert (start.training.seq_len, start.training.global_batch) == (8192, 64)
    settings = ["training.seq_len=1024"]
    start = load_scenario(None, with_job({"model": "qwen3-32b", "plan.tp": 8}, settings), settings)
    assert (start.model, start.cluster.hardware, start.training.seq_len) == ("qwen3-32b", "dgx-h100", 1024)
    assert (start.plan.tp, start.plan.zero) == (8, 0)
