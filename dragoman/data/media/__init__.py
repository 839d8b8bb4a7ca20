"""Recordings and images."""

from dragoman.base.face import face

__getattr__, __dir__ = face(__name__, __file__)
