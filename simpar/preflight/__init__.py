"""Before a launch: what a launch command or a config of another framework would do, and which flags would do better."""
