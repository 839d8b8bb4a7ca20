"""Plug-ins for Dragoman: a decoder, a metric, a reader and an objective. Importing this module registers them."""

from dragoman_example import decoder, metric, objective, reader

__all__ = ["decoder", "metric", "objective", "reader"]
