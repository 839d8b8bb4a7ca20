"""Settings as frozen dataclasses, the strict TOML loader, overrides and presets."""

from dragoman.base.face import face

__getattr__, __dir__ = face(__name__, __file__)
