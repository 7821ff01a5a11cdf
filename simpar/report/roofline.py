"""Products and attention of a rank under the roofline of its device."""

from collections import Counter

from simpar.cost.intensity import precision_of, works_of
from simpar.cost.products import OperatorTime, Sizes
from simpar.program.blocks.block_view import RankBlock
from simpar.program.structure.stages import StageBuilder
from simpar.report.context import SummaryInputs
from simpar.report.pictured import KernelPoint, Roofline


def roofline_of(context: SummaryInputs, class_id: int) -> Roofline | None:
    """Points of all operators that compute products on a class of ranks; None where operators have roles of their own.

    Communication and the slowdown beside it are left out: a point is an operator alone.
    """
    stage = int(context.lowered.stage_of_class[class_id])
    builder = context.lowered.maker.builders[stage]
    if not isinstance(builder, StageBuilder):
        return None
    kind = int(context.cluster.device_of(context.lowered.quotient.representative_rank[class_id]))
    builder = builder.on(kind)
    kernels, count = builder.job.kernels, Counter(piece.block.name for piece in builder.held(stage))
    blocks = {piece.block.name: piece.block for piece in builder.held(stage)}
    points, total_s = list[KernelPoint](), 0.0
    for name, block in blocks.items():
        view = RankBlock.of(block, builder.view)
        for op, time in zip(block.operators, view.times, strict=True):
            total_s += count[name] * _seconds(time)
            sizes = Sizes(view.view.dims.of(op), kernels, builder.job.stack)
            points += [
                KernelPoint(
                    block=name, operator=op.name, direction=each.direction, precision=precision_of(op, kernels),
                    layers=count[name], flop=each.flop, moved_bytes=each.moved_bytes, seconds=each.seconds,
                )
                for each in works_of(op, time, sizes)
                if each.seconds > 0 and each.flop > 0
            ]  # fmt: skip
    drawn_s = sum(point.layers * point.seconds for point in points)
    return Roofline(
        device=kernels.device.name,
        bytes_per_s=kernels.device.memory_bandwidth,
        peak_flop_per_s={each: kernels.peak(each) for each in sorted({point.precision for point in points})},
        share=drawn_s / total_s if total_s else 0.0,
        points=tuple(points),
    )


def _seconds(time: OperatorTime) -> float:
    return float(time.forward_s) + float(time.backward_input_s) + float(time.backward_weight_s)
