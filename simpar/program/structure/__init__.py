"""What a pipeline action is made of on one rank: stages, their templates, synchronisation and memory."""
