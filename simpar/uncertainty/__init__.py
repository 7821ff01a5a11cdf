"""How sure a prediction is: the measured runs that support it, its step time's interval, its memory's risk."""

OPEN = ("experiments", "joint", "memory", "own_runs", "step_time", "support", "table", "ties")
"""The modules that other rooms may import; all others are inner."""
