"""Megatron-LM arguments back to a plan: a shell script, a bare list of arguments, or YAML."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

from simpar.architectures.recompute import (
    MODULES,
    by_layer,
    joint_mode,
    of_layer,
    of_modules,
    policy_of_every,
    policy_of_segments,
)
from simpar.errors import UserError
from simpar.frameworks.match import is_telling, model_note
from simpar.frameworks.megatron_arguments import (
    AXES,
    BESIDE,
    DROPOUT,
    SIZES,
    TELLING,
    Arguments,
    in_own_words,
    of_mapping,
    read_arguments,
    renamed,
    starts_megatron,
)
from simpar.frameworks.megatron_execution import execution_notes, read_execution, with_loss
from simpar.frameworks.megatron_hybrid import PASS, STAGE_END, layers_of_pattern
from simpar.frameworks.megatron_layers import refuse_other_models
from simpar.frameworks.megatron_layers_said import further_layers, mark_told
from simpar.frameworks.megatron_model import FoundModel, find_models, sizes_asked
from simpar.frameworks.megatron_numerics import numerics_notes, read_numerics, read_offload, sums_low
from simpar.frameworks.megatron_words import MEGATRON_WORDS
from simpar.frameworks.reader import Reader, value_of
from simpar.frameworks.target import Imported
from simpar.frameworks.words import Assumed
from simpar.plan.plan import Plan
from simpar.plan.routing import Balance
from simpar.units import DTYPE_BYTES

DROPPED = 0.1
"""Megatron-LM's dropout of attention, and of hidden states, without arguments (``megatron/training/arguments.py``)."""
PATTERN = "--hybrid-layer-pattern"
CP_METHODS = {"p2p": "ring", "allgather": "all_gather", "a2a": "ulysses", "a2a+p2p": "ring"}
IN_FP32 = "Neither --bf16 nor --fp16: Megatron-LM trains in fp32, its default."
FIRST, LAST = "--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers"
LAYOUT = "--pipeline-model-parallel-layout"
BALANCED, KEEP_LOADS = "--moe-router-load-balancing-type", (
    "--moe-router-enable-expert-bias", "--moe-router-force-load-balancing", "--sft"
)  # fmt: skip
"""What balances experts, and what does beside it, or is assumed not to."""
COUNTED = ("--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split")
"""Arguments by which the embedding, and the loss, count as a layer of their stage."""
RECOMPUTED, MIXTURES_AGAIN = "--recompute-num-layers", "--moe-layer-recompute"
OF_2021 = {
    "--activations-checkpoint-method": "--recompute-method", "--activations-checkpoint-num-layers": RECOMPUTED,
    "--distribute-checkpointed-activations": "--distribute-saved-activations",
}  # fmt: skip
"""Arguments of recomputation by their names until May 2022, when all of a layer was recomputed or nothing."""
OF_ALIBABA: Mapping[str, Mapping[str, Sequence[str]]] = {
    "--RMSNorm": {"--normalization": ("RMSNorm",)},
    "--overlapped-distributed-optimizer": {
        "--use-distributed-optimizer": (), "--overlap-grad-reduce": (), "--overlap-param-gather": (),
    },
}  # fmt: skip
"""Arguments of Megatron-LLaMA, by those of Megatron-LM that ask for the same."""
STRATEGY = "--data-parallel-sharding-strategy"
STRATEGIES = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
"""Strategies of Megatron-FSDP; the last is the default of the argument since April 2026, before it was the first."""


def read(text: str, name: str) -> Imported:
    """The plan that Megatron-LM arguments describe. Raises UserError naming file, argument and value.

    Experts are split like everything else, routed tokens sorted and losses computed without fused kernels, unless an
    argument says otherwise (``megatron/training/arguments.py``).
    """
    return of_arguments(read_arguments(text, name))


