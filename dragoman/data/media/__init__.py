"""Recordings and images."""
