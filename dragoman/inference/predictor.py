"""Text in, predictions out: the command line, reports and Python users all go through here."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass, replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any

from dragoman.config import settings
from dragoman.data.examples import Example, Fault
from dragoman.data.media.feature_extractor import FeatureExtractor
from dragoman.data.tokenizers.base import EOS
from dragoman.data.tokenizers.language_tags import check_tag, ensure_tag, split_tag
from dragoman.decoding.config import SearchConfig
from dragoman.decoding.constraints.automata import ConstraintAutomaton
from dragoman.decoding.constraints.compiler import ConstraintCompiler
from dragoman.decoding.constraints.source import Terminology, add_source_constraints, restore_placeholders
from dragoman.decoding.constraints.spec import ConstrainedInput, constraints_for_inputs
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.joint_ctc import AttentionSearch, CTCFusionSearch, JointSearch
from dragoman.decoding.methods import Method
from dragoman.decoding.search import search_all
from dragoman.decoding.trace import Trace
from dragoman.errors import ConfigError, DataError, RunError
from dragoman.exchange import engine as engines
from dragoman.exchange.choice import Choice
from dragoman.inference.confidence import load_calibration, token_confidences
from dragoman.inference.evaluation import ReferenceLoss, as_examples, metric_names, read_files, reference_loss
from dragoman.inference.prediction import NOTHING, Prediction, Rerank, confident
from dragoman.kernels.weight_layout import lay_out_for_decoding
from dragoman.runs import Run, resolve_device
from dragoman.scoring.calibration import PlattScale
from dragoman.scoring.error_rates import count_edit_kinds
from dragoman.scoring.report import score_table
from dragoman.scoring.significance import DEFAULT_DRAWS
from dragoman.tasks.base import encoder_of, length_limit

MEDIA_WINDOW = 1024  # of recordings and pictures, which need more memory
WINDOW = 4096  # inputs read ahead, so that batches hold like lengths; bounds the memory of a stream


class Predictor:
    """A trained run, ready to be asked."""

    def __init__(self, run: Run, device: str = "auto", *, engine: str = "auto", precision: str = "float32") -> None:
        """`engine` searches: "torch", "ctranslate2" (on a CPU, several times faster; precision "float32" or "int8"), or
        "auto", which takes ctranslate2 where it is installed and gives what torch would give. On a GPU precision
        "bfloat16" is faster than "float32", and its outputs may differ a little.
        """
        if run.task.is_language_model:
            raise RunError(
                f"{run.folder}: found a language model, expected a run that answers; dragoman complete goes on with it"
            )
        if run.task.head_decoder is not None:
            raise RunError(
                f'{run.folder}: found task = "{run.task.name}", which is answered without a search; expected one '
                'that searches (task = "translate", "transcribe" or "caption")'
            )
        self.run = run
        self.config = run.config
        self.device = resolve_device("cpu" if device == "auto" and engine == "ctranslate2" else device)
        self.source_tokenizer, self.target_tokenizer = tokenizers = run.tokenizers()
        self.choice = Choice(run, tokenizers, engine, precision, self.device)
        self.called: Callable[[int], str] = "input {}".format  # where the input with a number stands, for errors
        self.unreadable: Callable[[Fault], None] | None = None  # hears of files left out; None: they are errors
        self.tells_scores = True  # False: who asks wants text alone, and the engine need not work out scores
        self.collator = run.task.collator(run.config, self.source_tokenizer)
        self.model: Any = run.model(self.device)
        if precision == "bfloat16":
            self.model.bfloat16()
        lay_out_for_decoding(self.model)
        self.ratio = float(run.data["length_ratio"])
        known = load_calibration(run.folder, run.weights_path())
        self.temperature = known.temperature if known else None  # None: tells no confidences
        self.scale = known.scale if known else PlattScale()

    @property
    def engine_name(self) -> str:
        """What searches unless it cannot do what is asked: "torch" or "ctranslate2"."""
        return self.choice.name

    @property
    def engine(self) -> engines.Engine | None:
        """What searches in place of torch; made when it is first needed."""
        return self.choice.engine(self.model)

    @property
    def tags(self) -> tuple[str, ...]:
        """What a source may be tagged with, such as "de"; nothing where the run was trained without tags."""
        return self.source_tokenizer.tags

    def predict(
        self,
        texts: Sequence[str],
        *,
        tag: str | None = None,
        beam: int | None = None,
        length_penalty: float | None = None,
        batch_size: int = 64,
        n_best: int = 1,
        method: Method | None = None,
        rerank: Rerank | None = None,
        search: Mapping[str, Any] | None = None,
        prefix: str | Sequence[str | None] | None = None,
        forbid: str | Sequence[Any] | None = None,
        require: str | Sequence[Any] | None = None,
        allow: str | Sequence[Any] | None = None,
        pattern: str | Sequence[str | None] | None = None,
        terminology: str | Path | Terminology | None = None,
        placeholders: bool = False,
    ) -> list[Prediction]:
        """One prediction per text, in order; an empty text gives an empty prediction.

        A run with tags needs one: `tag` for all texts, or "<2de> " at the front of a text, which goes before `tag`.
        `method` searches in another way than beam search: `search.sampling.Sampling`, `search.risk.MinimumBayesRisk`,
        `search.exhaustive.Exhaustive` or `companions.speculative`. `rerank`, a `companions.Reranker`, sorts the
        outputs of the whole beam anew.
        `search` sets further settings of the search, such as {"no_repeat_ngram": 3}.

        What is asked of the outputs is one value for all texts, or a list with one for each: the `prefix` they begin
        with, the `pattern` (a regular expression) that they match, and lists of phrases that each must not hold
        (`forbid`), must hold (`require`; a tuple of phrases: one of them), or be one of (`allow`). `terminology`, a
        file or object, requires target terms where the source has a term; `placeholders` keeps tags, variables and
        addresses of the source. See decoding/constraints/spec.py.
        """
        if isinstance(texts, str):
            raise TypeError("predict takes a list of texts; for one text write predict([text])")
        texts = list(texts)
        lists = {"forbid": forbid, "require": require, "allow": allow}
        asked_for = constraints_for_inputs(len(texts), prefix, pattern, **lists)
        return list(
            self.stream(
                [ConstrainedInput(text, constraints) for text, constraints in zip(texts, asked_for, strict=True)],
                tag=tag,
                beam=beam,
                length_penalty=length_penalty,
                batch_size=batch_size,
                n_best=n_best,
                method=method,
                rerank=rerank,
                search=search,
                terminology=terminology,
                placeholders=placeholders,
            )
        )

    def trace(
        self, text: str, *, tag: str | None = None, search: Mapping[str, Any] | None = None
    ) -> list[dict[str, Any]]:
        """Every continuation that the search for a text looked at (FIELD H6): see dragoman/search/trace.py."""
        seen: list[list[dict[str, Any]]] = []
        list(self.stream([text], tag=tag, search=search, tell=lambda _, nodes: seen.append(nodes)))
        return seen[0]

    def stream(
        self,
        texts: Iterable[str | ConstrainedInput],
        *,
        tag: str | None = None,
        beam: int | None = None,
        length_penalty: float | None = None,
        batch_size: int = 64,
        n_best: int = 1,
        window: int = WINDOW,
        method: Method | None = None,
        rerank: Rerank | None = None,
        search: Mapping[str, Any] | None = None,
        terminology: str | Path | Terminology | None = None,
        placeholders: bool = False,
        tell: Callable[[str, list[dict[str, Any]]], None] | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Iterator[Prediction]:
        """Predictions in the order of the texts, whatever their number, in bounded memory.

        `window` texts are read ahead: 1 answers each text before the next is read. A text may come as
        `ConstrainedInput`, with constraints on its output. `tell` is called with each text and all that the search
        looked at, `progress` with how many more texts are done, long before a whole window is.
        """
        if isinstance(texts, str):
            raise TypeError("stream takes several texts; for one text write [text]")
        if isinstance(self.source_tokenizer, FeatureExtractor):
            window = min(window, MEDIA_WINDOW)
        options = {"beam": beam, "length_penalty": length_penalty}
        given = {**(search or {}), **{key: value for key, value in options.items() if value is not None}}
        config = settings.build(SearchConfig, settings.as_table(self.config.search) | given)
        for name, value in (("batch_size", batch_size), ("n_best", n_best), ("window", window)):
            if value < 1:
                raise ConfigError(f"{name}: found {value}, expected at least 1")
        holds_models = isinstance(method, CTCFusionSearch | AttentionSearch | JointSearch)
        if is_dataclass(method) and not isinstance(method, type) and not holds_models:
            method = settings.build(type(method), settings.as_table(method))  # ranges are checked
        if "diversity_penalty" in given and config.beam_groups == 1:
            raise ConfigError(
                f"diversity_penalty: found {config.diversity_penalty}, expected beam_groups above 1 with it"
            )
        if (terminology is not None or placeholders) and isinstance(self.source_tokenizer, FeatureExtractor):
            asked = "terminology" if terminology is not None else "placeholders"
            raise ConfigError(f"{asked}: looks at the text of a source; {self.run.folder} reads files")
        if n_best > config.beam and method is None:
            raise ConfigError(f"found {n_best} outputs asked for, expected at most the beam of {config.beam}")
        # A mistake shows before any work.
        self.choice.refusal(config, n_best, method, rules=False, traced=tell is not None)
        terms = Terminology.read(terminology) if isinstance(terminology, str | Path) else terminology
        asked_for = self._asked(texts, tag, terms, placeholders)
        done = progress or (lambda _: None)
        return self._stream(asked_for, config, batch_size, n_best, window, method, rerank, tell, done)

    def _asked(
        self, texts: Iterable[str | ConstrainedInput], tag: str | None, terms: Terminology | None, placeholders: bool
    ) -> Iterator[ConstrainedInput]:
        """The texts as the model reads them, each with all that is asked of its output."""
        if tag is not None:
            check_tag(tag, self.tags)
        items = (one if isinstance(one, ConstrainedInput) else ConstrainedInput(one) for one in texts)
        return (
            ConstrainedInput(
                text, add_source_constraints(one.constraints, split_tag(text, self.tags)[1], terms, placeholders)
            )
            for number, one in enumerate(items, 1)
            for text in self._read_as([one.text], tag, number)
        )

    def read_as(self, texts: Iterable[str], tag: str | None = None) -> Iterator[str]:
        """The texts as the model reads them: each with its tag, empty ones as they are."""
        if tag is not None:
            check_tag(tag, self.tags)
        return self._read_as(texts, tag)

    def _read_as(self, texts: Iterable[str], tag: str | None, first: int = 1) -> Iterator[str]:
        for number, text in enumerate(texts, first):
            if not isinstance(text, str):
                raise TypeError(f"found {text!r} among the texts, expected strings")
            yield ensure_tag(text, tag, self.tags, f"input {number}") if text.strip() else text

    def _stream(
        self,
        texts: Iterator[ConstrainedInput],
        config: SearchConfig,
        rows: int,
        n_best: int,
        window: int,
        method: Method | None,
        rerank: Rerank | None,
        tell: Callable[[str, list[dict[str, Any]]], None] | None,
        done: Callable[[int], None],
    ) -> Iterator[Prediction]:
        first = 1
        while together := list(islice(texts, window)):
            traces: list[Trace | None] | None = None if tell is None else [None] * len(together)
            kept = n_best if rerank is None else max(n_best, config.beam)
            scores = self.tells_scores or rerank is not None
            predictions = self._window(together, config, rows, kept, first, traces, method, scores, done)
            first += len(together)
            if rerank is not None:
                sources = [split_tag(one.text, self.tags)[1] for one in together]
                predictions = list(rerank.ranked(sources, predictions, n_best))
            for place, prediction in enumerate(predictions):
                if tell is not None and traces is not None:
                    trace = traces[place]
                    pieces = self.target_tokenizer.pieces
                    tell(together[place].text, trace.as_table(0, pieces) if trace is not None else [])
                yield prediction

    def _window(
        self,
        asked_for: list[ConstrainedInput],
        config: SearchConfig,
        rows: int,
        n_best: int,
        first: int,
        traces: list[Trace | None] | None,
        method: Method | None,
        scores: bool,
        done: Callable[[int], None],
    ) -> list[Prediction]:
        out = [NOTHING] * len(asked_for)
        places = [place for place, one in enumerate(asked_for) if split_tag(one.text, self.tags)[1].strip()]
        done(len(asked_for) - len(places))
        sources, places = self._encoded([asked_for[place].text for place in places], places, first, done)
        bound, most_read = length_limit(encoder_of(self.config))
        for place, tokens in zip(places, sources, strict=True):
            if most_read is not None and len(tokens) >= most_read:
                raise DataError(
                    f"{self.called(first + place)}: found {len(tokens) + 1} tokens, <eos> included, expected at most "
                    f"the {most_read} of model.encoder.{bound}"
                )
        rules: list[ConstraintAutomaton | None] | None = None
        if any(asked_for[place].constraints for place in places):
            rules = [
                self.constraint_compiler.compile(asked_for[place].constraints, self.called(first + place))
                for place in places
            ]
            rules = rules if any(rules) else None
        seen: list[Trace | None] | None = None if traces is None else [None] * len(places)
        engine = self.choice.engine_for(
            self.model, config, n_best, method, rules=rules is not None, traced=seen is not None
        )
        own = partial(
            search_all,
            self.model,
            config=config,
            ratio=self.ratio,
            device=self.device,
            rows=rows,
            n_best=n_best,
            method=method,
            text=self.target_tokenizer.decode,
            collator=self.collator,
        )
        if engine is None:
            answers = own(sources, rules=rules, traces=seen)
        else:
            asked_engine = (engine, self.model, sources, config, self.ratio)
            answers = engines.search_all(*asked_engine, rows=rows, n_best=n_best, scores=scores, otherwise=own)
        found: list[tuple[int, list[Hypothesis]]] = []
        for one in answers:
            found.append(one)
            done(1)
        sure = self._confidences(sources, found, rows)
        for place, hypotheses in found:
            source, constraints = asked_for[places[place]]
            predictions = [self._prediction(hypothesis) for hypothesis in hypotheses]
            if sure:
                predictions = [confident(one, next(sure), self.scale) for one in predictions]
            if constraints.placeholders:
                text = split_tag(source, self.tags)[1]
                predictions = [
                    replace(one, text=restore_placeholders(one.text, text, constraints.placeholders))
                    for one in predictions
                ]
            out[places[place]] = replace(predictions[0], alternatives=tuple(predictions[1:]))
            if traces is not None and seen is not None:
                traces[places[place]] = seen[place]
        return out

    def _encoded(
        self, texts: Sequence[str], places: list[int], first: int, done: Callable[[int], None]
    ) -> tuple[list[Any], list[int]]:
        """What the model reads of the texts, and which places have it; a file that cannot be read has none."""
        if not isinstance(self.source_tokenizer, FeatureExtractor):
            return self.source_tokenizer.encode_batch(texts), places
        kept: list[tuple[Any, int]] = []
        for found, place in zip(self.source_tokenizer.encode_or_fault(texts), places, strict=True):
            if not isinstance(found, Fault):
                kept.append((found, place))
            elif self.unreadable is None:
                raise DataError(f"{self.called(first + place)}: {found}; leave such inputs out with --skip-unreadable")
            else:
                self.unreadable(Fault(self.called(first + place), found.kind, str(found)))
                done(1)
        return [source for source, _ in kept], [place for _, place in kept]

    def _confidences(
        self, sources: Sequence[Sequence[int]], found: Sequence[tuple[int, list[Hypothesis]]], rows: int
    ) -> Iterator[tuple[float, ...]] | None:
        """The calibrated confidences of every hypothesis, in the order found; None where the run is not calibrated."""
        if self.temperature is None:
            return None
        outputs = [(sources[place], one.tokens[:-1]) for place, hypotheses in found for one in hypotheses]
        return iter(token_confidences(self.model, outputs, self.temperature, self.device, rows))

    @cached_property
    def constraint_compiler(self) -> ConstraintCompiler:
        """Made when first needed: it reads the whole vocabulary."""
        return ConstraintCompiler(self.target_tokenizer)

    def _prediction(self, hypothesis: Hypothesis) -> Prediction:
        tokens = hypothesis.tokens[:-1] if hypothesis.tokens[-1] == EOS else hypothesis.tokens
        return Prediction(
            text=self.target_tokenizer.decode(tokens),
            score=hypothesis.normalised,
            tokens=tuple(self.target_tokenizer.pieces(tokens)),
            token_scores=hypothesis.token_scores,
        )

    def _sources(self, examples: Sequence[Example], tag: str | None) -> list[str]:
        """The sources as the model reads them; an example's own tag goes before `tag`."""
        for one in {tag, *(example.tag or None for example in examples)} - {None}:
            check_tag(str(one), self.tags)
        return [ensure_tag(example.model_input, tag, self.tags, example.location) for example in examples]

    def loss(self, examples: Sequence[Example], batch_size: int = 64, *, tag: str | None = None) -> ReferenceLoss:
        """How probable first references are; those that the model cannot write at all are left out and counted."""
        sources = self.source_tokenizer.encode_batch(self._sources(examples, tag))
        targets = self.target_tokenizer.encode_batch([example.references[0] for example in examples])
        return reference_loss(self.model, sources, targets, self.collator, self.device, batch_size)

    def _readable(self, examples: list[Example], skip: bool) -> tuple[list[Example], list[Fault]]:
        """The examples whose files can be read, which are read once; the others are errors, or left out and told."""
        if not isinstance(self.source_tokenizer, FeatureExtractor):
            return examples, []
        kept, faults = read_files(self.source_tokenizer, examples, self)
        if faults and not skip:
            more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
            raise DataError(f"{faults[0]}{more}; leave such examples out with --skip-unreadable (skip_unreadable=True)")
        if self.unreadable is not None:
            for fault in faults:
                self.unreadable(fault)
        if not kept:
            raise DataError(f"nothing to evaluate: none of {len(faults)} files could be read")
        return kept, faults

    def evaluate(
        self,
        pairs: Sequence[Example | tuple[str, str | Sequence[str]]],
        *,
        tag: str | None = None,
        beam: int | None = None,
        length_penalty: float | None = None,
        batch_size: int = 64,
        method: Method | None = None,
        rerank: Rerank | None = None,
        search: Mapping[str, Any] | None = None,
        prefix: str | Sequence[str | None] | None = None,
        forbid: str | Sequence[Any] | None = None,
        require: str | Sequence[Any] | None = None,
        allow: str | Sequence[Any] | None = None,
        pattern: str | Sequence[str | None] | None = None,
        terminology: str | Path | Terminology | None = None,
        placeholders: bool = False,
        metrics: str | Sequence[str] = (),
        intervals: bool = False,
        draws: int = DEFAULT_DRAWS,
        draws_seed: int = 1,
        skip_unreadable: bool = False,
        progress: Callable[[int], None] | None = None,
    ) -> tuple[dict[str, Any], list[Prediction]]:
        """Scores of the run on pairs of a source and one or more references, and the outputs behind them.

        How outputs are searched for and what is asked of them is as for `predict`. `metrics` are names of
        text metrics, or "all"; loss, perplexity and token accuracy always come with them, and are those of the
        references, whatever is asked of the outputs. `intervals` adds 95 % confidence intervals by bootstrap over
        segments. First references that a model that writes at once has no room for are in no loss, perplexity or token
        accuracy; where there are some, `too_long` counts them. `progress` is called with how many more outputs are
        done. A recording or picture that cannot be read is an error, or with `skip_unreadable` left out and counted as
        `unreadable`.
        """
        if not pairs:
            raise DataError("nothing to evaluate: no pair was read")
        names = metric_names(metrics, self.run.task, self.config.data.units)
        for name, value, least in (("draws", draws, 10), ("draws_seed", draws_seed, 0)):
            if value < least:
                raise ConfigError(f"{name}: found {value}, expected at least {least}")
        every = as_examples(pairs)
        examples, faults = self._readable(every, skip_unreadable)
        sources = self._sources(examples, tag)
        asked_for = constraints_for_inputs(len(sources), prefix, pattern, forbid=forbid, require=require, allow=allow)
        predictions = list(
            self.stream(
                [ConstrainedInput(text, constraints) for text, constraints in zip(sources, asked_for, strict=True)],
                beam=beam,
                length_penalty=length_penalty,
                batch_size=batch_size,
                method=method,
                rerank=rerank,
                search=search,
                terminology=terminology,
                placeholders=placeholders,
                progress=progress,
            )
        )
        scores = score_table(
            [prediction.text for prediction in predictions],
            [example.references for example in examples],
            names,
            units=self.config.data.units,
            draws=draws if intervals else 0,
            seed=draws_seed,
        )
        loss, accuracy, too_long = self.loss(examples, batch_size, tag=tag)
        perplexity = math.exp(min(loss, 700)) if math.isfinite(loss) else loss
        scores |= {"loss": loss, "perplexity": perplexity, "token_accuracy": accuracy}
        if too_long:
            scores["too_long"] = too_long
        if self.run.task.counts_edit_types:
            texts, truths = [one.text for one in predictions], [example.references for example in examples]
            scores["errors"] = {unit: count_edit_kinds(texts, truths, unit) for unit in ("words", "characters")}
        if faults:  # an empty output for each, so that every line keeps its place
            scores["unreadable"] = len(faults)
            left_out, found = {fault.location for fault in faults}, iter(predictions)
            predictions = [NOTHING if one.location in left_out else next(found) for one in every]
        return scores, predictions
