"""The command line as a user types it: exit codes, one-line errors, what goes to which stream."""

import io
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from typer.main import get_command

from simpar import cli, files
from simpar.cli import about
from simpar.cli.about import SCHEMAS
from simpar.cli.completion import names_of
from simpar.cli.flags import OPERATION_FLAGS, PERTURBATION_FLAGS, RUN_FLAGS, scenario_flags
from simpar.cli.simulate import SIMULATE_FLAGS
from simpar.report.parts import Communication
from simpar.report.result import Result
from simpar.report.sweep import Sweep, Swept, print_sweep
from simpar.shipped import LISTS
from tests.conftest import make_result, make_timeline
from tests.gate import some

HEAVY = ("numpy", "scipy", "pandas", "matplotlib", "networkx", "numba", "torch", "simpy", "pydantic", "ruamel")
COMMANDS = (
    "simulate", "search", "check", "compare", "report", "export", "import", "tokenize", "data", "run", "explain",
    "replay", "ui", "mcp", "plot", "collective", "calibrate", "learn", "validate", "list", "schema", "doctor",
    "hardware",
)  # fmt: skip
SMALL = [
    "--model", "gpt2", "--hardware", "laptop-cpu-4", "--seq-len", "128", "--global-batch", "8", "--precision",
    "fp32",
]  # fmt: skip
FROZEN_FLAGS = {
    "--tokens", "--price-per-gpu-hour", "--jitter", "--seeds", "--over", "--ranks", "--days", "--reliability",
    "--checkpoint",
    "--spares", "--model", "--model-class", "--hardware", "--network", "--nodes", "--gpus", "--seq-len",
    "--global-batch", "--tp", "--pp", "--vpp", "--dp", "--cp", "--ep", "--micro-batch", "--zero", "--hsdp", "--sync",
    "--sequence-parallel/--no-sequence-parallel", "--schedule", "--recompute", "--precision", "--optimizer",
    "--lora-rank", "--frozen-dtype", "--qlora",
    "--stack", "--set", "--json", "--csv", "--trace", "--timeline", "--memory-plot", "--html", "--advise", "--engine",
    "--seed", "--flops-convention", "--require-fit", "--rl", "--jobs",
}  # fmt: skip


def test_the_flags_are_frozen():
    """A flag is added or removed by changing this list, never by accident."""
    tables = (scenario_flags(), RUN_FLAGS, PERTURBATION_FLAGS, OPERATION_FLAGS, SIMULATE_FLAGS)
    assert {flag.spelling for table in tables for flag in table} == FROZEN_FLAGS


def test_jitter_says_mean_and_interval(capsys):
    """Flags alone ask for samples; the report says how steps spread."""
    words = ["--model", "small-llama", "--hardware", "dgx-h100", "--seq-len", "512", "--global-batch", "16"]
    assert cli.run(["simulate", *words, "--jitter", "0.05", "--seeds", "4"]) == 0
    said = capsys.readouterr().out
    assert "Step time under jitter" in said
    assert "mean of 4 seeds" in said
    assert "95 % confidence" in said


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are counted where Linux lists them")
def test_a_command_starts_no_threads_of_blas():
    """They would wait busily; what a command starts has the environment as it was."""
    command = "import os, simpar.cli; simpar.cli.run(['list', 'models'])"
    code = command + "; print('now', len(os.listdir('/proc/self/task')), {})"
    variables = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    for given in ({}, {"OPENBLAS_NUM_THREADS": "1"}):
        asked = code.format("os.environ.get('OPENBLAS_NUM_THREADS')")
        done = subprocess.run([sys.executable, "-c", asked], env=variables | given, capture_output=True, text=True)
        assert done.stdout.splitlines()[-1] == f"now 1 {given.get('OPENBLAS_NUM_THREADS')}"


