"""Documents: readers and writers of whole files, and their translation with all that is not text kept."""

from dragoman.base.face import face

__getattr__, __dir__ = face(__name__, __file__)
