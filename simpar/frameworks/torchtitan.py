"""torchtitan 0.3: a Python module with one function that returns the Trainer's config."""

from collections.abc import Iterator, Mapping
from typing import Any

from simpar.architectures.recompute import period
from simpar.dataclass import dataclass
from simpar.frameworks import placeholder_data, titan
from simpar.frameworks.architecture import architecture
from simpar.frameworks.launch import comment, launchers
from simpar.frameworks.subject import Loss, Subject
from simpar.frameworks.target import Options, Target, TargetNumerics

MODULE, FUNCTION, HEAD = "simpar_recipe", "plan", "lm_head"
SECTIONS = {"parallelism": "ParallelismConfig", "training": "TrainingConfig", "compile": "CompileConfig"}
CHECKPOINTING = {"none": "None", "full": "FullAC.Config()", "selective": "SelectiveAC.Config()"}
_IMPORTS = """from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss
from torchtitan.components.optimizer import default_adamw
{fp8}from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC
{data}from torchtitan.models import {family}
from torchtitan.models.common.config_utils import decoder_vocab_size
from torchtitan.trainer import Trainer
"""
_LOSS = "ChunkedLossWrapper.Config(loss_fn=CrossEntropyLoss.Config("
_FURTHER = "from torchtitan.models.deepseek_v3.mtp import MTPLoss\n"
_CUSTOM = '''

def _model():
    """A Llama decoder with the sizes of the plan's model."""
    return llama3.Llama3Model.Config(
        dim={hidden},
        vocab_size={vocab},{tied}
        tok_embeddings=llama3.Embedding.Config(
            num_embeddings={vocab}, embedding_dim={hidden}, param_init=llama3.{embedding_init}
        ),
        norm=llama3.RMSNorm.Config(normalized_shape={hidden}, param_init=llama3._NORM_INIT),
        lm_head=llama3.Linear.Config(
            in_features={hidden}, out_features={vocab}, param_init=llama3._output_linear_init({hidden})
        ),
        layers=llama3._build_llama3_layers(
            n_layers={layers},
            dim={hidden},
            n_heads={heads},
            n_kv_heads={kv_heads},
            hidden_dim={ffn},
            rope=llama3.ComplexRoPE.Config(dim={head_dim}, {longest}={positions}, theta={theta}, {scaling}),
            attn_backend="flex",
        ),
    )
'''


@dataclass(frozen=True)
class Release:
    """What differs between versions: imports for ``data``, the ``loader``, and the word for the ``longest`` context."""

    data: str
    loader: str
    longest: str


RELEASED = Release(
    data="from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader\n",
    loader=f"""HuggingFaceTextDataLoader.Config(
            dataset="c4_test", dataset_path="./{placeholder_data.TEXT}"
        )""",
    longest="max_seq_len",
)


def losses(s: Subject) -> Iterator[Loss]:
    """Losses: what torchtitan from 0.3 on has no option for."""
    mixture = titan.mixture(s)
    yield from titan.losses(s, named=mixture is not None)
    if mixture:
        yield from _mixture_losses(s)
    style = architecture(s.graph)
    dims = s.graph.dims
    if not mixture and titan.family(style) == "qwen3" and titan.flavor(s, "qwen3") is None:
        yield Loss("model", s.graph.name, "Qwen3 comes in the sizes of its flavours only")
    if titan.family(style) == "llama3" and dims["heads"] * dims["head_dim"] != dims["hidden"]:
        yield Loss("model", s.graph.name, "a head has hidden / heads features")
    if period(s.plan.memory.recompute):
        yield Loss("recompute", s.plan.memory.recompute, "recomputation is none, per operator, or of every layer")


def num_prediction_layers(s: Subject) -> int:
    """The number of layers that predict further tokens."""
    return sum(kind in s.graph.auxiliary for kind in s.graph.layers)


