"""Read tagged sentences: CoNLL columns and CoNLL-U (one word per line), or one sentence per line.

The source of an example are the words of a sentence, its target the tags, both separated by single spaces.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path

from dragoman.base import ConfigError, hint
from dragoman.data.examples import CONTROLS_EXCEPT_TAB, Example, Fault, FaultError, Pairs, file_of, normalise
from dragoman.data.readers.base import READERS, ReadOptions, suffix_of
from dragoman.data.readers.columns import column_numbers
from dragoman.data.readers.lines import check_file, first_lines, numbered_lines, open_bytes
from dragoman.data.readers.pairs import DEFAULTS, read_pairs

CONLL_SUFFIXES = (".conllu", ".conll")
CONLLU = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
DEFAULT_COLUMNS = {"conllu": (2, 4), "columns": (1, 2), "spaces": (1, 2)}  # word and tag
DOCUMENT_STARTS = ("-DOCSTART-",)  # a line of CoNLL-2003 that is no word
PEEK = 200  # lines that show the layout


def read_conll(entry: str | Pairs, options: ReadOptions = DEFAULTS) -> Iterator[Example | Fault]:
    """The sentences and faults of a file, in order. A sentence with a faulty line is skipped as a whole.

    The columns are those of words and tags: numbers, or for CoNLL-U also names such as "form" and "xpos". In .csv,
    .jsonl and .parquet files and in two parallel files a line is a sentence, with spaces between words and between
    tags; in JSON both may also be lists.
    """
    columns = options.columns
    path = file_of(entry)
    layout = "lines" if path is None else sentence_layout(path, columns)
    if path is None or layout == "lines":
        return _split_sentences(read_pairs(entry, replace(options, lists=True)))
    check_file(path)
    if columns and len(columns) != 2:
        raise ConfigError(f"columns: found {', '.join(columns)}, expected two (word, tag)")
    if layout == "conllu":
        if options.header:
            raise ConfigError(f"data.header: found true for {path}, expected false: CoNLL-U has none")
        numbers = tuple(_conllu_column(column) for column in columns)
    else:
        numbers = column_numbers(path, options)
    return _read_words(path, numbers, layout, options)


def split_words(text: str) -> list[str]:
    """The words between spaces or tabs; a no-break space is part of a word."""
    return [word for word in text.replace("\t", " ").split(" ") if word]


def sentence_layout(path: Path, columns: tuple[str, ...] = ()) -> str:
    """How a file lays out sentences, by its suffix and its first lines.

    "conllu"; one word per line in "columns" between tabs, or in "spaces"; or "lines", each a sentence and its tags.
    """
    if suffix_of(path) in CONLL_SUFFIXES:
        return "conllu"
    if READERS.of(path).delimiter != "\t":
        return "lines"
    lines = _first_lines(path)
    tabbed = [line.split("\t") for line in lines if line.strip() and line.strip() not in DOCUMENT_STARTS]
    if tabbed and all(len(cells) == 1 for cells in tabbed) and len({len(line.split()) for (line,) in tabbed}) == 1:
        return "spaces" if len(tabbed[0][0].split()) > 1 and "" in lines else "columns"
    pairs = [cells for cells in tabbed if len(cells) == 2] if not columns else []
    counts = [tuple(len(split_words(cell)) for cell in cells) for cells in pairs]
    whole = [first for first, second in counts if first == second]
    return "lines" if whole and len(whole) >= 0.9 * len(tabbed) and sum(whole) > 1.5 * len(whole) else "columns"


def has_tagged_words(path: Path) -> bool:
    """Whether the lines of a file of any name are words with tags, tab-separated, and empty lines end sentences."""
    lines = _first_lines(path)
    return "" in lines and all("\t" in line for line in lines if line and line not in DOCUMENT_STARTS)


def _first_lines(path: Path) -> list[str]:
    return [line.strip("\r\n ") for line in first_lines(path, PEEK)]


def _conllu_column(column: str) -> int:
    if column.isdigit() and 1 <= int(column) <= len(CONLLU):
        return int(column)
    if column not in CONLLU:
        raise ConfigError(f"columns: found '{column}', which CoNLL-U does not have. {hint(column, CONLLU)}")
    return CONLLU.index(column) + 1


def _split_sentences(items: Iterator[Example | Fault]) -> Iterator[Example | Fault]:
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


def _read_words(path: Path, numbers: tuple[int, ...], layout: str, options: ReadOptions) -> Iterator[Example | Fault]:
    sentence: list[tuple[str, str, int]] = []  # word, tag and line
    faulty = False
    with open_bytes(path) as read:
        for number, line in chain(numbered_lines(read, str(path)), [(0, "")]):  # a blank line ends the last sentence
            if options.header and number == 1:
                continue
            if isinstance(line, Fault):
                faulty = True
                yield line
            elif not line or line.isspace():
                if sentence and not faulty:
                    yield _sentence(sentence, str(path), options.max_characters)
                sentence, faulty = [], False
            elif line.split(maxsplit=1)[0] in DOCUMENT_STARTS:
                continue
            elif layout == "conllu" and (line.startswith("#") or re.match(r"\d+[-.]\d+\t", line)):
                continue  # comments, multiword tokens and empty nodes
            else:
                try:
                    sentence.append((*_word_and_tag(normalise(line), numbers, layout), number))
                except FaultError as fault:
                    faulty = True
                    yield fault.at(f"{path}:{number}")


def _sentence(sentence: list[tuple[str, str, int]], name: str, max_characters: int) -> Example | Fault:
    words, tags, lines = zip(*sentence, strict=True)
    text = " ".join(words)
    if len(text) > max_characters:
        detail = f"the sentence has {len(text)} characters, expected at most {max_characters}"
        return Fault(f"{name}:{lines[0]}", "over-long", detail)
    return Example(text, (" ".join(tags),), name, lines[0], word_lines=lines)


def _word_and_tag(line: str, numbers: tuple[int, ...], layout: str) -> tuple[str, str]:
    cells = line.split() if layout == "spaces" else line.split("\t")
    chosen = numbers or DEFAULT_COLUMNS[layout]
    exact = len(CONLLU) if layout == "conllu" else 0 if numbers else 2
    if len(cells) < max(chosen) or (exact and len(cells) != exact):
        expected = str(exact) if exact else f"at least {max(chosen)}"
        kind = {"spaces": "", "columns": " with tabs between them", "conllu": " with tabs between them"}[layout]
        word = " (word and tag)" if exact == 2 else ""
        found = f"found {len(cells)} column{'s' if len(cells) > 1 else ''}, expected {expected}{word}{kind}"
        raise FaultError("wrong-columns", found)
    word, tag = (cells[number - 1].strip() for number in chosen)
    if control := CONTROLS_EXCEPT_TAB.search(line):
        raise FaultError("control-characters", f"found U+{ord(control[0]):04X}, expected no control characters")
    if not word:
        raise FaultError("empty-side", "the word is empty, expected text")
    if not tag or (layout == "conllu" and tag == "_"):
        raise FaultError("wrong-tags", f"found no tag for '{word}', expected one")
    if len(tag.split()) > 1 and len(tag.split()) == len(word.split()):
        detail = "a word and its tag, or in every line as many tags as words"
        raise FaultError("wrong-tags", f"found {len(tag.split())} words with their tags, expected {detail}")
    if len(tag.split()) > 1:
        raise FaultError("wrong-tags", f"found the tag '{tag}', expected one without spaces")
    # A space inside a word becomes a no-break space, since single spaces separate words.
    return re.sub(r"\s", "\u00a0", word), tag
