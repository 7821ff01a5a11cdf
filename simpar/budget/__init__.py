"""How many devices for a run: days and dollars of the best plan by number of nodes, against limits of both."""
