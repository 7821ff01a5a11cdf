"""How sure a prediction is: what measured runs support it, the interval of its step time, the risk of its memory."""
