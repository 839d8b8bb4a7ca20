"""What a segment holds besides its text: inline tags and protected spans, which return to the output exactly once."""

from dragoman.base.face import face

__getattr__, __dir__ = face(__name__, __file__)
