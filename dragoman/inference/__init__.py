"""Text in, predictions out: the command line, reports and Python users go through here."""

from dragoman.base.face import face

__getattr__, __dir__ = face(__name__, __file__)