def test_help_loads_nothing_heavy():
    """Help answers without numerics, plots, validation or torch."""
    code = (
        "import sys; from simpar.cli import run; code = run(['--help']);"
        f"heavy = [m for m in {HEAVY!r} if m in sys.modules]; sys.exit(code or len(heavy))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command, capsys):
    """Each --help ends with a line to copy."""
    assert cli.run([command, "--help"]) == 0
    assert f"Example: simpar {command}" in capsys.readouterr().out


def test_help_lists_shared_flags_by_what_they_say(capsys):
    """The job, the layout, the whole run and noise apart from a command's own options."""
    cli.run(["simulate", "--help"])
    said = capsys.readouterr().out
    assert said.startswith("Usage: simpar simulate [OPTIONS] [SCENARIO]\n")
    titles = [line for line in said.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert titles == ["Arguments:", "Job:", "Layout:", "Whole run:", "Noise:", "Options:"]
    parts = dict(zip(titles, re.split(r"\n\n\w[\w ]*:\n", said)[1:], strict=True))
    where = {"--hardware": "Job:", "--tp": "Layout:", "--qlora": "Layout:", "--tokens": "Whole run:",
             "--reliability": "Whole run:", "--jitter": "Noise:", "--timeline": "Options:"}  # fmt: skip
    assert {flag: [title for title, part in parts.items() if f"\n  {flag} " in f"\n{part}"] for flag in where} == {
        flag: [title] for flag, title in where.items()
    }


def test_there_is_no_command_that_does_not_work_yet(capsys):
    """The help lists exactly the commands that exist."""
    cli.run(["--help"])
    listed = capsys.readouterr().out.split("Commands:\n")[1].split("\n\n")[0]
    assert tuple(line.split()[0] for line in listed.splitlines()) == COMMANDS


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["simulate", "no-such-scenario"], "unknown scenario 'no-such-scenario'"),
        (["simulate", "gpt2-laptob"], "did you mean 'gpt2-laptop'"),
        (["simulate", "missing.yaml"], "missing.yaml"),
        (["simulate"], "--model"),
        (["simulate", "gpt2-laptop", "--tp", "many"], "--tp"),
        (["simulate", "gpt2-laptop", "--tpp", "2"], "--tpp"),
        (["simulate", "gpt2-laptop", "--zero", "4"], "zero = 4"),
        (["simulate", "gpt2-laptop", "--set", "plan.zero"], "--set plan.zero"),
        (["simulate", "gpt2-laptop", "--set", "plan.zer=1"], "plan.zer"),
        (["simulate", "gpt2-laptop", "--model", "gpt5"], "gpt5"),
        (["simulate", "gpt2-laptop", "--hardware", "dgx-h1000"], "did you mean 'dgx-h100'"),
        (["simulate", "gpt2-laptop", "--hardware", "dgx-h10"], "did you mean 'dgx-h100'"),
        (["simulate", "Llama-3-8B"], "is a model, not a scenario: use --model llama-3-8b --hardware NAME"),
        (["simulate", "gpt2-laptop", "--num-gpus", "8"], "did you mean --gpus"),
        (["simulate", "gpt2-laptop", "--schedule", "zero-bubble"], "did you mean 'zb-h1' or 'zb-h2' or 'zb-v'"),
        (["simulate", "gpt2-laptop", "--set", "zero=3"], "did you mean --set plan.zero=...?"),
        (["simulate", "gpt2-laptop", "--set", "seq_len=8"], "did you mean --set training.seq_len=...?"),
        (["simulate", "gpt2-laptop", "--set", "training.seq_len=4k"], "write the number out: 4096 or 4000"),
        (["simulate", "gpt2-laptop", "--seq-len", "4k"], "write the number out: 4096 or 4000"),
        (["simulate", "gpt2-laptop", "--global-batch=2M"], "write the number out: 2097152 or 2000000"),
        (["simulate", "gpt2-laptop", "--zero", "zero3"], "'--zero': 'zero3' is no whole number; allowed: 0, 1, 2, 3"),
        (["simulate", "gpt2-laptop", "--zero", "4"], "plan.zero = 4: allowed: 0, 1, 2 or 3"),
        (["simulate", "gpt2-laptop", "--vpp", "2"], "--vpp 2: chunks are those of pipeline ranks"),
        (["compare", "llama-3-8b", "gpt2-laptop"], "is a model, not a scenario"),
        (["simulate", "gpt2-laptop", "--recompute", "some"], "recompute"),
        (["simulate", "gpt2-laptop", "--engine", "magic"], "magic"),
        (["simulate", "gpt2-laptop", "--seq-len", "1000000000000000"], "training.seq_len = 1000000000000000"),
        (["simulate", "gpt2-laptop", "--global-batch", "8000000000000"], "training.global_batch = 8000000000000"),
        (
            ["simulate", "gpt2-laptop", "--global-batch", "8000000000", "--micro-batch", "1000000000", "--pp", "1"],
            "plan.micro_batch = 1000000000",
        ),
        (["simulate", "gpt2-laptop", "--jitter", "5"], "perturbation.jitter.sigma = 5"),
        (["simulate", "gpt2-laptop", "--jitter", "0.1", "--seeds", "0"], "perturbation.jitter.seeds = 0"),
        (["simulate", "gpt2-laptop", "--set", "perturbation.slow_ranks.0=1e15"], "perturbation.slow_ranks.0 = 1"),
        (
            [
                "simulate",
                "gpt2-laptop",
                "--hardware",
                "dgx-h100",
                "--nodes",
                "1",
                "--pp",
                "2",
                "--tp",
                "2",
                "--engine",
                "sweep",
            ],
            "engine = sweep: link port_tx",
        ),
        (["export", "missing.json", "--to", "megatron", "-o", "x"], "missing.json"),
        (["export", "gpt2-laptop", "-o", "x"], "--to is missing"),
        (["export", "gpt2-laptop", "--to", "megatrom", "-o", "x"], "did you mean 'megatron'"),
        (["import", "missing.sh", "--from", "megatron"], "missing.sh"),
        (["import", __file__, "--from", "megatrom"], "did you mean 'megatron'"),
        (["plot", "missing.json"], "missing.json"),
        (["validate", "missing.csv"], "missing.csv"),
        (["validate", __file__], "column"),
        (["list", "modles"], "did you mean 'models'"),
        (["schema", "plans"], "did you mean 'plan'"),
        (["simulat"], "simulate"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, words, capsys):
    """What the user can mend: the culprit in one line on standard error, nothing on standard output."""
    assert cli.run(arguments) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert words in error
    assert error.count("\n") == 1
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("command", "name", "typed", "wanted"),
    [
        ("simulate", "--model", "llama-3-8", "llama-3-8b"), ("simulate", "--hardware", "dgx-h", "dgx-h100"),
        ("simulate", "--stack", "nem", "nemo"), ("simulate", "--schedule", "zb", "zb-h1"),
        ("search", "scenario", "gpt2", "gpt2-laptop"), ("simulate", "--reliability", "meta-r", "meta-rsc-1"),
        ("list", "what", "mod", "models"),
    ],
)  # fmt: skip
def test_a_shell_completes_names(command, name, typed, wanted):
    """Models, scenarios, hardware and the rest, by what is typed."""
    group = get_command(cli.app)
    context = group.make_context("simpar", [], resilient_parsing=True)
    found = group.get_command(context, command)
    words = [parameter for parameter in found.params if name in (parameter.name, *parameter.opts)]
    assert wanted in [item.value for item in words[0].shell_complete(context, typed)]


