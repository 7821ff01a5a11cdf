"""Results of simulations: figures, explanations, plots, pages and traces."""
