"""Output heads: softmax, CTC, length prediction, and a decoder with its own embeddings and output layer."""

from dragoman.base.face import face

__getattr__, __dir__ = face(__name__, __file__)
