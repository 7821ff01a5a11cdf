"""How many devices a run needs: days and dollars of the best plan by number of nodes, against limits of both."""
