"""One module a target: ``check`` hands an export to the real tool, ``table`` lists the tool's option names."""
