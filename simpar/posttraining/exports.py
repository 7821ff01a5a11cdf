"""Placement and layouts of a step as the options of RL frameworks: verl and NeMo-RL.

Keys are those of verl's ``trainer/config`` and of its fully asynchronous trainer (volcengine/verl, b178a3c), and of
NeMo-RL's ``examples/configs/grpo_math_1B.yaml`` and its ``AsyncGRPOConfig`` (NVIDIA-NeMo/RL, 7ea279a), which
``benchmarks/check_rl_exports.py`` composes with what is exported. Options of vLLM that neither names go to it by its
own names.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from simpar.architectures.recompute import is_full
from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.files import choose
from simpar.layout.layout import Layout
from simpar.plan.choices.mesh import PIPELINE
from simpar.plan.post_training import RolloutEngine
from simpar.posttraining.lengths import draw_step
from simpar.posttraining.simulate import PostTrainingSetting, make_setting
from simpar.posttraining.trained import SHOWN_STEPS
from simpar.precisions import PRECISIONS, Precision
from simpar.translate import Files

if TYPE_CHECKING:
    from simpar.scenario import Scenario

Options = dict[str, Any]
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
ACTOR, ROLLOUT, CRITIC = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout.", "critic."
POLICY = "policy."


@dataclass(frozen=True)
class Draft:
    """Options by dotted key, how they are started, and what of the section they do not say."""

    options: Options
    command: str
    lost: tuple[str, ...]


def export_post_training(scenario: Scenario, target: str, *, lossy: bool = False) -> Files:
    """The files with which an RL framework runs a scenario's step. Raises UserError for what it cannot.

    >>> import simpar
    >>> made = export_post_training(simpar.load_scenario("grpo-qwen2.5-7b-16-h100"), "nemo-rl")
    >>> sorted(made.files)
    ['command.sh', 'config.yaml']
    """
    if scenario.post_training is None:
        raise UserError(f"--to {target}: the scenario has no section post_training; allowed: a scenario that has one")
    inputs = scenario.training_inputs()
    setup = (inputs["model"], inputs["cluster"], inputs["plan"], inputs["training"], scenario.post_training)
    setting = make_setting(*setup, stack=inputs["stack"])
    _ = setting.limits
    drafted = TARGETS[choose(target, TARGETS, "target of post_training")](setting)
    if drafted.lost and not lossy:
        raise UserError(f"{target}: cannot say {'; '.join(drafted.lost)} (--lossy exports the rest)")
    notes = (
        f"{setting.trained.graph.name} stands for the path of your checkpoint",
        f"prompts are cut to {_longest_prompt(setting)} tokens, the longest of {SHOWN_STEPS} drawn steps",
    )
    return Files(target, _files(target, drafted), drafted.lost, notes)


def _files(target: str, drafted: Draft) -> Mapping[str, str | bytes]:
    if target == "verl":
        words = [f"{key}={shlex.quote(_word(value))}" for key, value in drafted.options.items()]
        return {"command.sh": _script([drafted.command, *words, '"$@"'])}
    lines = ["defaults: grpo_math_1B.yaml", *_yaml(_nested(drafted.options))]
    return {"config.yaml": "\n".join(lines) + "\n", "command.sh": _script([drafted.command, '"$@"'])}


def _script(words: list[str]) -> str:
    return "#!/usr/bin/env bash\nset -euo pipefail\n" + " \\\n  ".join(words) + "\n"


def _word(value: Any) -> str:
    return str(value) if not isinstance(value, bool) else str(value).capitalize()


def _nested(options: Options) -> dict[str, Any]:
    """Options by dotted key as sections."""
    result: dict[str, Any] = {}
    for key, value in options.items():
        *sections, name = key.split(".")
        section = result
        for each in sections:
            section = section.setdefault(each, {})
        section[name] = value
    return result


def _yaml(data: Mapping[str, Any], indent: int = 0) -> Iterator[str]:
    for key, value in data.items():
        if isinstance(value, Mapping):
            yield f"{' ' * indent}{key}:"
            yield from _yaml(value, indent + 2)
        else:
            said = str(value).lower() if isinstance(value, bool) else "null" if value is None else value
            yield f"{' ' * indent}{key}: {said}"


def _longest_prompt(setting: PostTrainingSetting) -> int:
    context = setting.trained.training.seq_len
    return max(int(draw_step(setting.section, context, step).prompt.max()) for step in range(SHOWN_STEPS))


def _layout(setting: PostTrainingSetting) -> Layout:
    return setting.trained.usual.layout


def _prompts_of_update(setting: PostTrainingSetting) -> int:
    batch, samples = setting.trained.training.global_batch, setting.section.samples
    if batch % samples:
        raise UserError(
            f"training.global_batch = {batch}: allowed: multiples of post_training.samples = {samples}, since updates "
            "are of whole groups"
        )
    return batch // samples


def _check_both(setting: PostTrainingSetting, target: str) -> None:
    """Raise UserError for what neither framework has."""
    if (precision := setting.trained.plan.numerics.precision) not in DTYPES:
        raise UserError(f"plan.precision = {precision}: allowed in exports of RL steps: {', '.join(DTYPES)}")
    if setting.section.takes_turns and setting.section.has_pool:
        raise UserError(f"{target}: has no placement hybrid; allowed: colocated or split")
    if setting.section.takes_turns and setting.section.synchrony.steps_off:
        raise UserError(
            f"{target}: has no colocated pools off policy (steps_off = {setting.section.synchrony.steps_off}); "
            "allowed: placement split, or steps_off = 0"
        )


def _lost(setting: PostTrainingSetting, *names: str) -> Iterator[str]:
    """What no framework here has an option for, and what this one lacks."""
    section, moves = setting.section, setting.section.weights
    if moves.method == "resharded":
        yield "weights.method = resharded"
    if moves.senders == "rank":
        yield "weights.senders = rank"
    if moves.through == "host":
        yield "weights.through = host"
    if moves.changed < 1:
        yield f"weights.changed = {moves.changed:g}"
    for name in ("teacher", "reward"):
        if (model := getattr(section.passes, name)) is not None:
            yield f"passes.{name} = {model}"
    for models, devices in section.passes.pools:
        yield f"passes.{models[0]}_devices = {devices}"
    if _is_narrow(setting) and not _has_blocks(PRECISIONS[section.rollout.precision]):
        yield f"rollout.precision = {section.rollout.precision} (both frameworks scale weights by blocks)"
    engine, usual = section.rollout.engine, RolloutEngine()
    if engine.graph_tokens != usual.graph_tokens:
        yield f"rollout.engine.graph_tokens = {engine.graph_tokens}"
    if section.rollout.states.shared:
        yield "rollout.states.shared = true"
    if section.rollout.hardware:
        yield f"rollout.hardware = {section.rollout.hardware}"
    layout = _layout(setting)
    if layout.recompute not in ("none", "selective") and not is_full(str(layout.recompute)):
        yield f"plan.recompute = {layout.recompute}"
    yield from names


def _vllm(setting: PostTrainingSetting) -> Options:
    """What vLLM is told by its own names."""
    engine, rollout = setting.section.rollout.engine, setting.section.rollout
    if rollout.precision not in DTYPES and PRECISIONS[rollout.precision].bits != 8:
        raise UserError(
            f"post_training.rollout.precision = {rollout.precision}: allowed in exports: {', '.join(DTYPES)}, and "
            "those of 8 bits"
        )
    kept = {"mamba_ssm_cache_dtype": DTYPES["fp32"]} if rollout.states.dtype == "fp32" else {}
    return {"block_size": engine.block, "enable_prefix_caching": engine.prefix_sharing, **kept}


def _has_blocks(precision: Precision) -> bool:
    """Whether weights are scaled by blocks, as vLLM does it for both frameworks."""
    return precision.scales is not None and not precision.is_laid_out


def _is_narrow(setting: PostTrainingSetting) -> bool:
    """Whether replicas compute in 8 bits."""
    return setting.section.rollout.precision not in DTYPES


def verl(setting: PostTrainingSetting) -> Draft:
    """Options of verl's trainers: of the one in turns, or of the one with a pool of its own for rollouts."""
    section, rollout, engine = setting.section, setting.section.rollout, setting.section.rollout.engine
    layout, side = _layout(setting), setting.trained
    _check_both(setting, "verl")
    if rollout.stages > 1 or rollout.ep > 1:
        raise UserError(
            f"verl: rollouts with {PIPELINE} = {rollout.stages}, ep = {rollout.ep}; allowed: 1, rollout.yaml names tp "
            "alone"
        )
    if DTYPES.get(side.plan.numerics.precision) == DTYPES["fp32"]:
        raise UserError("verl: plan.precision = fp32; allowed: bf16 or fp16")
    if layout.kind == "fsdp" and int(layout.cp) > 1 and not side.is_packed:
        raise UserError(
            f"verl: plan.cp = {int(layout.cp)} with padded rows; allowed: post_training.lengths.padding = none"
        )
    longest, prompts = _longest_prompt(setting), _prompts_of_update(setting)
    is_core = layout.kind != "fsdp"
    ways = {
        "placement split with steps_off = 0 (its asynchronous trainer streams)": section.has_pool
        and not section.synchrony.steps_off,
        "padding = longest (it pads to the context)": section.lengths.padding == "longest",
    }
    options: Options = {
        "algorithm.adv_estimator": "grpo" if section.algorithm == "grpo" else "gae",
        "data.train_batch_size": 0 if section.has_pool else section.prompts,
        "data.max_prompt_length": longest,
        "data.max_response_length": side.training.seq_len - longest,
        "actor_rollout_ref.model.path": side.graph.name,
        "actor_rollout_ref.model.use_remove_padding": side.is_packed,
        f"{ACTOR}ppo_mini_batch_size": prompts,
        **_verl_micro(setting, ACTOR),
        **_verl_passes(setting),
        f"{ACTOR}use_kl_loss": section.passes.reference,
        f"{ACTOR}ppo_epochs": section.epochs,
        f"{ROLLOUT}name": "vllm",
        f"{ROLLOUT}mode": "async",
        f"{ROLLOUT}n": section.samples,
        f"{ROLLOUT}tensor_model_parallel_size": rollout.tp,
        f"{ROLLOUT}gpu_memory_utilization": engine.memory_fraction,
        f"{ROLLOUT}max_num_batched_tokens": engine.token_budget,
        f"{ROLLOUT}max_num_seqs": engine.max_sequences,
        f"{ROLLOUT}max_model_len": side.training.seq_len,
        f"{ROLLOUT}enable_chunked_prefill": True,
        f"{ROLLOUT}enforce_eager": not engine.graphs,
        f"{ROLLOUT}free_cache_engine": section.weights.sleep,
        f"{ROLLOUT}dtype": DTYPES.get(rollout.precision, DTYPES["bf16"]),
        **({f"{ROLLOUT}quantization": "fp8"} if _is_narrow(setting) else {}),
        f"{ROLLOUT}calculate_log_probs": engine.logprobs,
        "algorithm.rollout_correction.bypass_mode": not section.passes.old_policy,
        **{f"+{ROLLOUT}engine_kwargs.vllm.{key}": value for key, value in _vllm(setting).items()},
        **({f"+{ROLLOUT}engine_kwargs.vllm.kv_cache_dtype": "fp8"} if engine.cache_dtype == "fp8" else {}),
        "trainer.nnodes": side.cluster.nodes,
        "trainer.n_gpus_per_node": side.cluster.profile.devices_per_node,
        **_verl_layout(layout, section.weights.offload, ACTOR),
        **_verl_critic(setting),
    }
    name = "ppo_megatron_trainer" if is_core else "ppo_trainer"
    module = "verl.trainer.main_ppo"
    if section.has_pool:
        name, module = f"fully_async_{name}", "verl.experimental.fully_async_policy.fully_async_main"
        options |= {
            "data.gen_batch_size": 1,
            "actor_rollout_ref.hybrid_engine": False,
            "rollout.nnodes": setting.pool.nodes,
            "rollout.n_gpus_per_node": setting.pool.profile.devices_per_node,
            "async_training.staleness_threshold": section.synchrony.steps_off,
            "async_training.trigger_parameter_sync_step": side.updates,
            "async_training.require_batches": 1,
            "async_training.partial_rollout": section.synchrony.in_flight,
            "async_training.compute_prox_log_prob": section.passes.old_policy,
        }
    missing = _lost(setting, *(way for way, is_so in ways.items() if is_so))
    return Draft(options, f"python3 -m {module} --config-name={name}.yaml", tuple(missing))


