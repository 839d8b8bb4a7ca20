"""From decoder states to hypotheses."""
