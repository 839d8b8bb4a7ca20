"""Whether Triton can be imported: a module constant, because torch.compile cannot trace a cached function."""

from __future__ import annotations

from importlib.util import find_spec

HAS_TRITON = find_spec("triton") is not None