def _verl_critic(setting: PostTrainingSetting) -> Options:
    """The critic that is trained beside the policy, in its layout; nothing where there is none."""
    side, offload = setting.trained, setting.section.weights.offload
    if side.critic is None:
        return {}
    layout = side.critic_layout
    return {
        f"{CRITIC}enable": True,
        f"{CRITIC}model.path": side.critic,
        **_verl_micro(setting, CRITIC),
        **_verl_layout(layout, offload, CRITIC),
        **({f"{CRITIC}model.use_remove_padding": side.is_packed} if layout.kind == "fsdp" else {}),
    }


def _tokens_of_device(setting: PostTrainingSetting, rows: int) -> int:
    """Tokens of so many rows that verl packs for a device at a time."""
    return rows * setting.trained.training.seq_len // int(_layout(setting).cp)


def _verl_micro(setting: PostTrainingSetting, of: str) -> Options:
    """Micro-batches of the actor or critic: by tokens, or of padded samples."""
    rows = int(_layout(setting).micro_batch)
    if setting.trained.is_packed:
        return {
            f"{of}use_dynamic_bsz": True, f"{of}ppo_max_token_len_per_gpu": _tokens_of_device(setting, rows)
        }  # fmt: skip
    return {f"{of}use_dynamic_bsz": False, f"{of}ppo_micro_batch_size_per_gpu": rows}


