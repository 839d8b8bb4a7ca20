"""Self-contained HTML pages: one style sheet, small ES modules, and a builder that puts them into one file."""

from dragoman.base.face import face

__getattr__, __dir__ = face(__name__, __file__)
