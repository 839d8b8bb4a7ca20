"""The training loop, optimiser, checkpoints, distributed training and validation."""
