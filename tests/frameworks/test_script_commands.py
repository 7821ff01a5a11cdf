"""Commands that code in Python starts, and what is told where only running would say them."""

import pytest

from simpar.errors import UserError
from simpar.frameworks.script_commands import shell_of_code
from simpar.preflight.given import given_file, given_words

TRAIN = "train.py --model_name_or_path Qwen/Qwen2.5-7B --bf16 True --per_device_train_batch_size 2 --max_length 2048"
LAUNCH = f"torchrun --nproc_per_node 4 {TRAIN}"
WORDS = LAUNCH.split()
HEAD = "import os, shlex, subprocess, sys\n"
HALVES = f"cmd = {WORDS[:5]}\ncmd += {WORDS[5:9]}\ncmd.extend({WORDS[9:-1]})\ncmd.append('2048')\n"
PARSER = "import argparse\np = argparse.ArgumentParser()\n"
RUNS = {
    "a list": f"subprocess.run({WORDS}, check=True)",
    "a text": f"subprocess.check_call('{LAUNCH}', shell=True)",
    "a text in two": f"subprocess.Popen('{LAUNCH[:30]}' '{LAUNCH[30:]}', shell=True)",
    "os.system": f"os.system('{LAUNCH}')",
    "words of a text": f"cmd = '{LAUNCH}'\nsubprocess.call(cmd.split())",
    "shlex": f"subprocess.run(shlex.split('{LAUNCH}'))",
    "a name": f"cmd = {WORDS}\nsubprocess.run(cmd)",
    "an imported function": f"from subprocess import run, PIPE\nrun({WORDS})",
    "a list that grows": f"{HALVES}subprocess.run(cmd)",
    "a list that grows in a function": "def main():\n    "
    + HALVES.replace("\n", "\n    ")
    + "subprocess.run(cmd)\nmain()",
    "a function that starts it": f"def run(what):\n    subprocess.run(what, shell=True)\nrun('{LAUNCH}')",
    "lists put together": f"subprocess.run({WORDS[:4]} + {WORDS[4:]})",
    "a list in a list": f"own = {WORDS[4:]}\nsubprocess.run([{str(WORDS[:4])[1:-1]}, *own])",
    "an f-string": f"n = 4\nsubprocess.run(f'{LAUNCH.replace('_node 4', '_node {n}')}', shell=True)",
    "a branch that runs": f"big = True\nif big:\n    subprocess.run({WORDS})\nelse:\n    os.system('torchrun a.py')",
    "a switch that is off": f"{PARSER}p.add_argument('--half', action='store_true')\na = p.parse_args()\n{HALVES}"
    "if a.half:\n    cmd += ['--fp16']\nsubprocess.run(cmd)",
    "beside other commands": f"subprocess.run(['nvidia-smi'])\nsubprocess.run({WORDS})\nos.system('ls ' + sys.argv[1])",
}


def is_launch(command):
    """As the tests' launcher is."""
    return "torchrun" in command or "torch.distributed.run" in command


@pytest.mark.parametrize("code", RUNS.values(), ids=RUNS)
def test_a_launch_that_code_starts(code):
    """It is the one command, however the code writes it."""
    assert shell_of_code(HEAD + code, "a.py", is_launch).split() == WORDS


def test_the_interpreter_of_a_script():
    """Is python by its usual name."""
    code = (
        f"{HEAD}subprocess.run([sys.executable, '-m', 'torch.distributed.run', '--nproc_per_node=4', *{TRAIN.split()}])"
    )
    assert shell_of_code(code, "a.py", is_launch).startswith(
        "python -m torch.distributed.run --nproc_per_node=4 train.py "
    )


