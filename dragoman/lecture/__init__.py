"""The companion of a course: lecture topics with their figures and questions, sample files and runs, worked numbers."""

from dragoman.base.face import face

__getattr__, __dir__ = face(__name__, __file__)
