"""The exact worth of a plan: what is not run again takes what it would."""

from dataclasses import replace

import pytest

import simpar
from simpar.architectures.hf_config import read
from simpar.plan.plan import Plan
from simpar.planner import make_problem
from simpar.planner.certify import exact
from simpar.program.perturbation import Perturbation
from tests.gate import some

CONFIG = {
    "model_type": "llama", "hidden_size": 512, "num_attention_heads": 16, "num_hidden_layers": 4,
    "num_key_value_heads": 8, "intermediate_size": 2048, "vocab_size": 8192, "tie_word_embeddings": False,
    "max_position_embeddings": 2048, "rms_norm_eps": 0.00001, "hidden_act": "silu",
}  # fmt: skip
ORDERS = ("tp-cp-dp-pp", "tp-cp-pp-dp", "tp-dp-pp-cp")


@pytest.mark.parametrize("slow_ranks", some([{}, {9: 1.5}], 1))
def test_a_step_that_is_the_same_op_by_op_is_not_run_again(monkeypatch, slow_ranks):
    """Orders of ranks whose steps are the same are told apart from others before their ops are written out."""
    monkeypatch.setattr(exact, "MANY_OPS", 0)
    problem = make_problem(
        read(CONFIG, name="small"),
        simpar.Cluster("dgx-h100", nodes=4),
        simpar.Training(seq_len=512, global_batch=16),
        perturbation=Perturbation(slow_ranks=slow_ranks),
    )
    layouts = [(tp, cp, zero) for tp, cp, zero in ((8, 1, 0), (4, 1, 1), (4, 2, 1))]
    known: dict[tuple[bytes, str], exact.SimulatedPlan] = {}
    for tp, cp, zero in layouts:
        for order in ORDERS:
            plan = Plan(tp=tp, cp=cp, pp=2, zero=zero, micro_batch=1).with_values(rank_order=order)
            found, alone = exact.measure(problem, plan, known=known), exact.measure(problem, plan)
            assert replace(found, kept=None) == replace(alone, kept=None)
            assert found.report().memory == alone.report().memory
    assert len({layout for _, layout in known}) == len(layouts)
    assert len(layouts) < len(known) < len(layouts) * len(ORDERS)


@pytest.mark.parametrize("slow_ranks", [{3: 1.5}, {}])
def test_the_result_is_the_same_whether_the_step_was_kept_or_not(slow_ranks):
    """A step that was let go is run again, and both say all that simulate says."""
    problem = make_problem(
        read(CONFIG, name="small"),
        simpar.Cluster("dgx-h100", nodes=2),
        simpar.Training(seq_len=512, global_batch=16),
        perturbation=Perturbation(slow_ranks=slow_ranks),
    )
    found = exact.measure(problem, Plan(tp=2, pp=2, zero=1, micro_batch=1))
    kept, again = found.report(), replace(found, _result=None).release().report()
    assert kept == again == exact.exact(problem, found.plan)
