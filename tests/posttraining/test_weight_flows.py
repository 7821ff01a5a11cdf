"""New weights on links: bytes are those that places lack, links are shared, and engines agree on all of it."""

from dataclasses import replace
from itertools import product

import pytest

import simpar
from simpar.cost.collectives.parameters import parameters
from simpar.engine import choose_engine
from simpar.hardware.cluster import make_cluster
from simpar.plan.post_training import Rollout, WeightMoves
from simpar.posttraining.engine import ServingEngine
from simpar.posttraining.moves import Resharding
from simpar.posttraining.pools import Interval
from simpar.posttraining.program import program_of
from simpar.posttraining.weight_flows import NewWeights, updates_of
from simpar.simulation import make_job

MODEL = "llama-3.2-1b"
BYTES = 2 * simpar.Model(MODEL).num_parameters()


def moved(plan, rollout, nodes, others=0, **moves):
    """New weights from a plan on some nodes to replicas there or, with ``others``, on so many others."""
    profile = moves.pop("profile", simpar.Cluster("dgx-h100", 1).profile)
    cluster = make_cluster(profile, nodes)
    training = simpar.Training(seq_len=1024, global_batch=576)
    layout = make_job(simpar.Model(MODEL), cluster, simpar.Plan(**plan), training).layout
    pool = make_cluster(profile, others) if others else cluster
    served = ServingEngine.of(simpar.Model(MODEL), pool, Rollout(**rollout), 1024)
    return Resharding(layout, served, cluster, pool, WeightMoves(**moves), not others)


def weights(*each):
    """What moves to all pools at once."""
    return NewWeights(updates_of(each), tuple(one.is_same_pool for one in each), joined=1)


PLANS = ({"zero": 3}, {"tp": 8, "pp": 2, "zero": 1}, {"tp": 2, "zero": 3}, {"tp": 4, "pp": 4})
ROLLOUTS = ({"tp": 1}, {"tp": 8}, {"tp": 8, "pp": 2}, {"tp": 2, "pp": 4})


@pytest.mark.parametrize(("plan", "rollout", "others"), list(product(PLANS, ROLLOUTS, (0, 4))))
def test_what_places_lack_is_what_crosses_links(plan, rollout, others):
    """Bytes out of all sources are those into all targets, which are those that no device of a place has."""
    one = moved(plan, rollout, 4, others, method="resharded")
    sent = sum(one.crossing(at) for at in range(len(one.into_place)))
    assert sent.sum() == pytest.approx(one.into_place.sum())
    into = {name: 0.0 for name in updates_of([one])[0].capacity if name.startswith("NICs into")}
    for flow in updates_of([one])[0].flows:
        for name, size in flow.loads.items():
            into[name] = into.get(name, 0.0) + size
    for name, size in into.items():
        if name.startswith("NICs into"):
            assert min(abs(size - each) for each in one.into_place) < 1e-6 * BYTES


def test_classes_of_places_are_as_many_places_by_themselves():
    """With a switch above every node, which is wide enough, nothing is folded, and the time is the same."""
    profile = simpar.Cluster("dgx-h100", 1).profile
    out = profile.scale_out.model_copy(update={"nodes_per_leaf": 1, "oversubscription": 1.0 + 1e-9})
    apart = profile.model_copy(update={"scale_out": out})
    for plan, rollout, others, method in product(
        PLANS[:2], ROLLOUTS[:3], (0, 4), ("gathered", "resharded")
    ):  # fmt: skip
        folded = weights(moved(plan, rollout, 4, others, method=method))
        whole = weights(moved(plan, rollout, 4, others, method=method, profile=apart))
        assert len(whole.updates[0].flows) >= len(folded.updates[0].flows)
        assert whole.time_s == pytest.approx(folded.time_s, rel=1e-5)


def test_both_pools_of_a_hybrid_share_the_NICs_of_the_first_node():
    """Out of it go half of the model to the other training node, and all of it to engines apart."""
    here, there = moved({"zero": 3}, {"tp": 8}, 2), moved({"zero": 3}, {"tp": 8}, 2, 2)
    both = weights(here, there)
    assert both.time_ns > max(weights(here).time_ns, weights(there).time_ns)
    link, taken = both.slowest
    assert link == "NICs out of training node 0"
    rate = 8 * 50e9 * parameters(here.sources)["nic_efficiency"]
    assert taken == pytest.approx(1.5 * BYTES / rate, rel=1e-3)
    least = taken + here.copied_s + 34e-6
    assert least * 0.95 < both.time_s < weights(here).time_s + weights(there).time_s


