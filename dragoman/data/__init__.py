"""File → examples → tokens → batch: readers, tokenizers, token store and batch plan."""

from dragoman.base.face import face

__getattr__, __dir__ = face(__name__, __file__)