@in_own_words
def of_arguments(given: Arguments, model: str | None = None, dropout: float | None = DROPPED) -> Imported:
    """As :func:`plan_of`, with what Megatron-LM does where nothing is said. Raises UserError."""
    result = plan_of(given, model, dropout=dropout)
    mesh = result.plan.mesh
    result = replace(result, plan=with_loss(result.plan, given), notes=(*result.notes, *execution_notes(given)))
    dispatcher = given.text("--moe-token-dispatcher-type")
    if dispatcher == "alltoall" and not given.has("--moe-permute-fusion"):
        result = replace(result, plan=result.plan.with_values(fused_permutation=False))
    if dispatcher is None and "--num-experts" in given.values and mesh.ep > 1:
        result = replace(result, plan=result.plan.with_values(dispatcher="all_gather"))  # allgather is its default
    if mesh.etp is not None or mesh.ep == 1 or mesh.tp == 1:
        return result
    return replace(result, plan=result.plan.with_values(etp=mesh.tp))


@in_own_words
def plan_of(given: Arguments, model: str | None = None, dropout: float | None = DROPPED) -> Imported:
    """The plan of arguments; ``model`` is a shipped model that is given by name. Raises UserError.

    ``dropout`` is the rate where none is said; None: the model's own.
    """
    refuse_other_models(given)
    given = _with_todays_names(given)
    if given.values.get(RECOMPUTED) == ["0"]:  # of the first layers, none
        whole = given.values.get("--recompute-method") == ["block"]
        given.used |= {RECOMPUTED, *(["--recompute-granularity"] if whole else [])} & set(given.values)
        dropped = {RECOMPUTED, *(["--recompute-granularity"] if whole else [])}
        given = replace(given, values={flag: each for flag, each in given.values.items() if flag not in dropped})
    values: dict[str, Any] = {"stack": "megatron"}
    for part in (_mesh, _pipeline, _data_parallel, _recompute, read_numerics, read_offload, _shape):
        values |= {key: value for key, value in part(given).items() if value is not None}
    sizes = sizes_asked(given)
    trained = FoundModel([model]) if model else find_models(given, sizes)
    models, config, notes = trained.models, trained.config, trained.notes
    if models:
        values["model"] = models[0]
    mark_told(given, models, config)
    if is_telling(sizes) and not sizes["num_experts"] and not model:
        values.pop("etp", None)  # of a model without experts, it splits nothing
    asked = bool(notes) and not models and not config  # what is missing
    note = "" if model or config or asked else model_note(models, sizes)
    about = {f"model {at}": each for at, each in enumerate(notes)}  # what was taken for the model, given none by name
    told_notes = [note, *notes, *_notes(given), *given.notes, *given.misspelt()]
    local = None if "global_batch" in values.get("training", {}) else values.get("micro_batch")
    told = sizes if is_telling(sizes) and not model else _told_sizes(given)
    said = tuple(filter(None, told_notes))
    balance: Balance = "bias" if given.has("--moe-router-enable-expert-bias") else "loss"
    balance = "tuned" if "--sft" in given.values else balance
    balance = "forced" if given.has("--moe-router-force-load-balancing") else balance
    plan, drops = Plan.model_validate(values), given.dropout()
    unsaid = {flag: rate for flag, rate in DROPOUT.items() if rate not in drops and flag not in given.values}
    assumed = trained.assumed
    if dropout is not None:
        drops |= dict.fromkeys(unsaid.values(), dropout)
        assumed += (Assumed("dropout", dropout, f"the default of {', '.join(unsaid)}"),) if unsaid else ()
    asks = {"model": notes[0] if asked else note, **about}
    return Imported(plan, given.words(), said, local, sizes=told, asks=asks, expert_balance=balance, config=config,
                    dropout=drops, assumed=assumed)  # fmt: skip


def _with_todays_names(given: Arguments) -> Arguments:
    if "--RMSNorm" in given.values or "--overlapped-distributed-optimizer" in given.values:
        given = _of_alibaba(given)
    if not set(OF_2021) & set(given.values):
        return given
    given = renamed(given, OF_2021)
    if "--recompute-method" in given.values and "--recompute-granularity" not in given.values:
        return replace(given, values={**given.values, "--recompute-granularity": ["full"]},
                       names={**given.names, "--recompute-granularity": given.name("--recompute-method")})  # fmt: skip
    return given


