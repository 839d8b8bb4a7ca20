"""Build a vocabulary shortlist (Jean et al. 2015) for a run from its training pairs, and measure its coverage."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from dragoman.base import RunError, check_writable
from dragoman.classical import learn_lexicon, same_spelling
from dragoman.data import Corpus, TokenStore, prepare_corpus
from dragoman.data.tokenizers import EOS, PAD
from dragoman.decoding import NAME, SPECIAL, Shortlist, shortlist_model
from dragoman.inference import load_predictor
from dragoman.inspect.options import ShortlistOptions
from dragoman.runs import Run, check_same_data

CHUNK = 4096  # rows read at a time
MAX_VALIDATION = 2000  # validation pairs on which coverage is measured


class LearnedShortlist(NamedTuple):
    """The file, and what the validation pairs say of it."""

    file: Path
    coverage: float  # share of the target tokens that are listed
    listed: float  # tokens for a source, on average
    vocabulary: int  # target tokens

    def as_dict(self) -> dict[str, Any]:
        return {"file": str(self.file), "coverage": self.coverage, "listed": self.listed}

    def lines(self) -> list[str]:
        return [
            f"listed for a source: {self.listed:,.0f} of {self.vocabulary:,} target tokens, on average",
            f"validation tokens that are listed: {self.coverage:.2%}",
            f"written: {self.file}",
        ]


def shortlist(run: str | Path, options: ShortlistOptions | None = None) -> LearnedShortlist:
    """Learn which target tokens are likely for each source token of a run, and write them for `method=shortlist`."""
    options = options or ShortlistOptions()
    path = Path(run) / NAME if options.output is None else Path(options.output)
    predictor = load_predictor(run, "cpu", engine="torch")
    shortlist_model(predictor.single_model("a shortlist restricts the output layer of one"))
    check_writable(path)
    learned, covered, listed = build_shortlist(predictor.run, options.likely, options.frequent, options.pairs)
    learned.save(path, predictor.source_tokenizer, predictor.target_tokenizer)
    return LearnedShortlist(path, covered, listed, len(predictor.target_tokenizer))


def most_frequent_tokens(store: TokenStore, vocabulary: int, count: int) -> list[int]:
    counts = np.zeros(vocabulary, np.int64)
    for first in range(0, len(store), CHUNK):
        rows = store.target.rows(range(first, min(first + CHUNK, len(store))))
        counts += np.bincount(np.concatenate(rows), minlength=vocabulary)
    counts[:SPECIAL] = 0
    order = np.argsort(-counts, kind="stable")[:count]
    return [int(token) for token in order if counts[token]]


def build_shortlist(run: Run, likely: int, common: int, pairs: int) -> tuple[Shortlist, float, float]:
    """`likely` translations of each token and `common` tokens, from at most `pairs` pairs; and its coverage."""
    if run.config.task != "translate":
        raise RunError(f'{run.folder}: found task = "{run.config.task}", expected "translate": lists are made of pairs')
    corpus = prepare_corpus(run.config.data, run.config.tokenizer)
    check_same_data(run.folder, corpus)
    assert isinstance(corpus.train, TokenStore)
    source, target = run.tokenizers()
    lexicon = learn_lexicon(corpus.train, len(source), pairs)
    always = most_frequent_tokens(corpus.train, len(target), common)
    table = lexicon.most_probable(len(source), likely, EOS, always)  # the `always` tokens need no entry
    # Names and numbers: the target token with the same spelling.
    same = np.array(same_spelling(*(side.pieces(range(len(side))) for side in (source, target))), np.int64)
    table = np.concatenate([table, np.where(same < 0, EOS, same)[:, None]], 1)
    table[:SPECIAL, -1] = table[PAD] = EOS
    shortlist = Shortlist(torch.tensor(always, dtype=torch.long), torch.from_numpy(table), len(target))
    return shortlist, *measure_coverage(shortlist, corpus)


def measure_coverage(shortlist: Shortlist, corpus: Corpus) -> tuple[float, float]:
    """Of the validation pairs the share of target tokens that are listed, and how many are listed for a source."""
    rows = range(min(MAX_VALIDATION, len(corpus.valid)))
    written = listed = length = 0
    for source, target in zip(corpus.valid.source.rows(rows), corpus.valid.target.rows(rows), strict=True):
        own = shortlist.listed(torch.from_numpy(source.astype(np.int64))[None])[0].numpy()
        written += len(target)
        listed += int(own[target].sum())
        length += int(own.sum())
    return listed / max(1, written), length / max(1, len(rows))
