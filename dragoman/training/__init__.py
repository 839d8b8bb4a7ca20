"""Loss → weights: the one training loop and what it stands on."""
