"""Certificates against brute force: random small problems, every plan of the space by the public ``simpar.simulate``.

Usage: python benchmarks/certificate.py [--first 0] [--last 500] [--plans 160] [--seconds S] [--jobs N] [--verbose]

A case draws a model, a cluster (with slow links or smaller devices), a software stack, slow ranks, and a few values
of every axis that docs/search_axes.md lists as always searched. ``simpar.search`` gets those values; brute force
simulates all of their product, of which only those plans count that ``simpar.simulate`` takes and says to fit. A
certificate holds where none of them is faster than the certified best, and every plan that the answer lists
(candidates, choices made without a search, points of less memory) fits as simulated with the headroom asked for, is
listed once, and takes the step and the memory that are said. Layouts that are certified to be the next best are those
of brute force: no other layout is faster, and none has a variant that is faster by more than the tolerance. No plan of
a kind of layouts is faster than it is said that any can be. Exit code 1 where something does not hold.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import simpar
from simpar.planner.answer.ranking import VARIANT_TOLERANCE
from simpar.planner.problem import Constraints
from simpar.planner.progress import TOP
from simpar.workers import Workers

CLUSTERS = ("dgx-h100", "a100-pcie-8", "rtx-3090-8", "dgx-v100", "l4-8", "dgx-a100-80gb")
STACKS = (
    "megatron", "nemo", "torchtitan", "fsdp", "deepspeed", "nanotron", "ddp", "simpar", "megatron-22",
    "megatron-deepspeed", "llama3", "automodel", "nemo-24", "torchtitan-eager", "maxtext", "llm-foundry",
)  # fmt: skip
VPP = {"interleaved": (2, 3), "breadth-first": (2,), "zb-v": (2,), "v-half": (2,), "v-min": (2,), "dualpipev": (2,)}
SCHEDULES = ("1f1b", "gpipe", "interleaved", "breadth-first", "zb-h1", "zb-h2", "zb-v", "v-half", "v-min", "dualpipev")
NETWORKS = ("1x 1 Gb/s ethernet", "1x 10 Gb/s ethernet", "1x 100 Gb/s ethernet", "2x 25 Gb/s roce")
"""Cards that the devices of a node share."""
SLOW = 0.3
"""The share of cases on such a network."""
MOST_PLANS = 160
TELLING = ("tp", "cp", "pp", "ep", "micro_batch", "schedule", "recompute", "sequence_parallel", "tp_overlap")
"""In what layouts differ, beside ZeRO stages that work differently; all else makes variants (docs/searching.md)."""
NOTHING = float("inf")
AS_PREDICTED, WANTED = 0.5, 0.95  # probabilities of fitting: without a margin, and what searches want
MATCH = 1e-9


@dataclass(frozen=True)
class Case:
    """One problem: what is trained on what, and the values that each axis may have."""

    seed: int
    model: Any
    cluster: Any
    training: simpar.Training
    stack: str
    perturbation: simpar.Perturbation
    axes: dict[str, tuple[Any, ...]]
    headroom: float = 0.0
    fit_probability: float = AS_PREDICTED

    def allows(self, result: simpar.Result) -> bool:
        """Whether a simulated plan fits, as probably as asked for, and leaves the headroom asked for."""
        memory, sure = result.memory, result.to_dict()["fit_probability"]
        probable = self.fit_probability == AS_PREDICTED or sure >= self.fit_probability
        return result.fits and probable and memory.peak_reserved_bytes <= (1 - self.headroom) * memory.capacity_bytes

    def describe(self) -> str:
        """One line to find the case again."""
        size = f"{self.cluster.device.memory_bytes / 2**30:.3f} GiB"
        where = f"{self.cluster.nodes} x {self.cluster.profile.name} ({size}), links {dict(self.cluster.scaling)}"
        return f"seed {self.seed}: {where}, {self.stack}, slow {dict(self.perturbation.slow_ranks)}, {self.axes}"


@dataclass(frozen=True)
class Simulated:
    """A plan that the simulator takes: its keys, step, and what its fullest device holds."""

    keys: dict[str, Any]
    step_time_s: float
    needed_bytes: float
    fits: bool


def main() -> int:
    """Check cases one after the other, or several at once."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--last", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=NOTHING)
    parser.add_argument("--plans", type=int, default=MOST_PLANS)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    workers = Workers(options.jobs, Workers.usual().backend)
    check = partial(checked, end=time.time() + options.seconds, most=options.plans)
    cases = workers.stream(check, range(options.first, options.last))
    count: Counter[str] = Counter()
    for verdict, note in cases:
        count[verdict] += 1
        if verdict not in ("holds", "empty", "late") or options.verbose:
            print(verdict, note, flush=True)
    bad = sum(number for verdict, number in count.items() if verdict not in ("holds", "empty", "late"))
    print(f"{dict(count)}: {count['holds']} certificates hold, {bad} do not")
    return int(bad > 0 or not count["holds"])


