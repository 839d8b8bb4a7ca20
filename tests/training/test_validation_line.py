"""A validation shows the few scores that matter for the task, and an example with its reference."""

from __future__ import annotations

import pytest

from dragoman.training.validation import ValidationResult

TEXT = {"loss": 1.5, "perplexity": 4.48, "token_accuracy": 0.5, "bleu": 12.0, "chrf": 30.0, "wer": 0.9, "cer": 0.25,
        "exact_match": 0.1}  # fmt: skip


@pytest.mark.parametrize(
    ("scores", "metric", "line"),
    [
        (TEXT, "loss", "loss 1.5  bleu 12.00  chrf 30.00"),
        (TEXT, "bleu", "loss 1.5  bleu 12.00  chrf 30.00"),
        (TEXT, "cer", "loss 1.5  cer 25.00 %  exact_match 10.00 %"),
        (TEXT | {"per": 0.2}, "per", "loss 1.5  wer 90.00 %  per 20.00 %"),
        ({"loss": 1.5, "perplexity": 4.5, "token_accuracy": 0.5}, "loss", "loss 1.5  perplexity 4.5"),
        ({"loss": 0.5, "accuracy": 0.75}, "accuracy", "loss 0.5  accuracy 75.00 %"),
    ],
)
def test_the_line_is_short(scores: dict[str, float], metric: str, line: str) -> None:
    found = ValidationResult(scores).line(metric)
    assert found.replace("1.500", "1.5").replace("0.500", "0.5").replace("4.50", "4.5").startswith(line)
    assert len(found) < 70


def test_the_example_shows_its_reference_where_it_differs() -> None:
    assert ValidationResult({}, ("a", "B"), ("B", "C")).sample_line() == "  e.g. a  →  B  ✓"
    assert ValidationResult({}, ("a", "D"), ("B", "C")).sample_line() == "  e.g. a  →  D  ✗  reference: B"
    assert ValidationResult({}, ("a", "D")).sample_line() == "  e.g. a  →  D"
    assert ValidationResult({}).sample_line() == ""
