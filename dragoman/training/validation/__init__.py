"""Validators: score a model during training."""
