"""Encoders, decoders, output heads, and the whole models made of them."""
