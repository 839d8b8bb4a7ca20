"""Encoders: from a source to the memory that decoders attend over."""

from dragoman.base.face import face

__getattr__, __dir__ = face(__name__, __file__)
