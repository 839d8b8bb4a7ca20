"""Encoders: a source to a memory."""
