"""What do we train? Models as graphs of operators with named dimensions."""
