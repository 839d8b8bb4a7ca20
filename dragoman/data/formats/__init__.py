"""Example formats: how a task's files become examples, and examples rows of a store."""

from dragoman.base.face import face

__getattr__, __dir__ = face(__name__, __file__)
