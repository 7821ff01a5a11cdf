"""Parameter servers: closed forms of lockstep, of independence and of a saturated server; what clocks promise."""

import numpy as np
import pytest

import simpar
from simpar.engine import choose_engine
from simpar.hardware.catalogue import load_cluster
from simpar.plan.optimizers import OPTIMIZERS
from simpar.replicas.servers import exchange_of, update_bytes
from simpar.replicas.setting import LocalSteps, setting_of
from simpar.simulation import lower_job, make_job
from simpar.units import format_seconds
from tests.compilers import needs_compiler
from tests.gate import some

REPLICAS = 16


@pytest.fixture(scope="module")
def setting():
    """Replicas of GPT-2 behind four servers, not yet simulated together."""
    cluster = load_cluster("dgx-h100", 2)
    plan = simpar.Plan(sync="asp", servers=4)
    job = make_job("gpt2", cluster, plan, simpar.Training(seq_len=1024, global_batch=64))
    lowered = lower_job(job, cluster)
    engine = choose_engine("auto", lowered.program)
    return setting_of(lowered, engine(lowered.program), cluster, simpar.Perturbation(jitter_sigma=0.2, seed=3))


def rates(setting, servers: float) -> tuple[float, float]:
    """Bytes/s at which one replica alone pushes and pulls, and at which all together do."""
    out, host = setting.cluster.profile.scale_out, setting.cluster.profile.host
    alone = out.nic_bandwidth * out.nics_per_node / setting.cluster.profile.devices_per_node
    push = min(servers * out.nic_bandwidth, servers * host.memory_bandwidth / update_bytes(setting))
    return alone, push


@pytest.mark.parametrize("servers", some([1, 4, 2, 64], 2))
def test_lockstep_is_the_slowest_link_for_all(step_of, setting, servers):
    """Without jitter a step is the local step, two latencies, and all pushes and pulls over the slowest link."""
    found = step_of(sync="bsp", servers=servers)
    out, host = setting.cluster.profile.scale_out, setting.cluster.profile.host
    alone, push = rates(setting, servers)
    pull = min(servers * out.nic_bandwidth, servers * host.memory_bandwidth)
    expected = found.cooperation.local_step_s + 2 * out.latency
    expected += max(setting.gradient_bytes / alone, REPLICAS * setting.gradient_bytes / push)
    expected += max(setting.parameter_bytes / alone, REPLICAS * setting.parameter_bytes / pull)
    assert found.step_time_s == pytest.approx(expected, rel=1e-6)
    assert found.cooperation.waiting_s == 0


def test_replicas_of_plenty_servers_are_independent(step_of, setting):
    """ASP with servers to spare: every replica at its own pace, rates add up, the slow one slows nobody else."""
    fair = step_of(sync="asp", servers=1024).cooperation
    slowed = step_of(sync="asp", servers=1024, slow={0: 3.0})
    cycle = fair.local_step_s + fair.exchange_s
    slow_cycle = 1 / (REPLICAS / slowed.step_time_s - (REPLICAS - 1) / cycle)
    alone = step_of(sync="asp", servers=1024, slow=dict.fromkeys(range(REPLICAS), 3.0)).step_time_s
    assert slow_cycle == pytest.approx(alone, rel=1e-6)


def test_a_saturated_server_sets_the_rate(step_of, setting):
    """With one server throughput is what its memory can update, whatever replicas do, and it is busy all the time."""
    found = step_of(sync="asp", servers=1, sigma=0.1)
    out, host = setting.cluster.profile.scale_out, setting.cluster.profile.host
    moved = setting.gradient_bytes * update_bytes(setting) + setting.parameter_bytes
    bound = min(host.memory_bandwidth / moved, out.nic_bandwidth / setting.gradient_bytes)
    steps_per_s = REPLICAS / found.step_time_s
    assert 0.95 * bound < steps_per_s < 1.005 * bound  # replicas are measured over windows of their own
    assert max(found.cooperation.busy.values()) == pytest.approx(min(1, steps_per_s / bound), rel=1e-6)


def test_mean_staleness_of_asynchrony_is_the_other_replicas(step_of):
    """Between reading and applying lies one update of each other replica on average: W - 1, with any jitter."""
    for sigma in (0.0, 0.05, 0.3):
        old = step_of(sync="asp", servers=64, sigma=sigma).cooperation.staleness
        assert old.mean == pytest.approx(REPLICAS - 1, rel=0.03)
        assert sum(old.shares) == pytest.approx(1)
        assert sum(k * share for k, share in enumerate(old.shares)) == pytest.approx(old.mean)
        assert old.p50 <= old.p90 <= old.p99 <= old.maximum


@pytest.mark.parametrize("bound", [0, 1, 4])
def test_nobody_runs_further_ahead_than_the_bound(step_of, bound):
    """SSP: no step begins more than the bound ahead of the slowest replica, however slow that is."""
    old = step_of(sync="ssp", staleness=bound, servers=64, sigma=0.2, slow={3: 4.0}).cooperation.staleness
    assert old.clock_gap <= bound
    assert step_of(sync="asp", servers=64, sigma=0.2, slow={3: 4.0}).cooperation.staleness.clock_gap > 4


