"""Metrics of texts and labels, edit distance, confidence intervals and significance tests."""

from dragoman.base.face import face

__getattr__, __dir__ = face(__name__, __file__)
