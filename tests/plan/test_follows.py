"""What follows from a changed choice is left open again, and nothing else."""

from simpar.plan.follows import followers, following
from simpar.plan.plan import Plan


def test_what_follows_from_a_change_is_left_open():
    """Ranks of data parallelism follow from the other degrees, layers from stages; what was not said is not named."""
    plan = Plan(tp=2, dp=4, pp=2, layers=(20, 12))
    assert following({"tp": 4}, plan) == {"dp": None}
    assert following({"pp": 4}, plan) == {"dp": None, "layers": None}
    assert following({"micro_batch": 2}, plan) == {}
    assert following({"tp": 4, "dp": 2}, plan) == {}


def test_a_degree_of_one_leaves_open_what_it_idles():
    """A schedule of no pipeline and sequences sharded over one rank say nothing, before a change and after it."""
    plan = Plan(tp=2, pp=2, schedule="1f1b", sequence_parallel=True)
    assert following({"tp": 1, "pp": 1}, plan) == {"sequence_parallel": None, "schedule": None}
    assert following({"tp": 4, "pp": 4}, plan) == {}
    assert "sequence_parallel" in followers({"tp": 2}, before={"tp": 1})
    assert "sequence_parallel" not in followers({"tp": 4}, before={"tp": 2})