def test_a_narrow_switch_holds_weights_up():
    """Of parts to 4 nodes below another leaf all cross an uplink that has an eighth of the NICs' rate."""
    profile = simpar.Cluster("dgx-h100", 1).profile
    out = profile.scale_out.model_copy(update={"nodes_per_leaf": 4, "oversubscription": 8.0})
    narrow = profile.model_copy(update={"scale_out": out})
    wide, slow = (
        weights(moved({"zero": 3}, {"tp": 8}, 4, 4, method="resharded", profile=each)) for each in (profile, narrow)
    )
    link, taken = slow.slowest
    assert link.startswith("leaf")
    rate = 4 * 8 * 50e9 / 8 * parameters(moved({"zero": 3}, {"tp": 8}, 4).sources)["nic_efficiency"]
    assert taken == pytest.approx(4 * BYTES / rate, rel=1e-3)
    assert slow.time_s > 2 * wide.time_s


def test_nodes_of_one_domain_send_over_its_ports():
    """Pools of two nodes each in one NVLink domain use no NIC; of 36 nodes there are two domains, and NICs."""
    profile = simpar.Cluster("gb200-nvl72", 1).profile
    near = weights(moved({"zero": 3}, {"tp": 4}, 2, 2, profile=profile))
    far = weights(moved({"zero": 3}, {"tp": 4}, 18, 18, profile=profile))
    assert not any("NIC" in name for flow in near.updates[0].flows for name in flow.loads)
    assert any("NIC" in name for flow in far.updates[0].flows for name in flow.loads)
    rate = 900e9 * parameters(moved({"zero": 3}, {"tp": 4}, 2, profile=profile).sources)["send_efficiency"]
    assert near.slowest[1] == pytest.approx(BYTES / rate, rel=1e-3)


def test_a_stage_that_one_node_holds_leaves_by_its_NICs_alone():
    """Two stages on two nodes: what 6 others lack of a stage comes from the node that has it."""
    one = moved({"tp": 8, "pp": 2, "zero": 1}, {"tp": 8}, 2, 6, method="resharded")
    rate = 8 * 50e9 * parameters(one.sources)["nic_efficiency"]
    fullest = max(float((each.held * each.cells).sum(axis=(1, 2)).max()) for each in one.grids[:1])
    assert weights(one).slowest[1] == pytest.approx(6 * fullest / rate, rel=1e-3)
    assert fullest > BYTES / 2


@pytest.mark.parametrize("method", ["gathered", "resharded"])
def test_engines_give_the_same_times_to_flows(method):
    """Three arrivals in a Program of both pools: each takes what it takes alone, in any engine."""
    here, there = (moved({"zero": 3}, {"tp": 2, "pp": 2}, 2, n, method=method) for n in (0, 2))
    new = replace(weights(here, there), overhead_s=0.001)
    took = new.time_ns
    ends, spans = 0, []
    for step in range(3):
        spans.append(Interval(-1, "train", ends, ends + 1000, step))
        spans.append(Interval(-1, "weights", ends + 1000, ends + 1000 + took, step, 3))
        ends += 1000 + took
    steps = program_of(spans, 3, new)
    assert (steps.program.ops.work_bytes > 0).sum() == 3 * sum(len(each.flows) for each in new.updates)
    for engine in ("plain", "reference", "event"):
        timing = choose_engine(engine, steps.program)(steps.program)
        assert timing.start_ns[steps.first].tolist() == [each.start_ns for each in spans]
        assert timing.finish_ns[: len(spans)].tolist() == [each.finish_ns for each in spans]


def test_equal_layouts_move_nothing_over_links():
    """Then weights take the latency and the copies in memory."""
    new = weights(moved({"tp": 8}, {"tp": 8}, 1, method="resharded"))
    assert new.slowest == ("", 0.0)
    assert new.time_s == pytest.approx(new.updates[0].latency_s + new.updates[0].copied_s, abs=2e-9)
