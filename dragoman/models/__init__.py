"""Encoders, decoders, output heads, and the whole models made of them."""

from dragoman.base.face import face

__getattr__, __dir__ = face(__name__, __file__)
