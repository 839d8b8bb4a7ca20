"""Clean sentence pairs: rules that reject pairs, each with its reason."""
