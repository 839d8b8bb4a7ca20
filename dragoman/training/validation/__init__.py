"""Measure the weights during training."""
