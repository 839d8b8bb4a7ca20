"""What a predictor does to a batch: search for outputs, score and rerank them, write them as text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

from dragoman.data.collate import batches_by_length
from dragoman.data.tokenizers.base import EOS, Tokenizer
from dragoman.data.tokenizers.language_tags import add_tag, ensure_tag, split_tag
from dragoman.decoding.config import SearchConfig
from dragoman.decoding.constraints.automata import ConstraintAutomaton
from dragoman.decoding.constraints.source import Terminology, add_numbers, add_source_constraints, restore_placeholders
from dragoman.decoding.constraints.spec import NO_CONSTRAINTS, ConstrainedInput, OutputConstraints
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.method import Method
from dragoman.decoding.options import DecodingOptions
from dragoman.decoding.search import search
from dragoman.decoding.shortlist import Shortlist
from dragoman.decoding.trace import Trace
from dragoman.exchange import engine as engines
from dragoman.exchange.choice import Call
from dragoman.inference.confidence import SavedCalibration, token_confidences
from dragoman.inference.ensemble import Backend
from dragoman.inference.inputs import Nodes, Warn, common_constraints
from dragoman.inference.loaded import Seq2SeqRun
from dragoman.inference.long_inputs import InputTooLongError
from dragoman.inference.parts import Part, Planner, constraints_of_part, join_parts
from dragoman.inference.pipeline import Done, Row, Work, as_input
from dragoman.inference.prediction import NO_PREDICTION, Prediction, with_confidences
from dragoman.inference.rerank import Reranker
from dragoman.models.contracts import decodes
from dragoman.tasks.base import encoder_of, length_limit

Automata = Sequence[ConstraintAutomaton | None]
Results = Iterator[tuple[int, list[Hypothesis]]]  # (index of a source, hypotheses)


def prediction_of(hypothesis: Hypothesis, target: Tokenizer) -> Prediction:
    tokens = hypothesis.tokens[:-1] if hypothesis.tokens[-1] == EOS else hypothesis.tokens
    return Prediction(
        text=target.decode(tokens),
        score=hypothesis.normalised,
        tokens=tuple(target.pieces(tokens)),
        token_scores=hypothesis.token_scores,
    )


@dataclass(frozen=True)
class SearchWork(Work[Prediction]):
    """The work of one call of a predictor: options with everything they name opened."""

    loaded: Seq2SeqRun
    options: DecodingOptions  # its method is open
    config: SearchConfig
    backend: Backend
    method: Method | None
    reranker: Reranker | None
    terms: Terminology | None
    calibration: SavedCalibration | None  # None: outputs get no confidences
    traced: bool

    @property
    def run(self) -> Seq2SeqRun:
        return self.loaded

    @property
    def empty(self) -> Prediction:
        return NO_PREDICTION

    @property
    def call(self) -> Call:
        """The settings and options that the engine must support."""
        return Call(self.config, self.options)

    @property
    def n_best(self) -> int:
        """Outputs that the search returns: all of the beam where they are reranked."""
        return self.options.n_best if self.reranker is None else max(self.options.n_best, self.config.beam)

    @property
    def constrainable(self) -> bool:
        """Whether the search can force texts into an output: a search token by token, by greedy or beam search."""
        return self.method is None and decodes(self.backend.model) == "stepwise"

    @property
    def scores(self) -> bool:
        """Whether the search must compute scores."""
        return self.options.scores or self.reranker is not None

    # --- inputs

    @cached_property
    def common(self) -> OutputConstraints:
        """The constraints on every output that has none of its own."""
        return common_constraints(self.options)

    def prepare(self, item: str | ConstrainedInput, name: str) -> ConstrainedInput:
        text, constraints = as_input(item)
        tags = self.run.tags
        text = ensure_tag(text, self.options.tag, tags, name) if text.strip() else text
        constraints = constraints if isinstance(item, ConstrainedInput) else self.common
        source = split_tag(text, tags)[1]
        return ConstrainedInput(
            text, add_source_constraints(constraints, source, self.terms, self.options.placeholders)
        )

    def protect(self, item: ConstrainedInput) -> ConstrainedInput:
        source = split_tag(item.text, self.run.tags)[1]
        return item._replace(constraints=add_numbers(item.constraints, source, self.run.unseen.lacks_digit))

    def plan(self, item: ConstrainedInput, name: str, warn: Warn) -> list[Part] | None:
        if self.run.reads_files:
            return None
        return Planner(self.run.source_tokenizer, self.run.length_limits, self.constrainable).parts(item, name, warn)

    def part(self, item: ConstrainedInput, part: Part) -> ConstrainedInput:
        tag = split_tag(item.text, self.run.tags)[0]
        own = constraints_of_part(item.constraints, part.text) if self.constrainable else NO_CONSTRAINTS
        return ConstrainedInput(add_tag(part.text, tag) if tag else part.text, own)

    def join(self, parts: Sequence[Part], outputs: Sequence[Prediction]) -> Prediction:
        return join_parts(parts, outputs)

    def encode(self, rows: Sequence[Row]) -> None:
        if not self.run.reads_files:
            sources = self.backend.codec.encode_sources([row.text for row in rows])
            for row, source in zip(rows, sources, strict=True):
                row.source = source

    def check_source(self, row: Row, warn: Warn) -> None:
        setting, maximum = length_limit(encoder_of(self.run.config))
        if maximum is not None and len(row.source) >= maximum:
            problem = f"found {len(row.source) + 1} tokens, <eos> included"
            reason = f"expected at most the {maximum} of model.encoder.{setting}"
            raise InputTooLongError(row.name, row.text, maximum - 1, problem, reason)

    # --- outputs

    def outputs(self, rows: Sequence[Row], done: Done) -> list[Prediction]:
        hypotheses: list[list[Hypothesis]] = [[] for _ in rows]
        for index, best in self._decode(rows, self._automata(rows)):
            hypotheses[index] = best
            done(rows[index])
        confidences = self._confidences(rows, hypotheses)
        predictions = [self._prediction(row, best, confidences) for row, best in zip(rows, hypotheses, strict=True)]
        if self.reranker is None:
            return predictions
        sources = [split_tag(row.text, self.run.tags)[1] for row in rows]
        return self.reranker.ranked(sources, predictions, self.options.n_best)

    def _automata(self, rows: Sequence[Row]) -> Automata:
        """The constraints of each row as an automaton over tokens; None: it has none."""
        positions, codec = self.backend.model.max_positions, self.backend.codec
        max_tokens = min(self.config.max_length or math.inf, math.inf if positions is None else positions - 1)
        compiler = self.run.constraint_compiler if any(row.item.constraints for row in rows) else None
        return [
            compiler.extended(codec.target_of(row.text)).compile(row.item.constraints, row.name, max_tokens)
            if compiler is not None and row.item.constraints
            else None
            for row in rows
        ]

    def _decode(self, rows: Sequence[Row], automata: Automata) -> Results:
        """Rows with constraints are decoded apart: they must not change which engine does the others."""
        every = range(len(rows))
        groups = [[index for index in every if (automata[index] is not None) is kind] for kind in (False, True)]
        for indices in [list(every)] if self.traced else groups:
            own = [automata[index] for index in indices]
            for number, hypotheses in self._decode_alike([rows[index] for index in indices], own):
                yield indices[number], hypotheses

    def _decode_alike(self, rows: Sequence[Row], automata: Automata) -> Results:
        """By the engine, or by our own search."""
        backend, options = self.backend, self.options
        sources, constrained, engine = [row.source for row in rows], any(automata), None
        if rows and backend.engines.can_search(self.call, constrained=constrained, traced=self.traced):
            listed = options.method if isinstance(options.method, Shortlist) else None
            engine = backend.engines.engine(backend.model, listed)
        if engine is None:
            return self._search(sources, automata if constrained else None, rows if self.traced else ())
        how = engines.EngineSearch(self.config, self.n_best, options.batch_size, self.scores)
        return engines.search_all(engine, backend.model, sources, backend.length_ratio, how, self._search)

    def _search(self, sources: Sequence[Any], automata: Automata | None = None, traced: Sequence[Row] = ()) -> Results:
        """In batches of like lengths; the rows in `traced` get their traces."""
        backend = self.backend
        for indices, batch in batches_by_length(sources, self.options.batch_size, self.run.collator):
            trace = Trace(len(indices)) if traced else None
            hypotheses = search(
                backend.model,
                batch.to(self.run.device),
                self.config,
                backend.length_ratio,
                self.n_best,
                method=self.method,
                text=self.backend.codec.target_of(None).decode,
                constraints=None if automata is None else [automata[index] for index in indices],
                trace=trace,
            )
            for number, index in enumerate(indices if trace is not None else ()):
                traced[index].trace = trace.of(number) if trace is not None else None
            yield from zip(indices, hypotheses, strict=True)

    def _confidences(
        self, rows: Sequence[Row], hypotheses: Sequence[Sequence[Hypothesis]]
    ) -> Iterator[tuple[float, ...]] | None:
        """The calibrated confidences of every hypothesis; None: nobody needs them, or nothing is calibrated."""
        if self.calibration is None:
            return None
        pairs = [(row.source, one.tokens[:-1]) for row, best in zip(rows, hypotheses, strict=True) for one in best]
        model, device, size = self.backend.model, self.run.device, self.options.batch_size
        return iter(token_confidences(model, pairs, self.calibration.temperature, device, size))

    def _prediction(
        self, row: Row, hypotheses: Sequence[Hypothesis], confidences: Iterator[tuple[float, ...]] | None
    ) -> Prediction:
        """The best hypothesis with the others as its alternatives; placeholders that it lacks are put in."""
        target = self.backend.codec.target_of(row.text)
        predictions = [prediction_of(hypothesis, target) for hypothesis in hypotheses]
        if confidences is not None and self.calibration is not None:
            scale = self.calibration.scale
            predictions = [with_confidences(prediction, next(confidences), scale) for prediction in predictions]
        if placeholders := row.item.constraints.placeholders:
            source = split_tag(row.text, self.run.tags)[1]
            restore = partial(restore_placeholders, source=source, placeholders=placeholders)
            predictions = [replace(prediction, text=restore(prediction.text)) for prediction in predictions]
        return replace(predictions[0], alternatives=tuple(predictions[1:]))

    def trace_table(self, row: Row) -> Nodes:
        if row.trace is None:
            return []
        return row.trace.as_table(0, self.backend.codec.target_of(row.text).pieces)