def checked(seed: int, end: float = NOTHING, most: int = MOST_PLANS) -> tuple[str, str]:
    """The verdict on one case of at most so many plans, and what is wrong with it."""
    if time.time() > end:
        return "late", ""
    sold = drawn(seed, most)
    plans = brute_force(sold)
    case = tightened(sold, plans)
    plans = plans if case is sold else brute_force(case)  # what fits is the simulator's to say
    best = min((one for one in plans if one.fits), key=lambda one: one.step_time_s, default=None)
    try:
        found = simpar.search(
            case.model, case.cluster, case.training, stack=case.stack, perturbation=case.perturbation,
            objective="time",
            constraints=Constraints(
                case.headroom, case.axes, schedules=case.axes["schedule"], portable="any",
                fit_probability=case.fit_probability,
            ),
        )  # fmt: skip
    except simpar.Infeasible as error:
        return ("empty", "") if best is None else ("infeasible", f"{error}; fits: {best}; {case.describe()}")
    if best is not None and found.certified_optimal and found.best.step_time_s > best.step_time_s * (1 + MATCH):
        loss = found.best.step_time_s / best.step_time_s - 1
        return "beaten", f"{loss:.3%} by {best.keys} ({best.step_time_s} s); {case.describe()}"
    if not found.certified_optimal:
        return "uncertified", f"gap {found.gap}; {case.describe()}"
    for wrong in itertools.chain(
        listed_wrongly(case, found), misplaced(case, found, plans), costed_wrongly(case, found, plans)
    ):
        return wrong
    told = found.details.get("runners_up", {})
    return "holds", f"{len(plans)} plans, {told.get('certified', 0)} of {told.get('found', 0)} next certified"


def misplaced(case: Case, found: simpar.SearchResult, plans: list[Simulated]) -> Iterator[tuple[str, str]]:
    """What is wrong with the list of layouts, by brute force: one that is missing in it, twice in it, or far off."""
    stack = simpar.planner.make_problem(case.model, case.cluster, case.training, stack=case.stack).stack

    def layout(keys: dict[str, Any]) -> tuple[Any, ...]:
        told = keys | ({"sequence_parallel": False, "tp_overlap": False} if keys["tp"] == 1 else {})
        told |= {"schedule": "1f1b"} if keys["pp"] == 1 else {}
        shared = case.cluster.world_size > keys["tp"] * keys["pp"]
        return (*(told[name] for name in TELLING), shared and bool(stack.shards(keys["zero"])))

    best: dict[tuple[Any, ...], float] = {}
    for one in plans:
        if one.fits:
            best[layout(one.keys)] = min(best.get(layout(one.keys), NOTHING), one.step_time_s)
    told, listed = found.details.get("runners_up", {}), sorted(found.candidates, key=lambda one: one.step_time_s)
    shown = [layout(asked_keys(one.plan)) for one in listed]
    if len(set(shown)) < len(shown):
        yield "alike", f"two variants of one layout are listed; {case.describe()}"
    for candidate, name in zip(listed[1:], shown[1:], strict=True):
        step_s, least_s = candidate.step_time_s, best.get(name, NOTHING)
        if step_s * (1.0 - VARIANT_TOLERANCE) > least_s * (1 + MATCH):
            yield "variant", f"{name} takes {least_s} s, listed with {step_s} s; {case.describe()}"
    certain = told.get("certified", 0)
    last_s = listed[min(certain, len(listed) - 1)].step_time_s
    # one microbatch runs alike under several schedules, which are one row
    same = {(one.step_time_s, one.needed_bytes) for one in plans if one.fits and layout(one.keys) in shown}
    for one in plans:
        is_new = one.fits and layout(one.keys) not in shown and (one.step_time_s, one.needed_bytes) not in same
        if is_new and one.step_time_s < last_s * (1 - MATCH):
            yield (
                "missing",
                f"{one.keys} takes {one.step_time_s} s, {certain} certified up to {last_s} s; {case.describe()}",
            )
    unlike = len(set(best.values()))  # what changes nothing makes no other layout
    if certain == told.get("found") < min(unlike, TOP) - 1:
        yield "short", f"{len(listed)} of {len(best)} layouts are listed, {told}; {case.describe()}"


