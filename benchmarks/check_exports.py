"""Hand every export to the real tool's own parser or config classes, and write the tables of option names.

Needs an environment of its own, in which the tools are installed without their dependencies on GPUs:

    pip install torch torchtitan==0.3.0 accelerate==1.15.0 deepspeed==0.19.8   (--no-deps where they ask for CUDA)
    pip download --no-deps megatron-core==0.19.2 megatron-bridge==0.6.2 ; unpack both wheels side by side
    pip install --no-deps triton nemo-run==0.11.1 leptonai==0.26.6 kubernetes, and what they import
    pip install --no-deps trl==1.16.0 axolotl==0.19.0 llamafactory==0.9.5 and what they import; DISABLE_VERSION_CHECK=1
    pip install "sagemaker<3"
    pip download --no-deps --python-version 3.12 --only-binary=:all: maxtext==0.2.5 ; unpack it, put it on PYTHONPATH

Bridge loads configs of released models from the hub, or, where that cannot be reached, from folders of their names in
the working folder (openai/gpt-oss-20b/config.json with its "architectures"). TORCHTITAN_02 is a folder with 0.2.2.

    python benchmarks/check_exports.py [--megatron FOLDER] [--tables] [--only TARGET]

``--tables`` writes ``tests/frameworks/tables/*.yaml`` anew from the installed tools; without it, every plan of the
matrix is exported for every target and read by the tool. Prints a line a target; exits with 1 where a tool refuses one.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import os
import shlex
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

from simpar.architectures.catalogue import load_model
from simpar.errors import UserError
from simpar.frameworks import TARGETS, Exported, export, load_target
from simpar.plan.plan import Plan

ROOT = Path(__file__).parents[1]
TABLES = ROOT / "tests" / "frameworks" / "tables"
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tests" / "frameworks")]

PLANS = importlib.import_module("conftest").PLANS | importlib.import_module("conftest").MIXTURES
TRAINING = importlib.import_module("conftest").TRAINING

MODELS = (
    "llama-3-8b", "llama-3.2-3b", "llama-2-7b", "qwen3-8b", "qwen2.5-7b", "gpt3-6.7b", "mixtral-8x7b", "nemotron-h-8b",
    "nemotron-3-nano", "nemotron-3-super", "gpt-oss-20b", "deepseek-v3", "gemma-7b", "gemma-2-9b", "gemma-3-4b",
)  # fmt: skip


def matrix() -> Iterator[tuple[str, Plan, str]]:
    """Every plan of the matrix for every model it fits."""
    from simpar.layout.decide import complete_plan
    from simpar.plan.choices.target import Workload

    for label, values in PLANS.items():
        for model in MODELS:
            plan = Plan.model_validate({**values, "model": model, "micro_batch": 1})
            graph = load_model(model)
            try:
                checked = complete_plan(plan, Workload(graph, TRAINING, 8, 8))
            except UserError:
                continue  # a plan of 32 layers on a model of 12
            yield f"{label}, {model}", checked, model


def arguments_of(exported: Exported) -> list[str]:
    """The arguments of command.sh after the program."""
    text = exported.files["command.sh"]
    return shlex.split(text[text.index("COMMAND=(") + len("COMMAND=(") : text.rindex(")")])[1:]


def main() -> int:
    """Check every target that has a checker here."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megatron", help="folder with the unpacked wheels of megatron-core and megatron-bridge")
    parser.add_argument("--tables", action="store_true", help="write the tables of option names")
    parser.add_argument("--only", help="one target")
    parser.add_argument("--verbose", action="store_true", help="say what simpar refuses, and why")
    given = parser.parse_args()
    if given.megatron:
        os.environ["MEGATRON_WHEELS"] = given.megatron
    warnings.filterwarnings("ignore")
    bad = 0
    for name in [given.only] if given.only else TARGETS:
        module = importlib.import_module(f"export_checks.{name.replace('-', '_').replace('.', '_')}")
        if given.tables:
            (TABLES / f"{name}.yaml").write_text(module.table())
            print(f"{name}: table written")
            continue
        bad += _check(name, module.check, verbose=given.verbose)
    return 1 if bad else 0


def _check(name: str, tool: Callable[[Exported], None], *, verbose: bool) -> int:
    read, refused, bad = 0, 0, 0
    for label, plan, model in matrix():
        try:
            exported = export(plan, load_model(model), TRAINING, name)
        except UserError as error:
            refused += 1
            if verbose:
                print(f"{name}: {label}: {error}")
            continue
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                tool(exported)
            read += 1
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the tool does, it is a finding
            bad += 1
            print(f"{name}: {label}: {type(error).__name__}: {str(error).splitlines()[:1]}")
    print(f"{name} ({load_target(name).version}): {read} exports read, {refused} refused by simpar, {bad} faults")
    return bad


if __name__ == "__main__":
    sys.exit(main())
