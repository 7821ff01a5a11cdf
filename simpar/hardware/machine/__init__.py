"""What is this machine? What clusters say of themselves, read into a profile that is like a shipped one."""
