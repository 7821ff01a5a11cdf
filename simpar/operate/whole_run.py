"""A whole training run with failures: how many days it takes if interruptions cost time.

The run is operated (:mod:`simpar.operate.campaign`) for as long as it takes, so that the share of useful time fits its
own length. Days follow from that share, and everything that is paid by the hour follows from days.
"""

from collections.abc import Mapping
from typing import Any

from simpar.cost.power import device_w, input_w
from simpar.dataclass import but
from simpar.hardware.cluster import Cluster
from simpar.hardware.operation import MOST_DAYS, Operation
from simpar.operate.outcome import OperatedJob, Outcome, operate
from simpar.report.bill import MWH_J, Failures, WholeRun
from simpar.report.result import Result
from simpar.units import DAY_S

ROUNDS = 3
"""The most rounds of operation, each as long as the previous one says the run takes; shares hardly depend on it."""
STEP_TOLERANCE = 0.001
"""The rounds end when days change by less than this share."""
WORKING_PHASES = ("training", "lost work", "slow nodes")
"""Time in which devices draw the power of a step; otherwise they draw that of waiting."""


def add_operation(result: Result, inputs: Mapping[str, Any], operation: Operation | None, *, seed: int = 0) -> Result:
    """The result with failures in its whole run, if it has one and a reliability is known.

    ``inputs`` are those of :func:`simpar.simulate`. Settings of an ``operation`` take precedence over the reliability
    profile that the hardware names; without either the result is unchanged. Raises UserError.
    """
    known = inputs["cluster"].profile.reliability
    operation = operation or (Operation(reliability=known) if known else None)
    if result.whole_run is None or operation is None:
        return result
    return with_failures(OperatedJob.from_inputs(result, inputs), operation, seed=seed)


def with_failures(job: OperatedJob, operation: Operation, *, seed: int = 0) -> Result:
    """The result of a job with failures in its whole run. Raises UserError for an unknown reliability."""
    result = job.result
    ideal = result.whole_run
    assert ideal is not None, "the training says its tokens"
    work_days = ideal.steps * result.step_time_s / DAY_S
    days = work_days
    for _ in range(ROUNDS):
        length = min(max(days, result.step_time_s / DAY_S), MOST_DAYS)
        outcome = operate(job, operation.model_copy(update={"days": length}), seed=seed)
        share = outcome.effective_time.mean
        days, before = work_days / share, days
        if abs(days - before) <= STEP_TOLERANCE * days:
            break
    run = _with(ideal, job.cluster, outcome, days / work_days)
    return but(result, bill=result.bill.model_copy(update={"whole_run": run}))


def _with(ideal: WholeRun, cluster: Cluster, outcome: Outcome, longer: float) -> WholeRun:
    """The run with an outcome's share of useful time; it is ``longer`` by a factor."""
    shares, days = outcome.time_share, ideal.days.value * longer
    energy, waiting_w = ideal.energy_mwh, _waiting_w(cluster)
    if energy is not None and waiting_w is not None:
        idle_s = days * DAY_S * sum(share for name, share in shares.items() if name not in WORKING_PHASES)
        again = sum(shares[name] for name in WORKING_PHASES) / shares["training"]
        energy = energy.times(again + waiting_w * idle_s / MWH_J / energy.value)
    return ideal.model_copy(
        update={
            "days": ideal.days.times(longer),
            "device_hours": ideal.device_hours.times(longer),
            "cost_usd": None if ideal.cost_usd is None else ideal.cost_usd.times(longer),
            "energy_mwh": energy,
            "failures": Failures(
                reliability=outcome.reliability,
                effective_time=1.0 / longer,
                interruptions=outcome.interruptions.every.mean * days / outcome.days,
                lost_days=days - ideal.days.value,
            ),
        }
    )


def _waiting_w(cluster: Cluster) -> float | None:
    """Watts of the whole cluster while its devices run nothing; None if a device's power is not known."""
    result = 0.0
    for part in cluster.parts:
        if part.device.power is None:
            return None
        result += input_w(part.profile.host, part.world_size * float(device_w(part.device.power, 0.0, 0.0)), part.nodes)
    return result
