"""Imports point one way along the road (docs/architecture.md)."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import time
from pathlib import Path

import dragoman

PACKAGE = Path(dragoman.__file__).parent

# Earlier entries may not import later ones; entries on one line may import each other.
ROAD = [
    {"version", "errors"},
    {"settings", "files"},
    {"data", "layers", "scoring"},
    {"models"},
    {"search"},
    {"training"},
    {"config"},
    {"tasks"},
    {"runs"},
    {"exchange"},
    {"prediction", "evaluation"},
    {"predictor"},
    {"answerer", "completer"},
    {"companions"},
    {"inspection"},
    {"reports"},
    {"automatic_media", "automatic", "starter", "checking", "benching", "information", "demo"},
    {"commands"},
    {"cli"},
    {"__main__", "__init__"},
]
RANK = {name: rank for rank, names in enumerate(ROAD) for name in names}


def imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            parts = node.module.split(".")
            if parts[0] == "dragoman":
                found |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("dragoman.")}
    return found


def test_imports_point_one_way() -> None:
    seen = 0
    for path in PACKAGE.rglob("*.py"):
        own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        assert own in RANK, f"{own} has no place on the road"
        for other in imported(path):
            seen += 1
            assert RANK[other] <= RANK[own], f"{path.relative_to(PACKAGE)} imports {other}, which comes after it"
    assert seen > 50


def test_nothing_is_unpickled_anywhere() -> None:
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"\bpickle\b|(?<!safetensors\.)torch\.(load|save)\b|_object_list|allow_pickle", text), path


def test_help_is_quick_and_imports_no_torch() -> None:
    script = (
        "import sys; sys.argv = ['dragoman', '--help']\n"
        "from dragoman.cli import guarded\n"
        "assert guarded(['--help']) == 0\n"
        "assert not {'torch', 'numpy', 'rich', 'sacrebleu'} & set(sys.modules)\n"
    )
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
    assert time.perf_counter() - started < 3  # 0.1 s on a quiet machine


def test_prediction_imports_nothing_it_does_not_need() -> None:
    """torch itself takes two seconds; its compiler, which optimisers bring in, would take as long again."""
    heavy = "{'torch._dynamo', 'sympy', 'rich', 'sacrebleu', 'matplotlib', 'ctranslate2', 'transformers'}"
    script = f"import sys, dragoman.predictor, dragoman.companions\nassert not {heavy} & set(sys.modules)\n"
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
