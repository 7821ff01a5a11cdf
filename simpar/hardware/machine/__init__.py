"""What is this machine? Files in which clusters describe themselves, read into a profile that is like a shipped one."""
