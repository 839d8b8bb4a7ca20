"""Models without gradients on the same tasks: dictionaries, n-grams, HMMs, word alignment, phrases, Kalman filters."""
