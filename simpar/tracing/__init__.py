"""How does a torch module become a graph of operators? Traced without weights, mapped, cut into blocks."""
