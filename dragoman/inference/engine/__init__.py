"""Engines that search in place of torch: CTranslate2, its models, and the choice for a call."""

from dragoman.base.face import face

__getattr__, __dir__ = face(__name__, __file__)
