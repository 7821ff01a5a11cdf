"""What is said about the best plan: what stands beside it, why it wins, and both on a terminal."""
