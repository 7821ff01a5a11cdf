"""What exactly happens? The one intermediate representation and its reductions."""

OPEN = (
    "blocks.block_view", "blocks.phases", "blocks.rank_view", "blocks.segments", "blocks.steps",
    "emission.collective_prices", "emission.emit", "emission.shared_cores", "emission.traffic", "fold.group_routes",
    "fold.quotient", "footprint", "held_by_layer", "ir.builder", "ir.flow", "ir.program", "jitter", "job", "lower",
    "lower_stages", "memory_inside", "perturbation", "rank_class_builder", "resolve.by_cost", "resolve.checkpointing",
    "resolve.pass_costs", "resolve.token_slices", "structure.buckets", "structure.hooks", "structure.pairs",
    "structure.pieces", "structure.receiving", "structure.stage_builder", "structure.stages",
    "structure.synchronisation", "structure.templates",
)  # fmt: skip
"""The modules that other rooms may import; all others are inner."""
