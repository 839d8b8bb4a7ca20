"""Imports point one way through the folders (docs/explanation/architecture.md)."""

from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
import sys
import tomllib
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import dragoman
from tests.clock import check_time

PACKAGE = Path(dragoman.__file__).parent
TABLES_OF_ALL = {"base", "__init__"}  # the tables of plug-ins, and the public names

LAYERS = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
    "contracts"
][0]["layers"]
# The rank of each room: `make lint` checks that it imports from rooms of lower rank alone (import-linter).
RANK = {name: -rank for rank, names in enumerate(LAYERS) for name in names.split(" | ")}
MODULES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in PACKAGE.rglob("*.py")
}


def imported_by(path: Path) -> set[str]:
    """The modules of the package that a file imports, inside functions too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "dragoman":
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else node.module for name in names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name in MODULES}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):  # the address of a late entry
            module, colon, _ = node.value.partition(":")
            found |= {module} if colon and "." in module and module in MODULES else set()
    return found


@cache
def imports() -> dict[str, set[str]]:
    """The modules that each module imports."""
    return {name: imported_by(path) - {name} for name, path in MODULES.items()}


def folder_of(name: str) -> str:
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def test_imports_as_text_point_one_way() -> None:
    """The addresses of late entries, which import-linter does not see."""
    found = []
    for name, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                module = re.match(r"dragoman((?:\.\w+)+)(?=[:.]|$)", node.value)
                if module and folder_of(node.value) in RANK:
                    found.append((name, node.value))
    for name, address in found:
        own, other = folder_of(name), folder_of(address)
        assert own in TABLES_OF_ALL or RANK[other] <= RANK[own], f"{name} names {address}, whose room comes later"
    assert len(found) > 20


def test_every_room_has_a_place_and_a_face() -> None:
    rooms = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert rooms <= set(RANK)
    for stub in PACKAGE.rglob("__init__.pyi"):
        tree = ast.parse(stub.read_text(encoding="utf-8"))
        package = ".".join(stub.parent.relative_to(PACKAGE.parent).parts)
        for node in tree.body:
            assert isinstance(node, ast.ImportFrom), f"{stub}: found {ast.unparse(node)}, expected imports alone"
            room = ".".join(package.split(".")[:2])
            assert str(node.module).startswith(f"{room}."), f"{stub}: {node.module} is in another room"
            for alias in node.names:
                # The file would hide the name as soon as somebody imports it.
                assert not (stub.parent / f"{alias.name}.py").exists(), f"{stub}: {alias.name} is a file too"
                assert not (stub.parent / alias.name).is_dir(), f"{stub}: {alias.name} is a folder too"
                assert getattr(importlib.import_module(package), alias.name) is not None


def test_the_documentation_lists_the_rooms_from_the_bottom() -> None:
    page = (PACKAGE.parent / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")
    table = page.partition("| room | contents |")[2].partition("\n\n")[0]
    listed = re.findall(r"^\| `(\w+)", table, re.MULTILINE)
    assert set(listed) == set(RANK) - {"__main__"}
    assert [RANK[name] for name in listed] == sorted(RANK[name] for name in listed)


def test_no_modules_import_each_other_in_a_circle() -> None:
    order = TopologicalSorter(imports())
    try:
        order.prepare()
    except CycleError as error:
        pytest.fail("modules import each other: " + " → ".join(error.args[1]))


@pytest.mark.parametrize("folder", ["benchmarks", "examples", "recipes"])
def test_scripts_import_what_the_package_has(folder: str) -> None:
    """Most of these scripts run for minutes on other machines, so no other test would find a name that has moved."""
    for path in (PACKAGE.parent / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "dragoman":
                module = importlib.import_module(node.module)
                for alias in node.names:
                    if not hasattr(module, alias.name):
                        importlib.import_module(f"{node.module}.{alias.name}")


def test_no_file_is_longer_than_600_lines() -> None:
    files = [path for path in PACKAGE.rglob("*") if path.suffix in (".py", ".js", ".css", ".html")]
    lengths = {str(path.relative_to(PACKAGE)): path.read_text(encoding="utf-8").count("\n") for path in files}
    assert len(lengths) > 300
    assert {name: lines for name, lines in lengths.items() if lines > 600} == {}


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
    before = os.times()
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
    after = os.times()
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    check_time(spent, 3)  # 0.1 s of a processor on a quiet machine


def test_modules_import_without_packages_that_only_some_work_needs() -> None:
    """Machines where nothing can be installed train and predict all the same. Only the server imports its framework.

    No module reads a table of plug-ins while it is imported: the first read loads these, and they import the package.
    """
    script = (
        "import importlib, pkgutil, sys, dragoman\n"
        "from dragoman.base import plugins\n"
        "missing = dict.fromkeys(('rapidfuzz', 'snowballstemmer', 'ctranslate2', 'onnx', 'PIL', 'soundfile'))\n"
        "sys.modules |= missing\n"
        "names = [module.name for module in pkgutil.walk_packages(dragoman.__path__, 'dragoman.')]\n"
        "for served in (False, True):\n"
        "    for name in names:\n"
        "        if not name.endswith(('_triton', '__main__')) and ('.serving' in name) == served:\n"
        "            importlib.import_module(name)\n"
        "            assert not plugins.loaded, name\n"
        "    for name in missing:\n"
        "        sys.modules.pop(name, None)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_prediction_and_training_import_nothing_they_do_not_need() -> None:
    """torch itself takes two seconds; its compiler, which torch's optimisers bring in, would take as long again."""
    heavy = "{'torch._dynamo', 'sympy', 'rich', 'sacrebleu', 'matplotlib', 'ctranslate2', 'transformers'}"
    modules = "dragoman.inference.predictor, dragoman.inference.rerank"
    script = f"""import sys, {modules}
assert not {heavy} & set(sys.modules)
import torch, dragoman.training.step as step
from dragoman.training.optimizer import OptimizerConfig, build_optimizer
model = torch.nn.Linear(2, 2)
optimizer = build_optimizer(OptimizerConfig(), model)
model(torch.ones(1, 2)).sum().backward()
optimizer.step()
assert "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)


WRITERS = {
    "shutil": {"copy", "copy2", "copyfile", "copytree", "move", "rmtree"},
    "os": {"link", "open", "remove", "removedirs", "rename", "renames", "replace", "symlink", "truncate", "unlink"},
}
WRITING_METHODS = {
    "chmod", "hardlink_to", "rename", "replace", "symlink_to", "touch", "unlink", "write_bytes", "write_text",
}  # fmt: skip
NEW_FILES = ("atomic_write", "create_empty", "mkdtemp", "TemporaryDirectory")  # what they give is nobody else's
CACHE = "in the user's own cache, in no run"
MAY_WRITE = {  # files and folders of the package that need no functions of base/files.py, and why
    "base/files.py": "the functions themselves",
    "cli.py": "closed standard streams become /dev/null",
    "data/corpus.py": CACHE,
    "data/corpus_cache.py": CACHE,
    "data/remote.py": CACHE,
    "data/store.py": CACHE,
    "data/tokenise.py": CACHE,
    "data/workers.py": CACHE,
    "auto/demonstration.py": "in a folder that the user names",
    "exchange/": "in the new folder that registry.py makes for an exporter and moves to its place at the end",
    "serving/": "in the server's own folder",
    "training/checkpoints.py": "safetensors gives a new file a mode that the user did not choose",
    "training/runtime.py": "a marker in the system's temporary folder",
}


def own_names(tree: ast.AST) -> set[str]:
    """The names of new files and temporary folders, and of the entries of lists of them."""
    found: set[str] = set()
    for node in ast.walk(tree):
        pairs: list[tuple[ast.expr, ast.expr | None]] = []
        if isinstance(node, ast.With):
            pairs = [(item.context_expr, item.optional_vars) for item in node.items]
        elif isinstance(node, ast.Assign):
            pairs = [(node.value, node.targets[0])]
        elif isinstance(node, ast.comprehension | ast.For):
            pairs = [(node.iter, node.target)]
        for value, target in pairs:
            parts = list(ast.walk(value))
            made = any(isinstance(part, ast.Call) and ast.unparse(part.func).endswith(NEW_FILES) for part in parts)
            if target is not None and (made or {part.id for part in parts if isinstance(part, ast.Name)} & found):
                found |= {part.id for part in ast.walk(target) if isinstance(part, ast.Name)}
    return found


def writes(call: ast.Call, own: set[str]) -> bool:
    """Whether a call deletes, copies, moves or writes a file that may be anybody's."""
    function, mode = call.func, None
    if isinstance(function, ast.Name):
        if function.id != "open":
            return False
        mode = call.args[1] if len(call.args) > 1 else None
    elif isinstance(function, ast.Attribute):
        place = function.value
        if isinstance(place, ast.Name) and place.id in WRITERS:
            return function.attr in WRITERS[place.id]
        if function.attr in WRITING_METHODS:  # replace: of a path, not of a text
            found = function.attr != "replace" or (len(call.args) == 1 and not call.keywords)
        else:
            mode = call.args[0] if function.attr == "open" and call.args else None
            found = False
        for part in ast.walk(place):
            if isinstance(part, ast.Call) and ast.unparse(part.func).endswith(NEW_FILES):
                return False
            if isinstance(part, ast.Name) and part.id in own:
                return False
        if found:
            return True
    text = mode.value if isinstance(mode, ast.Constant) and isinstance(mode.value, str) else ""
    return len(text) < 4 and bool(set(text) & set("wax+"))


def writing_calls(source: str) -> list[str]:
    tree = ast.parse(source)
    own = own_names(tree)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and writes(node, own)]
    return [f"{call.lineno}: {ast.unparse(call)}" for call in calls]


def test_files_of_runs_are_written_by_the_functions_that_follow_no_links() -> None:
    needed = set()
    for path in PACKAGE.rglob("*.py"):
        name = path.relative_to(PACKAGE).as_posix()
        found = writing_calls(path.read_text(encoding="utf-8"))
        allowed = {place for place in MAY_WRITE if name.startswith(place)}
        assert not found or allowed, f"{name}:{found[0]}: use a function of base/files.py"
        needed |= allowed if found else set()
    assert needed == set(MAY_WRITE)


@pytest.mark.parametrize(
    "line",
    [
        "shutil.rmtree(path)",
        "path.unlink()",
        "a.replace(b)",
        "path.write_text('')",
        "path.open('w')",
        "open(path, 'ab')",
    ],
)
def test_a_write_past_these_functions_is_found(line: str) -> None:
    assert writing_calls(line)
    assert not writing_calls("text.replace('a', 'b'); path.open(); path.open('rb'); open(path); replace(config, a=1)")
