"""Make a shortlist for a run from the pairs it was trained on, and count what it misses."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from dragoman.data.corpus import Corpus, prepare_corpus
from dragoman.data.ibm1 import learn_lexicon
from dragoman.data.store import TokenStore
from dragoman.data.tokenizers.base import EOS, PAD, Tokenizer
from dragoman.decoding.shortlist import SPECIAL, Shortlist
from dragoman.errors import RunError
from dragoman.runs import Run, check_same_data

READ = 4096  # rows read at a time
SEEN = 2000  # validation pairs that are looked at


class ShortlistCoverage(NamedTuple):
    """How much of the validation references a shortlist lets a model write, and how long a source's own list is."""

    share: float
    length: float


def most_frequent_tokens(store: TokenStore, vocabulary: int, count: int) -> list[int]:
    """The target tokens that come most often, the special ones not counted."""
    counts = np.zeros(vocabulary, np.int64)
    for first in range(0, len(store), READ):
        rows = store.target.rows(range(first, min(first + READ, len(store))))
        counts += np.bincount(np.concatenate(rows), minlength=vocabulary)
    counts[:SPECIAL] = 0
    order = np.argsort(-counts, kind="stable")[:count]
    return [int(token) for token in order if counts[token]]


def same_spelling_tokens(source: Tokenizer, target: Tokenizer) -> NDArray[np.int64]:
    """For every source token the target token spelled the same, <eos> where there is none: names and numbers."""
    known = {piece: number for number, piece in enumerate(target.pieces(range(len(target))))}
    found = [known.get(piece, EOS) for piece in source.pieces(range(len(source)))]
    found[:SPECIAL] = [EOS] * SPECIAL
    return np.array(found, np.int64)


def build_shortlist(run: Run, likely: int, common: int, pairs: int) -> tuple[Shortlist, ShortlistCoverage]:
    """Learn from the run's training pairs, at most so many of them."""
    if run.config.task != "translate":
        raise RunError(f'{run.folder}: found task = "{run.config.task}", expected "translate": lists are made of pairs')
    corpus = prepare_corpus(run.config.data, run.config.tokenizer)
    check_same_data(run.folder, corpus)
    assert isinstance(corpus.train, TokenStore)
    source, target = run.tokenizers()
    lexicon = learn_lexicon(corpus.train, len(source), pairs)
    always = most_frequent_tokens(corpus.train, len(target), common)
    table = lexicon.most_probable(len(source), likely, EOS, always)  # the others are listed anyway
    table = np.concatenate([table, same_spelling_tokens(source, target)[:, None]], 1)
    table[PAD] = EOS
    shortlist = Shortlist(torch.tensor(always, dtype=torch.long), torch.from_numpy(table), len(target))
    return shortlist, measure_coverage(shortlist, corpus)


def measure_coverage(shortlist: Shortlist, corpus: Corpus) -> ShortlistCoverage:
    """Over the pairs that training set aside."""
    rows = range(min(SEEN, len(corpus.valid)))
    written = listed = length = 0
    for source, target in zip(corpus.valid.source.rows(rows), corpus.valid.target.rows(rows), strict=True):
        own = shortlist.listed(torch.from_numpy(source.astype(np.int64))[None])[0].numpy()
        written += len(target)
        listed += int(own[target].sum())
        length += int(own.sum())
    return ShortlistCoverage(listed / max(1, written), length / max(1, len(rows)))
