"""The options of requests follow those of the search."""

from __future__ import annotations

from typing import Literal, get_args, get_origin, get_type_hints

from dragoman.decoding.config import SearchConfig
from dragoman.serving.options import SEARCH
from dragoman.serving.schemas import Options


def test_requests_have_every_option_of_the_search() -> None:
    hints = get_type_hints(SearchConfig)
    for name in SEARCH:
        assert name in Options.model_fields, name
        if get_origin(hints[name]) is Literal:
            choices = next(one for one in get_args(Options.model_fields[name].annotation) if get_origin(one) is Literal)
            assert set(get_args(choices)) == set(get_args(hints[name])), name
