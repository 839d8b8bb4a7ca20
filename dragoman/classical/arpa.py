"""ARPA files of n-gram models: the text format that SRILM, KenLM and speech recognisers share."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from dragoman.base import DataError, atomic_write
from dragoman.classical.kneser_ney import MAX_ORDER, Level, extend, ngram_words, suffix_links
from dragoman.classical.ngram import NGramConfig, NGramModel
from dragoman.classical.rows import Ints
from dragoman.data.readers import read_lines
from dragoman.data.tokenizers import EOS, PAD, SOS, UNK, Tokenizer

NAMES = {UNK: "<unk>", SOS: "<s>", EOS: "</s>"}
IDS = {"<unk>": UNK, "<UNK>": UNK, "<s>": SOS, "</s>": EOS}
ROUNDING = 1e-3  # a logarithm may be so much above 0
ZERO = -99.0  # log₁₀ of nothing
SPACE = "▁"  # stands for spaces inside a token, which separate tokens here


def is_arpa(path: str | Path) -> bool:
    return str(path).lower().removesuffix(".gz").removesuffix(".zst").endswith((".arpa", ".lm"))


def word_of(piece: str) -> str:
    return "".join(SPACE if character.isspace() else character for character in piece)


def write_arpa(path: str | Path, model: NGramModel, tokenizer: Tokenizer) -> None:
    pieces = [word_of(piece) for piece in tokenizer.pieces(range(len(tokenizer)))]
    for token, name in NAMES.items():
        pieces[token] = name
    if len(set(pieces)) < len(pieces):
        twice = next(piece for piece in pieces if pieces.count(piece) > 1)
        raise DataError(f"{path}: two tokens are written as {twice!r}, which ARPA cannot tell apart")
    with atomic_write(Path(path)) as beside, beside.open("w", encoding="utf-8") as file:
        file.write("\\data\\\n")
        for n, level in enumerate(model.levels, 1):
            file.write(f"ngram {n}={len(level.keys) - (n == 1)}\n")  # <pad> is no word
        for n in range(1, model.order + 1):
            file.write(f"\n\\{n}-grams:\n")
            file.writelines(arpa_lines(model, n, pieces))
        file.write("\n\\end\\\n")


def arpa_lines(model: NGramModel, n: int, pieces: list[str]) -> Iterator[str]:
    words = ngram_words(model.levels, n, np.arange(len(model.levels[n - 1].keys)), model.vocabulary)
    level, has_backoff = model.levels[n - 1], n < model.order
    columns = (words.tolist(), level.log_probabilities.tolist(), level.backoffs.tolist())
    for row, log, backoff in zip(*columns, strict=True):
        if n == 1 and row[0] == PAD:
            continue
        shown = ZERO if math.isinf(log) else log / math.log(10)
        end = f"\t{backoff / math.log(10):.7g}" if has_backoff else ""
        yield f"{shown:.7g}\t{' '.join(pieces[token] for token in row)}{end}\n"


def read_arpa(path: str | Path, tokenizer: Tokenizer, order: int | None = None) -> NGramModel:
    """Read a model over the tokens of a tokenizer; n-grams with other words are left out.

    Tokens that the file lacks have the probability of <unk>. `order` cuts longer n-grams off.
    """
    ids = {word_of(piece): token for token, piece in enumerate(tokenizer.pieces(range(len(tokenizer))))} | IDS
    vocabulary, levels = len(tokenizer), list[Level]()
    for n, rows in arpa_orders(path):
        if n > min(order or MAX_ORDER, MAX_ORDER):
            break
        levels.append(arpa_level(path, rows, n, ids, levels, vocabulary))
    if not levels:
        raise DataError(f"{path}: found no n-grams, expected an ARPA file")
    if len(levels) < (order or 0):
        raise DataError(f"{path}: found n-grams of up to {len(levels)} tokens, expected {order}")
    model = NGramModel(NGramConfig(len(levels)), vocabulary)
    model.set_levels(with_suffixes(levels, vocabulary))
    return model


def places_of(levels: list[Level], words: Ints, vocabulary: int) -> Ints:
    """The places of n-grams (M, n) of one order; −1 for those that are not there."""
    places = words[:, 0]
    for m in range(2, words.shape[1] + 1):
        places = extend(levels, m, places, words[:, m - 1], vocabulary)
    return places


def with_suffixes(levels: list[Level], vocabulary: int) -> list[Level]:
    """The model with the last n − 1 tokens of every n-gram as an n-gram too, which other tools may have pruned.

    An added n-gram has the probability that it had by backing off, and a back-off weight of one: no probability
    changes. An n-gram model seeks longer n-grams where it finds shorter ones.
    """
    if all((links >= 0).all() for links in suffix_links(levels, vocabulary)[1:]):
        return levels
    rows = [ngram_words(levels, n, np.arange(len(level.keys)), vocabulary) for n, level in enumerate(levels, 1)]
    for n in range(len(levels), 2, -1):
        rows[n - 2] = np.unique(np.concatenate([rows[n - 2], rows[n - 1][:, 1:], rows[n - 1][:, :-1]]), axis=0)
    out = [levels[0]]
    for n in range(2, len(levels) + 1):
        parents = places_of(out, rows[n - 1][:, :-1], vocabulary)
        keys = parents * vocabulary + rows[n - 1][:, -1]
        order = np.argsort(keys)
        words, parents = rows[n - 1][order], parents[order]
        level = Level(keys[order], np.empty(len(keys)), np.zeros(len(keys)))
        places, suffixes = places_of(levels, words, vocabulary), places_of(out, words[:, 1:], vocabulary)
        known = places >= 0
        level.backoffs[known] = levels[n - 1].backoffs[places[known]]
        level.log_probabilities[:] = out[-1].backoffs[parents] + out[-1].log_probabilities[suffixes]
        level.log_probabilities[known] = levels[n - 1].log_probabilities[places[known]]
        out.append(level)
    return out


Row = tuple[int, float, list[str], float]  # line, log-probability, words, back-off


def arpa_orders(path: str | Path) -> Iterator[tuple[int, list[Row]]]:
    rows: list[Row] = []
    promised: dict[int, int] = {}  # n → number of n-grams
    n = number = 0

    def wrong(found: str, expected: str) -> DataError:
        return DataError(f"{path}:{number}: found {found}, expected {expected}")

    for number, line in enumerate(read_lines(path), 1):
        fields = line.split()
        if not fields or fields[0] == "\\data\\":
            continue
        if not n and (match := re.fullmatch(r"ngram\s+(\d+)\s*=\s*(\d+)\s*", line)):
            promised[int(match[1])] = int(match[2])
            continue
        if line.startswith("\\"):
            if n:
                if len(rows) != promised.get(n, len(rows)):
                    raise wrong(f"{len(rows):,} {n}-grams", f"{promised[n]:,} (\\data\\)")
                yield n, rows
            match = re.fullmatch(r"\\(\d+)-grams:\s*", line)
            if match and int(match[1]) != n + 1:
                raise wrong(f"{match[1]}-grams", f"{n + 1}-grams")
            if not match and n + 1 in promised:
                raise wrong(repr(line[:40]), f"{n + 1}-grams")
            n, rows = (int(match[1]), []) if match else (0, [])
            if line.strip() == "\\end\\":
                return
            continue
        if not n:
            raise wrong(repr(line[:40]), "\\1-grams: or another part of an ARPA file")
        try:
            if len(fields) not in (n + 1, n + 2):
                raise ValueError
            log, backoff = float(fields[0]), float(fields[n + 1]) if len(fields) > n + 1 else 0.0
            if math.isnan(log) or math.isnan(backoff) or log > ROUNDING:
                raise ValueError
        except ValueError:
            raise wrong(repr(line[:60]), f"a log-probability, {n} words and perhaps a back-off") from None
        rows.append((number, log, fields[1 : n + 1], backoff))
    raise DataError(f"{path}: found no \\end\\, expected a whole ARPA file")


def arpa_level(
    path: str | Path, rows: list[Row], n: int, ids: dict[str, int], levels: list[Level], vocabulary: int
) -> Level:
    """The n-grams of one order whose words are all tokens."""
    known = [(number, log, [ids[word] for word in words], backoff) for number, log, words, backoff in rows
             if all(word in ids for word in words)]  # fmt: skip
    logs = np.array([ZERO if math.isinf(log) else log for _, log, _, _ in known]) * math.log(10)
    logs[logs <= ZERO * math.log(10)] = -np.inf
    backoffs = np.array([backoff for *_, backoff in known]) * math.log(10)
    tokens = np.array([tokens for _, _, tokens, _ in known], np.int64).reshape(-1, n)
    if n == 1:
        floor = logs[(tokens[:, 0] == UNK)]
        full = np.full(vocabulary, floor[0] if len(floor) else -np.inf)
        full[[PAD, SOS]] = -np.inf
        weights = np.zeros(vocabulary)
        full[tokens[:, 0]], weights[tokens[:, 0]] = logs, backoffs
        return Level(np.arange(vocabulary), full, weights)
    places = places_of(levels, tokens[:, :-1], vocabulary)
    if (places < 0).any():
        number = known[int(np.flatnonzero(places < 0)[0])][0]
        raise DataError(f"{path}:{number}: found an n-gram whose first {n - 1} words are no n-gram of the file")
    keys = places * vocabulary + tokens[:, n - 1]
    order = np.argsort(keys, kind="stable")
    twice = np.flatnonzero(np.diff(keys[order]) == 0)
    if len(twice):
        number, _, _, _ = known[int(order[twice[0] + 1])]
        raise DataError(f"{path}:{number}: found an n-gram for the second time, expected each once")
    return Level(keys[order], logs[order], backoffs[order])