def _verl_passes(setting: PostTrainingSetting) -> Options:
    """Micro-batches of passes over finished responses; those of tokens are the actor's by default."""
    wide = setting.section.passes.micro_batch
    if setting.trained.is_packed:
        return {f"{ROLLOUT}log_prob_max_token_len_per_gpu": _tokens_of_device(setting, wide)} if wide else {}
    rows = wide or int(_layout(setting).micro_batch)
    sections = (ROLLOUT, *(["actor_rollout_ref.ref."] if setting.section.passes.reference else []))
    return {f"{each}log_prob_micro_batch_size_per_gpu": rows for each in sections}


def _verl_layout(layout: Layout, offload: bool, of: str) -> Options:
    """The layout of the actor or critic, by its backend."""
    return (_verl_sharded if layout.kind == "fsdp" else _verl_core)(layout, offload, of)


def _verl_sharded(layout: Layout, offload: bool, of: str) -> Options:
    """FSDP: shards, Ulysses, recomputation, and states that leave between phases."""
    if int(layout.tp) * int(getattr(layout, PIPELINE)) * int(layout.ep) > 1:
        raise UserError("verl: FSDP with tp, pipeline stages or ep; allowed: a plan of kind ddp, which Megatron trains")
    is_critic = of == CRITIC
    model = f"{CRITIC}model." if is_critic else "actor_rollout_ref.model."
    section = f"{model if is_critic else ACTOR}fsdp_config."
    return {
        f"{of}strategy": "fsdp2",
        f"{of}ulysses_sequence_parallel_size": int(layout.cp),
        f"{section}fsdp_size": int(layout.shards) if int(layout.hsdp) > 1 else -1,
        f"{section}reshard_after_forward": int(layout.zero) == 3 and bool(layout.reshard_after_forward),
        **({f"{section}use_no_sync_for_gradient_accumulation": True} if layout.defer_grad_reduce else {}),
        f"{section}dtype": DTYPES[str(layout.precision)],
        f"{section}param_offload": offload,
        f"{section}optimizer_offload": offload,
        f"{model}enable_gradient_checkpointing": is_full(str(layout.recompute)),
    }