def test_a_looser_bound_never_costs_time(step_of):
    """From BSP, which is bound 0, over SSP to ASP, which is a bound that never binds, the step gets shorter."""
    common = {"servers": 64, "sigma": 0.3}
    times = [step_of(sync="ssp", staleness=bound, **common).step_time_s for bound in (0, 1, 3, 64)]
    assert times[0] == step_of(sync="bsp", **common).step_time_s
    assert times[-1] == step_of(sync="asp", **common).step_time_s
    assert times[0] > times[1] > times[2] > times[3]


def test_updates_are_told_apart_from_the_network(step_of, setting):
    """What a free network leaves is what the servers' memory moves for all replicas; named apart from messages."""
    found = step_of(sync="bsp", servers=4)
    moved = setting.gradient_bytes * update_bytes(setting) + setting.parameter_bytes
    updates_s = REPLICAS * moved / 4 / setting.cluster.profile.host.memory_bandwidth
    met = found.cooperation
    assert met.updates_s == pytest.approx(updates_s, rel=0.005)
    assert met.updates_s < met.exchange_s
    assert f"updates on the parameter servers {format_seconds(met.updates_s)}" in found.why.binds[0]
    rest_s = found.time_breakdown_s.exposed_dp - met.updates_s
    assert f"exposed data-parallel communication {format_seconds(rest_s)}" in found.why.binds[0]


@pytest.mark.parametrize("sync", some(["bsp", "asp", "ssp"], 1))
def test_twice_the_servers_gain_what_the_hint_says(step_of, sync):
    """The to-do's step is that of a simulation with twice the servers; where they gain nothing, it is silent."""
    more = {"staleness": 1} if sync == "ssp" else {}
    few, many, plenty = (step_of(sync=sync, servers=servers, **more) for servers in (4, 8, 65536))
    assert few.cooperation.twice_servers_s == many.step_time_s
    assert few.why.hints[0].startswith(
        f"--set plan.servers=8, twice as many: {format_seconds(many.step_time_s)} instead"
    )
    assert plenty.why.hints == ()


@needs_compiler
def test_the_compiled_engine_agrees(setting):
    """Pushes and pulls that share servers end at the same nanosecond in both engines that share links."""
    exchange = exchange_of(setting, 6, servers=4)
    exchange.wait_for_clock(1)
    program = exchange.build.build()
    reference, event = (choose_engine(name, program)(program) for name in ("reference", "event"))
    assert np.array_equal(reference.start_ns, event.start_ns)
    assert np.array_equal(reference.finish_ns, event.finish_ns)


def test_servers_hold_the_optimizer(step_of, setting):
    """Replicas keep no optimizer states; master weights and moments are spread over the servers."""
    here, there = step_of(), step_of(sync="asp", servers=4)
    assert there.memory.stages[0].optimizer_states_bytes == 0
    assert here.memory.stages[0].optimizer_states_bytes > 0
    states = 4 * (1 + OPTIMIZERS["adamw"].moments) * setting.num_parameters
    assert there.cooperation.server_memory_bytes == pytest.approx(states / 4)
    assert there.time_breakdown_s.optimizer < here.time_breakdown_s.optimizer


def test_a_single_machine_serves_itself():
    """Without a network servers are processes of the host: messages cross PCIe and the host's memory."""
    cluster = load_cluster("laptop-cpu-4")
    training = simpar.Training(seq_len=64, global_batch=8)
    found = simpar.simulate("gpt2", cluster, simpar.Plan(sync="asp", precision="fp32"), training)
    assert found.cooperation.exchange_s > 0
    assert 0 < max(found.cooperation.busy.values()) <= 1


def test_draws_belong_to_a_replica():
    """A replica's steps do not depend on how many replicas or steps are simulated, and have the right mean."""
    few = LocalSteps(np.full(2, 10**9), np.arange(2), sigma=0.2, seed=5).steps_ns(50)
    many = LocalSteps(np.full(9, 10**9), np.arange(9), sigma=0.2, seed=5).steps_ns(4000)
    assert np.array_equal(few, many[:2, :50])
    assert many.mean() == pytest.approx(10**9, rel=0.01)
    assert np.log(many / 10**9).std() == pytest.approx(0.2, rel=0.02)


def test_servers_keep_states_as_wide_as_the_optimizer_has_them(step_of):
    """fp32 parameters and AdamW's two moments: 12 bytes, 4 + 2 x 2 with moments in bf16, 4 + 4 of momentum alone."""
    whole, narrow, sgd = (
        step_of(sync="asp", servers=1, **words).cooperation.server_memory_bytes
        for words in ({}, {"moment_dtype": "bf16"}, {"optimizer": "sgd_momentum"})
    )
    assert narrow == pytest.approx(whole * 8 / 12, rel=1e-9)
    assert sgd == pytest.approx(whole * 8 / 12, rel=1e-9)
