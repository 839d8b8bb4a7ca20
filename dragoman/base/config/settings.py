"""Settings as the rest of the package uses them: the public names of `dragoman.base.config`."""

from dragoman.base.config.dump import Setting, as_table, describe, differences, dump
from dragoman.base.config.fields import Depth, Range, Share, Size, SizeOrNone, setting
from dragoman.base.config.loader import build, read_toml
from dragoman.base.config.overrides import dropped_settings, errors_in, is_kind, merge, override
from dragoman.base.config.toml_text import inline

__all__ = [
    "Depth", "Range", "Setting", "Share", "Size", "SizeOrNone", "as_table", "build", "describe", "differences",
    "dropped_settings", "dump", "errors_in", "inline", "is_kind", "merge", "override", "read_toml", "setting",
]  # fmt: skip
