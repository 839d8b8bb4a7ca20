"""Encoders: from a source to the memory that decoders attend over."""
