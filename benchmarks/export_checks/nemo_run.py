"""NeMo-Run's own executors and what torchrun is told, without a cluster; the recipe is read by Megatron-Bridge."""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

from export_checks import megatron_bridge
from simpar.frameworks import Exported
from simpar.frameworks.nemo_run import EXECUTORS, LAUNCH

TOLD = argparse.Namespace(
    account="a", partition="p", time="04:00:00", host=None, user=None, folder="/tmp/runs", image="i", mount=[],
    namespace="n",
)  # fmt: skip
"""What somebody says who starts it."""


@cache
def nemo_run() -> Any:
    """The package, whose executor on Kubernetes needs no connection here."""
    import nemo_run as run

    run.KubeflowExecutor._load_kube_clients = lambda _: None
    return run


def check(exported: Exported) -> None:
    """Make every executor, and compare ranks with those of the plan; then the recipe."""
    run = nemo_run()
    from nemo_run.run.torchx_backend.packaging import package

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / LAUNCH
        namespace: dict[str, Any] = {"__name__": "launch", "__file__": str(path)}
        exec(compile(exported.files[LAUNCH], str(path), "exec"), namespace)
        for name, make in namespace["EXECUTORS"].items():
            executor, script = make(TOLD)
            assert type(executor) is getattr(run, EXECUTORS[name])
            executor.assign("simpar", folder, "train", "train")
            with mock.patch("shutil.which", return_value=None):
                app = package("train", run.Script(path=script, entrypoint="python"), executor=executor)
            words = [str(word) for word in app.roles[0].args]
            sizes = [int(words[words.index(flag) + 1]) for flag in ("--nnodes", "--nproc-per-node")]
            assert sizes[0] * sizes[1] == exported.plan.mesh.world_size, (name, sizes)
            assert words[-1] == script, (name, words)
    megatron_bridge.check(exported)


def table() -> str:
    """Fields of the executors."""
    lines = ["# Options by executor and field.", "version: nemo-run 0.11.1", "options:"]
    for name, kind in EXECUTORS.items():
        fields = dataclasses.fields(getattr(nemo_run(), kind))
        lines += [f"  {name}.{field.name}: value" for field in fields if field.init]
    return "\n".join(lines) + "\n"
