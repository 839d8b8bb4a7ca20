"""The training loop, optimiser, checkpoints, distributed training and validation."""

from dragoman.base.face import face

__getattr__, __dir__ = face(__name__, __file__)
