"""Decoders: from target tokens and an encoder's memory to hidden vectors; and the stacks of language models."""
