"""States → hypotheses: plain functions over a model's `step` and a `State`."""
