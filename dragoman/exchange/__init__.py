"""To and from the ecosystem: what other programs read and run."""