@pytest.mark.parametrize(
    ("code", "sets"),
    [
        (f"os.environ['CUDA_VISIBLE_DEVICES'] = '0,1'\nos.system('{LAUNCH}')", "export CUDA_VISIBLE_DEVICES=0,1\n"),
        (f"@app.function(gpu='H100:2')\ndef f():\n    os.system('{LAUNCH}')", "export CUDA_VISIBLE_DEVICES=0,1\n"),
        (f"@app.function(gpu='H100')\ndef f():\n    os.system('{LAUNCH}')", "export CUDA_VISIBLE_DEVICES=0\n"),
        (
            f"N = 2\nG = f'H100:{{N}}'\n@app.function(gpu=G)\ndef f():\n    os.system('{LAUNCH}')",
            "export CUDA_VISIBLE_DEVICES=0,1\n",
        ),
        (
            f"N = 2\n@app.cls(gpu=gpu.A100(count=N))\nclass A:\n    def f(self):\n        os.system('{LAUNCH}')",
            "export CUDA_VISIBLE_DEVICES=0,1\n",
        ),
        (
            f"G = gpu.A100(count=1, memory=80)\n@app.function(gpu=G)\ndef f():\n    os.system('{LAUNCH}')",
            "export CUDA_VIS",
        ),
        (f"@app.function(gpu=None)\ndef f():\n    os.system('{LAUNCH}')", "torchrun"),
        (f"subprocess.run({WORDS}, env={{**os.environ, 'NPROC_PER_NODE': '2'}})", "NPROC_PER_NODE=2 torchrun"),
        (f"own = os.environ.copy()\nsubprocess.run({WORDS}, env=os.environ.copy())", "torchrun"),
        (
            f"env = os.environ.copy()\nenv['NPROC_PER_NODE'] = '2'\nsubprocess.run({WORDS}, env=env)",
            "NPROC_PER_NODE=2 torchrun",
        ),
        (
            f"def f():\n    e = dict(os.environ)\n    e.update({{'A': 1}}, B='2')\n    subprocess.run({WORDS}, env=e)",
            "A=1 B=2 torchrun",
        ),
        (
            f"env = {{**os.environ, 'A': '1'}}\nenv['A'] = '3'\nprint(env.get('A'))\nsubprocess.run({WORDS}, env=env)",
            "A=1 A=3 torchrun",
        ),
        (f"env = os.environ.copy()\nsubprocess.run({WORDS}, env=env)\nenv['A'] = '3'", "torchrun"),
    ],
)
def test_variables_and_devices_of_a_launch(code, sets):
    """What the code sets, what the call gives, and the devices of Modal's function."""
    assert shell_of_code(HEAD + code, "a.py", is_launch).startswith(sets)


@pytest.mark.parametrize(
    ("code", "untold"),
    [
        (f"subprocess.run([*{WORDS}, '--seed', sys.argv[1]])", "a.py:2: sys.argv[1]"),
        (f"subprocess.run(f'{LAUNCH} {{sys.argv[1]}}', shell=True)", "a.py:2: sys.argv[1]"),
        (
            f"env = os.environ.copy()\nif os.path.exists('a'):\n    env['A'] = '1'\nsubprocess.run({WORDS}, env=env)",
            "a.py:5: env['A']",
        ),
        (
            f"env = os.environ.copy()\nenv.update(load())\nsubprocess.run({WORDS}, env=env)",
            "a.py:4: env.update(load())",
        ),
        (
            f"{HALVES}if os.path.exists('a'):\n    cmd.append('--fp16')\nsubprocess.run(cmd)",
            "a.py:8: os.path.exists('a')",
        ),
        (f"{HALVES}for each in sys.argv:\n    cmd += [each]\nsubprocess.run(cmd)", "a.py:8: sys.argv"),
        (f"subprocess.run({WORDS}, env=made())", "a.py:2: made()"),
        (f"@app.function(gpu=G)\ndef f():\n    os.system('{LAUNCH}')", "a.py:4: app.function(gpu=G)"),
        (
            f"@app.function(gpu='T4')\ndef g(): 0\n@app.function(gpu='H100:8')\ndef f(): 0\nos.system('{LAUNCH}')",
            "a.py:6: app.f",
        ),
    ],
)
def test_what_only_running_tells(code, untold):
    """The line and the value are named, and what to give instead."""
    with pytest.raises(UserError, match=r"only running tells.*simpar check -- COMMAND") as told:
        shell_of_code(HEAD + code, "a.py", is_launch)
    assert str(told.value).startswith(untold)


@pytest.mark.parametrize(
    "code",
    [
        "subprocess.run(['ls', '-l'])",
        "os.system('pip install trl')",
        f"print({WORDS})",
        "subprocess.run(made())",
        "not python (",
    ],
)
def test_code_that_starts_no_launch(code):
    """Other commands, and texts that are not started."""
    assert shell_of_code(HEAD + code, "a.py", is_launch) == ""


def test_a_script_is_answered_for_what_it_starts(tmp_path, monkeypatch):
    """By its name or as a command, whose flags and variables count; not where a launcher starts it several times."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "go.py").write_text(
        f"{HEAD}import argparse\np = argparse.ArgumentParser()\np.add_argument('--gpus', default=4)\n"
        "a = p.parse_args()\n"
        f"os.system(f'{LAUNCH.replace('_node 4', '_node {a.gpus}')}')\n"
    )
    alone = given_file("go.py")
    assert (alone.launch.per_node, alone.found.plan.micro_batch, alone.text.syntax) == (4, 2, None)
    assert any("what the code starts: torchrun --nproc_per_node 4" in note for note in alone.launch.notes)
    assert given_words(["python", "go.py", "--gpus", "2"]).launch.per_node == 2
    visible = given_words(["CUDA_VISIBLE_DEVICES=0,1", "python", "go.py", "--gpus", "2"]).launch
    assert visible.environment["CUDA_VISIBLE_DEVICES"] == "0,1"
    with pytest.raises(UserError, match=r"go\.py is no script that is known"):
        given_words(["torchrun", "--nproc_per_node", "2", "go.py"])
