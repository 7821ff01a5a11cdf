"""Megatron-LM's arguments for a model besides its sizes: positions, norms, latent attention, and router scores."""

from collections.abc import Iterator
from dataclasses import replace

from simpar.architectures.details import Caps, Rope, Scales
from simpar.frameworks.architecture import architecture
from simpar.frameworks.subject import Loss, Subject
from simpar.frameworks.target import Options

FLAG = None
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
YARN = {"beta_fast": 32.0, "beta_slow": 1.0, "original_max_position_embeddings": 4096}
"""Megatron-Core's built-in parameters of a scaling besides its factor; for YaRN only under latent attention."""
CLAMPED = {"--quick-geglu": FLAG, "--glu-linear-offset": 1.0, "--activation-func-clamp-value": 7.0}
"""Gated quick GELU of clamped inputs, times the other half plus one, as published for gpt-oss."""


def detail_losses(s: Subject) -> Iterator[Loss]:
    """Details of a model that no argument expresses."""
    details, latent = s.graph.details, "qk_dim" in s.graph.dims
    rope = details.positions.rope
    known = ("default", "linear", "llama3", "yarn")
    if rope.kind not in known:
        yield Loss("rope_scaling", rope.kind, f"rotary positions are scaled by {', '.join(known[1:])}")
    built_in = {"llama3": LLAMA3, "yarn": YARN if latent else {}}.get(rope.kind, {})
    for name, value in built_in.items():
        if rope.scaling.get(name, value) != value:
            yield Loss(f"rope_scaling.{name}", rope.scaling[name], f"{value:g} is built in")
    if rope.kind == "yarn":
        yield from _yarn_losses(rope, latent=latent)
    if rope.kind == "linear" and float(rope.scaling["factor"]) % 1:
        yield Loss("rope_scaling.factor", rope.scaling["factor"], "positions are divided by a whole number")
    if details.positions.windowed not in (None, rope):
        yield Loss("rope_local_base_freq", details.positions.windowed.theta, "all layers have one base")
    if details.positions.alibi:
        yield Loss("alibi", True, "positions are rotary or learned")
    if details.positions.offset:
        yield Loss("model", f"learned positions from row {details.positions.offset}", "they begin at row 0")
    if latent and not rope.interleaved:
        yield Loss("rope_interleave", False, "neighbouring features turn together in latent attention")
    yield from plain_losses(s)
    if s.graph.is_mixture:
        yield from router_losses(s)
    if has_sinks(s) and s.plan.mesh.cp > 1 and s.plan.context_parallel.cp_method != "ulysses":
        yield Loss("cp_method", s.plan.context_parallel.cp_method, "sinks of attention are split by heads (ulysses)")


def plain_losses(s: Subject) -> Iterator[Loss]:
    """Scales and caps, which no argument expresses; with latent attention, YaRN's scale follows from mscale_all_dim."""
    scales, rope = s.graph.details.scales, s.graph.details.positions.rope
    if "qk_dim" in s.graph.dims and rope.temperature != 1.0:
        usual = s.graph.dims["qk_dim"] ** -0.5 * rope.temperature
        scales = replace(scales, attention=None if scales.attention == usual else scales.attention)
    if scales != Scales():
        yield Loss("model", "scales of embeddings, residuals or scores", "they are those of a plain decoder")
    if s.graph.details.caps != Caps():
        yield Loss("model", "caps of scores or logits", "scores and logits are not capped")


def router_losses(s: Subject) -> Iterator[Loss]:
    """How a router scores and chooses, as far as no argument expresses it."""
    gating, dims = s.graph.details.gating, s.graph.dims
    if gating.score not in ("softmax", "sigmoid"):
        yield Loss("router", gating.score, "scores are a softmax or a sigmoid")
    if gating.score == "sigmoid" and not gating.normalised:
        yield Loss("norm_topk_prob", False, "sigmoid scores are divided by their sum")
    added = gating.bias == "added" and "router.bias" in _weights(s)
    if added != ("mlp" in architecture(s.graph).biases):
        yield Loss("router", "a bias" if added else "no bias", "routers have a bias where all products have one")
    if groups := dims.get("expert_groups", 0):
        summed, here = dims["topk"] // dims["chosen_groups"], 2 if gating.pairs else 1
        if groups > 1 and summed != here:
            yield Loss("router", f"groups by their best {here}", f"groups are chosen by the sum of their best {summed}")


def _yarn_losses(rope: Rope, *, latent: bool) -> Iterator[Loss]:
    """YaRN's fields that no argument expresses."""
    if rope.scaling.get("attention_factor") is not None:
        plain = replace(rope, scaling={**rope.scaling, "attention_factor": None})
        if plain.magnitude != rope.magnitude:
            yield Loss("rope_scaling.attention_factor", rope.magnitude, "the factor follows from the scales")
    if latent and not rope.scaling.get("truncate", True):
        yield Loss("rope_scaling.truncate", False, "bounds of latent attention are whole")


