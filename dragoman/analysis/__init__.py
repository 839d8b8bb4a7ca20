"""What happened inside a model, as numbers."""
