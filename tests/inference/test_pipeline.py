"""One pipeline for all runs: failures stay with their inputs, and keywords are the fields of the options."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, get_type_hints

import pytest

import dragoman
from dragoman.decoding.complete import CompletionOptions
from dragoman.decoding.constraints.spec import ConstrainedInput, OutputConstraints
from dragoman.decoding.options import DecodingOptions
from dragoman.errors import DragomanError
from dragoman.inference.completer import Completer
from dragoman.inference.evaluation import EvaluationOptions
from dragoman.inference.inputs import StreamKeywords, StreamOptions
from dragoman.inference.keywords import CompletionKeywords, DecodingKeywords, EvaluationKeywords
from dragoman.inference.labeler import Labeler
from dragoman.inference.loaded import LoadedRun
from dragoman.inference.predictor import Predictor
from tests.conftest import Workshop

KEYWORDS: dict[type, tuple[type, ...]] = {
    StreamKeywords: (StreamOptions,),
    DecodingKeywords: (DecodingOptions,),
    EvaluationKeywords: (DecodingOptions, EvaluationOptions, StreamOptions),
    CompletionKeywords: (CompletionOptions, StreamOptions),
}


@pytest.mark.parametrize("keywords", KEYWORDS, ids=lambda keywords: keywords.__name__)
def test_keywords_are_the_fields_of_the_options(keywords: type) -> None:
    expected = {field.name for options in KEYWORDS[keywords] for field in fields(options)}
    assert set(keywords.__annotations__) == expected


@pytest.mark.parametrize("method", ["predict", "stream", "evaluate", "complete", "rate", "loss"])
@pytest.mark.parametrize("kind", [Predictor, Labeler, Completer])
def test_public_methods_take_and_give_named_types(kind: type[LoadedRun], method: str) -> None:
    if function := getattr(kind, method, None):
        hints = get_type_hints(function)
        assert "return" in hints
        assert Any not in hints.values()


def test_an_input_that_fails_leaves_the_others(inside: Workshop) -> None:
    run = dragoman.load(inside.run)
    assert isinstance(run, Predictor)
    texts, failed = ["abc", "fade", "", "jig"], dict[int, DragomanError]()
    good = run.predict(texts)
    done: list[int] = []
    wrong = ConstrainedInput("fade", OutputConstraints(pattern="("))
    inputs = [texts[0], wrong, *texts[2:]]
    found = list(run.stream(inputs, on_failed=failed.__setitem__, progress=done.append))
    assert list(failed) == [2]
    assert [one.text for one in found] == [good[0].text, "", "", good[3].text]
    assert sum(done) == 4
    with pytest.raises(DragomanError, match="pattern"):
        list(run.stream(inputs))
