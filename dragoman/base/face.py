"""The face of a room: its names for other rooms, told once in the `__init__.pyi` beside the `__init__.py`.

A name is imported when somebody first asks for it, so that a face costs nothing to import. Type checkers read the stub.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from importlib import import_module
from pathlib import Path


def face(package: str, file: str) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a package whose stub has lines such as `from package.module import X as X`."""
    stub = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    modules = {alias.name: str(node.module) for node in imports for alias in node.names}

    def late(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        # Not kept on the package: a name that a test replaces in its module must be replaced here, too.
        return getattr(import_module(modules[name]), name)

    return late, lambda: sorted(modules)
