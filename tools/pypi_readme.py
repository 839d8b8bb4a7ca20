"""A hook of the build: the README as the description on PyPI, where relative links would lead nowhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(!?)\[([^][]*)\]\((?!#|[a-z]+:)([^)\s]+)\)")


def absolute(text: str, home: str) -> str:
    """Markdown with links to files of the repository as addresses; those of pictures give the file itself."""

    def link(found: re.Match[str]) -> str:
        raw = home.replace("https://github.com/", "https://raw.githubusercontent.com/")
        return f"{found[1]}[{found[2]}]({f'{raw}/main' if found[1] else f'{home}/blob/main'}/{found[3]})"

    return LINK.sub(link, text)


class Readme(MetadataHookInterface):
    """Fills in `readme`, which pyproject.toml declares as dynamic."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {
            "content-type": "text/markdown", "text": absolute(text, metadata["urls"]["Homepage"]),
        }  # fmt: skip
