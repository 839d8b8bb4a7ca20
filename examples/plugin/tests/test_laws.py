"""The plug-ins keep the laws of their kinds."""

from __future__ import annotations

import dragoman_example  # noqa: F401  (also where the package is not installed)

from dragoman.extend import check_decoder, check_metric, check_objective, check_reader


def test_decoder() -> None:
    check_decoder("minimal-gru")


def test_metric() -> None:
    check_metric("first_word")


def test_reader() -> None:
    check_reader(".bitext", b"a b ||| B A\nc ||| C\n", [("a b", "B A"), ("c", "C")])


def test_objective() -> None:
    check_objective("focal")
    check_objective("focal", gamma=0.0)
