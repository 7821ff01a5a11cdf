"""Results of simulations: figures, explanations, plots, pages and traces."""

OPEN = (
    "bill", "certainty", "collective", "compare", "context", "explain", "figures", "grid", "grid_page", "html",
    "html.data", "html.pair", "layouts", "palette", "parts", "plots", "ranks", "result", "run_rows",
    "summarise", "sweep", "table", "terminal", "timeline", "trace", "validation_table", "waits", "words",
)  # fmt: skip
"""The modules that other rooms may import; all others are inner."""
