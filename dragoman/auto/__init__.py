"""Look at the data, then choose a configuration."""

from dragoman.base.face import face

__getattr__, __dir__ = face(__name__, __file__)
