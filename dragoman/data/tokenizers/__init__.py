"""Tokenizers: text, labels, numbers ↔ ids."""
