"""Which states DeepSpeed keeps where a stage alone does not say it."""

from collections.abc import Mapping
from typing import Any

from simpar.frameworks.words import Assumed

OWN_STATES = (
    "At stage 0 DeepSpeed has an optimizer of its own for bf16: it shares out the states among replicas, as stage 1 "
    "does, and keeps whole gradients in fp32."
)
SINCE = "DeepSpeed 0.17.6 and later keep whole states at stage 0; earlier ones share out those of bf16, as stage 1 does"


OF_SCRIPT = "an argument of the script, which is not in this file"


def of_script(values: Mapping[str, Any]) -> tuple[Assumed, ...]:
    """What a config of a launcher leaves to the script: the micro-batch, and what is recomputed."""
    result = []
    if values.get("micro_batch") is None:
        result.append(Assumed("micro_batch", 1, OF_SCRIPT, (4, 16)))
    if values.get("recompute") in (None, "none"):
        result.append(Assumed("recompute", "none", OF_SCRIPT, ("full",)))
    return tuple(result)


def states_of_deepspeed(sharding: Mapping[str, Any], precision: str, stack: str) -> dict[str, Any]:
    """The choices of a stage as DeepSpeed runs them: bf16 at stage 0 has an optimizer of its own.

    It keeps whole gradients in fp32 and a share of the states on every replica [DeepSpeed, runtime/bf16_optimizer.py,
    which runtime/engine.py takes for bf16 parameters whose gradients are added up in fp32, as they are where nothing
    else is said]. So did every engine until 0.17.5, and since then that of pipelines and of fp32 that is asked for.
    Blank precisions are not taken for bf16.

    >>> states_of_deepspeed({"zero": 0}, "bf16", "deepspeed")
    {'zero': 1, 'grad_dtype': 'fp32', 'reduce_dtype': 'fp32'}
    """
    is_own = "deepspeed" in stack and sharding["zero"] == 0 and precision.lower() in ("bf16", "bfloat16")
    return {**sharding, **({"zero": 1, "grad_dtype": "fp32", "reduce_dtype": "fp32"} if is_own else {})}


def as_run(values: Mapping[str, Any], precision: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The values of a plan as DeepSpeed's pipelines run them in a precision, and what a reader may not expect."""
    if values.get("grad_dtype") == "bf16" or "zero" not in values:  # said by the text, or not
        return dict(values), ()
    result = states_of_deepspeed(values, precision, str(values.get("stack")))
    return result, (OWN_STATES,) if result["zero"] != values["zero"] else ()


def of_versions(
    values: Mapping[str, Any], precision: str
) -> tuple[dict[str, Any], tuple[str, ...], tuple[Assumed, ...]]:
    """The values of a plan as DeepSpeed runs them without a pipeline, notes, and what its version decides.

    Since 0.17.6 stage 0 keeps whole states, and gradients in the dtype of parameters (``runtime/engine.py``,
    ``_do_optimizer_sanity_check``). Gradients that the text asks for in fp32 have the optimizer of their own
    (:func:`states_of_deepspeed`), in versions that take them.
    """
    own, notes = as_run(values, precision)
    if not notes or values.get("grad_dtype") == "fp32":
        return own, notes, ()
    earlier = {key: own[key] for key in ("grad_dtype", "reduce_dtype")}
    return dict(values), (), (Assumed("zero", 0, SINCE, (1,), {1: earlier}),)
