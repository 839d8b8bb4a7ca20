"""Code that exists only for speed, behind plain functions; tests hold each kernel against plain torch."""

from dragoman.base.face import face

__getattr__, __dir__ = face(__name__, __file__)
