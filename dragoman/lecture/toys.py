"""A page to type numbers into: the worked calculations in JavaScript, without a run, a server or a network."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from dragoman.base import ConfigError, atomic_write
from dragoman.base.config import as_table
from dragoman.lecture.worked_example import Calculation
from dragoman.lecture.worked_networks import Attention
from dragoman.lecture.worked_probabilities import CTC, CTCFrames, Viterbi
from dragoman.lecture.worked_texts import BLEU, Beam, EditDistance

TITLE = "Toys: attention, search and probabilities by hand"
# Queries and keys whose products are the textbook's scores 112 and 96.
QUERIES = Attention(
    queries=((8.0, 8.0), (4.0, 0.0)), keys=((14.0, 0.0), (0.0, 12.0)), values=((1.0, 0.0), (0.0, 1.0)), depth=64
)
TOYS: dict[str, tuple[str, Calculation]] = {
    "attention": ("Attention", QUERIES),
    "viterbi": ("Viterbi", Viterbi()),
    "beam": ("Beam search", Beam()),
    "ctc": ("CTC path", CTC()),
    "ctc-frames": ("CTC frames", CTCFrames()),
    "edit-distance": ("Edit distance", EditDistance()),
    "bleu": ("BLEU", BLEU()),
}


def write_toys(path: str | Path, *calculations: Calculation, follow_link: bool = True) -> None:
    """Write the page. It begins with the values of these calculations, and opens at the first of them.

    `follow_link` is False for a part of a folder that may come from anybody: the page replaces a link there.
    """
    from dragoman.web import build_page

    if Path(path).suffix.lower() not in (".html", ".htm"):
        raise ConfigError(
            f"--page {path}: found {Path(path).suffix or 'no suffix'!r}, expected a file that ends in .html"
        )
    given = {one.name: with_matrices(one) for one in calculations}
    toys = [toy(name, title, given.get(name, usual)) for name, (title, usual) in TOYS.items()]
    data = {"format": 1, "title": TITLE, "toys": toys, "first": next(iter(given), None)}
    with atomic_write(path, follow_link, with_folder=True) as temporary:
        temporary.write_text(build_page(TITLE, "toys-page", data), encoding="utf-8", newline="\n")


def toy(name: str, title: str, calculation: Calculation) -> dict[str, Any]:
    """What the page knows of a toy: the numbers it begins with, and those that the command has by itself."""
    about = (type(calculation).__doc__ or "").partition("\n")[0]
    return {
        "kind": name, "title": title, "about": about,
        "settings": as_table(calculation), "usual": as_table(type(calculation)()),
    }  # fmt: skip


def with_matrices(calculation: Calculation) -> Calculation:
    """Attention as the page types it: with queries, keys and values in place of scores."""
    if not isinstance(calculation, Attention):
        return calculation
    found = calculation
    if not found.queries:
        keys = tuple((score,) for score in found.scores)
        found = dataclasses.replace(found, queries=((1.0,),), keys=keys, depth=found.depth or 64)
    if not found.values:
        size = range(len(found.keys))
        found = dataclasses.replace(found, values=tuple(tuple(float(row == column) for column in size) for row in size))
    return dataclasses.replace(found, depth=found.depth or len(found.queries[0]))