def _verl_core(layout: Layout, offload: bool, of: str) -> Options:
    """Megatron: degrees, recomputation, and states that leave between phases."""
    section, override = f"{of}megatron.", f"+{of}megatron.override_transformer_config."
    options: Options = {f"{of}strategy": "megatron", f"{section}dtype": DTYPES[str(layout.precision)]}
    options |= {f"{section}{key}": value for key, value in _core_degrees(layout).items()}
    options |= {f"{section}{each}_offload": offload for each in ("param", "grad", "optimizer")}
    if is_full(str(layout.recompute)):
        how = {"granularity": "full", "method": "uniform", "num_layers": 1}
        options |= {f"{override}recompute_{key}": value for key, value in how.items()}
    elif layout.recompute == "selective":
        options[f"{override}recompute_granularity"] = "selective"
    return options


def _core_degrees(layout: Layout) -> Options:
    vpp = int(layout.vpp)
    return {
        "tensor_model_parallel_size": int(layout.tp),
        "pipeline_model_parallel_size": int(getattr(layout, PIPELINE)),
        **({"virtual_pipeline_model_parallel_size": vpp} if vpp > 1 else {}),
        "context_parallel_size": int(layout.cp),
        "expert_model_parallel_size": int(layout.ep),
        "expert_tensor_parallel_size": int(layout.expert_tensor_parallel),
    }


