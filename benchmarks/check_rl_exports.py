"""Hand exports of steps of reinforcement learning to the configs of verl and NeMo-RL, as they stand in a checkout.

verl's own files are composed by Hydra with the exported words, and its dataclasses made of what comes out; NeMo-RL's
loader lays the exported file over its example, and pydantic holds the result against its TypedDicts. Modules that need
devices, Ray or transformers are left out. Needs an environment of its own, and checkouts of both:

    pip install omegaconf hydra-core torch
    python benchmarks/check_rl_exports.py --verl FOLDER --nemo-rl FOLDER

Prints a line an export, and exits with 1 where one is refused. Tried with volcengine/verl b178a3c and
NVIDIA-NeMo/RL 7ea279a.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import io
import os
import shlex
import sys
import tempfile
import types
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any, NotRequired

from typing_extensions import TypedDict

import simpar
from simpar.errors import UserError
from simpar.posttraining.exports import export_post_training

SCENARIO = "grpo-qwen2.5-7b-16-h100"
APART = ("placement=split", "rollout.nodes=1", "synchrony.steps_off=1")
SECTIONS = {
    "in turns": (),
    "apart": APART,
    "interrupted": (*APART, "synchrony.in_flight=true", "synchrony.recompute_cache=false"),
    "two off": (*APART[:2], "synchrony.steps_off=2"),
    "ppo": ("algorithm=ppo",),
    "narrow": ("rollout.precision=fp8_blockwise", "rollout.engine.cache_dtype=fp8"),
    "narrow weights": ("rollout.precision=fp8",),
    "other passes": ("passes.old_policy=false", "passes.critic=qwen2.5-1.5b", "passes.reward=qwen2.5-1.5b"),
    "kept": ("weights.offload=false", "weights.sleep=false", "passes.reference=false"),
    "padded": ("lengths.padding=context", "passes.micro_batch=4", "epochs=2"),
    "longest": ("lengths.padding=longest", "passes.micro_batch=2"),
    "packed passes": ("passes.micro_batch=4", "algorithm=ppo"),
    "states": ("rollout.states.dtype=fp32",),
    "wide": ("rollout.tp=4", "rollout.engine.graphs=false", "rollout.engine.prefix_sharing=false"),
}
REFUSALS = (AssertionError, AttributeError, KeyError, TypeError, ValueError)
"""What the tools raise beside the errors of their libraries."""
CORE = {"plan.kind": "ddp", "plan.zero": 1, "stack": "megatron"}
PLANS: dict[str, dict[str, Any]] = {
    "fsdp": {},
    "ulysses": {"plan.cp": 2},
    "fp16": {"plan.precision": "fp16"},
    "hsdp": {"plan.hsdp": 2},
    "core": {**CORE, "plan.tp": 2, "plan.pp": 2, "plan.recompute": "none"},
    "core, recomputed": {**CORE, "plan.tp": 2, "plan.recompute": "full"},
    "core, contexts": {**CORE, "plan.cp": 2, "plan.recompute": "selective"},
}


def exports(target: str) -> Iterator[tuple[str, Mapping[str, str | bytes]]]:
    """Every section with every plan that the target can say, by name."""
    for (of, keys), (plan, flags) in product(SECTIONS.items(), PLANS.items()):
        scenario = simpar.load_scenario(SCENARIO, flags, [f"post_training.{key}" for key in keys])
        try:
            yield f"{of}, {plan}", export_post_training(scenario, target, lossy=True).files
        except UserError as error:
            print(f"{target}: {of}, {plan}: not said: {error}")


def package(name: str, folder: Path, **values: Any) -> None:
    """Stand in for a package without running what it does when it is imported."""
    made = types.ModuleType(name)
    made.__path__ = [str(folder)]
    made.__dict__.update(values)
    sys.modules[name] = made


def nothing(*_: Any, **__: Any) -> None:
    """In place of what needs a checkpoint or a device."""


def no_model(*_: Any, **__: Any) -> Any:
    """In place of a checkpoint's config."""
    return types.SimpleNamespace(architectures=["NoneAtAll"])


def verl_config(folder: Path) -> Any:
    """Verl's module that makes dataclasses of configs and validates them."""
    root = folder / "verl"
    package("verl", root)
    for name in ("workers", "trainer", "utils", "utils.profiler", "utils.fs", "utils.import_utils", "utils.model"):
        package(f"verl.{name}", root / name.replace(".", "/"))
    stands_in = {
        "verl.utils": ("hf_processor", "hf_tokenizer"),
        "verl.utils.fs": ("copy_to_local",),
        "verl.utils.import_utils": ("import_external_libs",),
        "verl.utils.model": ("get_generation_config", "update_model_config"),
    }
    for name, functions in stands_in.items():
        for function in functions:
            setattr(sys.modules[name], function, nothing)
    package("transformers", root, AutoConfig=types.SimpleNamespace(from_pretrained=no_model))
    profiler = importlib.import_module("verl.utils.profiler.config")
    sys.modules["verl.utils.profiler"].__dict__.update(vars(profiler))
    importlib.import_module("verl.workers.config")
    return importlib.import_module("verl.utils.config")


