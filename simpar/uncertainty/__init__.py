"""How sure a prediction is: the measured runs that support it, its step time's interval, its memory's risk."""
