"""Megatron-LM arguments back to a plan: a shell script or a bare list of arguments, as people have them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from simpar.errors import UserError
from simpar.export.match import model_note, models_with, with_rope
from simpar.export.megatron_hybrid import STAGE_END, layers_of_pattern
from simpar.export.target import Imported
from simpar.models.recompute import MODULES
from simpar.plan.plan import Plan
from simpar.units import DTYPE_BYTES

EIGHT_BITS = {"mxfp8": "mxfp8", "blockwise": "fp8_blockwise"}
"""Precisions by recipes of 8-bit floats; any other has a scale a tensor."""

_VARIABLE = re.compile(r"\$\{?(\w+)\}?")
_ASSIGNMENT = re.compile(r"(\w+)=(.*)", re.DOTALL)
_STRAGGLERS = {"(", ")", "\\", ";", "&&", "exec"}
SIZES = {
    "--num-layers": "layers", "--hidden-size": "hidden", "--ffn-hidden-size": "ffn", "--num-attention-heads": "heads",
    "--num-query-groups": "kv_heads", "--vocab-size": "vocab", "--num-experts": "num_experts",
    "--moe-ffn-hidden-size": "expert_ffn",
}  # fmt: skip
AXES = {
    "--tensor-model-parallel-size": "tp", "--pipeline-model-parallel-size": "pp", "--context-parallel-size": "cp",
    "--expert-model-parallel-size": "ep",
}  # fmt: skip
CP_METHODS = {"p2p": "ring", "allgather": "all_gather", "a2a": "ulysses", "a2a+p2p": "ring"}
STRATEGIES = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}


@dataclass
class Arguments:
    """Arguments by flag, and which of them somebody has asked for."""

    values: Mapping[str, list[str]]
    source: str
    used: set[str] = field(default_factory=set)

    def has(self, flag: str) -> bool:
        """Whether a switch is there."""
        self.used.add(flag)
        return flag in self.values

    def text(self, flag: str) -> str | None:
        """The value of an option, None where it is not there. Raises UserError for a switch without its value."""
        if not self.has(flag):
            return None
        values = self.values[flag]
        if not values:
            raise UserError(f"{self.source}: {flag} has no value")
        if "$" in values[0]:
            raise UserError(f"{self.source}: {flag} = {values[0]}: a variable that the file does not set")
        return values[0]

    def number(self, flag: str) -> int | None:
        """The value of an option as a positive integer. Raises UserError."""
        text = self.text(flag)
        if text is None:
            return None
        if not text.isascii() or not text.isdigit() or int(text) < 1:
            raise UserError(f"{self.source}: {flag} = {text}: allowed: a positive integer")
        return int(text)


def read(text: str, name: str) -> Imported:
    """The plan that Megatron-LM arguments describe. Raises UserError naming file, argument and value."""
    given = Arguments(_flags(text, name), name)
    if not any(flag in given.values for flag in (*AXES, "--micro-batch-size")):
        raise UserError(f"{name}: no Megatron-LM arguments, such as --tensor-model-parallel-size 8")
    values: dict[str, Any] = {"stack": "megatron"}
    for part in (_mesh, _pipeline, _data_parallel, _recompute, _numerics, _shape):
        values |= {key: value for key, value in part(given).items() if value is not None}
    sizes = _sizes(given)
    models = models_with(sizes) if sizes else []
    if len(models) > 1 and (base := given.number("--rotary-base")):
        models = with_rope(models, base, scaled=given.has("--use-rope-scaling"))
    if models:
        values["model"] = models[0]
    notes = [model_note(models, sizes)] if sizes else []
    ignored = tuple(flag for flag in given.values if flag not in given.used)
    return Imported(Plan.model_validate(values), ignored, tuple(filter(None, [*notes, *_notes(given)])))


def _flags(text: str, source: str) -> dict[str, list[str]]:
    """Arguments by flag; variables that the file sets are put in."""
    try:
        tokens = shlex.split(text.replace("\\\n", " "), comments=True)
    except ValueError as error:
        raise UserError(f"{source}: not shell text ({error})") from None
    variables: dict[str, str] = {}
    found: dict[str, list[str]] = {}
    flag = ""
    for token in _resolved(tokens, variables):
        if token.startswith("--") and len(token) > 2:
            flag, equals, value = token.partition("=")
            found[flag] = [value] if equals else []
        elif flag and token not in _STRAGGLERS:
            found[flag].append(token)
        elif token in _STRAGGLERS:
            flag = ""
    return found


def _resolved(tokens: list[str], variables: dict[str, str]) -> Iterator[str]:
    for token in tokens:
        assigned = _ASSIGNMENT.fullmatch(token)
        if assigned and not token.startswith("--"):
            if assigned.group(2) != "(":
                variables[assigned.group(1)] = _put_in(assigned.group(2), variables)
            yield ")"  # ends the values of a flag before it
            continue
        yield from _put_in(token, variables).split() if "$" in token else [token]


def _put_in(text: str, variables: Mapping[str, str]) -> str:
    return _VARIABLE.sub(lambda match: variables.get(match.group(1), match.group(0)), text)


def _mesh(given: Arguments) -> dict[str, Any]:
    found: dict[str, Any] = {axis: given.number(flag) for flag, axis in AXES.items()}
    if given.has("--use-tp-pp-dp-mapping"):
        found["rank_order"] = "tp-cp-pp-dp"
    found |= _context(given)
    found["etp"] = given.number("--expert-tensor-parallel-size")
    if given.has("--num-experts"):
        found["etp"] = given.number("--expert-tensor-parallel-size")
        found["capacity_factor"] = given.text("--moe-expert-capacity-factor")
        found["token_dispatch"] = "per_node" if given.text("--moe-token-dispatcher-type") == "flex" else None
        found["ep_overlap"] = True if given.has("--overlap-moe-expert-parallel-comm") else None
    overlap = given.has("--tp-comm-overlap")
    if (found["tp"] or 1) > 1:
        found |= {
            "sequence_parallel": given.has("--sequence-parallel"),
            "tensor_parallel": {"overlap": overlap},
        }
    return found


def _context(given: Arguments) -> dict[str, Any]:
    """Context parallelism: what Megatron-LM does by default is a ring of zigzag pieces."""
    kind, heads = given.text("--cp-comm-type") or "p2p", given.number("--hierarchical-context-parallel-sizes")
    if (given.number("--context-parallel-size") or 1) == 1:
        return {}
    if kind not in CP_METHODS:
        raise UserError(f"{given.source}: --cp-comm-type = {kind}: allowed: {', '.join(CP_METHODS)}")
    hybrid = {"ulysses": heads} if kind == "a2a+p2p" else {}
    return {"cp_method": CP_METHODS[kind], "cp_balance": "zigzag", **hybrid}


def _pipeline(given: Arguments) -> dict[str, Any]:
    pp = given.number("--pipeline-model-parallel-size") or 1
    for flag in ("--pipeline-model-parallel-layout", "--hybrid-layer-pattern"):
        text = given.text(flag)
        if text is None or (STAGE_END not in text and flag == "--hybrid-layer-pattern"):
            continue
        hybrid = flag == "--hybrid-layer-pattern"
        layers = layers_of_pattern(text) if hybrid else layers_of(text, given.source)
        if len(layers) % pp:
            raise UserError(f"{given.source}: {flag}: {len(layers)} stages for pp = {pp}")
        even = len(set(layers)) == 1
        return {"vpp": len(layers) // pp, "layers": None if even else layers}
    vpp = given.number("--num-virtual-stages-per-pipeline-rank")
    per_stage, layers_in_all = (
        given.number("--num-layers-per-virtual-pipeline-stage"),
        given.number("--num-layers"),
    )
    if per_stage:
        if not layers_in_all or layers_in_all % (per_stage * pp):
            raise UserError(
                f"{given.source}: --num-layers-per-virtual-pipeline-stage = {per_stage}: allowed: a divisor of "
                f"--num-layers / pp = {layers_in_all} / {pp}"
            )
        vpp = layers_in_all // (per_stage * pp)
    return {"vpp": vpp, "layers": _ends(given, pp, vpp or 1, layers_in_all)}


def _ends(given: Arguments, pp: int, vpp: int, layers: int | None) -> tuple[int, ...] | None:
    """Layers of every stage where the first or last stage has its own number."""
    first = given.number("--decoder-first-pipeline-num-layers")
    last = given.number("--decoder-last-pipeline-num-layers")
    embedding = given.has("--account-for-embedding-in-pipeline-split")
    loss = given.has("--account-for-loss-in-pipeline-split")
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
    middle = pp - (first is not None) - (last is not None)
    left = (layers or 0) - (first or 0) - (last or 0)
    if not layers or vpp > 1 or left < 0 or (left % middle if middle else left):
        raise UserError(f"{given.source}: --decoder-first-pipeline-num-layers: the rest is not equal stages")
    return (*([first] if first else []), *([left // middle] * middle), *([last] if last else []))


def layers_of(text: str, source: str = "layout") -> tuple[int, ...]:
    """Transformer layers of every stage of a layout string such as "E,t*3|(t|)*2t,L". Raises UserError."""
    flat = text.replace(",", "").replace(" ", "")
    fault = UserError(f"{source}: --pipeline-model-parallel-layout = {text}: allowed: E, t, m, L, |, (...)*N")
    if len(flat) > 10_000:
        raise fault
    for pattern in (r"\(([^()]*)\)\*(\d{1,4})", r"([EtmL|])\*(\d{1,4})"):
        while match := re.search(pattern, flat):
            flat = flat[: match.start()] + match.group(1) * int(match.group(2)) + flat[match.end() :]
            if len(flat) > 100_000:
                raise fault
    if re.fullmatch(r"[EtL|]*", flat) is None or flat[:1] != "E" or flat[-1:] != "L":
        raise fault
    return tuple(stage.count("t") for stage in flat.split("|"))


def _data_parallel(given: Arguments) -> dict[str, Any]:
    zero = 1 if given.has("--use-distributed-optimizer") else 0
    kind = None
    if given.has("--use-megatron-fsdp"):
        strategy = given.text("--data-parallel-sharding-strategy") or "optim_grads_params"
        if strategy not in STRATEGIES:
            raise UserError(f"{given.source}: --data-parallel-sharding-strategy = {strategy}: allowed: "
                            f"{', '.join(STRATEGIES)}")  # fmt: skip
        zero = STRATEGIES[strategy]
    if given.has("--use-torch-fsdp2"):
        zero, kind = (2 if given.has("--torch-fsdp2-no-reshard-after-forward") else 3), "fsdp"
    bucket = given.number("--ddp-bucket-size")
    size = DTYPE_BYTES["bf16" if given.has("--grad-reduce-in-bf16") else "fp32"]
    return {
        "zero": zero,
        "kind": kind,
        "hsdp": given.number("--num-distributed-optimizer-instances"),
        "overlap_grad_reduce": None if kind else given.has("--overlap-grad-reduce"),
        "overlap_param_gather": given.has("--overlap-param-gather") if zero and not kind else None,
        "bucket_bytes": bucket and f"{int(bucket * size)} B",
    }


def _recompute(given: Arguments) -> dict[str, Any]:
    granularity, method = given.text("--recompute-granularity"), given.text("--recompute-method")
    number = given.number("--recompute-num-layers") or 1
    if given.has("--recompute-activations") or granularity == "selective":
        given.has("--recompute-modules")
        chosen = given.values.get("--recompute-modules", [])
        known = [name for name in chosen if name in MODULES and name != "core_attn"]
        return {"recompute": f"modules:{'+'.join(known)}" if known else "selective"}
    if granularity is None:
        return {}
    return {"recompute": "full" if method == "uniform" else _every(given, number)}


def _every(given: Arguments, number: int) -> str:
    """``every:C`` for the first N layers of every stage: as many layers, evenly spread."""
    pattern = given.text("--hybrid-layer-pattern")  # says the layers of hybrids, in place of their number
    layers = given.number("--num-layers") or (sum(layers_of_pattern(pattern)) if pattern else 0)
    pp = given.number("--pipeline-model-parallel-size") or 1
    vpp = given.number("--num-virtual-stages-per-pipeline-rank") or 1
    stage, rest = divmod(layers, pp * vpp)
    fits = [c for c in range(1, stage + 1) if stage % c == 0 and stage // c == number] if not rest else []
    if number >= stage > 0 and not rest:
        return "full"
    if not fits:
        raise UserError(
            f"{given.source}: --recompute-num-layers = {number}: a plan says every C-th layer; allowed: "
            f"a divisor of the {stage} layers of a stage"
        )
    return f"every:{fits[0]}"


def _numerics(given: Arguments) -> dict[str, Any]:
    low = given.has("--grad-reduce-in-bf16")
    given.has("--accumulate-allreduce-grads-in-fp32")
    half = "bf16" if given.has("--bf16") else "fp16" if given.has("--fp16") else "fp32"
    momentum, recipe = given.text("--sgd-momentum"), given.text("--fp8-recipe")
    optimizer = given.text("--optimizer") or "adam"
    names = {"adam": "adamw", "sgd": "sgd" if momentum and float(momentum) == 0 else "sgd_momentum"}
    if optimizer not in names:
        raise UserError(f"{given.source}: --optimizer = {optimizer}: allowed: {', '.join(names)}")
    return {
        "precision": EIGHT_BITS.get(recipe or "", "fp8") if given.has("--fp8-format") else half,
        "grad_dtype": None if half == "fp32" else "bf16" if low else "fp32",
        "optimizer": names[optimizer],
    }


def _shape(given: Arguments) -> dict[str, Any]:
    seq_len, batch = given.number("--seq-length"), given.number("--global-batch-size")
    training = {"seq_len": seq_len, "global_batch": batch} if seq_len and batch else None
    return {"micro_batch": given.number("--micro-batch-size"), "training": training}


def _sizes(given: Arguments) -> dict[str, int]:
    read_size: Callable[[str], int | None] = given.number
    found = {name: read_size(flag) for flag, name in SIZES.items()}
    if not given.has("--group-query-attention"):
        found["kv_heads"] = found["heads"]
    if found["num_experts"] is None:
        found |= {"num_experts": 0, "expert_ffn": 0}
    elif given.text("--moe-layer-freq") is None:
        found["ffn"] = None  # no layer is dense
    return {name: size for name, size in found.items() if size is not None}


def _notes(given: Arguments) -> Iterator[str]:
    unknown = [name for name in given.values.get("--recompute-modules", []) if name not in MODULES]
    if unknown:
        yield f"--recompute-modules {' '.join(unknown)}: not modelled; left out."
    if given.values.get("--recompute-method") == ["block"]:
        yield "Recomputation of the first layers of every stage becomes every C-th layer, as many of them."
