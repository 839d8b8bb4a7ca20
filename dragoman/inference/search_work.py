"""What a predictor does to inputs: constraints, parts and tags before the search, and texts and scores behind it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from dragoman.data import Match, TranslationMemory, protected_spans, without_spans
from dragoman.data.tokenizers import EOS, add_tag, ensure_tag, split_tag
from dragoman.decoding import DecodingOptions, Hypothesis, Method, SearchConfig, transduce
from dragoman.decoding.constraints import (
    ConstrainedInput,
    ConstraintAutomaton,
    OutputConstraints,
    Terminology,
    add_terms,
)
from dragoman.inference.committee import Committee
from dragoman.inference.confidence import SavedCalibration, log_probability
from dragoman.inference.inputs import Nodes, Warn, common_constraints
from dragoman.inference.loaded import Backend, Seq2SeqRun
from dragoman.inference.long_inputs import join_parts, parts_of
from dragoman.inference.pipeline import Done, Row, Work, as_input, check_positions
from dragoman.inference.prediction import NO_PREDICTION, Prediction
from dragoman.inference.restoring import Restoring
from dragoman.inference.segments import Parsing, Part
from dragoman.inference.target_scores import token_confidences
from dragoman.models import decodes

if TYPE_CHECKING:  # an engine and fitted models search without torch
    import torch

    from dragoman.data import Batch, Collator
    from dragoman.inference.engine.choice import Call
    from dragoman.inference.rerank import Reranker

# Multiplications of a decoding step that are worth a thread of its own. In a smaller step most of the time goes into
# Python, which threads take in turns: two half batches take up to twice as long as a whole one.
WORTH_A_THREAD = 2e8
Automata = Sequence[ConstraintAutomaton | None]
Results = Iterator[tuple[int, list[Hypothesis]]]  # (index of a source, hypotheses)


@dataclass(frozen=True)
class SearchWork(Work[Prediction]):
    """What a predictor does to inputs in one call: options with everything they name opened."""

    run: Seq2SeqRun
    options: DecodingOptions  # its method and terminology are open
    config: SearchConfig
    backend: Backend
    reranker: Reranker | None
    calibration: SavedCalibration | None  # None: outputs get no confidences
    traced: bool

    empty = NO_PREDICTION

    def can_use_engine(self, *, constrained: bool = False) -> bool:
        """Whether an engine does the search in place of torch; an error where it is required and cannot."""
        engines = self.backend.engines
        return engines is not None and engines.can_search(self.call, constrained=constrained, traced=self.traced)

    @property
    def call(self) -> Call:
        from dragoman.inference.engine.choice import Call

        return Call(self.config, self.options)

    @property
    def n_best(self) -> int:
        """Outputs that the search returns: all of the beam where they are reranked."""
        return self.options.n_best if self.reranker is None else max(self.options.n_best, self.config.beam)

    @property
    def beam(self) -> int:
        """Outputs that a search can tell apart; 1: another search finds the same."""
        return self.config.beam if self.options.method is None and self.reranker is None else 1

    # --- inputs

    @cached_property
    def common(self) -> OutputConstraints:
        """The constraints on every output that has none of its own."""
        return common_constraints(self.options)

    def prepare(self, item: str | ConstrainedInput, name: str) -> ConstrainedInput:
        prepared = as_input(item)
        text, constraints = prepared.text, prepared.constraints
        options, tags = self.options, self.run.tags
        text = ensure_tag(text, options.tag, tags, name) if text.strip() else text
        constraints = constraints if isinstance(item, ConstrainedInput) else self.common
        source, terms = split_tag(text, tags)[1], cast("Terminology | None", options.terminology)
        return ConstrainedInput(text, add_terms(constraints, source, terms))

    def parsing(self, item: ConstrainedInput) -> Parsing:
        """How the text of an input is taken apart."""
        own = item.constraints
        if own.prefix or own.allow or own.pattern or own.constrain:  # they say what the output is from its start
            return Parsing(False)
        numbers = self.run.unseen.lacks_digit
        apart = decodes(self.backend.traits) != "stepwise"
        return Parsing(self.options.placeholders, numbers, bool(own.require), apart)

    def uncopied(self, text: str) -> str:
        return without_spans(text, protected_spans(text)) if self.options.placeholders else text

    def plan(self, item: ConstrainedInput, name: str, warn: Warn) -> list[Part] | None:
        if self.run.reads_files:
            return None
        run = self.run
        parts = parts_of(item, name, warn, run.source_tokenizer, run.length_limits, self.parsing(item))
        return None if parts is None else [self.read(part) for part in parts]

    def read(self, part: Part) -> Part:
        """A part with the spans that training had: the model may know what to do with them."""
        if (segment := part.segment) is None or not self.options.placeholders:
            return part
        spans = "".join(span.of(segment.raw) for span in segment.spans if span.kind not in ("tag", "number"))
        known = bool(spans) and not any(span.kind == "number" for span in segment.spans) and not self.run.unseen(spans)
        return part._replace(text=segment.tagless.text) if known else part

    def part(self, item: ConstrainedInput, part: Part, parts: Sequence[Part]) -> ConstrainedInput:
        tag = split_tag(item.text, self.run.tags)[0]
        alone = sum(not part.copied for part in parts) == 1
        own = item.constraints if alone else OutputConstraints(forbid=item.constraints.forbid)
        return ConstrainedInput(add_tag(part.text, tag) if tag else part.text, own)

    def join(self, parts: Sequence[Part], outputs: Sequence[Prediction]) -> Prediction:
        return join_parts(parts, outputs)

    def encode(self, rows: Sequence[Row]) -> None:
        if not self.run.reads_files:
            sources = self.backend.codec.encode_sources([self.in_context(row) for row in rows])
            for row, source in zip(rows, sources, strict=True):
                row.source = source

    def check_source(self, row: Row, warn: Warn) -> None:
        check_positions(self.run, row, row.source)

    # --- outputs

    def outputs(self, rows: Sequence[Row], done: Done) -> list[Prediction]:
        predictions = self._searched(rows, done)
        if not self.options.placeholders and all(row.segment is None for row in rows):
            return predictions

        def search(rows: Sequence[Row], n_best: int) -> list[Prediction]:
            work = replace(self, options=replace(self.options, n_best=n_best))
            return work._searched(rows, lambda row: None)

        return Restoring(self, search).outputs(rows, predictions)

    def _searched(self, rows: Sequence[Row], done: Done) -> list[Prediction]:
        model = self.backend.traits
        predictions = self._voted(model, rows, done) if isinstance(model, Committee) else self._found(rows, done)
        if self.reranker is None:
            return predictions
        sources = [split_tag(row.text, self.run.tags)[1] for row in rows]
        return self.reranker.ranked(sources, predictions, self.options.n_best)

    def _voted(self, committee: Committee, rows: Sequence[Row], done: Done) -> list[Prediction]:
        items, predictions = [row.item._replace(text=self.in_context(row)) for row in rows], []
        found = committee.predictions(items, self.options, self.n_best, self.config.beam)
        for row, prediction in zip(rows, found, strict=True):
            predictions.append(prediction)
            done(row)
        return predictions

    def _found(self, rows: Sequence[Row], done: Done) -> list[Prediction]:
        automata = self._automata(rows)
        hypotheses: list[list[Hypothesis]] = [[] for _ in rows]
        every = list(range(len(rows)))
        # Rows with constraints are decoded apart: they must not change which engine does the others.
        groups = [[index for index in every if (automata[index] is not None) is kind] for kind in (False, True)]
        for indices in filter(None, [every] if self.traced else groups):
            own = [rows[index] for index in indices], [automata[index] for index in indices]
            for number, best in self._decode(*own):
                hypotheses[indices[number]] = best
                done(rows[indices[number]])
        return self._predictions(rows, hypotheses)

    def _automata(self, rows: Sequence[Row]) -> Automata:
        """The constraints of each row as an automaton over tokens; None: it has none."""
        positions, codec = self.backend.traits.max_positions, self.backend.codec
        max_tokens = min(self.config.max_length or math.inf, math.inf if positions is None else positions - 1)
        compiler = self.run.constraint_compiler if any(row.item.constraints for row in rows) else None
        return [
            compiler.extended(codec.target_of(row.text)).compile(row.item.constraints, row.name, max_tokens)
            if compiler is not None and row.item.constraints
            else None
            for row in rows
        ]

    def _decode(self, rows: Sequence[Row], automata: Automata) -> Results:
        """By the engine, or by our own search."""
        backend, options = self.backend, self.options
        sources, constrained, engine = [row.source for row in rows], any(automata), None
        if self.can_use_engine(constrained=constrained):
            from dragoman.inference.engine.choice import open_shortlist

            assert backend.engines is not None
            engine = backend.engines.engine(backend.open_model, open_shortlist(options))
        if engine is None:
            return self._search(sources, automata if constrained else None, rows if self.traced else ())
        from dragoman.inference.engine import engine as engines

        scores = options.scores or self.reranker is not None
        how = engines.EngineSearch(self.config, self.n_best, options.batch_size, scores)
        return engines.search_all(engine, self.run.config.model, sources, backend.length_ratio, how, self._search)

    def _search(self, sources: Sequence[Any], automata: Automata | None = None, traced: Sequence[Row] = ()) -> Results:
        """By the model itself, or in batches of like lengths; the rows in `traced` get their traces."""
        if decodes(self.backend.traits) == "own-search":
            return self._transduce(sources, automata, traced)
        backend, options = self.backend, self.options
        return BatchSearch(
            backend.model,
            self.run.device,
            self.run.collator,
            self.config,
            backend.length_ratio,
            self.n_best,
            options.batch_size,
            options.method,
            backend.codec.target_of(None).decode,
        ).results(sources, automata, traced)

    def _transduce(self, sources: Sequence[Any], automata: Automata | None, traced: Sequence[Row]) -> Results:
        given = {
            "constraints": any(automata or ()),
            "a trace": bool(traced),
            "another decoding method": self.options.method is not None,
        }
        size = self.options.batch_size
        for first in range(0, len(sources), size):
            rows = sources[first : first + size]
            yield from enumerate(transduce(self.backend.model, rows, self.config, self.n_best, given), first)

    def _predictions(self, rows: Sequence[Row], hypotheses: Sequence[Sequence[Hypothesis]]) -> list[Prediction]:
        """The best hypotheses with the others as their alternatives."""
        confidences: Iterator[tuple[float, ...]] = iter(())
        if self.calibration is not None:
            several = zip(rows, hypotheses, strict=True)
            pairs = [(row.source, hypothesis.tokens[:-1]) for row, best in several for hypothesis in best]
            model, device, size = self.backend.model, self.run.device, self.options.batch_size
            confidences = iter(token_confidences(model, pairs, self.calibration.temperature, device, size))
        predictions = []
        for row, best in zip(rows, hypotheses, strict=True):
            first, *others = [self._prediction(row, hypothesis, confidences) for hypothesis in best]
            predictions.append(replace(first, alternatives=tuple(others)))
        return predictions

    def _prediction(self, row: Row, hypothesis: Hypothesis, confidences: Iterator[tuple[float, ...]]) -> Prediction:
        target = self.backend.codec.target_of(row.text)
        tokens = hypothesis.tokens[:-1] if hypothesis.tokens[-1] == EOS else hypothesis.tokens
        text, pieces = target.decode(tokens), tuple(target.pieces(tokens))
        prediction = Prediction(text, hypothesis.normalised, pieces, hypothesis.token_scores)
        if self.calibration is None:
            return prediction
        own = next(confidences)
        return replace(prediction, confidence=self.calibration.scale(log_probability(own)), token_confidences=own)

    def matched(self, text: str) -> tuple[str, ...]:
        memory = cast("TranslationMemory | None", self.options.memory)
        if memory is None:
            return ()
        return tuple(match.target for match in memory.fuzzy(text, self.run.reads_match, other=True))

    def known(self, item: ConstrainedInput) -> Prediction | None:
        """An exact match of the memory, unless the caller constrains outputs: a translation there may not comply."""
        memory = cast("TranslationMemory | None", self.options.memory)
        if memory is None or item.constraints:
            return None
        target = memory.exact(item.text)
        return None if target is None else replace(NO_PREDICTION, text=target, memory=Match(1.0, item.text, target))

    def beside(self, known: Prediction, output: Prediction | None) -> Prediction | None:
        if output is None:
            return known if self.options.n_best == 1 else None
        found = (replace(output, alternatives=()), *output.alternatives)
        others = [other for other in found if other.text != known.text]
        return replace(known, alternatives=tuple(others[: self.options.n_best - 1]))

    def accepted(self, output: Prediction, text: str) -> Prediction:
        memory = cast("TranslationMemory | None", self.options.memory)
        if memory is not None and output.memory is None and self.options.scores:
            output = replace(output, memory=next(iter(memory.fuzzy(text, self.options.min_match)), None))
        least = self.options.min_confidence
        if least is None or output.confidence is None or output.confidence >= least:
            return output
        reason = f"confidence {output.confidence:.3f}, expected {least:g} or more"
        return replace(
            output, text="", tokens=(), token_scores=(), token_confidences=(), alternatives=(), refused=reason
        )

    def trace_table(self, row: Row) -> Nodes:
        pieces = self.backend.codec.target_of(row.text).pieces
        return [{**node._asdict(), "piece": pieces([node.token])[0]} for node in row.trace]


@dataclass(frozen=True)
class BatchSearch:
    """The search of a neural model over many sources, in batches of like lengths."""

    model: Any
    device: torch.device
    collator: Collator
    config: SearchConfig
    length_ratio: float
    n_best: int
    batch_size: int
    method: Method | None
    text: Callable[[Sequence[int]], str]  # of token ids

    def results(self, sources: Sequence[Any], automata: Automata | None, traced: Sequence[Row]) -> Results:
        """The hypotheses of all sources, batch after batch; the rows in `traced` get their traces."""
        from dragoman.data import batches_by_length
        from dragoman.models.kernels import map_batches

        size, workers = self.batch_size, 1
        plain = automata is None and not traced and self.method is None
        if plain and self.device.type == "cpu" and decodes(self.model) == "stepwise":
            workers = self._workers(len(sources))
            rounds = math.ceil(len(sources) / (workers * size))
            size = max(1, math.ceil(len(sources) / (workers * max(1, rounds))))  # no core waits for the last batch

        def found(numbered: tuple[list[int], Batch]) -> list[tuple[int, list[Hypothesis]]]:
            return self._search_batch(*numbered, automata, traced)

        batches = batches_by_length(sources, size, self.collator, longest_first=workers > 1)
        for results in map_batches(found, batches, workers) if workers > 1 else map(found, batches):
            yield from results

    def _workers(self, sources: int) -> int:
        """How many cores search a batch each; a batch is shared among cores only where its steps are large."""
        import torch

        workers = min(torch.get_num_threads(), sources)
        if workers > 1 and sources <= self.batch_size:
            step = sources * self.config.beam * sum(parameter.numel() for parameter in self.model.parameters())
            workers = min(workers, int(step / WORTH_A_THREAD))
        return max(1, workers)

    def _search_batch(
        self, indices: list[int], batch: Batch, automata: Automata | None, traced: Sequence[Row]
    ) -> list[tuple[int, list[Hypothesis]]]:
        from dragoman.decoding import Trace, search

        trace = Trace(len(indices)) if traced else None
        hypotheses = search(
            self.model,
            batch.to(self.device),
            self.config,
            self.length_ratio,
            self.n_best,
            method=self.method,
            text=self.text,
            constraints=None if automata is None else [automata[index] for index in indices],
            trace=trace,
        )
        if trace is not None:
            for index, nodes in zip(indices, trace.nodes, strict=True):
                traced[index].trace = nodes
        return list(zip(indices, hypotheses, strict=True))
