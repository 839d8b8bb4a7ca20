"""What plug-ins need: settings, base classes and entries to register, and checks that the laws hold.

A plug-in imports `dragoman`, `dragoman.extend` and torch alone. The names keep their meaning within a minor version.
"""

from dragoman.base.face import face

__getattr__, __dir__ = face(__name__, __file__)
