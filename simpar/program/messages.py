"""Messages between pipeline stages: what every action sends and gathers, and who sends to whom."""

from dataclasses import field, replace

import numpy as np

from simpar.dataclass import dataclass
from simpar.layout.mirrored import MirroredMesh
from simpar.plan.choices.mesh import PIPELINE
from simpar.plan.schedules.actions import Schedule
from simpar.program.blocks.phases import BLOCK_STREAMS, CollectiveUse
from simpar.program.emission.traffic import encoded_bytes, hop_kind, send_bytes
from simpar.program.fold.quotient import Quotient
from simpar.program.job import TrainingJob
from simpar.program.lower_stages import Boundaries, message_kind
from simpar.program.structure.pieces import has_no_backward
from simpar.program.structure.stages import ActionBuilder, StageBuilder
from simpar.program.structure.templates import TemplateNode
from simpar.units import Ints, unique


@dataclass(frozen=True)
class Messages:
    """What the stages of a plan send to each other.

    ``builders`` has one for every pipeline rank; ``boundaries`` are those of stages with meshes of their own. The
    private fields keep the nodes of messages by letter, distance in the pipeline, bytes and number, and the bytes that
    go out behind blocks, by name.
    """

    job: TrainingJob
    builders: tuple[ActionBuilder, ...]
    schedule: Schedule
    boundaries: Boundaries | None
    _made: dict[tuple[str, int, float, int], tuple[TemplateNode, ...]] = field(init=False, default_factory=dict)
    _behind: dict[str, float] = field(init=False, default_factory=dict)

    def of(self, letter: str, stage: int, hop: int = 0) -> tuple[tuple[CollectiveUse, ...], tuple[TemplateNode, ...]]:
        """What an action does with messages: (:meth:`gathers`, :meth:`sends`)."""
        return self.gathers(letter, stage), self.sends(letter, stage, hop)

    def sends(self, letter: str, stage: int, hop: int = 0) -> tuple[TemplateNode, ...]:
        """The messages of an action to the neighbouring stage: a forward sends ahead, B and I send back.

        ``hop`` is as in :func:`simpar.program.orders.hops`.
        """
        target = stage + 1 if letter == "F" else stage - 1
        if letter == "W" or not 0 <= target < self.schedule.num_stages:
            return ()
        if letter != "F" and has_no_backward(self.builders[0].pieces[target]):
            return ()
        ranks = self.schedule.rank_of_stage
        delta = hop if self.schedule.ranks_of_first else (ranks[target] - ranks[stage]) % self.schedule.num_ranks
        if delta == 0 and not self._turns(stage, target):
            return ()
        return self._nodes(letter, delta, *self._message(stage, target))

    def gathers(self, letter: str, stage: int) -> tuple[CollectiveUse, ...]:
        """The collectives that put together the pieces that the ranks of a pass received."""
        source = stage - 1 if letter == "F" else stage + 1
        if letter == "W" or not self.boundaries or not 0 <= source < self.schedule.num_stages:
            return ()
        return self.boundaries.gathers(source, stage)

    @property
    def by_stage(self) -> bool:
        """Whether who sends from a stage depends on the stage that receives."""
        return self.boundaries is not None or self.job.layout.mirrored

    def senders(self, quotient: Quotient, classes: Ints, stage: int, source: int, microbatch: int = 0) -> Ints:
        """Classes of ranks of stage ``source`` that send to the representatives of ``classes``: int64[classes, k]."""
        mesh, ranks = self.job.layout.mesh, quotient.representative_rank[classes]
        if isinstance(mesh, MirroredMesh) and self._turns(stage, source):
            return quotient.class_of_rank[mesh.opposite(ranks)][:, None]
        if not self.boundaries:
            there = np.full(1, self.schedule.rank_of(source, microbatch))
            return quotient.class_of_rank[mesh.at_stage(ranks[:, None], there)]
        if stage == source:
            return classes[:, None]
        every = [
            unique(quotient.class_of_rank[self.boundaries.senders(each, stage, source)]) for each in ranks.tolist()
        ]
        table = np.full((len(every), max(map(len, every))), -1)
        for row, result in zip(table, every, strict=True):
            row[: len(result)] = result
        return table

    def _nodes(self, letter: str, delta: int, size: float, count: int) -> tuple[TemplateNode, ...]:
        """``count`` messages of ``size`` bytes to the rank ``delta`` ahead in the pipeline."""
        if (letter, delta, size, count) not in self._made:
            stream = f"{'send_F' if letter == 'F' else 'send_B'} {hop_kind(delta)}"
            blocks = self.job.stack.overlap.p2p_blocks_compute
            node = TemplateNode(
                kind=PIPELINE,
                name="send activations" if letter == "F" else "send gradients",
                streams=(stream, *BLOCK_STREAMS) if blocks else (stream,),
            )
            uses = (CollectiveUse(message_kind(delta, k), "send", size) for k in range(count))
            self._made[letter, delta, size, count] = tuple(replace(node, collective=use) for use in uses)
        return self._made[letter, delta, size, count]

    def _message(self, stage: int, target: int) -> tuple[float, int]:
        """(Bytes of one message between neighbouring stages, number of messages that a rank sends)."""
        if self.boundaries:
            return self.boundaries.message(stage, target)
        builder, lower = self.builders[0], min(stage, target)
        assert isinstance(builder, StageBuilder), "roles of their own belong to stages with boundaries"
        if self.schedule.ranks_of_first and lower == 0:
            return encoded_bytes(builder.view), 1
        block = builder.pieces[lower][-1].block
        if block.name not in self._behind:
            self._behind[block.name] = float(send_bytes(builder.view, block))
        return self._behind[block.name], 1

    def _turns(self, stage: int, target: int) -> bool:
        """Whether a message between two stages goes to the mirror image of its rank."""
        ranks = self.schedule.rank_of_stage
        here = stage != target and ranks[stage] == ranks[target]
        return here and self.job.layout.mirrored
