"""What do we run on? Devices, links and clusters."""
