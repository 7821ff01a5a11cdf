"""Parts of the checklist for a machine with GPUs: each measures into a folder, and makes rows of what is there."""
