"""What does a whole step of reinforcement learning take? Generation, scoring, training, and new weights.

A serving engine is simulated iteration by iteration (:mod:`simpar.posttraining.replica`), with runs of equal ones
skipped in closed form; training and passes over finished responses are today's simulation; both are pools that work at
the same time or in turns (:mod:`simpar.posttraining.pools`) and become one Program.
"""

OPEN = ("answer", "exports", "page", "picture", "search", "search_terminal", "simulate", "terminal", "trained")
"""The modules that other rooms may import; all others are inner."""
