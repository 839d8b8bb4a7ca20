"""Tagged sentences: one word a line and a blank line between sentences (two columns, CoNLL-U), or one sentence a line.

Whatever the file, an example is the words and the tags of a sentence, each with single spaces between them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from dragoman.data.examples import CONTROLS_EXCEPT_TAB, Example, Fault, FaultKind, Pairs
from dragoman.data.readers.lines import check_file, file_format, open_bytes, text_blocks
from dragoman.data.readers.pairs import column_numbers, columns_from_header, read_pairs
from dragoman.errors import ConfigError, hint

CONLLU = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
USUAL = {"conllu": (2, 4), "columns": (1, 2)}


def read_conll(
    entry: str | Pairs, *, columns: tuple[str, ...] = (), header: bool = False, max_characters: int = 10_000
) -> Iterator[Example | Fault]:
    """The sentences and faults of a file, in order; a sentence with a faulty line is left out as a whole.

    `columns` are those of words and tags: numbers, or for CoNLL-U also names such as "form" and "xpos". In .jsonl and
    .parquet files and in two parallel files a line is a sentence, words and tags with spaces between them.
    """
    path = None if isinstance(entry, Pairs) and entry.file is None else Path(_file(entry))
    form = "lines" if path is None else sentence_form(path)
    if path is None or form == "lines":
        items = read_pairs(entry, columns=columns, max_characters=max_characters, header=header)
        return _paired(items)
    check_file(path)
    if columns and len(columns) != 2:
        raise ConfigError(f"columns: found {columns}, expected two (word, tag)")
    if form == "conllu":
        if header:
            raise ConfigError(f"data.header: found true for {path}, expected false: CoNLL-U has none")
        numbers = tuple(_conllu_column(column) for column in columns)
    else:
        numbers = columns_from_header(path, columns) if header else column_numbers(path, columns)
    return _read(path, numbers, form, header, max_characters)


def split_words(text: str) -> list[str]:
    """What stands between spaces or tabs; a no-break space is part of a word."""
    return [word for word in text.replace("\t", " ").split(" ") if word]


def _file(entry: str | Pairs) -> str:
    return entry.paths[0] if isinstance(entry, Pairs) else entry


def sentence_form(path: Path) -> str:
    """ "conllu", "columns" or "lines", by the file's name."""
    name = path.name.lower().removesuffix(".gz").removesuffix(".zst")
    if name.endswith((".conllu", ".conll")):
        return "conllu"
    return "columns" if file_format(path)[0] == "columns" else "lines"


def _conllu_column(column: str) -> int:
    if column.isdigit() and 1 <= int(column) <= len(CONLLU):
        return int(column)
    if column not in CONLLU:
        raise ConfigError(f"columns: found '{column}', which CoNLL-U does not have. {hint(column, CONLLU)}")
    return CONLLU.index(column) + 1


def _paired(items: Iterator[Example | Fault]) -> Iterator[Example | Fault]:
    for item in items:
        if isinstance(item, Fault):
            yield item
            continue
        words, tags = split_words(item.source), split_words(item.references[0])
        if len(words) == len(tags):
            yield item._replace(source=" ".join(words), references=(" ".join(tags),))
        else:
            detail = f"found {len(words)} words and {len(tags)} tags, expected as many of each"
            yield Fault(item.location, "wrong-tags", detail)


def _read(path: Path, numbers: tuple[int, ...], form: str, header: bool, limit: int) -> Iterator[Example | Fault]:
    name = str(path)
    words: list[str] = []
    tags: list[str] = []
    lines: list[int] = []
    faulty = False

    def finished() -> Iterator[Example | Fault]:
        nonlocal faulty
        text = " ".join(words)
        if words and len(text) > limit and not faulty:
            detail = f"the sentence has {len(text)} characters, expected at most {limit}"
            yield Fault(f"{name}:{lines[0]}", "over-long", detail)
        elif words and not faulty:
            yield Example(text, (" ".join(tags),), name, lines[0], word_lines=tuple(lines))
        words.clear()
        tags.clear()
        lines.clear()
        faulty = False

    with open_bytes(path) as read:
        for block in text_blocks(read, name):
            for number, line in enumerate(block.lines, block.first):
                if header and number == 1:
                    continue
                if number in block.faults:
                    faulty = True
                    yield block.faults[number]
                elif not line or line.isspace():
                    yield from finished()
                elif form == "conllu" and (line.startswith("#") or re.match(r"\d+[-.]\d+\t", line)):
                    continue  # comments, ranges of several words and empty nodes
                else:
                    found = _word_and_tag(line, numbers, form)
                    if isinstance(found[0], str):
                        words.append(found[0])
                        tags.append(found[1])
                        lines.append(number)
                    else:
                        faulty = True
                        yield Fault(f"{name}:{number}", *found[1])
        yield from finished()


def _word_and_tag(
    line: str, numbers: tuple[int, ...], form: str
) -> tuple[str, str] | tuple[None, tuple[FaultKind, str]]:
    """The word and the tag of a line, or None and what is wrong with it."""
    cells = line.split("\t")
    chosen = numbers or USUAL[form]
    exact = len(CONLLU) if form == "conllu" else 0 if numbers else 2
    if len(cells) < max(chosen) or (exact and len(cells) != exact):
        expected = str(exact) if exact else f"at least {max(chosen)}"
        found = f"found {len(cells)} column{'s' if len(cells) > 1 else ''}, expected {expected} with tabs between them"
        return None, ("wrong-columns", found)
    word, tag = (cells[number - 1].strip() for number in chosen)
    if control := CONTROLS_EXCEPT_TAB.search(line):
        return None, ("control-characters", f"found U+{ord(control[0]):04X}, expected no control characters")
    if not word:
        return None, ("empty-side", "the word is empty, expected text")
    if not tag or (form == "conllu" and tag == "_"):
        return None, ("wrong-tags", f"found no tag for '{word}', expected one")
    if len(tag.split()) > 1:
        return None, ("wrong-tags", f"found the tag '{tag}', expected one without spaces")
    # A space inside a word must not look like one between words.
    return re.sub(r"\s", "\u00a0", word), tag