def test_a_shell_completes_files(tmp_path, monkeypatch):
    """Where a name may be that of a file; folders go on."""
    (tmp_path / "plans").mkdir()
    (tmp_path / "plan.yaml").write_text("")
    (tmp_path / "notes.txt").write_text("")
    monkeypatch.chdir(tmp_path)
    assert names_of("scenarios")("pl") == ["plan.yaml", "plans/"]


@pytest.mark.parametrize("width", [80, 180])
def test_a_sweep_is_as_wide_as_the_terminal(width):
    """Columns that do not fit are left out whole and named; refusals are lines of their own."""
    sent = Communication(algorithm="ring", bytes_per_rank=1.0, busy_s=0.0692, exposed_s=0.0403)
    result = replace(make_result(make_timeline(2, 4)), communication=dict.fromkeys("abcd", sent))
    rows = [
        Swept({"zero": "1", "recompute": "full"}, result),
        Swept({"zero": "3", "recompute": "none"}, None, "no " * 40),
    ]
    out = Console(width=width, file=io.StringIO(), force_terminal=True, no_color=True)
    print_sweep(Sweep(tuple(rows)), out)
    said = re.sub(r"\x1b\[[0-9;]*m", "", out.file.getvalue()).splitlines()
    table = said[: next(at for at, line in enumerate(said) if line.startswith("left out"))] if width == 80 else said[:4]
    assert all(len(line.rstrip()) <= width for line in table)
    assert not any("…" in line for line in said)
    assert f"zero=3 recompute=none: {'no ' * 40}".strip() in "\n".join(said)
    assert any(line.startswith("left out for width: a busy / exposed") for line in said) == (width == 80)


