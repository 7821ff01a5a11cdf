"""What does each piece cost? Kernels, collectives, memory and software stacks."""
