"""Calls as users write them, read by mypy in the gate and run by ``test_editors.py``.

A comment ``type: ignore`` says that a type checker must refuse the line: mypy refuses one that is not needed.
"""

from collections.abc import Callable

import simpar


def right() -> simpar.Result:
    """What README, the tutorial and docstrings write."""
    cluster = simpar.Cluster("dgx-h100", nodes=1, devices=2)
    training = simpar.Training(seq_len=1024, global_batch=16, tokens="2T", documents={"mean": 512})
    plan = simpar.Plan(tp=2, zero=1, micro_batch=2, schedule="1f1b", bucket_bytes="25 MiB", rank_order="tp-cp-dp-pp")
    widths: list[int] = [plan.tp, simpar.Plan(mesh={"pp": 2}).pp, simpar.Plan(mesh=simpar.Mesh(tp=2)).mesh.tp]
    names: list[str] = [plan.schedule, plan.recompute, plan.with_values(recompute="full").precision]
    assert (widths, names) == ([2, 2, 2], ["1f1b", "none", "bf16"])
    return simpar.simulate(
        simpar.Model("gpt2"),
        cluster,
        plan,
        training.model_copy(update={"documents": None}),
        perturbation=simpar.Perturbation(slow_ranks={0: 1.2}),
    )


def wrong() -> tuple[Callable[[], object], ...]:
    """What no plan, no result and no training has; each raises when it is called."""
    return (
        lambda: simpar.Plan(tpp=2),  # type: ignore[call-arg]
        lambda: simpar.Plan(tp="many"),  # type: ignore[arg-type]
        lambda: simpar.Plan(cp_method="rings"),  # type: ignore[arg-type]
        lambda: simpar.Plan().tensor,  # type: ignore[attr-defined]
        lambda: simpar.Plan().with_values(zeroo=1),  # type: ignore[call-arg]
        lambda: simpar.Training(seq_length=1, global_batch=1),  # type: ignore[call-arg]
        lambda: simpar.Cluster("dgx-h100", node=1),  # type: ignore[call-arg]
    )
