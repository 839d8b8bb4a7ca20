"""Batch → memory → decoder states: encoders, decoders and the wholes made of them."""