def test_json_to_standard_output_is_all_there_is(capsys):
    """--json - prints one JSON object and nothing else."""
    assert cli.run(["simulate", *SMALL, "--json", "-"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["step_time_s"] > 0
    assert sum(data["time_breakdown_s"].values()) == pytest.approx(data["step_time_s"])


def test_one_run_writes_every_output(tmp_path, capsys):
    """JSON, trace, timeline and memory plot of one run; the report still goes to standard output."""
    names = {"--json": "r.json", "--trace": "t.json", "--timeline": "t.svg", "--memory-plot": "m.html"}
    wanted = [word for flag, name in names.items() for word in (flag, str(tmp_path / name))]
    assert cli.run(["simulate", *SMALL, *wanted]) == 0
    assert "Limiting factors" in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names.values())
    assert "traceEvents" in json.loads((tmp_path / "t.json").read_text())


@pytest.mark.parametrize("kind", some(["timeline", "memory", "breakdown", "heatmap"], ["memory", "breakdown"]))
def test_a_saved_result_can_be_plotted(result, kind, tmp_path, capsys):
    """Simpar plot reads what simulate --json wrote."""
    result.save(tmp_path / "r.json")
    assert cli.run(["plot", str(tmp_path / "r.json"), "--kind", kind, "-o", str(tmp_path / "p.svg")]) == 0
    assert (tmp_path / "p.svg").stat().st_size > 1000
    assert "wrote" in capsys.readouterr().out


def test_a_saved_result_is_a_result(tmp_path, capsys):
    """Result.load reads the file back."""
    assert cli.run(["simulate", *SMALL, "--json", str(tmp_path / "r.json")]) == 0
    assert Result.load(tmp_path / "r.json").step_time_s > 0
    assert capsys.readouterr().err == ""


def test_the_same_command_gives_the_same_bytes(tmp_path):
    """No clock time, host or path in the JSON."""
    for name in ("a.json", "b.json"):
        assert cli.run(["simulate", *SMALL, "--json", str(tmp_path / name)]) == 0
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


def test_require_fit_exits_with_3_where_it_does_not_fit(capsys):
    """A 175-billion-parameter model does not fit on a laptop; without the flag that is no error."""
    big = ["simulate", *SMALL, "--model", "gpt3-175b"]
    assert cli.run([*big, "--require-fit"]) == 3
    assert cli.run(big) == 0
    assert "DOES NOT FIT" in capsys.readouterr().out


def test_flops_convention_moves_mfu_and_not_time(capsys):
    """Causal attention counts half the score matrix: less model FLOP, the same step."""
    found = {}
    for convention in ("full", "causal"):
        assert cli.run(["simulate", *SMALL, "--json", "-", "--flops-convention", convention]) == 0
        found[convention] = json.loads(capsys.readouterr().out)
    assert found["full"]["step_time_s"] == found["causal"]["step_time_s"]
    assert found["full"]["mfu"] > found["causal"]["mfu"]


COLUMNS = (
    "source,model_name,n_layers,hidden,n_heads,vocab,seq_len,gpu_type,gpus_per_node,n_gpus,precision,tp,pp,vpp,dp,"
    "zero_stage_or_fsdp,micro_batch,global_batch_seqs,recompute,schedule,seq_parallel,attention_kernel,stack,"
    "iteration_time_s,status"
)
SINGLE = "none,True,unfused,megatron"
PIPELINE = "interleaved 1F1B,True,unfused,megatron"
COMMON = "51200,2048,A100 SXM 80GB,8"
MEASURED = (  # two rows of Korthikanti et al. 2022, arXiv 2205.05198, Table 5, and one without its layers
    f"Table 5,GPT-3-175B,96,12288,96,{COMMON},64,fp16,8,8,3,1,zero0,1,64,selective,{PIPELINE},13.75,ok",
    f"Table 5,GPT-22B,48,6144,64,{COMMON},8,fp16,8,1,1,1,zero0,4,4,selective,{SINGLE},1.1,ok",
    f"Elsewhere,Mystery,,6144,64,{COMMON},8,fp16,8,1,1,1,zero0,4,4,none,none,True,flash,megatron,1,ok",
)
VALIDATION_KEYS = {
    "rows", "modelled", "unmodelled_reasons", "time_ape_median", "time_ape_mean", "time_ape_p90",
    "memory_ape_median", "static_memory_ape_median", "kendall_tau", "fit_accuracy", "fit_confusion",
    "regret_mean", "regret_max", "by_source", "rows_detail",
}  # fmt: skip


def test_validate_reports_errors_and_what_it_cannot_model(tmp_path, capsys):
    """Every row is counted: predicted, or given a reason."""
    (tmp_path / "t.csv").write_text("\n".join((COLUMNS, *MEASURED)))
    assert cli.run(["validate", str(tmp_path / "t.csv"), "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) >= VALIDATION_KEYS
    assert (found["rows"], found["modelled"]) == (3, 2)
    assert sum(found["unmodelled_reasons"].values()) == 1
    assert found["time_ape_median"] < 30
    assert cli.run(["validate", str(tmp_path / "t.csv")]) == 0
    text = capsys.readouterr().out
    for word in ("GPT-22B", "Table 5", "not modelled", "Not modelled", "all"):
        assert word in text


@pytest.mark.parametrize("what", LISTS)
def test_lists_name_what_other_commands_take(what, capsys):
    """Every list is readable text, and JSON on request."""
    assert cli.run(["list", what]) == 0
    text = capsys.readouterr().out
    assert cli.run(["list", what, "--json", "-"]) == 0
    names = json.loads(capsys.readouterr().out)
    assert names
    words = " ".join(text.split())
    assert all(name in text for name in names)
    assert all(" ".join(said.split()[:4]) in words for said in names.values())


def test_schedules_say_what_they_are(capsys):
    """The list of schedules has a sentence and its citation for each."""
    assert cli.run(["list", "schedules"]) == 0
    text = capsys.readouterr().out
    assert "then F and B in turn [arXiv 2006.09503]" in text
    assert "ordered:" not in text


@pytest.mark.parametrize("what", SCHEMAS)
def test_schemas_are_printed(what, capsys):
    """Each schema is a JSON object with properties."""
    assert cli.run(["schema", what]) == 0
    assert json.loads(capsys.readouterr().out)["properties"]


@pytest.mark.parametrize(("what", "kind"), [("profile", "clusters"), ("device", "devices"), ("stack", "stacks")])
def test_schemas_take_the_files_that_ship(what, kind):
    """Quantities with units, power as one or by parts; a file that is like another needs its name only."""
    jsonschema = pytest.importorskip("jsonschema", reason="an editor's validator is not installed")
    schema = jsonschema.Draft202012Validator(about.json_schema(what))
    for path in (*files.bundled(kind).values(),)[:6]:
        assert not list(schema.iter_errors(files.load(path).data)), path
    assert schema.is_valid({"name": "ours", "like": "another"})
    assert not schema.is_valid({"name": "ours"})
    assert not schema.is_valid({"name": "ours", "like": "another", "lik": "third"})


def test_a_profile_is_shown_as_it_is_read(tmp_path, capsys):
    """With what comes from the one that it is like; its device on request; a mistake is one line."""
    path = tmp_path / "ours.yaml"
    path.write_text("name: ours\nlike: dgx-h100\nhost:\n  memory_bytes: 1 TiB\n")
    assert cli.run(["hardware", "show", str(path)]) == 0
    said = capsys.readouterr().out
    assert "memory_bytes: 1 TiB\n" in said
    assert "nics_per_node: 8 # like hgx-h100" in said
    assert cli.run(["hardware", "show", str(path), "--device", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "h100-sxm-80gb"
    assert cli.run(["hardware", "show", "dgx-h100 over 25GbE"]) == 0
    assert "kind: ethernet\n  nics_per_node: 1\n  nic_bandwidth: 3.125 GB/s" in capsys.readouterr().out
    path.write_text("name: ours\nlike: dgx-h101\n")
    assert cli.run(["hardware", "show", str(path)]) == 2
    assert "did you mean 'dgx-h100'" in capsys.readouterr().err


def test_doctor_lists_versions(capsys):
    """What a bug report needs."""
    assert cli.run(["doctor", "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"simpar", "python", "numpy", "simpy"} <= set(found)


def test_version(capsys):
    """--version prints the version."""
    assert cli.run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("simpar ")


def test_an_interrupt_exits_with_130(monkeypatch, capsys):
    """Ctrl-C is no traceback but one word."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(about, "_versions", interrupted)
    assert cli.run(["doctor"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_our_own_bugs_are_not_hidden(monkeypatch):
    """An unexpected error is not dressed up as the user's: it propagates and exits with 1."""

    def broken() -> None:
        raise RuntimeError("bug")

    monkeypatch.setattr(about, "_versions", broken)
    with pytest.raises(RuntimeError, match="bug"):
        cli.run(["doctor"])


def test_an_unwritable_file_is_the_users_to_mend(result, tmp_path, capsys):
    """Writing into a folder that does not exist is exit code 2 and names the file."""
    result.save(tmp_path / "r.json")
    target = tmp_path / "no" / "p.png"
    assert cli.run(["plot", str(tmp_path / "r.json"), "-o", str(target)]) == 2
    assert str(target) in capsys.readouterr().err


def told_a_shell(**asked):
    """What the program answers a shell that completes."""
    environment = os.environ | {"PYTHONPATH": str(Path(cli.__file__).parents[2])} | asked
    command = [sys.executable, "-c", "from simpar.cli import main; main()"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60).stdout


@pytest.mark.parametrize(
    ("words", "expected"),
    some(
        [("simpar exp", "export"), ("simpar simulate --hard", "--hardware"), ("simpar comp", "compare")], 2, tuples=True
    ),
)
def test_commands_and_flags_complete_in_a_shell(words, expected):
    """What bash asks when Tab is pressed."""
    asked = {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    assert expected in told_a_shell(_SIMPAR_COMPLETE="complete_bash", **asked).splitlines()


def test_a_shell_is_given_its_script():
    """The one that --install-completion writes."""
    assert "complete -o default" in told_a_shell(_SIMPAR_COMPLETE="source_bash")


def test_python_m_simpar_is_the_same(tmp_path):
    """The module runs from any folder and finds the shipped data."""
    environment = os.environ | {"PYTHONPATH": str(Path(cli.__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-m", "simpar", "list", "scenarios"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "gpt2-laptop" in done.stdout


def test_a_page_from_simulate_and_from_report_are_the_same(tmp_path, capsys, monkeypatch):
    """Advice travels in the JSON; --advise computes it from a saved result."""
    few = {"tp": 2}, {"micro_batch": 2}, {"recompute": "full"}
    monkeypatch.setattr("simpar.neighbours.single_changes", lambda *_, **__: iter(few))
    page, saved, again = (str(tmp_path / name) for name in ("a.html", "r.json", "b.html"))
    assert cli.run(["simulate", *SMALL, "--html", page, "--json", saved]) == 0
    assert "Neighbouring layouts, simulated" in capsys.readouterr().out
    assert cli.run(["report", saved, "-o", again]) == 0
    assert Path(page).read_bytes() == Path(again).read_bytes()
    assert cli.run(["simulate", *SMALL, "--json", saved]) == 0
    assert cli.run(["report", saved, "-o", again, "--advise"]) == 0
    assert Path(page).read_bytes() == Path(again).read_bytes()
