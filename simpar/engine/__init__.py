"""When does it happen? Engines map a Program to start and finish times."""
