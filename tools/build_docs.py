"""Build the documentation site into site/, from docs/, research/ and the code; a broken link or anchor is an error.

`make docs` runs it. A page needs no entry anywhere: its folder says the part, its first heading the title. `GROUPS`
puts some pages of a folder first, under a heading.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import reference_pages

from dragoman.runs.tasks import config_schema

ROOT = Path(__file__).parent.parent
WORK = ROOT / "build" / "docs"  # what the site generator reads
SITE = ROOT / "site"
PARTS = {  # folder → title and one sentence
    "tutorials": ("Tutorials", "Learn Dragoman step by step, with data that is there."),
    "how-to": ("How-to", "Do one task with your own data."),
    "reference": ("Reference", "Look up a command, a setting, a format or a figure."),
    "explanation": ("Explanation", "Know how it works, and why so."),
    "gallery": ("Gallery", "Pages that Dragoman made."),
    "research": ("Research", "What was tried on the way, with all figures."),
}
# Groups of pages in a folder, in this order; others follow, by their titles.
GROUPS: dict[str, dict[str, list[str]]] = {
    "tutorials": {
        "": ["quickstart", "pronunciation", "language_pair", "fine_tune", "labels", "reading", "architectures"]
    },
    "how-to": {
        "Data and tasks": ["data", "tasks", "labels", "language-models", "media", "tags", "context"],
        "Training": ["train", "search", "curve", "transfer", "scarce", "large", "python", "library"],
        "Use a model": [
            "decoding",
            "constraints",
            "serving",
            "translation-tools",
            "documents",
            "qa",
            "shards",
            "memory",
            "doubtful",
        ],
        "Measure and improve": ["inspect", "compare", "test-suite", "adapt", "lectures", "worked-numbers"],
        "Exchange and extend": ["exchange", "extending"],
        "Move from another toolkit": ["move-from-*"],
    },
    "how-to/extending": {"": ["decoder", "encoder", "objective", "metric", "reader"]},
    "reference": {
        "Interfaces": ["command-line", "commands", "settings", "decoding", "python", "http", "protocols", "formats"],
        "Models and metrics": ["architectures", "tokenizers", "scoring", "glossary"],
        "Figures": ["results", "speed", "*-measured"],
    },
    "reference/commands": {"": ["start", "train", "use", "measure", "look-inside", "exchange", "data"]},
    "reference/settings": {
        "": ["data", "tokenizer", "model", "encoder", "decoder", "part", "train", "search", "serve"]
    },
    "explanation": {"": ["which-model", "when-not", "beside-others", "architecture", "data", "decoding", "auto"]},
}
NO_GALLERY = "# Gallery\n\nThis is a trial without the gallery; `make docs` makes it.\n"
LINK = re.compile(r"(\]\()([^)\s]+)(\))")
CODE = re.compile(r"(^```.*?^```|^ *~~~.*?^ *~~~|`[^`\n]*`)", re.DOTALL | re.MULTILINE)
Nav = list[dict[str, "str | Nav"]]


class BrokenDocs(Exception):  # noqa: N818
    """Something in the pages that must be mended."""


def main() -> None:
    try:
        assemble()
        build()
        problems = list(check_site(SITE))
    except BrokenDocs as problem:
        problems = [str(problem)]
    if problems:
        sys.exit("\n".join(f"docs: {problem}" for problem in problems))
    print(f"site/index.html: {sum(1 for _ in SITE.rglob('*.html'))} pages; python -m http.server -d site")


# -- Pages -----------------------------------------------------------------------------------------------------------


def sources() -> dict[str, Path]:
    """Every file of the site that the repository has, by its path in the site."""
    files = {path.relative_to(ROOT / "docs").as_posix(): path for path in (ROOT / "docs").rglob("*") if path.is_file()}
    for path in (ROOT / "research").glob("*.md"):
        files["research/" + ("index.md" if path.name == "README.md" else path.name)] = path
    return files


def page_texts(files: dict[str, Path]) -> dict[str, str]:
    """All pages by their path in the site: written ones, those made from the code, and the first page of each part."""
    texts = {name: linked(name, path, files) for name, path in files.items() if path.suffix == ".md"}
    texts |= reference_pages.pages()
    if not has_gallery():
        texts["gallery/index.md"] = NO_GALLERY
    return texts | {f"{folder}/index.md": part_page(folder, texts) for folder in PARTS if has_pages(folder, texts)}


def has_gallery() -> bool:
    """Whether tools/gallery.py has run, as in `make docs`; a trial of the pages does without."""
    return (ROOT / "docs" / "gallery" / "index.md").exists()


def assemble() -> None:
    """Write the pages and the configuration with its navigation into WORK."""
    shutil.rmtree(WORK, ignore_errors=True)
    files = sources()
    texts = page_texts(files)
    for name, path in files.items():
        if name not in texts:
            target = WORK / "pages" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
    for name, text in texts.items():
        (WORK / "pages" / name).parent.mkdir(parents=True, exist_ok=True)
        (WORK / "pages" / name).write_text(text, encoding="utf-8")
    (WORK / "pages" / "images").mkdir(exist_ok=True)
    shutil.copyfile(ROOT / "dragoman" / "web" / "icon.svg", WORK / "pages" / "images" / "icon.svg")
    shutil.copyfile(ROOT / "tools" / "site.css", WORK / "pages" / "site.css")
    (WORK / "pages" / "dragoman.schema.json").write_text(
        json.dumps(config_schema(), ensure_ascii=False), encoding="utf-8"
    )
    config = (ROOT / "tools" / "zensical.toml").read_text(encoding="utf-8")
    for name, value in (('"NAV"', toml(navigation(texts))), ('"ROOT"', json.dumps(str(ROOT))), ("URL", repository())):
        config = config.replace(name, value)
    (WORK / "zensical.toml").write_text(config, encoding="utf-8")


def repository() -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return str(project["urls"]["Homepage"])


def linked(name: str, path: Path, files: dict[str, Path]) -> str:
    """The text of a page with its links as the site has them; files that are not in the site are in the repository."""
    places = {source.resolve(): place for place, source in files.items()}

    def target(match: re.Match[str]) -> str:
        address, mark, anchor = match[2].partition("#")
        if not address or re.match(r"[a-z]+:", address):
            return match[0]
        there = (path.parent / address).resolve()
        place = places.get(there)
        if place is None and is_generated(there):
            place = there.relative_to(ROOT / "docs").as_posix()
        if place is not None:
            address = os.path.relpath(place, os.path.dirname(name) or ".")  # noqa: PTH120
        elif there.exists() and there.is_relative_to(ROOT):
            kind = "tree" if there.is_dir() else "blob"
            address = f"{repository()}/{kind}/main/{there.relative_to(ROOT).as_posix()}"
        else:
            raise BrokenDocs(f"{name}: found the link {match[2]}, which leads nowhere")
        return match[1] + address + mark + anchor + match[3]

    text = path.read_text(encoding="utf-8")
    return "".join(part if CODE.fullmatch(part) else LINK.sub(target, part) for part in CODE.split(text))


def is_generated(path: Path) -> bool:
    """Whether a path below docs/ is that of a page that the build makes."""
    name = path.relative_to(ROOT / "docs").as_posix() if path.is_relative_to(ROOT / "docs") else ""
    return bool(re.fullmatch(r"reference/(python|(commands|settings|http)/[\w-]+)\.md|gallery/[\w./-]+", name))


def title_of(text: str) -> str:
    found = re.search(r"^# (.*)$", text, re.MULTILINE)
    if found is None:
        raise BrokenDocs(f"found a page without a heading: {text[:60]!r}")
    return found[1].replace("`", "")


def summary_of(text: str) -> str:
    """The first sentence below the heading, without links."""
    body = re.sub(r"<!--.*?-->|!\[[^\]]*\]\([^)]*\)|^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    for paragraph in re.split(r"\n\s*\n", body.strip()):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(paragraph.split()))
        if re.match(r"[\w`\"“(]", plain) and not plain.startswith("|"):
            return re.split(r"(?<=[.:!?]) (?=[A-Z`])", plain)[0].rstrip(":")
    return ""


def has_pages(folder: str, texts: dict[str, str]) -> bool:
    return f"{folder}/index.md" not in texts and any(name.startswith(f"{folder}/") for name in texts)


def part_page(folder: str, texts: dict[str, str]) -> str:
    """The first page of a part: its pages, each with its first sentence."""
    title, about = PARTS[folder]
    made = [f"# {title}", about]
    for group, names in groups_in(folder, texts).items():
        rows = []
        for name in names:
            text = first_page(name, texts)
            address = name.removeprefix(f"{folder}/") + ("" if name.endswith(".md") else "/index.md")
            rows.append(f"[{title_of(text)}]({address})\n:   {summary_of(text)}\n")
        made += [f"## {group}" if group else "", "\n".join(rows)]
    return "\n\n".join(filter(None, made))


# -- Navigation ------------------------------------------------------------------------------------------------------


def first_page(name: str, texts: dict[str, str]) -> str:
    """The text of a page, or of the first one of a folder."""
    return texts[name if name.endswith(".md") else f"{name}/index.md"]


def groups_in(folder: str, texts: dict[str, str]) -> dict[str, list[str]]:
    """The pages and folders in a folder, but for its first page, by group; those without one are last, under ""."""
    below = [name.removeprefix(f"{folder}/") for name in texts if name.startswith(f"{folder}/")]
    waiting = {f"{folder}/{name.partition('/')[0]}" for name in below} - {f"{folder}/index.md"}
    found: dict[str, list[str]] = {}
    for group, patterns in GROUPS.get(folder, {}).items():
        for pattern in patterns:
            fitting = [name for name in waiting if fnmatch(name.removesuffix(".md"), f"{folder}/{pattern}")]
            found.setdefault(group, []).extend(by_title(fitting, texts))
            waiting -= set(fitting)
    if waiting:
        found[""] = [*found.pop("", []), *by_title(waiting, texts)]
    return {group: names for group, names in found.items() if names}


def by_title(names: Iterable[str], texts: dict[str, str]) -> list[str]:
    return sorted(names, key=lambda name: title_of(first_page(name, texts)).lower())


def navigation(texts: dict[str, str]) -> Nav:
    """The parts in order, each with all its pages."""
    nav: Nav = [{"Start": "index.md"}]
    for folder, (title, _) in PARTS.items():
        if any(name.startswith(f"{folder}/") for name in texts):
            nav.append({title: section(folder, texts)})
    return nav


def section(folder: str, texts: dict[str, str]) -> Nav:
    entries: Nav = [{title_of(texts[f"{folder}/index.md"]): f"{folder}/index.md"}]
    for group, names in groups_in(folder, texts).items():
        inside = entries if not group else []
        for name in names:
            if name.endswith(".md"):
                inside.append({short(title_of(texts[name])): name})
            else:
                inside.append({title_of(texts[f"{name}/index.md"]): section(name, texts)})
        if group:
            entries.append({group: inside})
    return entries


def short(title: str) -> str:
    """The title of a page beside others of its section: what is behind the colon."""
    return re.sub(r"^(?:Commands|Settings|HTTP interface): (.)", lambda match: match[1].upper(), title)


def toml(value: str | Nav) -> str:
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    rows = (f"{{ {toml(key)} = {toml(inner)} }}" for row in value for key, inner in row.items())
    return "[" + ", ".join(rows) + "]"


# -- Build -----------------------------------------------------------------------------------------------------------


def build() -> None:
    program = Path(sys.executable).with_name("zensical")
    done = subprocess.run(
        [program, "build", "--strict", "--clean", "--config-file", WORK / "zensical.toml"],
        cwd=ROOT, capture_output=True, text=True, env=os.environ | {"NO_COLOR": "1"}, check=False,
    )  # fmt: skip
    if done.returncode:
        plain = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr)
        raise BrokenDocs("the site generator found faults\n" + plain.partition("Traceback")[0])
    shutil.rmtree(SITE, ignore_errors=True)
    shutil.move(WORK / "site", SITE)


LOADS = {"link": "href"} | dict.fromkeys(("script", "img", "iframe", "source", "video", "audio"), "src")
OUTSIDE = re.compile(r"(?:@import|url\()\s*[\"']?(?:url\()?[\"']?((?:https?:)?//[^\"')\s]+)")


class Page(HTMLParser):
    """The anchors, links and loaded files of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if (address := given.get(LOADS.get(tag, ""))) and given.get("rel") not in ("canonical", "prev", "next"):
            self.loads.append(address)


def check_site(site: Path) -> Iterator[str]:
    """Links and anchors that lead nowhere, and files that a page would load from elsewhere."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}
    for path, page in pages.items():
        where = path.relative_to(site)
        for address in page.loads:
            if urlsplit(address).scheme in ("http", "https") or address.startswith("//"):
                yield f"{where}: loads {address}; a page loads nothing from another server"
        for address in [*page.links, *page.loads]:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc or where.name == "404.html":
                continue
            there = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if there.is_dir():
                there /= "index.html"
            if there.is_relative_to(site / "gallery") and not has_gallery():
                continue
            if not there.exists():
                yield f"{where}: found the link {address}, which leads nowhere"
            elif parts.fragment and there in pages and unquote(parts.fragment) not in pages[there].ids | {"__top"}:
                yield f"{where}: found the link {address}, but no such anchor there"
    for path in site.rglob("*.css"):
        for address in OUTSIDE.findall(path.read_text(encoding="utf-8")):
            yield f"{path.relative_to(site)}: loads {address}; a page loads nothing from another server"


if __name__ == "__main__":
    main()
