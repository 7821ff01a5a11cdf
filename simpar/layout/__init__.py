"""Layouts: plans with everything decided."""

OPEN = (
    "action_table", "check", "decide", "decider", "deciders", "layout", "mirrored", "moves", "rules", "sharding",
    "staged",
)  # fmt: skip
"""The modules that other rooms may import; all others are inner."""
