"""What does each piece cost? Kernels, collectives, memory and software stacks."""

OPEN = (
    "activations", "collectives.algorithm", "collectives.algorithms", "collectives.choice", "collectives.host",
    "collectives.lines", "collectives.measured", "collectives.parameters", "collectives.traffic", "context",
    "intensity", "kernels", "linear_attention", "memory.allocator", "memory.bound", "memory.moments",
    "memory.outputs", "memory.quantized", "memory.routed", "memory.static", "memory.terms", "memory.widths", "offload",
    "operators", "optimizers", "power", "products", "sharded", "state_space",
)  # fmt: skip
"""The modules that other rooms may import; all others are inner."""