def _of_alibaba(given: Arguments) -> Arguments:
    """The arguments of Megatron-LLaMA (alibaba/Megatron-LLaMA, ``megatron/arguments.py``) by Megatron-LM's names."""
    own = [flag for flag in OF_ALIBABA if flag in given.values]
    values = {flag: values for flag, values in given.values.items() if flag not in own}
    names = dict(given.names)
    for flag in own:
        for theirs, value in OF_ALIBABA[flag].items():
            values[theirs], names[theirs] = list(value), given.name(flag)
    return replace(given, values=values, names=names)


def _mesh(given: Arguments) -> dict[str, Any]:
    result: dict[str, Any] = {axis: given.number(flag) for flag, axis in AXES.items()}
    if given.has("--use-tp-pp-dp-mapping"):
        result["rank_order"] = "tp-cp-pp-dp"
    result |= _context(given)
    result["etp"] = given.number("--expert-tensor-parallel-size")
    result["capacity_factor"] = given.text("--moe-expert-capacity-factor")
    result["token_dispatch"] = "per_node" if given.text("--moe-token-dispatcher-type") == "flex" else None
    result |= read_execution(given)
    result["ep_overlap"] = True if given.has("--overlap-moe-expert-parallel-comm") else None
    result["shared_expert_overlap"] = True if given.has(BESIDE) else None
    overlap, sequence = given.switch("--tp-comm-overlap"), given.switch("--sequence-parallel")
    if (result["tp"] or 1) > 1:
        result |= {"sequence_parallel": sequence, "tensor_parallel": {"overlap": overlap}}
    if sequence or (result["tp"] or 1) == 1:
        given.has("--no-async-tensor-model-parallel-allreduce")  # of which there is none
    return result


def _context(given: Arguments) -> dict[str, Any]:
    """Context parallelism: Megatron-LM's default is a ring of zigzag pieces."""
    kind, heads = given.text("--cp-comm-type") or "p2p", given.number("--hierarchical-context-parallel-sizes")
    if (given.number("--context-parallel-size") or 1) == 1:
        return {}
    if kind not in CP_METHODS:
        raise UserError(f"{given.source}: --cp-comm-type = {kind}: allowed: {', '.join(CP_METHODS)}")
    if len(set(given.values.get("--cp-comm-type", [kind]))) > 1:
        given.used.discard("--cp-comm-type")  # layer by layer
    hybrid = {"ulysses": heads} if kind == "a2a+p2p" else {}
    return {"cp_method": CP_METHODS[kind], "cp_balance": "zigzag", **hybrid}


