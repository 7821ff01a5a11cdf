"""Parameters of a stack and a cluster from a few measured runs, with priors from how the shipped profiles differ."""
