"""Decoding by CTranslate2: the same hypotheses as our own search, several times faster on a CPU.

Its beam search is ours: it ranks the best 2·width continuations, those among the first `width` that end are
complete, and a source is done when `width` are (`search.stop = "complete"`). It differs in five points:

- It counts <eos> in the length only if it returns <eos>, and lets <eos> come first only without a minimum length.
  Two of its options set both as we do.
- Without a length penalty it stops early. A penalty of 1e-30 divides by one, and it does not stop early.
- At the maximum length it cuts hypotheses, where we let them end. Our own search takes a source that gets so far.
- It would forbid tokens that are never output before the softmax, and rank by other scores. `with_copies` in the
  export prevents that. In a tiny vocabulary the copies could enter a wide beam: `choice.unsupported` checks it.
- It has no other stop rule. Where a call requires it with `search.stop = "ahead"`, the greedy output is found by a
  second search and ranked with the others, so that a beam never loses to greedy search.
"""

from __future__ import annotations

import math
import os
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

from dragoman.base import ConfigError, check_interrupted, remove_folder, stop_check, usable_cores
from dragoman.data import SourceReader
from dragoman.data.tokenizers import EOS, Tokenizer
from dragoman.decoding import Hypothesis, Scorer, SearchConfig
from dragoman.inference.engine import ctranslate2 as exchange
from dragoman.inference.engine.exporter import stacks_of
from dragoman.models import EncoderDecoderConfig
from dragoman.runs.tasks import length_limit

if TYPE_CHECKING:
    from dragoman.decoding import Shortlist

ALMOST_NO_PENALTY = 1e-30
LONG = 128  # tokens: only longer searches look whether to stop, which costs a call of Python for every token


