"""From templates and process groups to the columns of a Program: prices of collectives, traffic, ops in bulk."""