def check_verl(folder: Path) -> int:
    """Compose every exported command, and make the dataclasses of its actor, rollout and algorithm."""
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    own = verl_config(folder)
    os.chdir(folder)  # a search path of the asynchronous trainer is relative to it
    wrong = 0
    for name, files in exports("verl"):
        words = shlex.split(str(files["command.sh"]).replace("\\\n", " "), comments=True)
        config = next(word for word in words if word.startswith("--config-name=")).removeprefix("--config-name=")
        home = "experimental/fully_async_policy" if config.startswith("fully_async") else "trainer"
        changed = [word for word in words if "=" in word and not word.startswith("--")]
        try:
            with initialize_config_dir(str(folder / "verl" / home / "config"), version_base=None):
                composed = compose(config, overrides=changed)
            OmegaConf.resolve(composed.actor_rollout_ref.actor)
            has_critic = bool(composed.critic.enable)
            for part in ("actor_rollout_ref.actor", "actor_rollout_ref.rollout", "algorithm", *["critic"] * has_critic):
                own.omega_conf_to_dataclass(OmegaConf.select(composed, part))
            with contextlib.redirect_stdout(io.StringIO()):
                has_reference = composed.actor_rollout_ref.actor.use_kl_loss
                own.validate_config(composed, has_reference, has_critic)
        except (HydraException, OmegaConfBaseException, *REFUSALS) as error:
            wrong += 1
            print(f"verl: {name}: REFUSED: {type(error).__name__}: {str(error)[:600]}")
        else:
            print(f"verl: {name}: composed, {len(changed)} words")
    return wrong


TYPES = ("models/generation/interfaces", "models/generation/vllm/config", "models/policy/__init__", "algorithms/grpo")
ALLOWED = ("typing", "pydantic", "enum", "collections.abc")


def nemo_types(folder: Path) -> dict[str, Any]:
    """NeMo-RL's declarations of configs by name: the classes of its files that need nothing but each other."""
    known: dict[str, Any] = {"__name__": "nemo_types"}
    for name in TYPES:
        tree = ast.parse((folder / "nemo_rl" / f"{name}.py").read_text())
        for node in tree.body:
            is_import = isinstance(node, ast.ImportFrom) and node.module in ALLOWED
            if is_import or isinstance(node, ast.ClassDef | ast.Assign):
                with contextlib.suppress(NameError, AttributeError):  # of what is not declared in these files
                    exec(compile(ast.Module([node], []), name, "exec", dont_inherit=True), known)
            known |= {"TypedDict": TypedDict, "NotRequired": NotRequired}  # pydantic asks for these before Python 3.12
    return known


def nemo_config(folder: Path) -> tuple[Callable[[str], Any], Mapping[str, Any]]:
    """NeMo-RL's loader of configs, and the types of its sections by dotted key."""
    root = folder / "nemo_rl"
    package("nemo_rl", root)
    package("nemo_rl.utils", root / "utils")
    config = importlib.import_module("nemo_rl.utils.config")
    config.register_omegaconf_resolvers()
    load = config.load_config
    known = nemo_types(folder)
    kinds = {
        "policy.sequence_packing": known["SequencePackingConfig"] | known["SequencePackingConfigDisabled"],
        "policy.dtensor_cfg": known["DTensorConfig"] | known["DTensorConfigDisabled"],
        "policy.megatron_cfg": known["MegatronConfig"] | known["MegatronConfigDisabled"],
        "policy.generation": known["VllmConfig"],
        "grpo.async_grpo": known["AsyncGRPOConfig"],
    }
    return load, kinds


def check_nemo(folder: Path) -> int:
    """Lay every exported file over the example, and hold the sections against the types."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from pydantic import TypeAdapter, ValidationError

    load, kinds = nemo_config(folder)
    adapters = {key: TypeAdapter(kind) for key, kind in kinds.items()}

    def wrong_in(config: Any) -> set[str]:
        """What the types refuse in a config."""
        result = set()
        for key, adapter in adapters.items():
            try:
                adapter.validate_python(OmegaConf.to_container(OmegaConf.select(config, key), resolve=True))
            except ValidationError as error:
                result |= {f"{key}.{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()}
        return result

    example = load(str(folder / "examples/configs/grpo_math_1B.yaml"))
    known, usual = {*_keys(OmegaConf.to_container(example, resolve=True))}, wrong_in(example)
    wrong = 0
    for name, files in exports("nemo-rl"):
        with tempfile.TemporaryDirectory(dir=folder / "examples" / "configs") as beside:
            path = Path(beside).parent / f"{Path(beside).name}.yaml"
            path.write_text(str(files["config.yaml"]))
            try:
                config = load(str(path))
                more = wrong_in(config) - usual  # the loader's callers fill in what the example lacks itself
                unknown = {*_keys(OmegaConf.to_container(config, resolve=True))} - known
            except (OmegaConfBaseException, *REFUSALS) as error:
                more, unknown = {f"{type(error).__name__}: {str(error)[:600]}"}, set()
            finally:
                path.unlink()
        wrong += bool(more)
        said = f"REFUSED: {'; '.join(sorted(more))}" if more else "read"
        print(f"nemo-rl: {name}: {said}; keys that the example lacks: {', '.join(sorted(unknown)) or 'none'}")
    return wrong


def _keys(data: Any, before: str = "") -> Iterator[str]:
    """Dotted keys of nested data."""
    for key, value in data.items():
        if isinstance(value, dict) and value:
            yield from _keys(value, f"{before}{key}.")
        else:
            yield f"{before}{key}"


def main() -> int:
    """Check the exports for the checkouts that are named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--verl", type=Path)
    parser.add_argument("--nemo-rl", type=Path)
    asked = parser.parse_args()
    wrong = check_verl(asked.verl.resolve()) if asked.verl else 0
    wrong += check_nemo(asked.nemo_rl.resolve()) if asked.nemo_rl else 0
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
