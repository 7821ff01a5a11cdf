"""How the best becomes certain: a frontier of rows, branch and bound over it, the exact worth of a plan, the scope."""
