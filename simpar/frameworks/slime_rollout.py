"""slime's rollout: what its trainers do beside the update of the actor.

Defaults are those of ``slime/utils/arguments.py`` at THUDM/slime 624b824.
"""

from pathlib import PurePath
from typing import Any

from simpar.errors import UserError
from simpar.frameworks.megatron_arguments import Arguments
from simpar.frameworks.rollout_side import FILTERED, PROMPT_SHARE, RolloutSide, parted, shipped, without_nothing

KEPT = ("sglang-mem-fraction-static",)
"""Words that decide about memory during an update, and that the whole step answers."""


def rollout(given: Arguments) -> RolloutSide:
    """Generation and passes of a trainer. Raises UserError for what no section says."""
    prompts = given.number("--rollout-batch-size")
    if prompts is None:
        raise UserError(f"{given.source}: no --rollout-batch-size: allowed: it, the prompts of a step")
    estimator = given.text("--advantage-estimator") or "grpo"
    has_static = given.has("--sglang-mem-fraction-static")
    notes = [
        told
        for flags, told in (
            (("--over-sampling-batch-size", "--dynamic-sampling-filter-path"),
             FILTERED),
            (("--custom-generate-function-path", "--rollout-function-path"),
             "generation by a function of one's own: a response is generated at a stretch here"),
            (("--sglang-speculative-algorithm",), "speculative decoding is not modelled"),
        )
        if {flag for flag in flags if given.has(flag)}
    ]  # fmt: skip
    if _is_taught(given) == "sglang":
        notes.append("left out: the passes of the teacher, which a server of its own computes")
    together = given.has("--colocate")
    wants_reference = given.has("--use-kl-loss") or (given.rate("--kl-coef") or 0.0) > 0
    checkpoint = "".join(given.values.get("--hf-checkpoint", [])[:1])
    section: dict[str, Any] = {
        "algorithm": "ppo" if estimator == "ppo" else "grpo",
        "prompts": prompts,
        "samples": given.number("--n-samples-per-prompt") or 1,
        "rollout": {
            **_replica(given),
            "precision": "fp8_blockwise" if checkpoint.lower().rstrip("/").endswith("fp8") else None,
            "engine": {
                "memory_fraction": given.rate("--sglang-mem-fraction-static") if has_static else 0.85,
                "max_sequences": given.number("--sglang-max-running-requests"),
            },
        },
        "weights": {
            "senders": None if together else "rank",
            "offload": together and not given.has("--no-offload-train"),
        },
        "passes": {
            "old_policy": not given.has("--use-rollout-logprobs"),
            "reference": wants_reference,
            "teacher": shipped(checkpoint, given.source) if _is_taught(given) == "megatron" else None,
            "critic_devices": _critic_devices(given) if estimator == "ppo" else None,
        },
    }
    apart = None
    if not together:
        whole, each = given.number("--rollout-num-gpus"), given.number("--num-gpus-per-node") or 8
        if whole is None:
            raise UserError(f"{given.source}: no --rollout-num-gpus: allowed: it, or --colocate")
        apart = (whole, min(each, whole))
        section["placement"] = "split"
        if PurePath(given.script).name == "train_async.py":
            section["synchrony"] = {"steps_off": 1}
    return RolloutSide(without_nothing(section), _lengths(given), apart, KEPT, tuple(notes))


def _is_taught(given: Arguments) -> str | None:
    """What computes a teacher's log-probabilities: Megatron, with a model of the policy's sizes, or a server."""
    return given.text("--opd-type") if given.has("--use-opd") else None


def _critic_devices(given: Arguments) -> int | None:
    """Devices of the critic's own, which releases with words for them give it; later ones have it beside the actor."""
    nodes, each = (given.number(f"--critic-num-{what}") for what in ("nodes", "gpus-per-node"))
    if nodes is None and each is None:
        return None
    usual = given.number("--actor-num-nodes") or 1, given.number("--actor-num-gpus-per-node") or 8
    return (nodes or usual[0]) * (each or usual[1])


def _replica(given: Arguments) -> dict[str, Any]:
    """Devices of an engine of SGLang, and its layout."""
    whole, ep = given.number("--rollout-num-gpus-per-engine") or 1, given.number("--sglang-ep-size") or 1
    attention = given.number("--sglang-dp-size") or 1
    tp = whole // attention if given.has("--sglang-enable-dp-attention") and whole % attention == 0 else whole
    if ep not in (1, whole) or (tp < whole and ep == 1):
        raise UserError(f"{given.source}: --sglang-ep-size {ep}: allowed: that of the engine, {whole}")
    return {"tp": tp, "ep": ep if tp < whole or ep > 1 else 1}


def _lengths(given: Arguments) -> tuple[int, int]:
    """The longest prompt and response."""
    prompt, answer = (given.number(f"--rollout-max-{part}-len") for part in ("prompt", "response"))
    whole = given.number("--rollout-max-context-len")
    if answer is None and whole is None:
        raise UserError(f"{given.source}: no --rollout-max-response-len: allowed: it, the longest response")
    if answer is None:
        return parted(whole or 1)
    return prompt or (whole - answer if whole and whole > answer else max(1, answer // PROMPT_SHARE)), answer
