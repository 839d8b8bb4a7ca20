"""The documentation: every relative link resolves, tables stay readable, and the pages name everything registered."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
import re
import sys
from pathlib import Path

import pytest

import dragoman

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import build_docs  # noqa: E402

DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [*(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")), *DOCS]
PAGES += sorted((ROOT / "research").glob("*.md"))
RECIPES = tuple(page.name for page in (ROOT / "docs" / "how-to" / "extending").glob("*.md") if page.stem != "index")
LONGEST_CELL = 120


def without_code(text: str) -> str:
    """The prose of a page: fenced blocks and code spans removed."""
    return re.sub(r"`[^`\n]*`", "", re.sub(r"```.*?```", "", text, flags=re.DOTALL))


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of the headings of a page."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_resolve(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        linked = (page.parent / name).resolve() if name else page
        if build_docs.is_generated(linked):
            continue  # the strict build of the site checks these
        assert linked.exists(), f"{page.name}: {target} does not exist"
        assert not anchor or anchor in anchors(linked), f"{page.name}: {target} has no such heading"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_table_cells_hold_no_paragraphs(page: Path) -> None:
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.startswith("|"):
            for cell in re.split(r"(?<!\\)\|", line):
                assert len(cell.strip()) <= LONGEST_CELL, f"{page.name}: {cell.strip()}"


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def test_pages_name_everything_registered() -> None:
    from dragoman.data.media.feature_extractor import MEDIA_CONFIGS
    from dragoman.data.tokenizers.load import TEXT_CONFIGS
    from dragoman.exchange.registry import EXPORTERS
    from dragoman.models.registry import DECODERS, ENCODERS
    from dragoman.runs.tasks.table import TASKS
    from dragoman.scoring.registry import metrics_by_name

    for name, registered in (
        ("reference/architectures.md", {*ENCODERS, *DECODERS}),
        ("reference/scoring.md", set(metrics_by_name())),
        ("reference/tokenizers.md", {*TEXT_CONFIGS, *MEDIA_CONFIGS}),
        ("how-to/tasks.md", set(TASKS)),
        ("how-to/extending/exporter.md", set(EXPORTERS)),
    ):
        text = page(name)
        missing = [entry for entry in registered if f"`{entry}`" not in text]
        assert not missing, f"docs/{name} does not name {', '.join(missing)}"


def prose_and_code(names: tuple[str, ...]) -> str:
    """The whole text of all pages but these and those with names of other toolkits (tests/test_moving_pages.py)."""
    pages = [page for page in PAGES if page.name not in names and not page.name.startswith("move-from-")]
    return "\n".join(page.read_text(encoding="utf-8") for page in pages)


# Options of torchrun, SLURM, pytest and of scripts under recipes/ and benchmarks/.
TORCHRUN = {"--nnodes", "--node-rank", "--nproc-per-node", "--master-addr", "--master-port"}
TORCHRUN |= {"--rdzv-backend", "--rdzv-endpoint", "--run-path"}
SLURM = {"--array", "--gres", "--nodes", "--ntasks-per-node", "--requeue"}
OTHER_OPTIONS = {*TORCHRUN, *SLURM, "--data", "--device", "--directory", "--kinds", "--model", "--only", "--part"}
OTHER_OPTIONS |= {"--no-peers", "--ways"}


def test_options_that_the_pages_name_exist() -> None:
    from dragoman.cli import cli

    options = {
        name
        for command in (cli, *cli.commands.values())
        for parameter in command.params
        for name in (*parameter.opts, *parameter.secondary_opts)
    }
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+[a-z](?![\w]*\*)", prose_and_code(("CHANGELOG.md",))))
    assert not named - options - OTHER_OPTIONS - {"--help"}


def package_dataclasses() -> list[type]:
    """Every dataclass of the package."""
    classes = {}
    for info in pkgutil.walk_packages(dragoman.__path__, "dragoman."):
        if not info.name.endswith(("__main__", "_triton")):
            module = importlib.import_module(info.name)
            classes |= {value: None for value in vars(module).values() if isinstance(value, type)}
    return [value for value in classes if dataclasses.is_dataclass(value)]


def test_settings_that_the_pages_name_exist() -> None:
    classes = package_dataclasses()
    names = {field.name for value in classes for field in dataclasses.fields(value) if "help" in field.metadata}
    kinds = {value.kind for value in classes if isinstance(getattr(value, "kind", None), str)}
    text = prose_and_code(("CHANGELOG.md", "library.md", "log.md", *RECIPES))
    for place in re.findall(r"(?<![\w/.-])(?:data|tokenizer|model|train|search)\.[a-z_]+(?:\.[a-z_]+)*", text):
        last = place.split(".")
        if last[-1] in ("md", "py", "json", "toml", "tsv", "txt", "src", "safetensors", "en", "de", "log"):
            continue
        assert not [part for part in last[1:] if part not in (*names, "kind")], place
    for kind in re.findall(r'\bkind\s*=\s*"([a-z-]+)"', text):
        assert kind in kinds, kind


def test_files_that_the_pages_name_exist() -> None:
    """Paths in code spans, relative to the package or to the repository."""
    for page in PAGES:
        if page.name in ("CHANGELOG.md", *RECIPES) or page.name.startswith("move-from-"):
            continue  # the recipes name files to be written, the others those of other toolkits
        for path in re.findall(r"`([\w./-]+/[\w.-]+\.(?:py|md|toml))`", page.read_text(encoding="utf-8")):
            assert (ROOT / path).exists() or (ROOT / "dragoman" / path).exists(), f"{page.name}: {path}"
