"""Legal values: every one that is offered simulates, and every one that is not says why."""

from simpar.scenario import Scenario, load_scenario
from simpar.simulation import simulate
from simpar.ui.choices import choices
from simpar.ui.state import apply_change, ask


def found(state, **plan):
    """The choices of a plan by name, and the asked state."""
    asked = ask(Scenario.model_validate({**state, "plan": plan}))
    return asked, {choice.name: choice for choice in choices(asked)}


def test_every_offered_value_simulates(state):
    """The change of each is legal as a whole, with what goes with it."""
    asked, known = found(state, pp=2, vpp=2, micro_batch=1)
    tried = 0
    for name in ("tp", "pp", "vpp", "micro_batch"):
        for value in known[name].values:
            plan = apply_change(asked.scenario, value.change).plan
            simulate(**{**asked.inputs(), "plan": plan}, with_timeline=False)
            tried += 1
    assert tried > 10


def test_a_value_is_mended_by_another(state):
    """Eight sequences in four microbatches of four stages in chunks: a larger micro-batch gives up the chunks."""
    _, known = found(state, pp=4, vpp=2, micro_batch=2)
    mended = {value.value: value.also for value in known["micro_batch"].values}
    assert mended[2] == ""
    assert mended[4] == "schedule 1f1b, vpp 1"


def test_what_cannot_be_says_why(state):
    """Eight sequences on two replicas are four each; three heads are no choice at all."""
    _, known = found(state, pp=2, micro_batch=4)
    assert "allowed: a divisor of 4" in known["micro_batch"].refused["8"]
    assert [value.value for value in known["tp"].values] == [1, 2, 4]


def test_chunks_choose_their_schedule(state):
    """More than one is interleaved, one is not."""
    _, known = found(state, pp=2)
    changes = {value.value: value.change for value in known["vpp"].values}
    assert changes[2] == {"vpp": 2, "schedule": "interleaved"}
    assert changes[1] == {"vpp": 1}
    _, known = found(state, pp=2, vpp=2)
    changes = {value.value: value.change for value in known["vpp"].values}
    assert changes[1] == {"vpp": 1, "schedule": "1f1b"}


def test_stages_of_their_own_have_no_sliders(state):
    """An action table is written, not slid."""
    table = "F0,F1,B0,B1"
    _, known = found(state, pp=1, actions=table, micro_batch=1)
    assert known == {}


def test_what_a_cluster_lacks_is_not_offered(state):
    """Drives that are not there, and a choice by layer over several kinds of nodes, say so."""
    _, known = found(state, pp=2)
    assert "has no drives" in known["offload_optimizer"].refused["nvme"]
    mixed = ask(load_scenario("llama-3-8b-a100-h100"))
    known = {choice.name: choice for choice in choices(mixed)}
    assert "several kinds of nodes" in known["recompute"].refused["optimal"]
    assert [value.value for value in known["offload_optimizer"].values] == ["none"]