KINDS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "no tensor parallelism": lambda keys: keys["tp"] == 1,
    "no expert parallelism": lambda keys: keys["ep"] == 1,
    "no pipeline": lambda keys: keys["pp"] == 1,
    "2 to 4 pipeline ranks": lambda keys: 2 <= keys["pp"] <= 4,
    "5 to 16 pipeline ranks": lambda keys: 5 <= keys["pp"] <= 16,
    **{
        f"recompute {name}": lambda keys, name=name: keys["recompute"] == name for name in ("none", "selective", "full")
    },
}
"""Kinds of layouts that are recognised here, by their words."""


def costed_wrongly(case: Case, found: simpar.SearchResult, plans: list[Simulated]) -> Iterator[tuple[str, str]]:
    """What is wrong with the costs of kinds of layouts: a plan of the kind is faster than it is said that any is.

    Or the plan that stands for a kind is none of it, or takes another step. It may be faster than all plans of brute
    force: the space has reductions behind the last backward where a stack reduces once a step (docs/search_axes.md).
    """
    for kind in found.details.get("kinds", ()):
        if (is_of_it := KINDS.get(kind["kind"])) is None:
            continue
        best_s = min((one.step_time_s for one in plans if one.fits and is_of_it(one.keys)), default=NOTHING)
        said = {name: kind.get(name) for name in ("kind", "step_time_s", "at_least_s", "why")}
        least_s = kind.get("at_least_s", NOTHING if kind.get("plan") is None else 0.0)
        if least_s > best_s * (1 + MATCH):
            yield "kind", f"{best_s} s, said {said}; {case.describe()}"
        if kind.get("plan") is None:
            continue
        plan = simpar.Plan.model_validate(kind["plan"])
        result = simulated(case, plan, case.cluster)
        is_right = is_of_it(asked_keys(plan)) and case.allows(result)
        if not is_right or abs(result.step_time_s - kind["step_time_s"]) > MATCH * result.step_time_s:
            yield "kind", f"its plan takes {result.step_time_s} s, said {said}; {case.describe()}"


def asked_keys(plan: simpar.Plan) -> dict[str, Any]:
    """The keys of a plan that tell its layout from others, as :func:`keys_of` names them."""
    mesh, sharded = plan.mesh, plan.tensor_parallel
    return {
        "tp": mesh.tp, "cp": mesh.cp, "pp": mesh.pp, "ep": mesh.ep, "micro_batch": plan.micro_batch,
        "schedule": plan.schedule, "recompute": plan.memory.recompute, "zero": plan.data_parallel.zero,
        "sequence_parallel": sharded.sequence_parallel, "tp_overlap": sharded.overlap,
    }  # fmt: skip


def listed_wrongly(case: Case, found: simpar.SearchResult) -> Iterator[tuple[str, str]]:
    """What a list of the answer says that simulate does not: steps, memory and fit of all plans, each listed once."""
    points, naive = found.details["pareto"], [one for one in found.details["naive"] if "plan" in one]
    lists: dict[str, list[tuple[Any, float, float]]] = {
        "candidates": [(one.plan, one.step_time_s, one.peak_memory_bytes) for one in found.candidates],
        "naive": [(one["plan"], one["step_time_s"], one["peak_memory_bytes"]) for one in naive],
        "pareto": [(one["plan"], one["step_time_s"], one["needed_bytes"]) for one in points],
    }
    for name, rows in lists.items():
        seen = set()
        for given, step_s, size in rows:
            plan = simpar.Plan.model_validate(given)
            seen.add(plan.model_dump_json(exclude={"predicted", "cluster"}))
            device = case.cluster.device.model_copy(update={"memory_bytes": size * (1 + MATCH)})
            small = name == "pareto" and not case.headroom  # a point says how small a device may be
            cluster = case.cluster.with_device(device) if small else case.cluster
            result = simulated(case, plan, cluster)
            held = result.memory.peak_reserved_bytes if name == "pareto" else result.peak_memory_bytes
            where = f"{name}: {plan.mesh} {plan.schedule}; {case.describe()}"
            if not case.allows(result):
                yield "misfit", where
            if abs(result.step_time_s - step_s) > MATCH * step_s:
                yield "unlike", f"listed {step_s} s, simulated {result.step_time_s} s; {where}"
            if not small and abs(held - size) > MATCH * size:
                yield "unlike", f"listed {size} bytes, simulated {held}; {where}"
        if len(seen) < len(rows) and name != "naive":
            yield "twice", f"{name}; {case.describe()}"
    if points and (points[0]["step_time_s"] != found.best.step_time_s or not _falls(points)):
        yield "beaten", f"a point of less memory; {case.describe()}"


