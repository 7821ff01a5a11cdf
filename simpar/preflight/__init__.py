"""What a launch command or a config of another framework would do, before the launch, and which flags do better."""
