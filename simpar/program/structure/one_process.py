"""torch.nn.DataParallel: one process drives all devices, and everything passes through the first.

Every forward scatters the batch, copies the parameters, runs the replicas and gathers their logits on the first
device, which computes the loss of the whole batch; a backward sends the logits' gradients back. The first device
therefore holds and processes the logits of all devices [PyTorch documentation of torch.nn.DataParallel].
"""

from dataclasses import replace

from simpar.dataclass import dataclass
from simpar.program.blocks.block_view import RankBlock
from simpar.program.blocks.phases import COMPUTE, CollectiveUse
from simpar.program.structure.pass_memory import MemoryChange
from simpar.program.structure.stages import StageBuilder
from simpar.program.structure.synchronisation import DENSE
from simpar.program.structure.templates import GATHER, REDUCE, Template, TemplateNode
from simpar.units import to_ns

TOKEN_BYTES = 8  # torch.int64


@dataclass(frozen=True)
class OneProcess:
    """The nodes around the passes of one device; ``first``: it is the device through which everything passes."""

    builder: StageBuilder
    first: bool
    slowdown: float = 1.0

    @property
    def _num_logits(self) -> float:
        """Logits of one replica."""
        graph, view = self.builder.job.graph, self.builder.view
        return float(view.elements(graph.head.operator("lm_head")))

    def wrap(self, letter: str, template: Template) -> Template:
        """The template of a pass (letter F or B) with the nodes in front of it and behind it."""
        return self._forward(template) if letter == "F" else self._backward(template)

    def _forward(self, template: Template) -> Template:
        sync, dims = self.builder.sync, self.builder.view.tensor
        tokens = float(dims["batch"]) * float(dims["seq"]) * TOKEN_BYTES * sync.width
        held = self.builder.parameters_of_rank(0)[DENSE] * sync.parameter_bytes
        before = (
            self._message("scatter inputs", "scatter", tokens),
            self._message("broadcast parameters", "broadcast", held),
        )
        saved, _ = self._loss_bytes()
        nodes = (*before, *_moved(template, len(before)))
        gather = replace(
            self._message("gather outputs", "gather", self._logits_bytes()),
            after=(template.exit + len(before),),
            memory=(MemoryChange(False, saved, "activations"),) if self.first else (),
        )
        return self._with_loss(Template((*nodes, gather), len(nodes)), "forward")

    def _backward(self, template: Template) -> Template:
        saved, _ = self._loss_bytes()
        scatter = replace(
            self._message("scatter gradients of outputs", "scatter", self._logits_bytes()),
            arrival=not self.first,
            memory=(MemoryChange(True, -saved, "activations"),) if self.first else (),
        )
        if not self.first:
            return Template((scatter, *_moved(template, 1)), template.exit + 1)
        loss = self._with_loss(Template((), -1), "backward").nodes
        nodes = (replace(loss[0], arrival=True), replace(scatter, after=(0,)))
        return Template((*nodes, *_moved(template, 2)), template.exit + 2)

    def _with_loss(self, template: Template, kind: str) -> Template:
        """The template and, on the first device, the loss of other replicas' logits (``kind``: one direction)."""
        if not self.first:
            return template
        times = RankBlock.of(self.builder.job.graph.head, self.builder.view).times
        loss = next(time for time in times if time.name == "loss")
        seconds = float(loss.forward_s if kind == "forward" else loss.backward_input_s)
        seconds *= (self.builder.sync.width - 1) * self.slowdown * self.builder.job.stack.launch.kernel_overhead
        saved, peak = self._loss_bytes()
        node = TemplateNode(
            kind=kind,
            name="loss of all outputs",
            streams=(COMPUTE,),
            duration_ns=int(to_ns(seconds)),
            after=(template.exit,) if template.nodes else (),
            memory=(MemoryChange(False, peak - saved, "transient"), MemoryChange(True, saved - peak, "transient")),
        )
        return Template((*template.nodes, node), len(template.nodes))

    def _loss_bytes(self) -> tuple[float, float]:
        """Bytes of the other replicas' logits and loss on the first device: (kept for backward, at the peak)."""
        others = self.builder.sync.width - 1
        saved, peak = self.builder.job.stack.memory.loss_bytes(others * self._num_logits)
        return float(saved), float(peak)

    def _logits_bytes(self) -> float:
        return self._num_logits * self.builder.view.compute_bytes * self.builder.sync.width

    def _message(self, name: str, op: str, size_bytes: float) -> TemplateNode:
        use = CollectiveUse(DENSE, op, size_bytes)
        streams = (COMPUTE, REDUCE if op == "gather" else GATHER)
        return TemplateNode(kind="dp", name=name, streams=streams, collective=use)


def _moved(template: Template, by: int) -> tuple[TemplateNode, ...]:
    """The template's nodes, renumbered to stand behind ``by`` other nodes and to wait for the last of these."""
    return tuple(
        replace(node, after=(*(i + by for i in node.after), by - 1), arrival=node.arrival) for node in template.nodes
    )
