"""Times of communication on a network file as rings over links with a latency and a rate take them, and no more.

What ASTRA-sim's analytical network does without congestion, written down again from its description: a message takes
the latency of the links that it goes over and its bytes over their rate; a switch is two links, GB are 2^30 bytes.
"""

from __future__ import annotations

import json

from ruamel.yaml import YAML

from .replayer import COLLECTIVE

ALL_REDUCE, ALL_GATHER, ALL_TO_ALL, REDUCE_SCATTER = 0, 2, 6, 7


class Network:
    """Durations in us of the nodes of an export, by its network and its groups."""

    def __init__(self, files):
        self.groups = json.loads(files["comm_groups.json"])
        found = YAML(typ="safe").load(files["network.yml"].decode())
        self.sizes, self.rates, self.latencies = found["npus_count"], found["bandwidth"], found["latency"]
        assert set(found["topology"]) == {"Switch"}

    def message_us(self, one, other, size):
        """A message between two devices: over the switch of the outermost dimension that they differ in."""
        outermost, stride = 0, 1
        for number, side in enumerate(self.sizes):
            if one // stride % side != other // stride % side:
                outermost = number
            stride *= side
        return 2 * self.latencies[outermost] / 1e3 + size / (self.rates[outermost] * 2**30) * 1e6

    def took(self, node):
        """How long a node lasts; kernels as long as they say."""
        if "comm_size" not in node.said:
            return node.duration_us
        size = node.said["comm_size"]
        if node.kind != COLLECTIVE:
            return self.message_us(node.said["comm_src"], node.said["comm_dst"], size)
        ring, kind = self.groups[node.said["pg_name"]], node.said["comm_type"]
        steps = len(ring) - 1
        part = size if kind == ALL_GATHER else size / len(ring)
        if kind == ALL_REDUCE:
            steps *= 2
        assert kind in (ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER)
        return steps * max(
            self.message_us(one, other, part) for one, other in zip(ring, ring[1:] + ring[:1], strict=True)
        )
