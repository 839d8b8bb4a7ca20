"""Views of one input: a file each with its numbers, words and figure, in the table `VIEWS`."""

from dragoman.base.face import face

__getattr__, __dir__ = face(__name__, __file__)
