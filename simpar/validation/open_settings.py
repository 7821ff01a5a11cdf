"""Settings that a row does not print and its authors tuned: the fastest per token that fits is assumed.

A published run is the outcome of tuning. So what it leaves open (the micro-batch, and with it the number of virtual
stages and the recomputation; in a contest also the method of context parallelism) is more likely the best choice than
any fixed one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from simpar.architectures.recompute import FULL, NONE, SELECTIVE, policy_of_every
from simpar.plan.schedules import default_schedule
from simpar.validation.cells import Unmodelled
from simpar.validation.predict import Prediction, predict
from simpar.validation.rows import FREE_BATCH, TUNED, Case

MOST_SEQUENCES = 64
CP_METHODS = ("ring", "ulysses", "all_gather")  # Megatron-Core's cp_comm_type: p2p, a2a, all_gather
RECOMPUTE = (NONE, SELECTIVE, policy_of_every(4), policy_of_every(2), FULL)


def choose_open_settings(entry: Case) -> tuple[Case, Prediction]:
    """A case with all open settings chosen, and its prediction. Raises Unmodelled if no choice is possible."""
    if not entry.open:
        return entry, predict(entry)
    tried: list[tuple[tuple[bool, float], Case, Prediction]] = []
    reason = Unmodelled("nothing that the row leaves open divides its batch")
    for choice in _choices(entry):
        try:
            result = predict(choice)
        except Unmodelled as error:
            reason = error
            continue
        per_token = result.step_time_s / choice.training.tokens_per_step
        tried.append(((not result.fits, per_token if result.fits else result.peak_reserved_bytes), choice, result))
    if not tried:
        raise reason
    _, case, prediction = min(tried, key=lambda one: one[0])
    return case, prediction


def _choices(entry: Case) -> Iterator[Case]:
    """Every combination of the open settings. Raises Unmodelled for one that cannot be chosen here."""
    plan = entry.plan
    replicas = entry.num_devices // (int(str(plan["tp"])) * int(str(plan["cp"])) * int(str(plan["pp"])))
    steps = entry.training.global_batch // replicas  # sequences per replica with a micro-batch of one
    free_batch = FREE_BATCH in entry.open
    sizes = [1 << power for power in range(MOST_SEQUENCES.bit_length())]
    values: dict[str, Sequence[int | str]] = {
        "micro_batch": [size for size in sizes if free_batch or steps % size == 0],
        "vpp": _virtual_stages(entry),
        "recompute": RECOMPUTE,
        "cp_method": CP_METHODS,
    }
    if odd := sorted(set(entry.open) - values.keys() - {FREE_BATCH}):
        raise Unmodelled(f"{odd[0]} = {TUNED}: allowed for {', '.join(values)}")
    names = [name for name in values if name in entry.open]
    for each in product(*(values[name] for name in names)):
        chosen: dict[str, Any] = dict(zip(names, each, strict=True))
        if "vpp" in chosen:
            chosen["schedule"] = default_schedule(chosen["vpp"])
        batch = entry.training.global_batch * (chosen["micro_batch"] if free_batch else 1)
        training = entry.training.model_copy(update={"global_batch": batch})
        yield replace(entry, plan={**plan, **chosen}, training=training, open=())


def _virtual_stages(entry: Case) -> tuple[int, ...]:
    """Chunks per rank that cut its layers evenly, also counting embedding and head as one layer each."""
    layers, ranks = len(entry.graph.layers), int(str(entry.plan["pp"]))
    each = [layers // ranks, *([(layers + 2) // ranks] if (layers + 2) % ranks == 0 else [])]
    return tuple(n for n in range(1, max(each) + 1) if any(size % n == 0 for size in each))
