"""A local page to plan by hand: every change of a layout is simulated and answered at once.

``state`` is what the page sends, a scenario as data; ``choices`` are the values that a plan may have, ``section`` the
form of a step of reinforcement learning; ``answers`` are the results for a state; ``worker_process`` and ``jobs`` run
slower work in separate processes, with ``pool_search`` for steps of reinforcement learning; ``downloads`` makes files
to download; ``server`` serves all of it; ``static/`` is the page.
"""

OPEN = ("server",)
"""The modules that other rooms may import; all others are inner."""
