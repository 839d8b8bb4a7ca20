"""What every room stands on: errors for users, files, settings, plug-ins, progress of long work."""

from dragoman.base.face import face

__getattr__, __dir__ = face(__name__, __file__)
