"""To and from the ecosystem: what other programs read and run."""

from dragoman.base.face import face

__getattr__, __dir__ = face(__name__, __file__)
