"""Validators: score a model during training."""

from dragoman.base.face import face

__getattr__, __dir__ = face(__name__, __file__)
