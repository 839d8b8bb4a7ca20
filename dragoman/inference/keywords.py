"""Typed keywords of the public methods: the fields of their options, checked by tests against the dataclasses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict

from dragoman.decoding.constraints.source import Terminology
from dragoman.decoding.ensemble import Average
from dragoman.decoding.method import Method
from dragoman.decoding.options import EngineName, Phrases, Precision, RerankModel
from dragoman.decoding.sampling import Sampling
from dragoman.inference.inputs import StreamKeywords
from dragoman.inference.loaded import LoadedRun


class DecodingKeywords(TypedDict, total=False):
    """The fields of `DecodingOptions`."""

    beam: int | None
    length_penalty: float | None
    normalisation: str | None
    coverage_penalty: float | None
    stop: str | None
    num_complete: int | None
    min_length: int | None
    max_length: int | None
    no_repeat_ngram: int | None
    beam_groups: int | None
    diversity_penalty: float | None
    n_best: int
    method: Method | None
    rerank: RerankModel | Sequence[RerankModel]
    ensemble: Sequence[str | Path | LoadedRun]
    average: Average
    prefix: str | Sequence[str | None] | None
    forbid: Phrases
    require: Phrases
    allow: Phrases
    pattern: str | Sequence[str | None] | None
    constrain: Mapping[str, str] | Sequence[Mapping[str, str] | None] | None
    terminology: str | Path | Terminology | None
    placeholders: bool
    tag: str | None
    scores: bool
    batch_size: int
    engine: EngineName
    precision: Precision


class SearchKeywords(DecodingKeywords, StreamKeywords, total=False):
    """The fields of `DecodingOptions` and `StreamOptions`."""


class EvaluationKeywords(SearchKeywords, total=False):
    """The fields of `DecodingOptions`, `EvaluationOptions` and `StreamOptions`."""

    metrics: str | Sequence[str]
    intervals: bool
    draws: int
    draws_seed: int
    skip_unreadable: bool


class CompletionKeywords(StreamKeywords, total=False):
    """The fields of `CompletionOptions` and `StreamOptions`."""

    max_length: int
    sampling: Sampling | None
    samples: int
    one_line: bool