def _mixture_losses(s: Subject) -> Iterator[Loss]:
    """What torchtitan's mixtures do not support."""
    mesh, choice, data = s.plan.mesh, s.plan.experts, s.plan.data_parallel
    ranks = (s.dp // data.hsdp if data.zero else 1) * mesh.cp * mesh.tp
    if ranks % mesh.ep:
        yield Loss("ep", mesh.ep, f"experts are spread over shards: a divisor of their {ranks} ranks")
    if mesh.expert_tensor_parallel != (1 if mesh.ep > 1 else mesh.tp):
        yield Loss("etp", mesh.expert_tensor_parallel, "experts are whole where they are spread, else split as all")
    if choice.capacity_factor:
        yield Loss("capacity_factor", choice.capacity_factor, "no token is dropped")
    if choice.ep_overlap and mesh.ep > 1:
        yield Loss("ep_overlap", True, "a rank waits for its tokens")
    if choice.token_dispatch not in (None, "per_expert"):
        yield Loss("token_dispatch", choice.token_dispatch, "the exporter knows its standard dispatch")
    if s.plan.numerics.products.is_cast:
        yield Loss("precision", s.plan.numerics.precision, "the exporter converts dense models only")
    if num_prediction_layers(s) and mesh.pp > 1:
        yield Loss("pp", mesh.pp, "stages do not hold layers that predict further tokens")


def options(s: Subject) -> Options:
    """Options by their dotted names."""
    result = titan.parallelism(s, HEAD) | titan.training(s)
    result["parallelism.enable_sequence_parallel"] = bool(s.plan.tensor_parallel.sequence_parallel)
    result["training.disable_cuda_graphs"] = True
    result["compile.enable"] = titan.is_compiled(s)
    if s.plan.tensor_parallel.overlap and s.plan.mesh.tp > 1:
        result["compile.enable_async_tensor_parallel"] = True
    recompute = s.plan.memory.recompute
    result["activation_checkpoint"] = recompute if recompute in CHECKPOINTING else "none"
    return result


def files(s: Subject, given: Options) -> Mapping[str, str]:
    """The module, the schedule's action table if needed, and the launchers."""
    return written(s, given, RELEASED)


def written(s: Subject, given: Options, release: Release) -> Mapping[str, str]:
    """The files for a version."""
    command = ["-m torchtitan.train", f"--module {MODULE}", f"--config {FUNCTION}"]
    environment = {"PYTHONPATH": '"$PWD:${PYTHONPATH:-}"', "PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    return {
        f"{MODULE}.py": _module(s, given, release),
        **titan.schedule_file(s),
        **launchers(s, command, environment),
        **placeholder_data.files(),
    }


def _module(s: Subject, given: Options, release: Release) -> str:
    mixture = titan.mixture(s)
    family = mixture[0] if mixture else titan.family(architecture(s.graph)) or "llama3"
    flavor = mixture[1] if mixture else titan.flavor(s, family)
    fp8 = s.plan.numerics.products.is_cast
    quantization = "from torchtitan.components.quantization import Float8LinearConverter\n" if fp8 else ""
    text = "\n".join(comment(s)) + "\nfrom dataclasses import replace\n\n"
    text += _IMPORTS.format(family=family, fp8=quantization, data=release.data)
    text += _FURTHER if num_prediction_layers(s) else ""
    text += "" if flavor else _custom(s, release)
    text += f'\n\ndef {FUNCTION}() -> Trainer.Config:\n    """The plan."""\n'
    convert = ", converters=[Float8LinearConverter.Config(model_compile_enabled=True)]" if fp8 else ""
    convert += f", num_mtp_layers={num_prediction_layers(s)}" if num_prediction_layers(s) else ""
    text += f'    model_spec = {family}.model_registry("{flavor or "debugmodel"}"{convert})\n'
    if not flavor:
        model = "_model()"
        if fp8:
            model = f"Float8LinearConverter.Config(model_compile_enabled=True).build().convert({model})"
        text += f'    model_spec = replace(model_spec, flavor="{s.graph.name}", model={model})\n'
    return text + _config(given, "MTPLoss.Config(" if num_prediction_layers(s) else _LOSS, release)


def _config(given: Options, loss: str, release: Release) -> str:
    lines = [
        "    vocab_size = decoder_vocab_size(model_spec)",
        "    return Trainer.Config(",
        "        model_spec=model_spec,",
        f"        loss={loss}global_vocab_size=vocab_size{')' * loss.count('(')},",
        "        optimizer=default_adamw(lr=3e-4),",
        f'        hf_assets_path="./{placeholder_data.TOKENIZER}",',
        f"        dataloader={release.loader},",
        f"        activation_checkpoint={CHECKPOINTING[given['activation_checkpoint']]},",
    ]
    for section, name in SECTIONS.items():
        lines.append(f"        {section}={name}(")
        for key, value in given.items():
            if key.startswith(f"{section}."):
                lines += _keyword(key.partition(".")[2], value)
        lines.append("        ),")
    return "\n".join([*lines, "    )"]) + "\n"


def _keyword(name: str, value: Any) -> list[str]:
    if not isinstance(value, list):
        return [f"            {name}={value!r},"]
    return [f"            {name}=[", *(f"                {part!r}," for part in value), "            ],"]


def _custom(s: Subject, release: Release) -> str:
    dims, rope = s.graph.dims, s.graph.details.positions.rope
    scaling: dict[str, Any] = {"scaling": "none"}
    if rope.kind == "llama3":
        numbers = {name: value for name, value in rope.scaling.items() if name not in ("rope_type", "factor")}
        scaling = {"scaling": "llama", "scaling_factor": rope.scaling["factor"], **numbers}
    return _CUSTOM.format(
        **{name: dims[name] for name in ("hidden", "vocab", "heads", "kv_heads", "ffn", "head_dim")},
        layers=len(s.graph.layers),
        tied="\n        enable_weight_tying=True," if s.graph.tied_embeddings else "",
        embedding_init="_EMBEDDING_SKIP_INIT" if s.graph.tied_embeddings else "_EMBEDDING_INIT",
        positions=max(s.training.seq_len, 8192),
        theta=rope.theta,
        longest=release.longest,
        scaling=", ".join(f"{name}={value!r}" for name, value in scaling.items()),
    )


TORCHTITAN = Target(
    name="torchtitan",
    description="torchtitan: a Python module that returns the Trainer's config",
    version="torchtitan 0.3.0",
    losses=losses,
    options=options,
    files=files,
    notes=titan.notes,
    features=("offload", "expandable_segments", "fused_kernels"),
    numerics=TargetNumerics(titan.OPTIMIZERS, ("bf16", "fp32", "fp8_rowwise")),
)
