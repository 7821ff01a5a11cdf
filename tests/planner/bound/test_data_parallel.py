"""What configurations gather and reduce."""

from dataclasses import replace

import numpy as np

from simpar.planner.bound.data_parallel import CONFIGURATION_AXES


def configurations(frontier):
    """All configurations with a row of each."""
    index = frontier.bounds.configurations.index
    numbers, rows = np.unique(index, return_index=True)
    return [(frontier.bounds.configurations[number], row) for number, row in zip(numbers.tolist(), rows, strict=True)]


def replicas_of(rows, row):
    """Ranks that hold copies of the same parameters: of the batch and of the sequence."""
    return int(rows["dp"][row] * rows["cp"][row])


def test_rows_of_a_configuration_are_alike(frontier, every):
    """In all axes that decide it."""
    index = frontier.bounds.configurations.index
    for name in CONFIGURATION_AXES:
        if name in frontier.rows.code and len(frontier.rows.domain[name]) > 1:
            first = np.unique(index, return_index=True, return_inverse=True)
            code = frontier.rows.code[name]
            assert np.array_equal(code[first[1]][first[2]], code), name


def test_only_fully_sharded_states_are_gathered_in_passes(frontier):
    """ZeRO-3 gathers every block in every forward; ZeRO-0 and 1 none but in the first."""
    seen = set()
    for one, row in configurations(frontier):
        zero, replicas = int(frontier.rows["zero"][row]), replicas_of(frontier.rows, row)
        gathered = one.moves("F", boundary=False).gather.sum()
        if replicas == 1 or zero < 2:
            assert gathered == 0
        if replicas > 1 and zero == 3:
            assert gathered > 0
        seen.add(zero)
    assert {0, 3} & seen


def test_nothing_moves_without_replicas(frontier):
    """One rank with parameters of its own reduces nothing; several with copies do."""
    for one, row in configurations(frontier):
        letter = next(each for each in "WB" if (each, True) in one.policies)
        moved = one.moves(letter, boundary=True)
        total = sum(np.sum(part) for part in (moved.first, moved.both))
        assert total == 0 or replicas_of(frontier.rows, row) > 1


def test_collectives_that_configurations_share_are_those_of_each_alone(frontier):
    """Several share them, and none is given what another one moves."""
    several = [one for one, _ in configurations(frontier)]
    for one in several:
        alone = replace(one, shared={})
        for letter, boundary in one.policies:
            given, own = (each.moves(letter, boundary=boundary) for each in (one, alone))
            assert np.array_equal(given, own), (letter, boundary)
    asked = {id(one.shared) for one in several}
    assert len(asked) == 1
    assert len(several[0].shared) < sum(len(set(one.policies.values())) for one in several)
