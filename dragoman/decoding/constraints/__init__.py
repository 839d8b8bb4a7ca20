"""Constraints on the output text."""

from dragoman.base.face import face

__getattr__, __dir__ = face(__name__, __file__)
