"""What came out? Results, explanations, plots and traces."""
