"""Training objectives, one file each: what a training step minimises."""
