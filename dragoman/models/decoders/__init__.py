"""Decoders: from target tokens and an encoder's memory to hidden vectors; and the stacks of language models."""

from dragoman.base.face import face

__getattr__, __dir__ = face(__name__, __file__)