def nemo_rl(setting: PostTrainingSetting) -> Draft:
    """A config over NeMo-RL's example of GRPO."""
    section, rollout, engine = setting.section, setting.section.rollout, setting.section.rollout.engine
    layout, side, synchrony = _layout(setting), setting.trained, setting.section.synchrony
    _check_both(setting, "nemo-rl")
    if section.algorithm != "grpo":
        raise UserError("nemo-rl: post_training.algorithm = ppo; allowed: grpo")
    _prompts_of_update(setting)
    tokens = int(layout.micro_batch) * side.training.seq_len
    scored = section.passes.micro_batch or int(layout.micro_batch)
    generation = f"{POLICY}generation."
    missing = []
    if section.has_pool and setting.pool.profile.devices_per_node != side.cluster.profile.devices_per_node:
        missing.append("pools whose nodes have different numbers of devices")
    if not section.weights.sleep:
        missing.append("weights.sleep = false")
    if not section.passes.old_policy:
        missing.append("passes.old_policy = false")
    if section.passes.critic:
        missing.append(f"passes.critic = {section.passes.critic}")
    if section.lengths.padding == "context":
        missing.append("padding = context (it pads to the longest)")
    if section.epochs > 1:
        missing.append(f"epochs = {section.epochs}")
    options: Options = {
        "grpo.num_prompts_per_step": section.prompts,
        "grpo.num_generations_per_prompt": section.samples,
        "grpo.async_grpo.enabled": bool(synchrony.steps_off),
        "grpo.async_grpo.max_trajectory_age_steps": max(1, synchrony.steps_off),
        "grpo.async_grpo.in_flight_weight_updates": synchrony.in_flight,
        "grpo.async_grpo.recompute_kv_cache_after_weight_updates": synchrony.recompute_cache,
        "loss_fn.use_importance_sampling_correction": bool(synchrony.steps_off) or _is_narrow(setting),
        **({} if section.passes.reference else _NO_REFERENCE),
        f"{POLICY}model_name": side.graph.name,
        f"{POLICY}train_global_batch_size": side.training.global_batch,
        f"{POLICY}train_micro_batch_size": int(layout.micro_batch),
        f"{POLICY}max_total_sequence_length": side.training.seq_len,
        f"{POLICY}precision": DTYPES[side.plan.numerics.precision],
        f"{POLICY}logprob_batch_size": scored,
        f"{POLICY}sequence_packing.enabled": side.is_packed,
        f"{POLICY}sequence_packing.train_mb_tokens": tokens,
        f"{POLICY}sequence_packing.logprob_mb_tokens": scored * side.training.seq_len,
        **({} if side.is_packed else {f"{POLICY}dynamic_batching.enabled": False}),
        **(_nemo_core(layout) if layout.kind != "fsdp" else _nemo_dtensors(layout)),
        f"{generation}backend": "vllm",
        f"{generation}vllm_cfg.async_engine": bool(synchrony.steps_off),
        f"{generation}vllm_cfg.precision": DTYPES.get(rollout.precision, "fp8"),
        **_nemo_cache(setting),
        f"{generation}vllm_cfg.tensor_parallel_size": rollout.tp,
        f"{generation}vllm_cfg.pipeline_parallel_size": rollout.stages,
        f"{generation}vllm_cfg.expert_parallel_size": rollout.ep,
        f"{generation}vllm_cfg.gpu_memory_utilization": engine.memory_fraction,
        f"{generation}vllm_cfg.max_model_len": side.training.seq_len,
        f"{generation}vllm_cfg.enforce_eager": not engine.graphs,
        f"{generation}vllm_kwargs.max_num_seqs": engine.max_sequences,
        f"{generation}vllm_kwargs.max_num_batched_tokens": engine.token_budget,
        **{f"{generation}vllm_kwargs.{key}": value for key, value in _vllm(setting).items()},
        f"{generation}colocated.enabled": not section.has_pool,
    }
    nodes = side.cluster.nodes
    if section.has_pool:
        nodes += setting.pool.nodes
        resources = {"num_nodes": setting.pool.nodes, "gpus_per_node": setting.pool.profile.devices_per_node}
        options |= {f"{generation}colocated.resources.{key}": value for key, value in resources.items()}
    options |= {"cluster.num_nodes": nodes, "cluster.gpus_per_node": side.cluster.profile.devices_per_node}
    return Draft(options, "uv run examples/run_grpo.py --config config.yaml", tuple(_lost(setting, *missing)))