def _pipeline(given: Arguments) -> dict[str, Any]:
    pp = given.number("--pipeline-model-parallel-size") or 1
    if layers := _spelled(given, pp):
        for flag in ("--num-virtual-stages-per-pipeline-rank", "--virtual-pipeline-model-parallel-size"):
            if given.values.get(flag) == [str(len(layers) // pp)]:  # as many as are spelled out
                given.has(flag)
        even = len(set(layers)) == 1
        return {"vpp": len(layers) // pp, "layers": None if even else layers}
    vpp = given.number("--num-virtual-stages-per-pipeline-rank")
    vpp = vpp or given.number("--virtual-pipeline-model-parallel-size")
    per_stage, layers_in_all = (given.number("--num-layers-per-virtual-pipeline-stage"), given.number("--num-layers"))
    if per_stage:
        beside = sum(given.has(flag) for flag in COUNTED)
        counted = layers_in_all and layers_in_all + beside
        if not counted or counted % (per_stage * pp):
            raise UserError(
                f"{given.source}: --num-layers-per-virtual-pipeline-stage = {per_stage}: allowed: a divisor of "
                f"--num-layers{f' + {beside}' * bool(beside)} / pp = {counted} / {pp}"
            )
        vpp = counted // (per_stage * pp)
    ends = _ends(given, pp, vpp or 1, layers_in_all)
    return {"vpp": vpp, "layers": ends and (*ends[:-1], ends[-1] + _further(given))}


def _ends(given: Arguments, pp: int, vpp: int, layers: int | None) -> tuple[int, ...] | None:
    """Layers of every stage if the first or last stage has a number of its own."""
    first = given.number(FIRST) or given.number("--num-layers-in-first-pipeline-stage")
    last = given.number(LAST) or given.number("--num-layers-in-last-pipeline-stage")
    embedding, loss = (given.has(flag) for flag in COUNTED)
    if embedding or loss:
        each, rest = divmod((layers or 0) + embedding + loss, pp * vpp)
        if not layers or rest:
            raise UserError(f"{given.source}: --num-layers = {layers}: stages would not be equal")
        stages = [each] * (pp * vpp)
        stages[0] -= embedding
        stages[-1] -= loss
        return tuple(stages)
    if first is None and last is None:
        return None
    flag = FIRST if first is not None else LAST
    if not layers:
        raise UserError(
            f"{given.source}: {given.name(flag)}: needs the number of all layers, which neither the text nor a model "
            "known here says; allowed: with --num-layers"
        )
    middle = pp - (first is not None) - (last is not None)
    left = layers - (first or 0) - (last or 0)
    each, rest = divmod(left, middle) if middle else (0, left)
    ranks = (*([first] if first else []), *([each] * middle), *([last] if last else []))
    if left < 0 or rest or any(count % vpp for count in ranks):
        raise UserError(
            f"{given.source}: {given.name(flag)}: {layers} layers, of which {left} are on the {middle} stages between: "
            f"allowed: a multiple of {middle * vpp or 1}"
        )
    return tuple(count // vpp for count in ranks) * vpp  # every rank's layers are shared among its chunks


def layers_of(text: str, source: str = "layout") -> tuple[int, ...]:
    """Layers of every stage of a layout string such as "E,t*3|(t|)*2t,m,L", prediction layers included."""
    flat = text.replace(",", "").replace(" ", "")
    fault = UserError(f"{source}: {LAYOUT} = {text}: allowed: E, t, m, L, |, (...)*N")
    if len(flat) > 10_000:
        raise fault
    for pattern in (r"\(([^()]*)\)\*(\d{1,4})", r"([EtmL|])\*(\d{1,4})"):
        while match := re.search(pattern, flat):
            flat = flat[: match.start()] + match.group(1) * int(match.group(2)) + flat[match.end() :]
            if len(flat) > 100_000:
                raise fault
    if re.fullmatch(r"[EtmL|]*", flat) is None or flat[:1] != "E" or flat[-1:] != "L":
        raise fault
    return tuple(stage.count("t") + stage.count("m") for stage in flat.split("|"))


def _spelled(given: Arguments, pp: int) -> tuple[int, ...]:
    """Layers of every virtual stage, including prediction layers, if a layout or a pattern spells out the stages."""
    for flag in (LAYOUT, PATTERN):
        text = given.text(flag)
        if text is None or (STAGE_END not in text and flag == PATTERN):
            continue
        layers = layers_of_pattern(text) if flag == PATTERN else layers_of(text, given.source)
        if len(layers) % pp:
            raise UserError(f"{given.source}: {flag}: {len(layers)} stages for pp = {pp}")
        return layers
    return ()


def _further(given: Arguments) -> int:
    """The number of layers that predict further tokens."""
    pattern = given.text(PATTERN)
    return pattern.count(PASS) if pattern else further_layers(given)


def _data_parallel(given: Arguments) -> dict[str, Any]:
    zero = 1 if given.has("--use-distributed-optimizer") else 0
    kind = None
    if given.has("--use-megatron-fsdp"):
        strategy = given.text(STRATEGY) or next(reversed(STRATEGIES))
        if strategy not in STRATEGIES:
            raise UserError(f"{given.source}: {STRATEGY} = {strategy}: allowed: {', '.join(STRATEGIES)}")
        zero = STRATEGIES[strategy]
    if given.has("--use-torch-fsdp2"):
        given.used |= {"--overlap-grad-reduce", "--overlap-param-gather", "--use-distributed-optimizer"}  # its own
        zero, kind = (2 if given.has("--torch-fsdp2-no-reshard-after-forward") else 3), "fsdp"
    bucket = given.number("--ddp-bucket-size")
    gathered = given.switch("--overlap-param-gather")
    size = DTYPE_BYTES["bf16" if sums_low(given) else "fp32"]
    return {
        "zero": zero,
        "kind": kind,
        "hsdp": given.number("--num-distributed-optimizer-instances"),
        "overlap_grad_reduce": None if kind else given.switch("--overlap-grad-reduce"),
        "overlap_param_gather": gathered if zero and not kind else None,
        "bucket_bytes": bucket and f"{int(bucket * size)} B",
    }


def _recompute(given: Arguments) -> dict[str, Any]:
    granularity, method = given.text("--recompute-granularity"), given.text("--recompute-method")
    number = given.number(RECOMPUTED) or 1
    of_mixtures = granularity in (None, "none", "selective") and given.has(MIXTURES_AGAIN)
    if given.has("--recompute-activations") or granularity == "selective" or of_mixtures:
        return {"recompute": _by_module(given)}
    if granularity in (None, "none"):
        # megatron/training/arguments.py until 2022: so many layers at a time, one by default
        chunk = given.number("--checkpoint-num-layers") or 1
        return {"recompute": _segments(given, chunk)} if _checkpoints(given) else {}
    return {"recompute": _segments(given, number) if method == "uniform" else _every(given, number)}


def _checkpoints(given: Arguments) -> bool:
    given.used |= {"--checkpoint-num-layers", "--checkpoint-method"} & set(given.values)
    return given.has("--checkpoint-activations")


def _stage_sizes(given: Arguments) -> tuple[int, ...]:
    """Layers of every virtual stage, without those that predict further tokens; empty if arguments do not say."""
    pp, further, pattern = (given.number("--pipeline-model-parallel-size") or 1, _further(given), given.text(PATTERN))
    if spelled := _spelled(given, pp):
        return (*spelled[:-1], spelled[-1] - further)
    # for hybrids a pattern gives the layers instead of a number
    layers = given.number("--num-layers") or (sum(layers_of_pattern(pattern)) - further if pattern else 0)
    pipeline = _pipeline(given)
    if sizes := pipeline["layers"]:
        return (*sizes[:-1], sizes[-1] - (sum(sizes) - layers if layers else 0))
    stages = pp * (pipeline["vpp"] or 1)
    return (layers // stages,) * stages if layers and layers % stages == 0 else ()


def _segments(given: Arguments, number: int) -> str:
    """Uniform recomputation: of every ``number`` layers of a stage, only the first input is kept."""
    sizes = _stage_sizes(given)
    if number == 1 or not sizes:
        return "full"
    lengths = {min(number, size) for size in sizes if size}
    if len(lengths) == 1 and not _further(given) and not any(size % max(lengths) for size in sizes):
        return policy_of_segments(max(lengths))
    modes = []
    for size in sizes:
        length = min(number, size)
        rest = size % length if length else 0
        modes += [(joint_mode(length), size - rest), (joint_mode(rest), rest)]
    modes.append(("full", _further(given)))  # prediction layers have no neighbour
    return by_layer((mode, count) for mode, count in modes if count)


def _by_module(given: Arguments) -> str:
    """The policy for the named modules; attention, the default, has a name of its own."""
    named = given.values["--recompute-modules"] if given.has("--recompute-modules") else ["core_attn"]
    known = [name for name in named if name in MODULES]
    if MIXTURES_AGAIN in given.values and "moe" not in known:
        known.append("moe")
    if known == ["core_attn"]:
        return "selective"
    return of_modules(known)


def _every(given: Arguments, number: int) -> str:
    """The first N layers of every stage: ``every:C`` if it gives as many, evenly spread, otherwise layer by layer.

    Layers that predict further tokens are not recomputed.
    """
    sizes, further = _stage_sizes(given), _further(given)
    if not sizes:
        raise UserError(
            f"{given.source}: --recompute-num-layers = {number}: of how many layers of a stage is not said; allowed: "
            "with --num-layers, a multiple of the stages"
        )
    if number >= max(sizes) and not further:
        return "full"
    stages = [range(*ends) for ends in pairwise((0, *accumulate(sizes))) if ends[0] < ends[1]]
    for policy in map(policy_of_every, range(1, max(sizes) + 1)):
        whole = [of_layer(policy, layer) == "full" for layer in range(sum(sizes) + further)]
        even = all(sum(whole[layer] for layer in stage) == number for stage in stages)
        if even and not any(whole[sum(sizes) :]):
            return policy
    modes = [pair for size in sizes for pair in (("full", min(number, size)), ("none", max(size - number, 0)))]
    return by_layer((mode, count) for mode, count in (*modes, ("none", further)) if count)


def _shape(given: Arguments) -> dict[str, Any]:
    shape = {"seq_len": given.number("--seq-length"), "global_batch": given.number("--global-batch-size")}
    training = {name: value for name, value in shape.items() if value}
    return {"micro_batch": given.number("--micro-batch-size"), "training": training or None}


def _told_sizes(given: Arguments) -> dict[str, int]:
    """Sizes of the model that arguments give."""
    sizes = {name: given.number(flag) for flag, name in SIZES.items()}
    return {name: size for name, size in sizes.items() if size is not None}


def _notes(given: Arguments) -> Iterator[str]:
    yield from numerics_notes(given)
    unknown = [name for name in given.values.get("--recompute-modules", []) if name not in MODULES]
    if unknown:
        yield f"--recompute-modules {' '.join(unknown)}: not modelled; left out."
    if not any(given.has(flag) for flag in ("--bf16", "--fp16", "--fp8-format", "--fp4-format")):
        yield IN_FP32
    if given.text("--optimizer") in ("dist_muon", "adaptive_muon"):
        yield f"--optimizer {given.text('--optimizer')} is read as muon."
    if given.has("--use-megatron-fsdp") and not given.has(STRATEGY):
        yield f"--use-megatron-fsdp shards all without {STRATEGY} (before April 2026 it shards nothing)."
    if MIXTURES_AGAIN in given.used & set(given.values) and "--recompute-modules" not in given.values:
        yield f"{MIXTURES_AGAIN} is read as --recompute-modules core_attn moe (until April 2025 the mixtures alone)."
    number = given.number(RECOMPUTED) or 1
    if given.values.get("--recompute-method") == ["uniform"] and number > 1 and not _stage_sizes(given):
        yield f"--recompute-num-layers {number}: the layers of a stage are not said; each is recomputed alone."
    if given.values.get(BALANCED) == ["none"] and not set(KEEP_LOADS) & set(given.values):
        yield f"{BALANCED} none: nothing keeps experts evenly loaded; they are taken to be as a loss would leave them."
    if given.values.get("--recompute-method") == ["block"] and given.values.get("--recompute-granularity") == ["full"]:
        yield "Recomputation of the first layers of every stage becomes every C-th layer, as many of them."


def _owns(data: Mapping[str, Any]) -> bool:
    """Whether a mapping has arguments of Megatron-LM: axes or sizes, and a batch or sizes.

    Other front ends have a micro-batch, too, and what generates text has axes.
    """
    is_part = {"extends", "_target_", "gpu_memory_utilization"} & set(data)  # of a config of several files
    flags = set() if is_part else set(of_mapping(data, "").values)
    batches = {"--micro-batch-size", "--global-batch-size"}
    return bool(flags & {*AXES, *SIZES}) and bool(flags & {*batches, *SIZES}) and bool(flags & set(TELLING))


READER = Reader(
    name="megatron",
    description="Megatron-LM: arguments in a command, a script or YAML",
    read=read,
    starts=starts_megatron,
    config=lambda words: value_of(words, ("--yaml-cfg",)),  # replaces all other arguments
    owns=_owns,
    words=MEGATRON_WORDS,
    written_as="megatron",
)
