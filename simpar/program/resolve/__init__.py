"""What a plan leaves to costs, settled before lowering: recomputation by layer, durations of passes, token slices."""
