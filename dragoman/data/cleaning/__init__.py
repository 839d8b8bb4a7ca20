"""Clean sentence pairs: rules that reject pairs, each with its reason."""

from dragoman.base.face import face

__getattr__, __dir__ = face(__name__, __file__)
