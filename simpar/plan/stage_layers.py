"""The number of layers of every pipeline stage, where a plan leaves it open."""

from __future__ import annotations

from simpar.architectures.graph import ModelGraph


def layers_by_cost(graph: ModelGraph, stages: int, first: int = 0) -> tuple[int, ...] | None:
    """Layers of every stage as nanotron spreads them, where the output projection counts with its parameters.

    The layers before the ``first`` belong to no stage.

    A stage is full once the running cost passes its share of the total. Where the head alone fills more than the last
    stage, nanotron leaves the last stages without layers; here each of them except the last one takes a layer from the
    nearest stage before it that has several. None where there are too few layers for that.
    """
    costs = [int(graph.blocks[name].parameters(graph.dims)) for name in graph.layers[first:]]
    share = (sum(costs) + int(graph.head.parameters(graph.dims))) / stages
    counts, running, stage = [0] * stages, 0.0, 0
    for cost in costs:
        counts[stage] += 1
        running += cost
        if running > share * (stage + 1) and stage < stages - 1:
            stage += 1
    for empty in range(stages - 2, 0, -1):
        if not counts[empty]:
            full = next((before for before in range(empty - 1, -1, -1) if counts[before] > 1), None)
            if full is None:
                return None
            counts[empty], counts[full] = 1, counts[full] - 1
    return tuple(counts)


def spread_layers(num_layers: int, stages: int) -> tuple[int, ...]:
    """Layers of every stage, as even as possible.

    A remainder goes to the stages behind the first, one layer each; the first stage and then the last, which also hold
    embedding and head, get one only after all others.
    """
    base, extra = divmod(num_layers, stages)
    order = [*range(1, stages - 1), 0, stages - 1] if stages > 1 else [0]
    more = set(order[:extra])
    return tuple(base + (stage in more) for stage in range(stages))
