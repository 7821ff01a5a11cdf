"""Layers at the beginning of a pipeline stage that keep what travels to it beside the stream."""

from dataclasses import replace

from simpar.architectures.graph import HIDDEN, INPUT, Block, term

RECEIVING = "_receiving"
"""End of the names of such layers; they do what the layers of the model do."""


def receiving(block: Block, before: Block) -> Block:
    """The first layer of a stage behind the layer ``before``, with what it receives in its stream, if it reads that.

    A layer that copies what travels has the copy in its stream already; in all others but the first, an earlier layer
    of the stage keeps it.
    """
    reads = any(op.kind == "mix" and INPUT in op.inputs and op.name != "bank" for op in block.operators)
    if block.stream != HIDDEN or not reads:
        return block
    rows = sum(times for times, names in before.passes if "hidden" in names)
    return replace(block, name=f"{block.name}{RECEIVING}", stream=(*HIDDEN, *term("hidden", times=rows)))
