"""How do replicas of the model cooperate from step to step? Parameter servers, and averages now and then.

One step of a replica is simulated as usual, without the reduction across replicas. Many such steps of all replicas then
form a second Program, whose ops are local steps, pushes and pulls on links, or averages. Every scheme is one file with
``rounds(setting)``; :mod:`simpar.plan.sync` has the table.
"""

OPEN = ("cooperate", "staleness")
"""The modules that other rooms may import; all others are inner."""
