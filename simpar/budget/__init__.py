"""How many devices a run needs: days and dollars of the best plan by number of nodes, against limits of both."""

OPEN = ("answer", "nodes", "summary", "terminal", "wanted")
"""The modules that other rooms may import; all others are inner."""
