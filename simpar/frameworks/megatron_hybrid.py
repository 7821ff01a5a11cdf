"""Hybrids for Megatron-LM's ``pretrain_hybrid.py``: the pattern of layers, with bars where stages end.

A pattern looks like ``MEM*|EMEME/*E/*E``: letters as in the models' configs, a bar between virtual stages, and a slash
before every pass of prediction layers, which run on the last stage.
"""

from collections.abc import Iterator, Sequence

from simpar.architectures.hybrid import PREDICTION
from simpar.frameworks.megatron_details import plain_losses, router_arguments, router_losses
from simpar.frameworks.subject import Loss, Subject
from simpar.frameworks.target import Options

SCRIPT, STAGE_END, PASS = "pretrain_hybrid.py", "|", "/"
SPEC = ["megatron.core.models.hybrid.hybrid_layer_specs", "hybrid_stack_spec"]
BUILT_IN = {"conv": 4, "chunk": 128}
LEAST_STEP = 0.001
"""The least initial step of Mamba mixers (``dt_min``)."""
FLAG = None


def hybrid_losses(s: Subject) -> Iterator[Loss]:
    """What Megatron-Core has no option for in a hybrid."""
    if "pattern" not in s.graph.facts:
        yield Loss("model", s.graph.name, "a layer of a hybrid is a mixer, attention, an MLP or experts, one of them")
    for dim, size in BUILT_IN.items():
        if s.graph.dims[dim] != size:
            yield Loss(f"model.{dim}", s.graph.dims[dim], f"Megatron-Core's mixers have {size}")
    if predictions(s) > s.layers[-1] or 0 in _main_layers(s):
        yield Loss("layers", list(s.layers), "every stage has layers of the pattern, the last also those that predict")
    if s.graph.details.activation != "relu2":
        yield Loss("model", s.graph.details.activation, "the exporter knows the squared ReLU of hybrids")
    yield from plain_losses(s)
    if s.graph.is_mixture:
        yield from router_losses(s)
    if s.graph.details.steps not in ((0.0, None), (LEAST_STEP, None)):
        yield Loss("time_step_min", s.graph.details.steps[0], f"steps start from {LEAST_STEP}, without an upper limit")


def hybrid_arguments(s: Subject) -> Options:
    """Arguments of hybrids in addition to those of all decoders."""
    dims, switches = s.graph.dims, {"--squared-relu": True, "--mtp-use-repeated-layer": _repeats(s)}
    options: Options = {
        "--spec": SPEC,
        "--hybrid-layer-pattern": pattern(s),
        "--position-embedding-type": "none",
        "--mamba-state-dim": dims["state"],
        "--mamba-head-dim": dims["mamba_head_dim"],
        "--mamba-num-heads": dims["mamba_heads"],
        "--mamba-num-groups": dims["mamba_groups"],
    }
    options |= {name: FLAG for name, on in switches.items() if on}
    return options | (_experts(s) if s.graph.is_mixture else {})


def _experts(s: Subject) -> Options:
    """The router, a loss that balances loads along sequences, and the experts' latent."""
    dims = s.graph.dims
    result: Options = {
        **router_arguments(s),
        "--moe-router-load-balancing-type": "seq_aux_loss",
        "--moe-aux-loss-coeff": 1e-4,
    }
    if dims.get("expert_hidden"):
        result["--moe-latent-size"] = dims["expert_hidden"]
    return result


def pattern(s: Subject) -> str:
    """The model's layers by letter, stage by stage, and its prediction layers."""
    letters, stages = str(s.graph.facts.get("pattern", "")), []
    for count in _main_layers(s):
        stages.append(letters[:count])
        letters = letters[count:]
    return STAGE_END.join(stages) + f"{PASS}{PREDICTION}" * predictions(s)


def layers_of_pattern(text: str) -> tuple[int, ...]:
    """Layers of every virtual stage of a pattern; prediction layers are on the last one."""
    main, *passes = text.split(PASS)
    layers = [len(stage) for stage in main.split(STAGE_END)]
    return (*layers[:-1], layers[-1] + len(passes))


def _main_layers(s: Subject) -> Sequence[int]:
    return [*s.layers[:-1], s.layers[-1] - predictions(s)]


def predictions(s: Subject) -> int:
    """The number of layers that predict further tokens."""
    return sum(name in s.graph.auxiliary for name in s.graph.layers)


def _repeats(s: Subject) -> bool:
    return len(s.graph.auxiliary) > 1