@contextmanager
def mapped(folder: Path, shortlist: Shortlist, source: SourceReader, target: Tokenizer) -> Iterator[Path]:
    """A temporary copy of a model folder with the shortlist as CTranslate2's vocabulary map.

    The map has a source token and its target tokens on each line, separated by spaces; target tokens without a source
    token are in every list. CTranslate2 joins the lists of all sources in a batch, so a neighbour may change an output.
    """
    source_names, target_names = exchange.names(source), exchange.names(target)
    if odd := next((name for name in (*source_names, *target_names) if set(name) & set(" \t\r\n")), None):
        raise ConfigError(
            f"shortlist: found the token {odd!r}, but ctranslate2 separates tokens by spaces; expected engine torch"
        )
    lines = ["\t" + " ".join(target_names[token] for token in shortlist.always.tolist())]
    for name, row in zip(source_names, shortlist.likely.tolist(), strict=True):
        lines.append(name + "\t" + " ".join(target_names[token] for token in dict.fromkeys(row)))
    with TemporaryDirectory(prefix="dragoman-") as temporary:
        for path in folder.iterdir():
            (Path(temporary) / path.name).symlink_to(path.resolve())
        (Path(temporary) / "vmap.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
        yield Path(temporary)


def num_threads() -> int:
    """The threads that torch would compute with; torch is not imported for it."""
    if (torch := sys.modules.get("torch")) is not None:
        return int(torch.get_num_threads())
    setting = os.environ.get("OMP_NUM_THREADS", "")
    return int(setting) if setting.isdecimal() and int(setting) else usable_cores()


class EngineSearch(NamedTuple):
    """How the engine searches."""

    config: SearchConfig
    n_best: int = 1
    batch_size: int = 64
    scores: bool = True  # False: hypotheses have tokens alone, and their scores are NaN


class Engine:
    """A run in CTranslate2, with one worker of one thread per core: twice as fast as one worker with all threads."""

    def __init__(
        self, folder: Path, source: SourceReader, target: Tokenizer, precision: str, workers: int, listed: bool = False
    ) -> None:
        """With `listed` the folder has a vocabulary map, which every search uses."""
        self.precision, self.listed = precision, listed
        translator = exchange.translator(
            folder,
            compute_type=precision,
            inter_threads=workers,
            intra_threads=1,
            max_queued_batches=-1,
        )
        # At the end of Python, CTranslate2 aborts where its threads still wait: an engine goes before that.
        self._translators = [translator]
        weakref.finalize(self, self._translators.clear)
        self.workers = workers
        self.source, self.target = exchange.names(source), exchange.names(target)
        self.ids = {name: number for number, name in enumerate([*self.target, *exchange.copies()])}

    @property
    def translator(self) -> Any:
        return self._translators[0]

    @staticmethod
    def of(
        run: Path,
        folder: Path,
        tokenizers: tuple[SourceReader, Tokenizer],
        precision: str,
        shortlist: Shortlist | None = None,
    ) -> Engine:
        """The engine of a run with this model folder, which is removed where it is not in the run folder."""
        try:
            if shortlist is not None:
                with mapped(folder, shortlist, *tokenizers) as beside:
                    return Engine(beside, *tokenizers, precision, num_threads(), True)
            return Engine(folder, *tokenizers, precision, num_threads())
        finally:
            if folder.parent != run:
                remove_folder(folder)

    def search(
        self, sources: Sequence[Sequence[int]], limits: Sequence[int], how: EngineSearch
    ) -> Iterator[tuple[int, list[Hypothesis] | None]]:
        """(index, hypotheses) for every source; None where our own search must do it.

        `limits` has the maximum number of tokens for each source, <eos> included.
        """
        order = sorted(range(len(sources)), key=lambda index: -len(sources[index]))  # the longest work is not the last
        batch_size = max(1, min(how.batch_size, math.ceil(len(order) / self.workers)))
        decode = self._greedy if max(how.config.beam, how.n_best) == 1 else self._beam
        waiting = []
        for first in range(0, len(order), batch_size):
            rows = order[first : first + batch_size]
            texts = [[self.source[token] for token in sources[row]] for row in rows]
            waiting.append((rows, texts, decode(texts, max(limits[row] for row in rows), how)))
        for rows, texts, results in waiting:
            hypotheses = results([limits[row] for row in rows])
            check_interrupted()
            # Scored afterwards: a callback of the greedy search would take Python's lock for every token.
            if how.scores or (decode == self._beam and how.config.stop != "complete"):
                hypotheses = [row and row[: how.n_best] for row in self._scored(texts, hypotheses, how.config)]
            yield from zip(rows, hypotheses, strict=True)

    def _translate(self, texts: list[list[str]], max_length: int, **options: Any) -> Any:
        return self.translator.translate_batch(
            texts,
            asynchronous=True,
            return_end_token=True,
            max_input_length=0,
            max_decoding_length=max_length,
            use_vmap=self.listed,
            **options,
        )

    def _greedy(self, texts: list[list[str]], max_length: int, how: EngineSearch) -> Results:
        should_stop = stop_check()  # its threads do not have this thread's context
        futures = self._translate(
            texts,
            max_length,
            beam_size=1,
            min_decoding_length=min(how.config.min_length, max_length),
            no_repeat_ngram_size=how.config.no_repeat_ngram,
            callback=(lambda step: should_stop()) if should_stop is not None and max_length > LONG else None,
        )

        def results(limits: Sequence[int]) -> list[list[Hypothesis] | None]:
            out: list[list[Hypothesis] | None] = []
            for future, limit in zip(futures, limits, strict=True):
                tokens = [self.ids[name] for name in future.result().hypotheses[0]]
                done = len(tokens) <= limit and tokens[-1] == EOS
                if not done and not how.scores:
                    tokens = [*tokens[: limit - 1], EOS]  # where our own search lets nothing but <eos> follow
                    done = True
                sound = done and max(tokens) < len(self.target)
                out.append([self._hypothesis(tokens, None, how.config)] if sound else None)
            return out

        return results

    def _beam(self, texts: list[list[str]], max_length: int, how: EngineSearch) -> Results:
        config, width = how.config, how.config.beam
        complete = max(config.num_complete, how.n_best) if config.num_complete else width
        greedy: Results | None = None
        if config.stop != "complete":
            greedy = self._greedy(texts, max_length, how._replace(scores=False))
        normalised = config.normalisation == "power" and config.length_penalty
        futures = self._translate(
            texts,
            max_length,
            beam_size=width,
            patience=complete / width,
            num_hypotheses=complete,
            min_decoding_length=0,
            length_penalty=config.length_penalty if normalised else ALMOST_NO_PENALTY,
        )

        def results(limits: Sequence[int]) -> list[list[Hypothesis] | None]:
            out: list[list[Hypothesis] | None] = []
            for future, limit in zip(futures, limits, strict=True):
                rows = [[self.ids[name] for name in names] for names in future.result().hypotheses]
                # The last one to be complete says how far the search went.
                short = all(len(row) < limit and row[-1] == EOS for row in rows)
                sound = short and max(map(max, rows)) < len(self.target)
                out.append([self._hypothesis(row, None, config) for row in rows[: how.n_best]] if sound else None)
            for row, other in zip(out, greedy(limits) if greedy else [], strict=False):
                if row is not None and other is not None and other[0] not in row:
                    row += other
            return out

        return results

    def _hypothesis(
        self, tokens: Sequence[int], token_scores: Sequence[float] | None, config: SearchConfig
    ) -> Hypothesis:
        if token_scores is None:
            return Hypothesis(tuple(tokens), (), math.nan, math.nan)
        return Scorer.from_config(config).hypothesis(tokens, token_scores)

    def _scored(
        self, texts: Sequence[list[str]], several: Sequence[list[Hypothesis] | None], config: SearchConfig
    ) -> list[list[Hypothesis] | None]:
        """The hypotheses with the scores of all their tokens, best first."""
        pairs = [
            (text, [self.target[token] for token in hypothesis.tokens[:-1]])
            for text, hypotheses in zip(texts, several, strict=True)
            for hypothesis in hypotheses or ()
        ]
        if not pairs:
            return list(several)
        sources, targets = zip(*pairs, strict=True)
        size = max(1, math.ceil(len(pairs) / self.workers))
        scored = iter(self.translator.score_batch(sources, targets, max_batch_size=size, max_input_length=0))
        out: list[list[Hypothesis] | None] = []
        for hypotheses in several:
            rows = [self._hypothesis(row.tokens, next(scored).log_probs, config) for row in hypotheses or ()]
            out.append(hypotheses and sorted(rows, key=lambda row: -row.normalised))
        return out


Results = Callable[[Sequence[int]], list[list[Hypothesis] | None]]  # limits → hypotheses for each row


def search_all(
    engine: Engine,
    config: EncoderDecoderConfig,
    sources: Sequence[Sequence[int]],
    ratio: float,
    how: EngineSearch,
    own_search: Callable[[list[Sequence[int]]], Iterator[tuple[int, list[Hypothesis]]]],
) -> Iterator[tuple[int, list[Hypothesis]]]:
    """(index, hypotheses) for every source; `own_search` does those that the engine leaves."""
    stacks = stacks_of(config)
    longest = length_limit(stacks["decoder"])[1] or sys.maxsize
    limits = [min(how.config.limit(len(row) + 1, ratio), longest) for row in sources]
    known = [exchange.positions_of(stack) or math.inf for stack in stacks.values()]
    fitting = [index for index, row in enumerate(sources) if len(row) + 1 <= known[0] and limits[index] <= known[1]]
    left = sorted(set(range(len(sources))) - set(fitting))
    for number, hypotheses in engine.search(
        [sources[index] for index in fitting], [limits[index] for index in fitting], how
    ):
        if hypotheses is None:
            left.append(fitting[number])
        else:
            yield fitting[number], hypotheses
    if left:
        for number, own in own_search([sources[index] for index in left]):
            yield left[number], own
