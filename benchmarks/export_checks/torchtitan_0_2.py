"""torchtitan 0.2: its ConfigManager reads the TOML file. Runs in a process of its own: 0.3 has the same name."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from simpar.frameworks import Exported

READ = """
import sys
from torchtitan.config import ConfigManager
config = ConfigManager().parse_args(["--job.config_file", sys.argv[1]])
from torchtitan.models.llama3 import llama3_args
from torchtitan.models.qwen3 import qwen3_args
{"llama3": llama3_args, "qwen3": qwen3_args}[config.model.name][config.model.flavor]
"""
TABLE = """
import dataclasses
from torchtitan.config.job_config import JobConfig
for section in dataclasses.fields(JobConfig):
    kind = section.default_factory
    for f in dataclasses.fields(kind):
        print(section.name + "." + f.name, f.type, sep="\\t")
"""


def _run(code: str, *arguments: str) -> str:
    """Run code with 0.2 first on the path: ``TORCHTITAN_02`` is the folder it was installed into with --target."""
    environment = os.environ | {"PYTHONPATH": os.environ["TORCHTITAN_02"]}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, *arguments],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise ValueError(done.stderr.strip().splitlines()[-1])
    return done.stdout


def check(exported: Exported) -> None:
    """Read the TOML as ``torchtitan.train`` does."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "torchtitan.toml")
        path.write_text(exported.files["torchtitan.toml"])
        _run(READ, str(path))


def table() -> str:
    """Fields of JobConfig."""
    lines = ["# Options by dotted name.", "version: torchtitan 0.2.2, torchtitan/config/job_config.py", "options:"]
    for line in _run(TABLE).splitlines():
        if "\t" not in line:
            continue
        name, kind = line.split("\t")
        literal = kind.startswith("typing.Literal[")
        choices = kind.removeprefix("typing.Literal").replace("'", '"')
        lines.append(f"  {name}: {choices if literal else 'value'}")
    return "\n".join(lines) + "\n"
