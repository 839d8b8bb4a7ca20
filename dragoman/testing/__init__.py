"""Checks for the authors of plug-ins: the laws that every entry of a table keeps. They need no pytest.

    from dragoman.testing import check_decoder

    def test_laws() -> None:
        check_decoder("my-decoder")

Import the module that registers the entry first, unless its package is installed with an entry point.
"""

from dragoman.testing.checks import (
    check_decoder,
    check_encoder,
    check_method,
    check_metric,
    check_objective,
    check_reader,
    check_settings,
)

__all__ = [
    "check_decoder",
    "check_encoder",
    "check_method",
    "check_metric",
    "check_objective",
    "check_reader",
    "check_settings",
]
