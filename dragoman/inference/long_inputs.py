"""Inputs that a model does not read as a whole: long ones, and those with tags and other texts to copy.

Such an input becomes parts. The model reads some of them; white space and texts to copy are written as they are. A
single line of 100,000 characters must neither stop the other lines of a file nor take all memory, and its output is
never empty without a reason.
"""

from __future__ import annotations

import math
import re
import sys
import warnings
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

from dragoman.base import DataError
from dragoman.data import SourceReader, fitting_sentences, places_to_cut, split_sentences, unbroken_spans
from dragoman.data.tokenizers import split_tag
from dragoman.decoding.constraints import ConstrainedInput
from dragoman.inference.prediction import Prediction
from dragoman.inference.segments import Parsing, Part, join_texts, parts_of_text
from dragoman.runs import Run
from dragoman.runs.tasks import encoder_of, length_limit

SENTENCE_END = re.compile(r"[.!?…]['\")\]»”]*\s+|[。！？]\s*")
MAX_TOKENS_PER_CHARACTER = 4  # bytes of UTF-8: a shorter text cannot be too long
LABEL_TOKENS = 4096  # a label may depend on any part of a text, so texts are read whole up to so many tokens
OnWarning = Callable[[str], None]  # gets a message
Excess = tuple[str, int]  # what is wrong with a text that is too long, and the limit
LEAST_PAIRS = 1_000  # of fewer, the longest hundredth says little
LEAST_LENGTH = 10  # tokens; a training whose sources are shorter had words and names, no sentences
LEAST_CORRELATION = 0.5  # of target with source lengths: a translation grows with its source, a summary does not
COMMAS = frozenset(",،、，")  # running text has some; commands, formulas and spelled words have none
# Times the usual length: a sentence is cut inside only where it is clearly longer: halves are worse than a whole that
# the model can read, and records such as "name[x], area[y]" end at a length. Of 48 tokens where training had 35, a
# small Multi30k model wrote 58 % of the words (BLEU 11), cut 82 % (BLEU 18).
INSIDE = 1.25


class LengthLimits(NamedTuple):
    """What the training data allowed: longer inputs are unlike anything that the model has learnt from."""

    tokens: int
    tokens_setting: str
    characters: int
    # Tokens that nearly all sources of the training had at most. Of a longer one, a model leaves out most, so it reads
    # that in parts if there are places to cut. None: not known, or no reason to cut (`usual_length`).
    usual: int | None = None

    @classmethod
    def of(cls, run: Run) -> LengthLimits:
        """The limits of a run: those of its data and of its encoder."""
        config = run.config
        limits = [(config.data.max_length, "data.max_length")]
        setting, maximum = length_limit(encoder_of(config))
        if maximum is not None:
            limits.append((maximum - 1, f"model.encoder.{setting}"))  # <eos> takes one
        return cls(*min(limits), config.data.max_characters, usual_length(run))

    def excess(self, text: str, tokenizer: SourceReader | None = None, usual: bool = False) -> Excess | None:
        """What is wrong with a text that is longer than the limits; without a tokenizer only its characters count.

        With `usual` it should be no longer than those of the training either, unless it has no place to cut.
        """
        if len(text) > self.characters:
            expected = f"expected at most data.max_characters = {self.characters:,}"
            return f"found {len(text):,} characters, {expected}", self.characters
        least = min(self.tokens, self.usual) if usual and self.usual is not None else self.tokens
        if tokenizer is None or len(text) <= least // MAX_TOKENS_PER_CHARACTER:
            return None
        if (count := len(tokenizer.encode(text))) <= least:
            return None
        if count > self.tokens:
            return f"found {count:,} tokens, expected at most {self.tokens_setting} = {self.tokens:,}", self.tokens
        if len(split_sentences(text)) == 1 and not (count > INSIDE * least and places_to_cut(text)):
            return None
        return f"found {count:,} tokens, expected at most {least:,} as in 99 % of the training", least

    def split(self, text: str, tokenizer: SourceReader, read: Callable[[str], Iterable[str]]) -> list[str]:
        """The parts of a text that is too long; they join to the text. `read` gives what the model reads of one."""

        def fits(part: str, usual: bool) -> bool:
            return all(self.excess(own, tokenizer, usual) is None for own in read(part))

        if self.usual is None:
            return split_text(text, lambda part: fits(part, False))
        sentences = fitting_sentences(text, lambda part: fits(part, True))
        return [sentence.text + sentence.space for sentence in sentences]


def usual_length(run: Run) -> int | None:
    """The 99th percentile of source lengths in the training of a run that translates running text; else None.

    Nothing is cut only for its length where parts would be worse than the whole. Fitted models read any length alike;
    a run that started from another one has learned from more data than its own. Spelled words, commands and formulas
    have no commas, and a summary needs the whole text: its length does not follow that of its source.
    """
    if not run.task.searches or run.is_fitted or run.config.train.pretrained is not None:
        return None
    data = run.data
    lengths, pairs = data.get("source_lengths") or {"p99": 0}, data["train"].get("pairs", 0)
    text = str(data.get("characters", {}).get("source", ""))
    if lengths["p99"] < LEAST_LENGTH or pairs < LEAST_PAIRS or COMMAS.isdisjoint(text):
        return None
    return int(lengths["p99"]) if lengths["correlation"] >= LEAST_CORRELATION else None


