"""Rules of a request on tags: which split sentences, which stand inside them, and whose content is not translated.

The reader of HTML has rules of its own, by the names of tags and `translate="no"`. `prepare` writes tags that it treats
as the request wishes. A translation has every tag as it was, so `restore` finds them and writes the request's own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from dragoman.documents.html import INLINE

_TAG = re.compile(r"<(?P<close>/?)(?P<name>[A-Za-z_][\w:.-]*)(?P<rest>[^<>]*)>")
_SPLITS = "dragoman-"  # before a name: no tag of HTML, so it splits
_INLINE = ' data-dragoman-name="'  # in a tag of HTML that stands inside sentences
_IGNORED = ' translate="no" data-dragoman-ignored=""'
_RENAMED = re.compile(rf'<(/?)(?:tt|wbr){_INLINE}([^"]+)"|<(/?){_SPLITS}(?=\w)|{re.escape(_IGNORED)}')


@dataclass(frozen=True)
class TagRules:
    """What a request says about tags, by their names."""

    ignore: frozenset[str] = frozenset()
    splitting: frozenset[str] = frozenset()
    non_splitting: frozenset[str] = frozenset()
    outline: bool = True  # tags in neither list: as in HTML; else they stand inside sentences

    def prepare(self, text: str) -> str:
        """The text with tags that HTML treats as these rules say."""
        if self == TagRules():
            return text
        return _TAG.sub(self._prepared, text)

    def _prepared(self, tag: re.Match[str]) -> str:
        close, name, rest = tag["close"], tag["name"], tag["rest"]
        if name in self.ignore:
            return tag[0] if close or rest.endswith("/") else f"<{name}{_IGNORED}{rest}>"
        if name in self.splitting:
            return f"<{close}{_SPLITS}{name}{rest}>" if name.lower() in INLINE else tag[0]
        if name in self.non_splitting or not self.outline:
            inline = "wbr" if rest.endswith("/") else "tt"
            return f'<{close}{inline}{_INLINE}{name}"{rest}>'
        return tag[0]


def restore(text: str) -> str:
    """A translation with the request's own tags."""

    def own(tag: re.Match[str]) -> str:
        if tag[2]:
            return f"<{tag[1]}{tag[2]}"
        return "" if tag[3] is None else f"<{tag[3]}"

    return _RENAMED.sub(own, text)
