"""Is it true? Predictions beside published measurements."""
