"""Readers: data files → examples and faults."""
