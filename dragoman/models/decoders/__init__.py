"""Decoders: a memory to hidden states, token by token."""
