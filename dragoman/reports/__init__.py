"""Numbers → pictures."""
