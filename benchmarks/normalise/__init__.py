"""Published tables of measured runs in explicit columns."""
