"""The options of requests follow those of the search."""

from __future__ import annotations

from typing import Literal, get_origin, get_type_hints

from dragoman.decoding.config import SearchConfig
from dragoman.serving.options import SEARCH
from dragoman.serving.schemas import Options


def test_requests_have_every_option_of_the_search() -> None:
    hints = get_type_hints(SearchConfig)
    for name in SEARCH:
        assert name in Options.model_fields, name
        if get_origin(hints[name]) is Literal:
            assert str(hints[name]) in str(Options.model_fields[name].annotation), name
