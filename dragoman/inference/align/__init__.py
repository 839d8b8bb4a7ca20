"""Align words of sources and outputs: by attention, by CTC, and by word aligners."""

from dragoman.base.face import face

__getattr__, __dir__ = face(__name__, __file__)
