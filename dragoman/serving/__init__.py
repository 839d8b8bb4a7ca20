"""HTTP server: an API for every task, and APIs that existing clients speak (LibreTranslate, DeepL, OpenAI)."""

from dragoman.base.face import face

__getattr__, __dir__ = face(__name__, __file__)
