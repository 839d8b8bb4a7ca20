"""Budgeted model search: train a portfolio of configurations in stages, keep the best."""

from dragoman.base.face import face

__getattr__, __dir__ = face(__name__, __file__)