def _weights(s: Subject) -> set[str]:
    return {w.name for block in s.graph.blocks.values() for op in block.operators for w in op.weights}


def has_sinks(s: Subject) -> bool:
    """Whether softmaxes have an additional learnable logit without a value."""
    return "sinks" in _weights(s)


def position_type(s: Subject) -> str:
    """The name of rotary positions: YaRN is a type of its own, except under latent attention."""
    is_yarn = s.graph.details.positions.rope.kind == "yarn" and "qk_dim" not in s.graph.dims
    return "yarn" if is_yarn else "rope"


def detail_arguments(s: Subject) -> Options:
    """Arguments of a model's details."""
    details, dims = s.graph.details, s.graph.dims
    result: Options = {"--norm-epsilon": details.norm_eps, "--init-method-std": details.init_std}
    if details.norm_offset:
        result["--apply-layernorm-1p"] = FLAG
    if details.activation == "gelu":
        result["--no-bias-gelu-fusion"] = FLAG  # the fused kernel is the tanh approximation
    if details.activation == "quick_gelu":
        result |= CLAMPED
    if has_sinks(s):
        result["--softmax-type"] = "learnable"
    if any(op.kind == "rope" for block in s.graph.blocks.values() for op in block.operators):
        result |= _rotary(s)
    if "qk_dim" in dims:
        result |= _latent(s)
    return result


def _rotary(s: Subject) -> Options:
    rope, latent = s.graph.details.positions.rope, "qk_dim" in s.graph.dims
    options: Options = {"--rotary-base": int(rope.theta)}
    if rope.fraction != 1.0:
        options["--rotary-percent"] = rope.fraction
    if rope.interleaved and not latent:  # latent attention always rotates neighbouring features
        options["--rotary-interleaved"] = FLAG
    if rope.kind == "linear":
        options["--rotary-seq-len-interpolation-factor"] = int(rope.scaling["factor"])
    if rope.kind == "llama3":
        options |= {"--use-rope-scaling": FLAG, "--rope-scaling-factor": rope.scaling["factor"]}
    return options | (_yarn(rope) if position_type(s) == "yarn" else {})


def _yarn(rope: Rope) -> Options:
    """YaRN without latent attention."""
    scaling = rope.scaling
    options: Options = {
        "--rotary-scaling-factor": scaling["factor"],
        "--yarn-original-max-position-embeddings": scaling["original_max_position_embeddings"],
        "--yarn-beta-fast": scaling.get("beta_fast") or YARN["beta_fast"],
        "--yarn-beta-slow": scaling.get("beta_slow") or YARN["beta_slow"],
    }
    if not scaling.get("truncate", True):
        options["--no-yarn-correction-range-round-to-int"] = FLAG
    both = scaling.get("mscale") and scaling.get("mscale_all_dim")
    return options | (
        {f"--{name.replace('_', '-')}": scaling[name] for name in ("mscale", "mscale_all_dim")} if both else {}
    )


def _latent(s: Subject) -> Options:
    dims, rope = s.graph.dims, s.graph.details.positions.rope
    result: Options = {
        "--multi-latent-attention": FLAG,
        "--kv-lora-rank": dims["kv_rank"],
        "--qk-head-dim": dims["plain_dim"],
        "--qk-pos-emb-head-dim": dims["rotary_dim"],
        "--v-head-dim": dims["value_dim"],
        "--qk-layernorm": FLAG,
        "--rope-type": "yarn" if rope.kind == "yarn" else "rope",
    }
    if dims["q_rank"]:
        result["--q-lora-rank"] = dims["q_rank"]
    if rope.kind == "yarn":
        result["--rotary-scaling-factor"] = rope.scaling["factor"]
        names = {"--mscale": "mscale", "--mscale-all-dim": "mscale_all_dim"}
        result |= {flag: rope.scaling[name] for flag, name in names.items() if name in rope.scaling}
    return result


def router_arguments(s: Subject) -> Options:
    """How a router's logits become weights, and what runs beside its experts."""
    gating, dims = s.graph.details.gating, s.graph.dims
    result: Options = {}
    if gating.score == "sigmoid":
        result["--moe-router-score-function"] = "sigmoid"
    elif not gating.normalised:
        result["--moe-router-pre-softmax"] = FLAG  # softmax over all experts, without renormalising the best
    if gating.factor != 1.0:
        result["--moe-router-topk-scaling-factor"] = gating.factor
    weights = _weights(s)
    if gating.bias == "chooses" and "router.bias" in weights:
        result |= {"--moe-router-enable-expert-bias": FLAG, "--moe-router-dtype": "fp32"}
    if dims.get("expert_groups"):
        result |= {"--moe-router-num-groups": dims["expert_groups"], "--moe-router-group-topk": dims["chosen_groups"]}
    if dims.get("shared_ffn"):
        result["--moe-shared-expert-intermediate-size"] = dims["shared_ffn"]
        if "shared_gate.weight" in weights:
            result["--moe-shared-expert-gate"] = FLAG
    return result