class InputTooLongError(DataError):
    """An input that is longer than the run can read and that cannot be read in parts."""

    def __init__(self, place: str, text: str, excess: Excess, reason: str) -> None:
        problem, self.limit = excess
        self.text = text
        self.reason = f"{problem}; {reason}"  # without the place
        super().__init__(f"{place}: {self.reason}")


def split_text(text: str, fits: Callable[[str], bool]) -> list[str]:
    """A text cut after sentences, at spaces, or else anywhere, until each part fits: the parts join to the text."""
    if len(text) <= 1 or fits(text):
        return [text]
    cut = cut_near_middle(text)
    return [*split_text(text[:cut], fits), *split_text(text[cut:], fits)]


def cut_near_middle(text: str) -> int:
    """Where to cut a text in two: the place nearest to its middle, in the middle half, of the best kind there is."""
    middle, low, high = len(text) // 2, len(text) // 4, len(text) - len(text) // 4
    spans = unbroken_spans(text)
    starts = [first for first, _ in spans]

    def is_free(end: int) -> bool:
        before = bisect_left(starts, end) - 1
        return before < 0 or spans[before][1] <= end

    ends = [match.end() for match in SENTENCE_END.finditer(text, low, high) if is_free(match.end())]
    ends = ends or [match.end() for match in re.compile(r"\s+").finditer(text, low, high) if is_free(match.end())]
    ends = ends or list(islice(filter(is_free, range(middle, len(text))), 1))
    return min(ends, key=lambda end: abs(end - middle), default=middle) or 1


def parts_of(
    item: ConstrainedInput,
    place: str,
    warn: Callable[[str], None],
    tokenizer: SourceReader,
    limits: LengthLimits,
    parsing: Parsing,
) -> list[Part] | None:
    """The parts of an input; None: the model reads it as a whole."""
    tag, text = split_tag(item.text, tokenizer.tags)
    if not text.strip():
        return None
    limits = limits._replace(tokens=limits.tokens - bool(tag))
    parts = parts_of_text(text, parsing)
    whole_only = bool(item.constraints and replace(item.constraints, forbid=()))
    problems = (limits.excess(part.text, tokenizer, usual=not whole_only) for part in parts if not part.copied)
    excess = next(filter(None, problems), None)
    if excess is None:
        return None if parts == [Part(text, False)] else parts
    if whole_only:
        reason = "a text that is read in parts can have no prefix, terms, pattern or required phrases"
        raise InputTooLongError(place, text, excess, reason)

    small: list[Part] = []
    for part in parts:
        if part.copied or limits.excess(part.text, tokenizer, usual=True) is None:
            small.append(part)
            continue
        raw, leaf = (part.text, False) if part.segment is None else (part.segment.raw, part.segment.leaf)

        def pieces(text: str, leaf: bool = leaf) -> list[Part]:
            return parts_of_text(text, parsing, leaf)

        for text in limits.split(raw, tokenizer, lambda text: [one.text for one in pieces(text) if not one.copied]):
            small += [one for own in stripped_parts(text) for one in ([own] if own.copied else pieces(own.text))]
    warn(f"{place}: {excess[0]}; read in {sum(not part.copied for part in small)} parts")
    return small


def stripped_parts(text: str) -> list[Part]:
    """A text to read, and the white space at its sides."""
    inner = text.strip()
    if not inner:
        return [Part(text, True)] if text else []
    begin = text.index(inner)
    pieces = (Part(text[:begin], True), Part(inner, False), Part(text[begin + len(inner) :], True))
    return [part for part in pieces if part.text]


def join_parts(parts: Sequence[Part], predictions: Sequence[Prediction]) -> Prediction:
    """The predictions of the parts of an input as one; its score is the mean over all tokens."""

    def text_of(outputs: Sequence[Prediction]) -> str:
        texts = iter(outputs)
        return join_texts([part.text if part.copied else next(texts).text for part in parts])

    if len(predictions) == 1:
        (own,) = predictions
        others = tuple(replace(other, text=text_of([other])) for other in own.alternatives)
        return replace(own, text=text_of([own]), alternatives=others)
    counts = [max(1, len(output.token_scores)) for output in predictions]
    weighted = (output.score * count for output, count in zip(predictions, counts, strict=True))
    joined = Prediction(
        text=text_of(predictions),
        score=math.fsum(weighted) / max(1, sum(counts)),
        tokens=tuple(token for output in predictions for token in output.tokens),
        token_scores=tuple(score for output in predictions for score in output.token_scores),
    )
    confidences = [output.confidence for output in predictions if output.confidence is not None]
    if not predictions or len(confidences) < len(predictions):
        return joined
    tokens = tuple(value for output in predictions for value in output.token_confidences)
    return replace(joined, confidence=math.prod(confidences), token_confidences=tokens)


def warn_caller(handler: OnWarning | None, message: str, category: type[Warning] = UserWarning) -> None:
    """Warn the caller: by its own function, or as a Python warning."""
    if handler is not None:
        handler(message)
        return
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith("dragoman."):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)  # the warning names the line of the caller, not one of ours
