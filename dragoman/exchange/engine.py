"""Decoding by CTranslate2: the same hypotheses as our own search, several times faster on a CPU.

Its beam search is ours: it looks at the best 2·width continuations, those among the first `width` that end are
complete, and a source is done when `width` are. It differs in four things:

- <eos> counts for the length only if it is returned, and may come first only if no least length is set: two options.
- Without a length penalty it stops early; a penalty of 1e-30 divides by one, and it does not.
- At the longest length it cuts, where we let hypotheses end: a source that comes so far is left to our own search.
- Tokens that are never written it would forbid before the softmax and rank by other scores: `with_copies` of the
  export prevents that. In a tiny vocabulary the copies could enter a wide beam: `refusal` knows.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import torch

from dragoman.data.tokenizers.base import EOS, Tokenizer
from dragoman.decoding.config import SearchConfig
from dragoman.decoding.hypothesis import NEVER_WRITTEN, Hypothesis
from dragoman.decoding.scorer import Scorer
from dragoman.decoding.search import limits_of
from dragoman.decoding.shortlist import Shortlist
from dragoman.errors import ConfigError
from dragoman.exchange import ctranslate2 as exchange
from dragoman.models.encoder_decoder import EncoderDecoder

EngineName = Literal["auto", "torch", "ctranslate2"]
ENGINES = ("auto", "torch", "ctranslate2")
ALMOST_NO_PENALTY = 1e-30


def chosen(engine: str, precision: str, model: Any, device: torch.device) -> str:
    """The engine to use for a model's configuration: "torch" or "ctranslate2"; an error if the one named cannot."""
    precisions = (*exchange.PRECISIONS, "bfloat16")
    for name, value, expected in (("engine", engine, ENGINES), ("precision", precision, precisions)):
        if value not in expected:
            raise ConfigError(f"{name}: found {value!r}, expected one of {', '.join(expected)}")
    if precision == "bfloat16":
        if engine == "ctranslate2" or device.type != "cuda":
            raise ConfigError(
                f"precision: found 'bfloat16' with engine {engine!r} on device {str(device)!r}, expected engine torch "
                "on a GPU; float32 goes everywhere"
            )
        return "torch"
    if engine == "torch" or (engine == "auto" and precision == "float32"):
        if precision != "float32":
            raise ConfigError(
                f"precision: found {precision!r}, which only the engine ctranslate2 has, expected float32"
            )
        if engine == "torch" or device.type != "cpu" or not exchange.installed() or exchange.obstacles(model):
            return "torch"
        return "ctranslate2"
    if device.type != "cpu":
        raise ConfigError(f"engine: ctranslate2 runs on the CPU here, found device {str(device)!r}, expected cpu")
    exchange.package()
    exchange.check_exportable(model)
    return "ctranslate2"


def refusal(
    config: SearchConfig, n_best: int, vocabulary: int, *, method: Any = None, rules: bool = False, traced: bool = False
) -> str | None:
    """Why CTranslate2 would not give what our own search gives; None: it would."""
    width = max(config.beam, n_best)
    if method is not None:
        return f"the method {type(method).__name__}"
    if rules:
        return "prefixes, phrases and other rules"
    if traced:
        return "a trace of the beam"
    for name in ("coverage_penalty", "no_repeat_ngram", "min_length"):
        if value := getattr(config, name):
            return f"search.{name} = {value}"
    if config.beam_groups > 1:
        return f"search.beam_groups = {config.beam_groups}"
    if width == 1:
        return None
    if config.stop != "complete":
        return f"search.stop = {config.stop!r}"
    if config.normalisation == "gnmt" and config.length_penalty:
        return "search.normalisation = 'gnmt'"
    # With fewer words continuations that are forbidden would enter the beam.
    if vocabulary < 2 * width + 1 + len(NEVER_WRITTEN):
        return f"a beam of {width} over a vocabulary of {vocabulary}"
    return None


