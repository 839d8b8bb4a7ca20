"""One entry per task: its data format, models, metrics, starter configuration and checks."""

from dragoman.base.face import face

__getattr__, __dir__ = face(__name__, __file__)
