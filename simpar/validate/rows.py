"""Measured runs as inputs: a row of a table becomes a model, a cluster and a plan, or a reason why not.

The columns are the same for every table; free text is read through the few patterns below and nowhere else.
Blank means unknown: what a plan needs and a row does not say is a reason, never a guess; only the micro-batch, and
with it virtual stages and recomputation, may stay open, for a run was tuned over them (``simpar.validate.tuned``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from simpar.cost.stack import load_stack
from simpar.hardware.catalogue import load_cluster
from simpar.models.graph import ModelGraph
from simpar.models.recompute import MODULES
from simpar.models.training import Documents, Training
from simpar.plan.schedules import SCHEDULES, known_name, natural_vpp, usual_schedule
from simpar.units import GB
from simpar.validate.cells import Row, Unmodelled, is_primus, measurement, number, text, throttled, whole
from simpar.validate.clusters import devices_of_node, profile_of
from simpar.validate.dense import is_mixture, model, sequence, unfused
from simpar.validate.mixtures import (
    expert_plan,
    mixture,
    most_ep,
    overlap_words,
    recipe_layers,
    usual_ep,
)
from simpar.validate.networks import Network, network_of
from simpar.validate.recipes import completed
from simpar.validate.released import config, entry, unsized
from simpar.validate.stacks import contest_attention, copies_of_batch, fused_experts, is_nemo, stack_of
from simpar.validate.words import (
    LOG_FIRST_RANK,
    PeakCounts,
    adapters,
    forward_again,
    gradient_dtypes,
    is_of_contest,
    memory_unit,
    peak_counts,
)


@dataclass(frozen=True)
class Case:
    """One measured run as simulation input.

    ``open`` names what its row does not print and a tuner would choose; ``network`` is that of its words where it is
    not the profile's; ``supposed`` says what else words, or their silence, were taken for.
    """

    graph: ModelGraph
    hardware: str
    num_devices: int
    devices_per_node: int
    training: Training
    plan: Mapping[str, object]
    stack: str
    stack_changes: Mapping[str, object]
    fabric: Mapping[str, float]
    open: tuple[str, ...] = ()
    network: Network | None = None
    supposed: tuple[str, ...] = ()

    @property
    def first_rank_reports(self) -> bool:
        """Whether its memory is that of rank 0 alone, not of the fullest."""
        return self.stack in LOG_FIRST_RANK

    @property
    def read_as(self) -> str:
        """What the words of a row for its cluster, its software and its model were taken for."""
        known = self.stack_changes.get("name")
        nearest = f", the nearest to {known}" if known else ""
        network = f" with {self.network.words} a node" if self.network else ""
        return ", ".join([f"{self.hardware}{network}", f"stack {self.stack}{nearest}", *self.supposed])


@dataclass(frozen=True)
class Measured:
    """What a row says about its run; None where it does not.

    ``peak_counts`` says what the peak of memory is of.
    """

    step_time_s: float | None
    peak_memory_bytes: float | None
    static_memory_bytes: float | None
    peer_step_time_s: float | None
    peer_memory_bytes: float | None
    fits: bool | None
    peak_counts: PeakCounts = "reserved"


def case(row: Row, on: tuple[str, int] | None = None) -> Case:
    """The simulation input of a row, ``on`` a profile and its devices per node where that is not the row's to say.

    Blanks are what the row's authors published elsewhere says (:mod:`simpar.validate.recipes`). Raises Unmodelled with
    the reason.
    """
    row, filled = completed(row)
    graph = unsized(row) or (mixture(row) if is_mixture(row) else model(row))
    devices = whole(row, "n_gpus")
    hardware, per_node = _hardware(row, devices, on)
    plan = _plan(row, devices, graph)
    layers = recipe_layers(graph, int(str(plan["pp"])) * int(str(plan["vpp"]))) if is_nemo(row) else None
    if layers is not None:
        plan["layers"] = layers
    training = Training(
        seq_len=sequence(row), global_batch=_global_batch(row, plan, devices), documents=_documents(row)
    )
    stack, changes = stack_of(row)
    changes |= {**fused_experts(graph, stack, plan, changes), **contest_attention(row, plan)}
    network = None
    if devices > per_node:
        network = network_of(text(row, "interconnect"), per_node, load_cluster(hardware).profile.scale_out)
    return Case(
        graph, hardware, devices, per_node, training, plan, stack, changes, _fabric(row), _open(row), network,
        (*_supposed(row, graph, plan), *filled),
    )  # fmt: skip


def _supposed(row: Row, graph: ModelGraph, plan: Mapping[str, object]) -> tuple[str, ...]:
    """In words what a reader of a table would want to know: where gradients, experts and layers come from."""
    found = []
    said = {"added up": plan.get("grad_dtype"), "reduced": plan.get("reduce_dtype")}
    if dtypes := [f"{how} in {dtype}" for how, dtype in said.items() if dtype]:
        found.append(f"gradients {' and '.join(dtypes)}")
    if plan.get("frozen_dtype") == "fp8":
        found.append(f"frozen weights{' and attention' if contest_attention(row, plan) else ''} in 8 bits")
    if plan["recompute"] == "full" and not text(row, "recompute"):
        found.append("all layers recomputed")
    if not text(row, "stack") and not text(row, "attention_kernel") and unfused(row):
        found.append("attention not fused")
    if graph.is_mixture and number(row, "ep") != plan["ep"]:
        found.append(f"experts over {plan['ep']} ranks")
    dense = sum(name == "layer" for name in graph.layers)
    known = entry(row)
    if graph.is_mixture and known and dense != config(known).get("first_k_dense_replace", dense):
        found.append(f"{dense} of {len(graph.layers)} layers without experts")
    counts = peak_counts(row)
    if number(row, "peak_mem_gib") is not None:
        found.append("memory of the device" if counts == "device" else f"memory {counts}")
    return tuple(found)


def _documents(row: Row) -> Documents | None:
    """Fine-tuning packs short questions and answers (NeMo's documentation uses Dolly and SQuAD), all else one text.

    NeMo Automodel's benchmarks are of whole sequences (examples/llm_benchmark, MockIterableDataset).
    """
    if stack_of(row)[0] == "automodel":
        return None
    words = f"{text(row, 'model_name')} {text(row, 'notes')}".lower()
    return Documents(mean=200) if re.search(r"\(sft\)|\(lora\)|packed sequences", words) else None


# --- the cluster -----------------------------------------------------------------------------------------------


def _hardware(row: Row, devices: int, on: tuple[str, int] | None) -> tuple[str, int]:
    """Profile and devices per node; a job smaller than a node is one node of its size."""
    device = text(row, "gpu_type").lower()
    name, usual = on or (named_hardware(row), devices_of_node(device))
    per_node = min(whole(row, "gpus_per_node", usual), devices)
    if devices % per_node:
        raise Unmodelled("n_gpus is no multiple of gpus_per_node")
    return name, per_node


def named_hardware(row: Row) -> str:
    """The cluster profile of a row's words. Raises Unmodelled."""
    row, _ = completed(row)
    device, network = text(row, "gpu_type").lower(), text(row, "interconnect").lower()
    return "hgx-b200-throttled" if throttled(row) else profile_of(device, network)


_FABRIC = (
    ("all_reduce", "fabric_allreduce_gbs"),
    ("all_gather", "fabric_allgather_gbs"),
    ("intra_all_reduce", "intra_allreduce_gbs"),
    ("intra_all_gather", "intra_allgather_gbs"),
)


def _fabric(row: Row) -> dict[str, float]:
    """Bus bandwidths measured inside the job, bytes/s: over all ranks, and "intra" inside a node.

    All-reduce decides; the all-gather tests of such tables copy through lists and read low.
    """
    found = {}
    for name, column in _FABRIC:
        value = number(row, column)
        if value is not None and value > 0:
            found[name] = value * GB
    return found


# --- the plan --------------------------------------------------------------------------------------------------

OFF, ON = (
    frozenset(["no", "off", "false", "0", "disabled", "-", "n/a"]),
    frozenset(["yes", "on", "true", "1"]),
)
_OFFLOADED = re.compile(r"activation cpu offload (\d+) layers")
MEGATRONS = frozenset(
    ["megatron", "megatron-sc21", "megatron-22", "megatron-deepspeed", "nemo", "nemo-24", "deepspeed-21"]
)
SPREAD_EXPERTS = frozenset(["nemo", "nemo-24", "automodel", "maxtext"])
"""Stacks whose recipes spread experts over ranks: where a row leaves ep blank, it is not 1."""


def _plan(row: Row, devices: int, graph: ModelGraph) -> dict[str, object]:
    if not text(row, "tp") and not text(row, "pp") and stack_of(row)[0] in MEGATRONS and devices > 1:
        raise Unmodelled("tp and pp not published")
    tp, pp, cp = whole(row, "tp", 1), whole(row, "pp", 1), whole(row, "cp", 1)
    if devices % (tp * cp * pp):
        raise Unmodelled("tp x cp x pp does not divide n_gpus")
    replicas = devices // (tp * cp * pp)
    if whole(row, "dp", replicas) != replicas:
        raise Unmodelled("tp x cp x pp x dp is not n_gpus")
    vpp = whole(row, "vpp", _usual_vpp(row, pp)) if pp > 1 else 1
    plan: dict[str, object] = {
        "tp": tp, "pp": pp, "cp": cp, "vpp": vpp, "micro_batch": _micro_batch(row, replicas) or 1,
        "recompute": _recompute(row), "precision": _precision(row), "schedule": _schedule(row, vpp),
    }  # fmt: skip
    plan |= _sharding(
        row, devices // (tp * pp), per_node=whole(row, "gpus_per_node", 8), sharded=_shards_by_default(row)
    )
    if graph.is_mixture:
        sliced = expert_plan(row)  # experts have tp slices, or ranks of their own
        spread = stack_of(row)[0] in SPREAD_EXPERTS
        ranks = devices // (pp * int(str(sliced.get("etp", 1))))
        plan |= expert_plan(row, usual_ep(graph.dims["num_experts"], ranks, spread=spread))
        plan["ep"] = most_ep(int(str(plan["ep"])), ranks)
    stack = load_stack(stack_of(row)[0])
    said = gradient_dtypes(row, one_buffer=stack.name in MEGATRONS)
    plan |= {name: dtype for name, dtype in said.items() if dtype != getattr(stack.numerics, name)}
    if "lora" in text(row, "model_name").lower():
        eight_bits = plan["precision"] == "fp8" and stack.name in MEGATRONS
        plan |= adapters(row, recipe=stack.name, eight_bits=eight_bits)
    if offloaded := _OFFLOADED.fullmatch(text(row, "recompute").lower()):
        plan["offload_activations"] = int(offloaded.group(1)) / whole(row, "n_layers")
    if cp > 1 and "cp all-to-all" in overlap_words(row):
        plan["cp_method"] = "ulysses"
    sequence = text(row, "seq_parallel").lower()
    if sequence in ("true", "false"):
        plan["sequence_parallel"] = sequence == "true" and tp > 1
    elif unfused(row):
        plan["sequence_parallel"] = False
    notes = overlap_words(row)
    if re.search(r"tp comm overlap on|tp-comm-overlap|asynctp|async tp", notes):
        plan["tensor_parallel"] = {"overlap": True}
    elif re.search(r"tp comm overlap off", notes) or is_mixture(row):  # recipes of mixtures leave it off
        plan["tensor_parallel"] = {"overlap": False}
    if re.search(r"not overlapped|no tp/dp overlap", notes):
        plan["overlap_grad_reduce"] = plan["overlap_param_gather"] = False
    if "ddp impl torch" in notes:
        plan["overlap_grad_reduce"] = True
    if text(row, "stack") == "llm-foundry" and "amp" in text(row, "precision").lower():
        plan["reduce_dtype"] = "fp32"  # as Composer's FSDP by default; its "pure" precision reduces in bf16
    return plan


def _usual_vpp(row: Row, pp: int) -> int:
    """Where a table has no column for it.

    Notes of overlap say it, or a schedule; NeMo's recipes of dense models interleave single layers, torchtitan's two
    stages a rank.
    """
    if said := re.search(r"\bvpp ?=? ?(\d+)", text(row, "overlap_notes").lower()):
        return int(said[1])
    if named := _named_schedule(text(row, "schedule").lower()):
        return natural_vpp(named)
    if text(row, "stack") == "torchtitan" and usual_schedule(chunks=2) in text(row, "schedule").lower():
        return 2
    layers = whole(row, "n_layers", 0)
    return layers // pp if is_nemo(row) and not is_mixture(row) and layers % pp == 0 else 1


def _micro_batch(row: Row, dp: int) -> int | None:
    if number(row, "micro_batch") is not None:
        return whole(row, "micro_batch")
    largest = re.search(r"max batch that fits = (\d+)", text(row, "notes"))
    if largest:  # a chart over the largest batch
        return int(largest.group(1))
    batch, accumulation = number(row, "global_batch_seqs"), number(row, "grad_accum")
    stages = whole(row, "pp", 1)
    if text(row, "stack") == "torchtitan" and stages > 1 and not accumulation:
        accumulation = stages  # as many microbatches as stages unless a config says otherwise
    if batch and accumulation and batch % (dp * accumulation) == 0:
        return int(batch // (dp * accumulation))
    return None


def _open(row: Row) -> tuple[str, ...]:
    """What a tuner would choose: the micro-batch where no column tells it, and what else is blank then.

    Submissions to MLPerf tune the kernels and settings that the benchmark's rules leave free: how ranks share keys too.
    """
    stages, cp = whole(row, "pp", 1), whole(row, "cp", 1)
    free = (
        ["cp_method"] if is_of_contest(row) and cp > 1 and "cp all-to-all" not in overlap_words(row) else []
    )
    if _micro_batch(row, whole(row, "n_gpus") // (whole(row, "tp", 1) * stages * cp)):
        return tuple(free)
    if is_mixture(row):
        raise Unmodelled("micro_batch not published")  # its dispatch depends on it, and on how it is done
    found = ["micro_batch", *free]
    if number(row, "global_batch_seqs") is None and number(row, "grad_accum") is None:
        found.append("global_batch")
    if number(row, "vpp") is None and stages > 1:
        found.append("vpp")
    if not text(row, "recompute") and _recompute(row) == "none":
        found.append("recompute")
    return tuple(found)


def _global_batch(row: Row, plan: Mapping[str, object], devices: int) -> int:
    known = number(row, "global_batch_seqs")
    if known is not None:
        return whole(row, "global_batch_seqs") * copies_of_batch(row)
    dp = devices // (int(str(plan["tp"])) * int(str(plan["cp"])) * int(str(plan["pp"])))
    once = 1 if plan["pp"] == 1 else None  # microbatches are for pipelines where nothing else is said
    return dp * int(str(plan["micro_batch"])) * whole(row, "grad_accum", once)


def _stages(row: Row) -> int:
    """Model chunks of all pipeline ranks."""
    pp = whole(row, "pp", 1)
    return pp * (whole(row, "vpp", _usual_vpp(row, pp)) if pp > 1 else 1)


def _first_layers(row: Row, count: int) -> str:
    """So many layers of every virtual stage, as Megatron counts them (recompute_num_layers)."""
    stages = _stages(row)
    kept = whole(row, "n_layers") // stages - count
    if kept <= 0:
        return "full"
    return "layers:" + ",".join([f"full*{count},none*{kept}"] * stages)


def _recompute(row: Row) -> str:
    words = text(row, "recompute").lower()
    if not words and text(row, "stack") == "torchtitan":
        return "selective"  # its default
    if not words and stack_of(row)[0] == "maxtext":
        return "full"  # its remat_policy
    if not words and stack_of(row)[0] == "automodel" and whole(row, "n_gpus") > 1:
        return "full"  # activation_checkpointing of its recipes but those for one device
    if not words and is_primus(row) and "fsdp" in text(row, "zero_stage_or_fsdp").lower():
        return "full"  # use_torch_fsdp2 and recompute_granularity of its configs (llama3.1_70B-BF16-pretrain.yaml)
    if not words or words.startswith("none") or words in OFF:
        return "none"
    if re.search(r"every other|every n-th", words):
        return "every:2"
    share = re.search(r"(\d+) of (\d+)\b", words)
    if share and words.startswith("full"):
        return f"every:{max(round(int(share.group(2)) / int(share.group(1))), 1)}"
    if words == "minimal":  # products with weights are kept, MaxText's remat_policy
        return "modules:core_attn+layernorm"
    if some := re.fullmatch(r"full recompute of (\d+) layers(?: \(per virtual stage\))?", words):
        return _first_layers(row, int(some.group(1)))
    if _OFFLOADED.fullmatch(words):
        return "none"
    if "partial" in words and (share_again := forward_again(row)):
        return _first_layers(row, max(1, round(share_again * whole(row, "n_layers") / _stages(row))))
    if "offload" in words or re.search(r"of \d+ layers|remateri", words):
        raise Unmodelled("partial recompute or offload")
    named = set(re.findall(r"[a-z_]+", words.partition("selective")[2])) - {
        "modules",
        "op",
        "attention",
        "core",
    }
    modules = [name for name in MODULES if name in named]
    if named and len(modules) < len(named):
        raise Unmodelled("recompute of chosen modules")
    if modules:
        return f"modules:{'+'.join(modules)}"
    if "selective" in words:
        return "selective"
    if words.startswith("full") or words in ON:
        return "full"
    raise Unmodelled(f"recompute {words!r} is no word that is known")


def _precision(row: Row) -> str:
    words = text(row, "precision").lower()
    if re.search(r"fp4", words):
        return "mxfp4" if "mxfp4" in words else "nvfp4"
    if re.search(r"fp8|float8", words):
        blackwell = re.search(r"\bg?b[23]00", text(row, "gpu_type").lower())
        if "mx" in words or ("fine-grained" in words and blackwell):
            return "mxfp8"
        return "fp8_blockwise" if re.search("fine-grained|block|subchannel", words) else "fp8"
    if words and not re.search(r"bf16|fp16|bfloat16|float16|half|mixed|amp", words):
        if words in ("fp32", "float32"):
            return "fp32"
        raise Unmodelled(f"precision {words!r} is no word that is known")
    return "fp16" if words.startswith("fp16") and "v100" in text(row, "gpu_type").lower() else "bf16"


def _schedule(row: Row, vpp: int) -> str:
    words = text(row, "schedule").lower()
    if named := _named_schedule(words):
        return named
    usual = "|".join(each.names.pattern for each in SCHEDULES.values() if each.usual)
    if words and words not in OFF and not re.search(usual, words):
        raise Unmodelled(f"schedule {words!r} is no word that is known")
    return usual_schedule(vpp)


def _named_schedule(words: str) -> str | None:
    """A schedule that words name, None where that is the usual one of as many chunks as the row says.

    Later ones first: the word for a family is in the pattern of its first.
    """
    others = [each for each in reversed(SCHEDULES.values()) if each.names.pattern and not each.usual]
    known = next((each.name for each in others if re.search(each.names.pattern, words)), None)
    known = known or known_name(words.partition("(")[0])
    return None if known is None or SCHEDULES[known].usual else known


def _shards_by_default(row: Row) -> bool:
    """Whether a silent row has a distributed optimizer: today's Megatron recipes all switch it on."""
    return text(row, "stack") == "megatron" and not unfused(row)


def _sharding(row: Row, dp: int, *, per_node: int, sharded: bool) -> dict[str, object]:
    """ZeRO stage and replicas from the words of the sharding column; unknown is the stack's usual."""
    words = text(row, "zero_stage_or_fsdp").lower()
    if words in ("", "fsdp 1") and "megatron fsdp" in overlap_words(row):
        words = "fsdp"  # the column is a flag
    stage = re.search(r"zero[- ]?(?:stage )?([0-3])|^(?:stage )?([0-3])$", words)
    slices = re.search(r"(\d+) slice\(s\)", text(row, "notes"))
    if "inside the slice" in words and slices:
        return {"zero": 3, "hsdp": int(slices.group(1))}
    if "hybrid shard" in words:
        return {"zero": 3, "hsdp": max(1, dp // per_node)}
    if re.search(r"zero-2-like|grad-op|without reshard", words):
        return {"zero": 2, "kind": "fsdp"}
    if stage and "fsdp" not in words:
        return {"zero": int(stage[stage.lastindex or 1])} if dp > 1 else {"zero": 0}
    if re.search("[fh]sdp", words) or (stage and stage[stage.lastindex or 1] == "3"):
        width = re.search(r"(?:fsdp[ =]|degree )(\d+)|(\d+)-way fsdp", words)
        shards = int(width[1] or width[2]) if width else dp
        if shards * whole(row, "ep", 1) == dp:
            shards = dp  # beside experts: what is not spread over their ranks is sharded over both
        if "hsdp" in words:
            raise Unmodelled("HSDP degree not published")
        if dp % shards:
            raise Unmodelled("FSDP degree does not divide dp")
        return {"zero": 3, "hsdp": dp // shards} if dp > 1 else {"zero": 0}
    if "optimizer" in words or (sharded and not words):
        return {"zero": 1} if dp > 1 else {"zero": 0}
    if words and words not in OFF and not re.search("ddp|none", words):
        raise Unmodelled(f"sharding {words!r} is no word that is known")
    return {"zero": 0}


# --- what was measured -----------------------------------------------------------------------------------------


def measured(row: Row) -> Measured:
    """The measurements of a row, in SI."""

    def memory(name: str) -> float | None:
        value = measurement(row, name)
        return None if value is None else value * memory_unit(row)

    return Measured(
        step_time_s=_step_time(row),
        peak_memory_bytes=memory("peak_mem_gib"),
        static_memory_bytes=memory("static_mem_gib"),
        peer_step_time_s=measurement(row, "peer_pred_iteration_time_s"),
        peer_memory_bytes=memory("peer_pred_mem_gib"),
        fits=re.search(r"\boom\b|out.of.memory", text(row, "status").lower()) is None,
        peak_counts=peak_counts(row),
    )


def _step_time(row: Row) -> float | None:
    """Published, or from tokens per second and device."""
    known = measurement(row, "iteration_time_s")
    if known is not None:
        return known
    rate, batch = measurement(row, "tokens_per_s_per_gpu"), number(row, "global_batch_seqs")
    devices = number(row, "n_gpus")
    if rate and batch and devices and (number(row, "seq_len") or text(row, "stack") == "torchtitan"):
        return batch * sequence(row) / (rate * devices)
    return None
