"""What a plan must say for a target to take it, beside what searches choose."""

import simpar

BASES = {"axolotl": simpar.Plan().with_values(master_weights=False)}
"""Axolotl keeps no second copy of weights, which is no axis."""
