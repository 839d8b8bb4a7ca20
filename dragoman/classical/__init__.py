"""Models without gradients on the same tasks: dictionaries, n-grams, HMMs, word alignment, phrases, Kalman filters."""

from dragoman.base.face import face

__getattr__, __dir__ = face(__name__, __file__)
