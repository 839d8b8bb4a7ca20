"""Constraints on the output text."""
