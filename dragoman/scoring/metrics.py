"""The numbers a system is judged by: sacreBLEU's BLEU and chrF, our own error rates and exact matches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, cast

from dragoman.errors import DataError
from dragoman.scoring.edit import edit_distance
from dragoman.version import __version__


@dataclass(frozen=True)
class ErrorRate:
    """Edits and chosen reference length of every segment, enough for any cut or resampling of the rate."""

    edits: tuple[int, ...]
    lengths: tuple[int, ...]

    @property
    def value(self) -> float:
        """All edits over all reference symbols; may exceed one.

        Where the references hold nothing at all, the edits are taken over a length of one: 0.0 for silence
        answered by silence, the bare count of edits otherwise. jiwer counts the same way.
        """
        return sum(self.edits) / max(1, sum(self.lengths))


def word_error_rate(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> ErrorRate:
    """The edit rate over tokens between whitespace, each segment against its closest reference."""
    _check(hypotheses, references)
    return _error_rate(
        [text.split() for text in hypotheses], [[text.split() for text in texts] for texts in references]
    )


def character_error_rate(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> ErrorRate:
    """The edit rate over characters, inner spaces included, each segment against its closest reference."""
    _check(hypotheses, references)
    return _error_rate(
        [text.strip() for text in hypotheses], [[text.strip() for text in texts] for texts in references]
    )


def exact_matches(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> tuple[bool, ...]:
    """Whether each hypothesis is, but for whitespace at its ends, one of its references."""
    _check(hypotheses, references)
    return tuple(
        hypothesis.strip() in {text.strip() for text in texts}
        for hypothesis, texts in zip(hypotheses, references, strict=True)
    )


@dataclass(frozen=True)
class TextScores:
    """The scores of one set of outputs: BLEU and chrF from 0 to 100, the others as fractions."""

    segments: int
    bleu: float
    chrf: float
    wer: float
    cer: float
    exact_match: float
    per: float | None
    signatures: dict[str, str]

    def as_dict(self) -> dict[str, Any]:
        """The scores as JSON takes them, without the phoneme error rate where there is none."""
        scores = asdict(self)
        if self.per is None:
            del scores["per"]
        return scores


def score_text(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    units: Literal["words", "phonemes"] = "words",
) -> TextScores:
    """Every text metric at once, each with the signature that says how it was counted.

    `references` holds, per segment, one or more texts; their number may differ between segments. With
    phonemes the edit rate over whitespace tokens is `per`, and `wer` becomes the share of inputs that match
    no reference exactly, as the literature on grapheme-to-phoneme conversion reports it.
    """
    _check(hypotheses, references)

    # Not at the top: sacrebleu costs more to import than the rest of the package's scoring together.
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    streams = reference_streams(references)
    bleu = BLEU(force=True)  # force only silences the warning about outputs that look tokenised
    bleu_score = bleu.corpus_score(list(hypotheses), streams).score
    chrf = CHRF()
    chrf_score = chrf.corpus_score(list(hypotheses), streams).score

    token_rate = word_error_rate(hypotheses, references).value
    segments = len(hypotheses)
    exact = sum(exact_matches(hypotheses, references))
    by_phonemes = units == "phonemes"

    signatures = {
        "bleu": str(bleu.get_signature()),
        "chrf": str(chrf.get_signature()),
        "wer": _signature(references, "none" if by_phonemes else "space"),
        "cer": _signature(references, "char"),
        "exact_match": _signature(references, "none"),
    }
    if by_phonemes:
        signatures["per"] = _signature(references, "space")
    return TextScores(
        segments=segments,
        bleu=float(bleu_score),
        chrf=float(chrf_score),
        wer=(segments - exact) / segments if by_phonemes else token_rate,
        cer=character_error_rate(hypotheses, references).value,
        exact_match=exact / segments,
        per=token_rate if by_phonemes else None,
        signatures=signatures,
    )


def _check(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> None:
    if len(hypotheses) != len(references):
        raise DataError(
            f"cannot score {len(hypotheses)} hypotheses against references for {len(references)} segments: "
            "expected as many of one as of the other"
        )
    if not hypotheses:
        raise DataError("nothing to score: found 0 hypotheses, expected at least one")
    for number, texts in enumerate(references, start=1):
        # A bare string is a sequence of strings too, and would be read as one reference per character.
        if isinstance(texts, str):
            raise DataError(f"segment {number}: found a string as references, expected a list of strings")
        if not texts:
            raise DataError(f"segment {number}: found no reference, expected at least one")


def _error_rate(hypotheses: Sequence[Sequence[str]], references: Sequence[Sequence[Sequence[str]]]) -> ErrorRate:
    edits, lengths = [], []
    for hypothesis, choices in zip(hypotheses, references, strict=True):
        # The closest reference counts, much as in NIST scoring; of equally close ones the longest, so that
        # one more equally close reference never raises the rate.
        fewest, negative_length = min((edit_distance(hypothesis, reference), -len(reference)) for reference in choices)
        edits.append(fewest)
        lengths.append(-negative_length)
    return ErrorRate(tuple(edits), tuple(lengths))


def reference_streams(references: Sequence[Sequence[str]]) -> list[list[str]]:
    """References by rank, as sacreBLEU takes them: None where a segment has fewer than the others."""
    most = max(len(texts) for texts in references)
    streams = [[texts[rank] if rank < len(texts) else None for texts in references] for rank in range(most)]
    # sacreBLEU drops every None before it counts, though its annotations do not say so.
    return cast(list[list[str]], streams)


def _signature(references: Sequence[Sequence[str]], tokens: Literal["space", "char", "none"]) -> str:
    counts = {len(texts) for texts in references}
    count = str(counts.pop()) if len(counts) == 1 else "var"
    return f"nrefs:{count}|case:mixed|tok:{tokens}|version:dragoman-{__version__}"