@contextmanager
def mapped(folder: Path, shortlist: Shortlist, source: Tokenizer, target: Tokenizer) -> Iterator[Path]:
    """For the time of the block a folder with the same model and the shortlist as CTranslate2's vocabulary map.

    It lists tokens by name between spaces, those of no source token being for all; and it takes the tokens that the
    sources of a batch need together, so that there a neighbour may change an output.
    """
    reading, writing = exchange.names(source), exchange.names(target)
    if odd := next((name for name in (*reading, *writing) if set(name) & set(" \t\r\n")), None):
        raise ConfigError(f"shortlist: found the token {odd!r}, and ctranslate2 parts tokens by spaces; expected torch")
    lines = ["\t" + " ".join(writing[token] for token in shortlist.always.tolist())]
    for name, row in zip(reading, shortlist.likely.tolist(), strict=True):
        lines.append(name + "\t" + " ".join(writing[token] for token in dict.fromkeys(row)))
    with TemporaryDirectory(prefix="dragoman-") as place:
        for path in folder.iterdir():
            (Path(place) / path.name).symlink_to(path.resolve())
        (Path(place) / "vmap.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
        yield Path(place)


class Engine:
    """A run in CTranslate2; one worker a core with one thread each, which is twice as fast as one worker with all."""

    def __init__(
        self, folder: Path, source: Tokenizer, target: Tokenizer, precision: str, workers: int, listed: bool = False
    ) -> None:
        """`listed`: the folder has a vocabulary map, and is to be searched with it."""
        self.precision, self.listed = precision, listed
        self.translator = exchange.package().Translator(
            str(folder),
            device="cpu",
            compute_type=precision,
            inter_threads=workers,
            intra_threads=1,
            max_queued_batches=-1,
        )
        self.workers = workers
        self.source, self.target = exchange.names(source), exchange.names(target)
        self.ids = {name: number for number, name in enumerate([*self.target, *exchange.copies()])}

    @staticmethod
    def of(
        run: Path,
        weights: Path,
        model: EncoderDecoder,
        tokenizers: tuple[Tokenizer, Tokenizer],
        precision: str,
        shortlist: Shortlist | None = None,
    ) -> Engine:
        """The engine of a run; its model folder is made if need be."""
        folder = exchange.exported(run, weights, model, tokenizers, precision)
        try:
            if shortlist is not None:
                with mapped(folder, shortlist, *tokenizers) as beside:
                    return Engine(beside, *tokenizers, precision, torch.get_num_threads(), True)
            return Engine(folder, *tokenizers, precision, torch.get_num_threads())
        finally:
            if folder.parent != run:
                shutil.rmtree(folder, ignore_errors=True)

    def search(
        self,
        sources: Sequence[Sequence[int]],
        limits: Sequence[int],  # most tokens per source, <eos> included
        config: SearchConfig,
        *,
        rows: int,
        n_best: int,
        scores: bool = True,
    ) -> Iterator[tuple[int, list[Hypothesis] | None]]:
        """(place, hypotheses) for many sources; None where our own search must be asked.

        Without `scores` hypotheses tell tokens alone: their scores are not a number, as nobody asked for them.
        """
        order = sorted(range(len(sources)), key=lambda place: -len(sources[place]))  # the longest work is not the last
        rows = max(1, min(rows, math.ceil(len(order) / self.workers)))
        decode = self._greedy if max(config.beam, n_best) == 1 else self._beam
        waiting = []
        for first in range(0, len(order), rows):
            places = order[first : first + rows]
            texts = [[self.source[token] for token in sources[place]] for place in places]
            longest = max(limits[place] for place in places)
            waiting.append((places, texts, decode(texts, longest, config, scores)))
        for places, texts, results in waiting:
            found = results([limits[place] for place in places], n_best)
            if scores and decode == self._beam:
                found = self._scored(texts, found, config)
            yield from zip(places, found, strict=True)

    def _greedy(self, texts: list[list[str]], longest: int, config: SearchConfig, scores: bool) -> Results:
        parts: list[list[float]] = [[] for _ in texts]

        def tell(step: Any) -> bool:
            parts[step.batch_id].append(step.log_prob)
            return False

        asked = self.translator.translate_batch(
            texts,
            asynchronous=True,
            beam_size=1,
            return_end_token=True,
            max_input_length=0,
            max_decoding_length=longest,
            min_decoding_length=0,
            use_vmap=self.listed,
            return_scores=scores,
            callback=tell if scores else None,
        )

        def results(limits: Sequence[int], n_best: int) -> list[list[Hypothesis] | None]:
            out: list[list[Hypothesis] | None] = []
            for row, (one, limit) in enumerate(zip(asked, limits, strict=True)):
                tokens = [self.ids[name] for name in one.result().hypotheses[0]]
                done = len(tokens) <= limit and tokens[-1] == EOS
                if not done and not scores:
                    tokens = [*tokens[: limit - 1], EOS]  # where our own search lets nothing but <eos> follow
                    done = True
                if not done or max(tokens) >= len(self.target):
                    out.append(None)
                else:
                    out.append([self._hypothesis(tokens, parts[row] if scores else None, config)])
            return out

        return results

    def _beam(self, texts: list[list[str]], longest: int, config: SearchConfig, scores: bool) -> Results:
        width = config.beam
        normalised = config.normalisation == "power" and config.length_penalty
        asked = self.translator.translate_batch(
            texts,
            asynchronous=True,
            beam_size=width,
            num_hypotheses=width,
            length_penalty=config.length_penalty if normalised else ALMOST_NO_PENALTY,
            return_end_token=True,
            max_input_length=0,
            max_decoding_length=longest,
            min_decoding_length=0,
            use_vmap=self.listed,
        )

        def results(limits: Sequence[int], n_best: int) -> list[list[Hypothesis] | None]:
            out: list[list[Hypothesis] | None] = []
            for one, limit in zip(asked, limits, strict=True):
                found = one.result()
                rows = [[self.ids[name] for name in names] for names in found.hypotheses]
                # The last one to be complete says how far the search went.
                short = all(len(row) < limit and row[-1] == EOS for row in rows)
                sound = short and max(map(max, rows)) < len(self.target)
                out.append([self._hypothesis(row, None, config) for row in rows[:n_best]] if sound else None)
            return out

        return results

    def _hypothesis(self, tokens: Sequence[int], parts: Sequence[float] | None, config: SearchConfig) -> Hypothesis:
        if parts is None:
            return Hypothesis(tuple(tokens), (), math.nan, math.nan)
        total = sum(parts)
        worth = total / Scorer.from_config(config).divisor(len(tokens))
        return Hypothesis(tuple(tokens), tuple(parts), total, worth)

    def _scored(
        self, texts: Sequence[list[str]], found: Sequence[list[Hypothesis] | None], config: SearchConfig
    ) -> list[list[Hypothesis] | None]:
        """The hypotheses with the scores of all their tokens, best first."""
        pairs = [
            (text, [self.target[token] for token in one.tokens[:-1]])
            for text, hypotheses in zip(texts, found, strict=True)
            for one in hypotheses or ()
        ]
        if not pairs:
            return list(found)
        told = iter(
            self.translator.score_batch(
                [source for source, _ in pairs],
                [target for _, target in pairs],
                max_batch_size=max(1, math.ceil(len(pairs) / self.workers)),
                max_input_length=0,
            )
        )
        out: list[list[Hypothesis] | None] = []
        for hypotheses in found:
            if hypotheses is None:
                out.append(None)
                continue
            rows = [self._hypothesis(one.tokens, next(told).log_probs, config) for one in hypotheses]
            out.append(sorted(rows, key=lambda one: -one.normalised))
        return out


Results = Callable[[Sequence[int], int], list[list[Hypothesis] | None]]  # limits, n_best → what was found for each row


def search_all(
    engine: Engine,
    model: EncoderDecoder,
    sources: Sequence[Sequence[int]],
    config: SearchConfig,
    ratio: float,
    *,
    rows: int,
    n_best: int,
    scores: bool,
    otherwise: Callable[[list[Sequence[int]]], Iterator[tuple[int, list[Hypothesis]]]],
) -> Iterator[tuple[int, list[Hypothesis]]]:
    """(place, hypotheses) for many sources, each place once; `otherwise` is asked for those the engine leaves."""
    limits: list[int] = limits_of(
        torch.tensor([len(row) + 1 for row in sources]), config, ratio, model.max_positions
    ).tolist()
    known = [exchange.positions_of(stack) or math.inf for stack in (model.config.encoder, model.config.decoder)]  # type: ignore[arg-type]
    fitting = [place for place, row in enumerate(sources) if len(row) + 1 <= known[0] and limits[place] <= known[1]]
    left = sorted(set(range(len(sources))) - set(fitting))
    found = engine.search(
        [sources[place] for place in fitting],
        [limits[place] for place in fitting],
        config,
        rows=rows,
        n_best=n_best,
        scores=scores,
    )
    for number, hypotheses in found:
        if hypotheses is None:
            left.append(fitting[number])
        else:
            yield fitting[number], hypotheses
    if left:
        for number, hypotheses in otherwise([sources[place] for place in left]):
            yield left[number], hypotheses
