"""Training objectives, one file each: what a training step minimises."""

from dragoman.base.face import face

__getattr__, __dir__ = face(__name__, __file__)
