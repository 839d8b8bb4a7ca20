"""Look at runs: views of what a model does with a text, and measurements of models and scores."""

from dragoman.base.face import face

__getattr__, __dir__ = face(__name__, __file__)