def _falls(points: list[dict[str, Any]]) -> bool:
    """Whether memory falls and the step grows from point to point."""
    return all(
        less["needed_bytes"] < more["needed_bytes"] and less["step_time_s"] > more["step_time_s"]
        for more, less in itertools.pairwise(points)
    )


def simulated(case: Case, plan: simpar.Plan, cluster: Any) -> simpar.Result:
    """A plan of a case by the public function."""
    return simpar.simulate(case.model, cluster, plan, case.training, stack=case.stack, perturbation=case.perturbation)


def drawn(seed: int, most: int = MOST_PLANS) -> Case:
    """A random case with the device as it is sold."""
    rng = random.Random(f"certificate {seed}")
    training = simpar.Training(seq_len=rng.choice([512, 1024, 4096]), global_batch=rng.choice([8, 16]))
    config = _config(rng)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(config))
        model = simpar.Model(str(path), seq_len=training.seq_len)
    cluster = simpar.Cluster(rng.choice(CLUSTERS), nodes=rng.choice([1, 1, 2]))
    if (other := random.Random(f"network {seed}")).random() < SLOW:
        cluster = simpar.Cluster(f"{cluster.profile.name} over {other.choice(NETWORKS)}", nodes=other.choice([2, 2, 4]))
    if rng.random() < 0.3:
        nodes = {f"node:{rng.randrange(cluster.nodes)}": rng.choice([0.1, 0.5])}
        cluster = cluster.with_degraded(nodes if cluster.nodes > 1 else {"port_tx": rng.choice([0.1, 0.5])})
    slow = {rng.randrange(cluster.world_size): rng.choice([1.2, 2.0])} if rng.random() < 0.2 else {}
    axes = _axes(rng, config, cluster.world_size, most)
    stack, free = rng.choice(STACKS), random.Random(f"headroom {seed}").choice([0.0, 0.0, 0.1])
    sure = random.Random(f"fit probability {seed}").choice([AS_PREDICTED, WANTED, WANTED])
    return Case(seed, model, cluster, training, stack, simpar.Perturbation(slow_ranks=slow), axes, free, sure)


