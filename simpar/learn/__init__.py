"""What a few measured runs say of a stack and a cluster, under priors of how the shipped ones differ."""
