"""Simulate and plan distributed training of large models.

    import simpar
    model   = simpar.Model("llama-3-8b")                   # or a config.json
    cluster = simpar.Cluster("dgx-h100", nodes=2)
    plan    = simpar.Plan(tp=2, zero=1, micro_batch=1)
    result  = simpar.simulate(model, cluster, plan, simpar.Training(seq_len=8192, global_batch=64))
    result.plot_timeline("timeline.png")

Names are imported when first used, so that importing the package costs nothing.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from simpar.deprecated import MovedModules

if TYPE_CHECKING:
    from pathlib import Path

    from simpar.architectures.catalogue import list_models as models
    from simpar.architectures.graph import ModelGraph
    from simpar.architectures.training import Training
    from simpar.diagnosis.answer import explain
    from simpar.errors import Infeasible, UserError
    from simpar.hardware import cluster as _cluster
    from simpar.hardware.catalogue import list_clusters as clusters
    from simpar.hardware.device import load_device
    from simpar.hardware.profile import ClusterProfile
    from simpar.learning.answer import learn
    from simpar.plan.mesh import Mesh
    from simpar.plan.plan import Plan
    from simpar.plan.schedules import make_schedule
    from simpar.plan.schedules.actions import Action, Schedule
    from simpar.planner.api import search
    from simpar.planner.problem import Constraints
    from simpar.planner.result import SearchResult
    from simpar.posttraining.search import search_post_training
    from simpar.posttraining.simulate import post_train
    from simpar.program.perturbation import Perturbation
    from simpar.report.plots import save_plot
    from simpar.report.result import Result
    from simpar.report.timeline import Timeline
    from simpar.report.trace import write_trace
    from simpar.scenario import Scenario, load_scenario
    from simpar.simulation import simulate
    from simpar.stacks.stack import load_stack
    from simpar.translate import export, import_plan
    from simpar.validation.table import validate
    from simpar.verbs import check, compare, sweep

    # as type checkers should see them: a call of either gives an object of the class that it stands for
    class Model(ModelGraph):  # noqa: D101
        def __init__(self, name: str | Path, *, seq_len: int = 256) -> None: ...

    class Cluster(_cluster.Cluster):  # noqa: D101
        def __init__(
            self, profile: str | Path | ClusterProfile, nodes: int | None = None, *, devices: int | None = None
        ) -> None: ...


__version__ = "0.2.0"

_CONTENTS = (
    ("Model", "inputs:Model", "a model by name, config.json or module:function of yours"),
    ("ModelGraph", "architectures.graph:ModelGraph", "what Model gives: operators with named dims"),
    ("Cluster", "inputs:Cluster", "nodes of a hardware profile"),
    ("load_device", "hardware.device:load_device", "one accelerator's rates and memory"),
    ("Training", "architectures.training:Training", "sequence length and global batch"),
    ("Plan", "plan.plan:Plan", "how the step is split; save and load"),
    ("Mesh", "plan.mesh:Mesh", "ranks, coordinates and process groups"),
    ("make_schedule", "plan.schedules:make_schedule", "a pipeline schedule as a table of actions"),
    ("Schedule", "plan.schedules.actions:Schedule", "what make_schedule gives"),
    ("Action", "plan.schedules.actions:Action", "one pass of one stage over one microbatch"),
    ("load_stack", "stacks.stack:load_stack", "habits of a training software stack"),
    ("Perturbation", "program.perturbation:Perturbation", "slow ranks and jitter"),
    ("simulate", "simulation:simulate", "the step of one plan"),
    ("search", "planner.api:search", "the best plans for a cluster, certified"),
    ("Constraints", "planner.problem:Constraints", "limits of a search: fixed axes, space, memory"),
    ("SearchResult", "planner.result:SearchResult", "what search gives: candidates and the certificate"),
    ("post_train", "posttraining.simulate:post_train", "a whole step of reinforcement learning"),
    ("search_post_training", "posttraining.search:search_post_training", "its best pools, layouts and synchrony"),
    ("explain", "diagnosis.answer:explain", "where a measured step went, from profiler traces"),
    ("sweep", "verbs:sweep", "one simulation for every combination of some values"),
    ("compare", "verbs:compare", "two results side by side, and why they differ"),
    ("check", "verbs:check", "a launch command or config of another framework, before it is started"),
    ("export", "translate:export", "a plan as the files of another framework"),
    ("import_plan", "translate:import_plan", "a plan from the files of another framework"),
    ("learn", "learning.answer:learn", "a stack and a cluster from a few measured runs"),
    ("validate", "validation.table:validate", "predicted against measured, row by row"),
    ("models", "architectures.catalogue:list_models", "shipped models by name"),
    ("clusters", "hardware.catalogue:list_clusters", "shipped hardware by name"),
    ("Result", "report.result:Result", "what simulate gives; plots, JSON, tables"),
    ("Timeline", "report.timeline:Timeline", "every op of the step, class by class"),
    ("save_plot", "report.plots:save_plot", "timeline, memory, breakdown or heat map to a file"),
    ("write_trace", "report.trace:write_trace", "a timeline for Perfetto"),
    ("Scenario", "scenario:Scenario", "model, cluster, training and plan in one file"),
    ("load_scenario", "scenario:load_scenario", "a scenario by name or file, with overrides"),
    ("UserError", "errors:UserError", "input that the user can mend, in one line"),
    ("Infeasible", "errors:Infeasible", "good input without a feasible answer"),
)
_HOME = {name: home for name, home, _ in _CONTENTS}

__all__ = [
    "Action",
    "Cluster",
    "Constraints",
    "Infeasible",
    "Mesh",
    "Model",
    "ModelGraph",
    "Perturbation",
    "Plan",
    "Result",
    "Scenario",
    "Schedule",
    "SearchResult",
    "Timeline",
    "Training",
    "UserError",
    "__version__",
    "check",
    "clusters",
    "compare",
    "explain",
    "export",
    "import_plan",
    "learn",
    "load_device",
    "load_scenario",
    "load_stack",
    "make_schedule",
    "models",
    "post_train",
    "save_plot",
    "search",
    "search_post_training",
    "simulate",
    "sweep",
    "validate",
    "write_trace",
]

__doc__ += "\nContents:\n\n" + "\n".join(f"    {name:<14} {what}" for name, _, what in _CONTENTS) + "\n"


sys.meta_path.append(MovedModules())


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'simpar' has no attribute {name!r}")
    from simpar.beside import mixture

    if refusal := mixture():
        raise ImportError(refusal)
    module, _, attribute = _HOME[name].partition(":")
    return getattr(import_module(f"simpar.{module}"), attribute)


def __dir__() -> list[str]:
    return __all__