def _config(rng: random.Random) -> dict[str, Any]:
    """A small model: dense with as many keys as queries or fewer, tied or not, or a mixture."""
    hidden, heads = rng.choice([512, 1024, 2048]), rng.choice([4, 8])
    common = {
        "hidden_size": hidden, "num_hidden_layers": rng.choice([2, 4, 6]), "num_attention_heads": heads,
        "num_key_value_heads": rng.choice([heads, heads // 4]), "vocab_size": rng.choice([4096, 32000]),
        "max_position_embeddings": 65536, "hidden_act": "silu", "rms_norm_eps": 1e-5,
    }  # fmt: skip
    if rng.random() < 0.35:
        kind = {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "intermediate_size": 2 * hidden}
        return common | kind | {"num_local_experts": 8, "num_experts_per_tok": 2}
    kind = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "intermediate_size": 4 * hidden}
    return common | kind | {"tie_word_embeddings": rng.random() < 0.4}


def _axes(rng: random.Random, config: dict[str, Any], world: int, most: int) -> dict[str, tuple[Any, ...]]:
    """A few values of every axis, in random order; what an axis is where it changes nothing is always among them.

    The product of all has at most ``most`` plans before anything is refused.
    """

    def some(neutral: Any, *others: Any, often: float = 0.7) -> list[Any]:
        chosen = rng.sample(others, rng.randint(1, min(2, len(others)))) if others else []
        return [neutral, *(chosen if rng.random() < often else [])]

    heads, layers = config["num_key_value_heads"], config["num_hidden_layers"]
    degrees = [n for n in (2, 4, 8) if n <= world]
    mixture = "num_local_experts" in config
    axes = {
        "tp": some(1, *(n for n in degrees if n <= heads)),
        "cp": some(1, 2, 4, often=0.2),
        "pp": some(1, *(n for n in degrees if n <= layers + 2)),
        "ep": some(1, 2, 4, 8) if mixture else [1],
        "micro_batch": some(1, 2, 4, often=0.5),
        "schedule": some("1f1b", *SCHEDULES[1:]),
        "zero": some(0, 1, 2, 3),
        "hsdp": some(1, 2, often=0.2),
        "sequence_parallel": some(False, True, often=1.0 if mixture else 0.5),
        "tp_overlap": some(False, True, often=0.2),
        "recompute": rng.sample(["none", "selective", "full", "every:2"], rng.randint(1, 2)),
        "overlap_grad_reduce": some(True, False, often=0.3),
        "overlap_param_gather": some(True, False, often=0.3),
        "order": some("tp-cp-dp-pp", "tp-cp-pp-dp", often=0.3),
    }
    while math.prod(len(values) for values in axes.values()) > most:
        name = rng.choice([name for name in sorted(axes) if len(axes[name]) > 1])
        axes[name] = axes[name][:-1]
    chunks = {vpp for schedule in axes["schedule"] for vpp in VPP.get(schedule, (1,))}
    axes["vpp"] = sorted({1, *chunks})
    return {name: tuple(rng.sample(values, len(values))) for name, values in axes.items()}


def keys_of(case: Case) -> Iterator[dict[str, Any]]:
    """The product of the values of all axes, as flat keys of a Plan."""
    names = [name for name in case.axes if name != "vpp"]
    for values in itertools.product(*(case.axes[name] for name in names)):
        keys = dict(zip(names, values, strict=True))
        if keys["pp"] == 1:
            keys["schedule"], chunks = "1f1b", (1,)
        else:
            chunks = VPP.get(keys["schedule"], (1,))
        if not keys["overlap_grad_reduce"] and keys["zero"] >= 2:
            continue  # docs/search_axes.md: reductions behind the last backward are not searched with ZeRO-2 and 3
        sharing = case.cluster.world_size // (keys["tp"] * keys["pp"])
        if keys["hsdp"] > 1 and (keys["zero"] < 3 or keys["hsdp"] >= sharing):
            continue  # docs/search_axes.md: replicas of sharded states are searched with ZeRO-3, fewer than ranks
        for vpp in chunks:
            yield keys | {"vpp": vpp}


def brute_force(case: Case) -> list[Simulated]:
    """Every plan of the product that the simulator takes, each once."""
    found: dict[str, Simulated] = {}
    for keys in keys_of(case):
        name = json.dumps(keys, sort_keys=True)
        if name in found:
            continue
        flat = {key: value for key, value in keys.items() if key not in ("tp_overlap", "order")}
        nested = {"tensor_parallel": {"overlap": keys["tp_overlap"]}, "rank_order": keys["order"]}
        try:
            plan = simpar.Plan.model_validate(flat | nested)
            result = simulated(case, plan, case.cluster)
        except (simpar.UserError, ValueError):
            continue
        held = max(stage.peak_bytes for stage in result.memory.stages)
        found[name] = Simulated(keys, result.step_time_s, held, case.allows(result))
    return list(found.values())


def tightened(case: Case, plans: list[Simulated]) -> Case:
    """In most cases, a device so small that only some of the plans fit."""
    rng = random.Random(f"device {case.seed}")
    needs = sorted(one.needed_bytes for one in plans)
    if not needs or rng.random() < 0.25:
        return case
    limit = needs[int(rng.choice([0.1, 0.3, 0.6, 0.9]) * (len(needs) - 1))] * 1.0001
    device = case.cluster.device.model_copy(update={"memory_bytes": min(limit, case.cluster.device.memory_bytes)})
    return replace(case, cluster=case.cluster.with_device(device))


if __name__ == "__main__":
    sys.exit(main())