_NO_REFERENCE: Options = {
    "loss_fn.reference_policy_kl_penalty": 0.0,
    "grpo.skip_reference_policy_logprobs_calculation": True,
}


def _nemo_cache(setting: PostTrainingSetting) -> Options:
    """The dtype of keys and values. Raises UserError where NeMo-RL has none of 8 bits."""
    rollout, layout = setting.section.rollout, _layout(setting)
    if rollout.engine.cache_dtype != "fp8":
        return {}
    has = (_is_narrow(setting), layout.kind != "fsdp", int(getattr(layout, PIPELINE)) == 1)
    if not all(has) or setting.section.synchrony.steps_off:
        raise UserError(
            "nemo-rl: rollout.engine.cache_dtype = fp8; allowed: bf16, or on policy with a "
            "rollout.precision of 8 bits and a plan of kind ddp without pipeline stages"
        )
    return {f"{POLICY}generation.vllm_cfg.kv_cache_dtype": "fp8"}


def _nemo_dtensors(layout: Layout) -> Options:
    """FSDP on DTensors."""
    if int(getattr(layout, PIPELINE)) > 1:
        raise UserError("nemo-rl: FSDP with pipeline stages; allowed: a plan of kind ddp, which Megatron trains")
    section = f"{POLICY}dtensor_cfg."
    return {
        f"{POLICY}megatron_cfg.enabled": False,
        f"{section}enabled": True,
        f"{section}tensor_parallel_size": int(layout.tp),
        f"{section}context_parallel_size": int(layout.cp),
        **({f"{section}expert_parallel_size": int(layout.ep)} if int(layout.ep) > 1 else {}),
        f"{section}sequence_parallel": bool(layout.sequence_parallel) and int(layout.tp) > 1,
        f"{section}activation_checkpointing": is_full(str(layout.recompute)),
        f"{section}cpu_offload": layout.offload_parameters == "cpu",
    }


def _nemo_core(layout: Layout) -> Options:
    """Megatron-Core."""
    section = f"{POLICY}megatron_cfg."
    return {
        f"{POLICY}dtensor_cfg.enabled": False,
        f"{section}enabled": True,
        **{f"{section}{key}": value for key, value in _core_degrees(layout).items()},
        f"{section}sequence_parallel": bool(layout.sequence_parallel) and int(layout.tp) > 1,
        f"{section}activation_checkpointing": is_full(str(layout.recompute)),
        f"{section}optimizer.use_distributed_optimizer": int(layout.zero) > 0,
    }


TARGETS: dict[str, Callable[[PostTrainingSetting], Draft]] = {"verl": verl, "nemo-rl": nemo_rl}
"""RL frameworks by name."""
