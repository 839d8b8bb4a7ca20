"""Other runs that help one: an ensemble, a draft that writes ahead, reverse and language models that rerank."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from dragoman.config import settings
from dragoman.data.batch import batch_of
from dragoman.data.media.feature_extractor import FeatureExtractor
from dragoman.data.readers.lines import read_lines
from dragoman.data.tokenizers.language_tags import check_tag, ensure_tag
from dragoman.decoding.ctc import LMFusion
from dragoman.decoding.ensemble import Average, Ensemble
from dragoman.decoding.exhaustive import Exhaustive
from dragoman.decoding.joint_ctc import AttentionSearch, CTCFusionSearch, JointSearch
from dragoman.decoding.mbr import MinimumBayesRisk
from dragoman.decoding.methods import Method
from dragoman.decoding.ngram import NeuralLM, NGramLM
from dragoman.decoding.sampling import Sampling
from dragoman.decoding.shortlist import NAME, Shortlist, shortlist_model
from dragoman.decoding.speculative import Speculative
from dragoman.errors import ConfigError, DataError, RunError
from dragoman.inference.completer import Completer
from dragoman.inference.load import load_predictor
from dragoman.inference.prediction import Prediction
from dragoman.inference.predictor import Predictor
from dragoman.models.contracts import NonAutoregressiveModel
from dragoman.models.language_model import LanguageModel
from dragoman.models.transcriber import Transcriber
from dragoman.runs import Run

RunLike = str | Path | Predictor


def opened(run: RunLike, device: str = "auto") -> Predictor:
    """A run that may be open already."""
    return run if isinstance(run, Predictor) else load_predictor(run, device)


def check_vocabularies(first: Predictor, other: Predictor, purpose: str) -> None:
    """Refuse a run whose token ids mean something else."""
    for side in ("source", "target"):
        mine, theirs = (getattr(one, f"{side}_tokenizer") for one in (first, other))
        if mine.fingerprint() != theirs.fingerprint():
            raise RunError(
                f"{other.run.folder}: found a {side} vocabulary of {len(theirs):,} {theirs.kind}, expected the very "
                f"same as in {first.run.folder} ({len(mine):,} {mine.kind}): {purpose} needs runs trained with the "
                "same data.train and tokenizer settings"
            )


def ensemble(runs: Sequence[RunLike], device: str = "auto", *, average: Average = "probability") -> Predictor:
    """Several runs of any architectures that share their vocabularies, averaged token by token and asked as one.

    "probability" takes the mean of probabilities, "log" their normalised geometric mean. Settings of search come from
    the first run.
    """
    if not runs:
        raise ConfigError("an ensemble needs at least one run, found none")
    predictors = [opened(run, device) for run in runs]
    together = copy.copy(predictors[0])
    if any(one.choice.insists for one in predictors):
        raise ConfigError("engine: found ctranslate2, which cannot do an ensemble; expected auto or torch")
    together.choice = together.choice.only_torch()
    for other in predictors[1:]:
        check_vocabularies(together, other, "an ensemble")
    together.model = Ensemble([one.model for one in predictors], average)
    together.ratio = max(one.ratio for one in predictors)
    return together


def speculative(run: Predictor, draft: RunLike, tokens: int = 4) -> Speculative:
    """Greedy search in `run` with a smaller run that proposes `tokens` at a time: the same output in fewer calls."""
    small = opened(draft, str(run.device))
    check_vocabularies(run, small, "a draft")
    return Speculative(small.model, tokens)


def shortlist(run: Predictor, file: str | Path = "auto") -> Shortlist:
    """Search among the target tokens that a source is likely to need; "auto" is the run's own list."""
    shortlist_model(run.model)
    path = run.run.folder / NAME if file == "auto" else Path(file)
    return Shortlist.load(path, run.source_tokenizer, run.target_tokenizer)


class Reranker:
    """Sorts outputs by score + weight · how well another run likes them, a mean log-probability a token.

    A reverse run, trained from target to source, gives that of the source given the output: what it can hardly lead
    back to the source says too little or something else (Li et al. 2016, eq. 8). A language model gives that of the
    output itself: how well it reads. Together they are the noisy channel; both may have tokenizers of their own.
    """

    def __init__(
        self, run: RunLike | Completer, weight: float = 1.0, *, device: str = "auto", tag: str | None = None
    ) -> None:
        """`tag` is for a reverse run that was trained with tags."""
        if not math.isfinite(weight):
            raise ConfigError(f"rerank_weight: found {weight}, expected a finite number")
        self.weight, self.tag = weight, tag
        if not isinstance(run, Predictor | Completer):
            folder = Run(run)
            if folder.task.head_decoder is not None:
                raise ConfigError(
                    f'--rerank needs a reverse run or a language model; {folder.folder} has task = "{folder.task.name}"'
                )
            run = Completer(folder, device) if folder.task.is_language_model else Predictor(folder, device)
        self.run = run
        if isinstance(run, Predictor) and isinstance(run.source_tokenizer, FeatureExtractor):
            raise ConfigError(
                f'--rerank needs a reverse run or a language model; {run.run.folder} has task = "{run.config.task}", '
                "which reads files"
            )
        if isinstance(run, Completer):
            if tag is not None:
                raise ConfigError(f"tag: found {tag!r}, but {run.run.folder} is a language model, which knows no tags")
        elif tag is not None:
            check_tag(tag, run.tags)
        elif run.tags:
            known = ", ".join(run.tags)
            raise ConfigError(f"{run.run.folder}: found no tag, expected --rerank-tag (tag=…), one of {known}")

    def added(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """What is added to the scores of (output, source)."""
        if not self.weight:
            return [0.0] * len(pairs)
        if isinstance(self.run, Completer):
            found = self.run.rate([output for output, _ in pairs])
        else:
            found = backwards(self.run, pairs, self.tag)
        return [self.weight * one for one in found]

    def ranked(self, sources: Sequence[str], predictions: Sequence[Prediction], n_best: int) -> list[Prediction]:
        """The predictions with their alternatives sorted anew, `n_best` of each kept; `score` becomes the sum."""
        return Rerankers([self]).ranked(sources, predictions, n_best)


class Rerankers:
    """Several of them at once: all that they add is added."""

    def __init__(self, several: Sequence[Reranker]) -> None:
        self.several = several

    def texts_alone(self, run: str) -> None:
        """Refuse what leads back to the source, where that is a file and no text."""
        for one in self.several:
            if not isinstance(one.run, Completer):
                raise ConfigError(
                    f"{one.run.run.folder}: found a reverse run, but {run} reads files, which no run writes; "
                    'expected a run of "language-model"'
                )

    def ranked(self, sources: Sequence[str], predictions: Sequence[Prediction], n_best: int) -> list[Prediction]:
        """The predictions with their alternatives sorted anew, `n_best` of each kept; `score` becomes the sum."""
        lists = [[one, *one.alternatives] if one.tokens or one.alternatives else [one] for one in predictions]
        asked_for = [place for place, source in enumerate(sources) if source.strip()]
        pairs = [(one.text, sources[place]) for place in asked_for for one in lists[place]]
        added = map(math.fsum, zip(*(one.added(pairs) for one in self.several), strict=True))
        out = list(predictions)
        for place in asked_for:
            summed = [replace(one, score=one.score + next(added), alternatives=()) for one in lists[place]]
            best, *others = sorted(summed, key=lambda one: -one.score)[:n_best]
            out[place] = replace(best, alternatives=tuple(others))
        return out


@torch.no_grad()
def backwards(reverse: Predictor, pairs: Sequence[tuple[str, str]], tag: str | None, rows: int = 64) -> list[float]:
    """For (output, source) the mean log-probability a token of the source, 0 where the run has no room for it."""
    outputs = [ensure_tag(output, tag, reverse.tags, f"output {place}") for place, (output, _) in enumerate(pairs, 1)]
    read = reverse.source_tokenizer.encode_batch(outputs)
    written = reverse.target_tokenizer.encode_batch([source for _, source in pairs])
    room = reverse.model.max_positions
    # A source that is too long is too long for all its outputs: their order is then the forward model's.
    order = [place for place, row in enumerate(written) if room is None or len(row) < room]
    order.sort(key=lambda place: (len(written[place]), len(read[place])))
    found = [0.0] * len(pairs)
    for first in range(0, len(order), rows):
        places = order[first : first + rows]
        batch = batch_of([read[place] for place in places], [written[place] for place in places]).to(reverse.device)
        scores = reverse.model.score(batch)
        counts = scores.mask.sum(1)
        means = scores.log_probabilities.double().sum(1) / counts.clamp(min=1)
        if isinstance(
            reverse.model, NonAutoregressiveModel
        ):  # some outputs leave no room for the source: those led nowhere
            means = means.masked_fill(counts == 0, float("-inf"))
        for place, mean in zip(places, means.tolist(), strict=True):
            found[place] = mean
    return found


# ---------------------------------------------------------------------- from the command line

METHODS = {
    "sample": "--sample",
    "mbr": "--mbr",
    "draft": "--draft",
    "exhaustive": "--exhaustive",
    "shortlist": "--shortlist",
}
NEEDS = {
    "temperature": ("sample", "mbr"),
    "top_k": ("sample", "mbr"),
    "top_p": ("sample", "mbr"),
    "seed": ("sample", "mbr"),
    "mbr_metric": ("mbr",),
    "draft_tokens": ("draft",),
    "average": ("ensemble",),
    "rerank_weight": ("rerank",),
    "rerank_tag": ("rerank",),
    "ctc_weight": ("decoding_mode",),
    "language_model_weight": ("language_model",),
    "language_model_bonus": ("language_model",),
    "language_model_order": ("language_model",),
}
FLAGS = {
    **METHODS,
    "ensemble": "--ensemble",
    "rerank": "--rerank",
    "decoding_mode": "--decoding-mode",
    "language_model": "--language-model",
}


def asked_how(
    run: str,
    device: str,
    how: Mapping[str, Any],
    beam: int | None,
    engine: str = "auto",
    precision: str = "float32",
) -> tuple[Predictor, dict[str, Any]]:
    """The run, alone or with others, and the keywords for `stream` and `evaluate` that options of decoding mean."""
    given = {name: value for name, value in how.items() if not (value is None or value is False or value == ())}
    methods = [METHODS[name] for name in METHODS if name in given]
    if len(methods) > 1:
        raise ConfigError(f"found {' and '.join(methods)}, expected one of them")
    for name, needed in NEEDS.items():
        if name in given and not given.keys() & set(needed):
            flags = " or ".join(FLAGS[one] for one in needed)
            raise ConfigError(f"--{name.replace('_', '-')} needs {flags}")
    if methods and beam is not None and not given.keys() & {"rerank", "shortlist"}:
        raise ConfigError(f"found --beam and {methods[0]}, expected one of them")
    beside = [FLAGS[name] for name in ("decoding_mode", "language_model") if name in given]
    if methods and beside:
        raise ConfigError(f"found {methods[0]} and {beside[0]}, expected one of them")
    if "ctc_weight" in given and given["decoding_mode"] != "joint":
        raise ConfigError(f"--ctc-weight needs --decoding-mode joint, found --decoding-mode {given['decoding_mode']}")
    if given.get("decoding_mode") == "attention" and "language_model" in given:
        raise ConfigError("--language-model helps CTC, found --decoding-mode attention; expected ctc or joint")
    method = partial_method(given)
    runs = [run, *given.get("ensemble", ())]
    predictor = load_predictor(run, device, engine=engine, precision=precision)
    if runs[1:]:
        predictor = ensemble([predictor, *runs[1:]], device, average=given.get("average", "probability"))
    if "draft" in given:
        method = speculative(predictor, given["draft"], given.get("draft_tokens", 4))
    if beside:
        method = transcribing(predictor, given)
    if "shortlist" in given:
        method = shortlist(predictor, given["shortlist"])
    reranker = None
    if "rerank" in given:
        reranker = rerankers(given["rerank"], given.get("rerank_weight", ()), given.get("rerank_tag"), device)
        if isinstance(predictor.source_tokenizer, FeatureExtractor):
            reranker.texts_alone(run)
    return predictor, {"method": method, "rerank": reranker}


def rerankers(runs: Sequence[str], weights: Sequence[float], tag: str | None, device: str) -> Rerankers:
    """The runs of --rerank with their weights, as many or none; the tag is for those that write, not for texts."""
    if weights and len(weights) != len(runs):
        raise ConfigError(
            f"found {len(runs)} times --rerank and {len(weights)} times --rerank-weight, expected one for each or none"
        )
    for weight in weights:
        if not math.isfinite(weight):
            raise ConfigError(f"rerank_weight: found {weight}, expected a finite number")
    alone = len(runs) == 1
    return Rerankers(
        [
            Reranker(run, weight, device=device, tag=tag if alone or not Run(run).task.is_language_model else None)
            for run, weight in zip(runs, weights or [1.0] * len(runs), strict=True)
        ]
    )


def transcribing(predictor: Predictor, given: Mapping[str, Any]) -> Method | None:
    """How options say that the text of a recording or line is found; None: as without them."""
    if not isinstance(predictor.model, Transcriber):
        name = "decoding_mode" if "decoding_mode" in given else "language_model"
        raise ConfigError(
            f'{FLAGS[name]} goes with task = "transcribe"; {predictor.run.folder} has task = "{predictor.config.task}"'
        )
    for name in ("ctc_weight", "language_model_weight", "language_model_bonus"):
        if not math.isfinite(given.get(name, 0.0)):
            raise ConfigError(f"--{name.replace('_', '-')}: found {given[name]}, expected a finite number")
    fusion = None
    if "language_model" in given:
        weight, bonus = given.get("language_model_weight", 0.3), given.get("language_model_bonus", 0.0)
        fusion = LMFusion(
            language_scorer(predictor, given["language_model"], given.get("language_model_order")), weight, bonus
        )
    if given.get("decoding_mode") == "attention":
        return AttentionSearch()
    if given.get("decoding_mode") == "joint":
        return JointSearch(given.get("ctc_weight", 0.3), fusion)
    return CTCFusionSearch(fusion) if fusion is not None else None


def language_scorer(predictor: Predictor, place: str, order: int | None = None) -> NGramLM | NeuralLM:
    """What tells how a text goes on: n-grams of a text file, or a run that has learned to."""
    target = predictor.target_tokenizer
    if not Path(place).is_dir():
        texts = (target.encode(line) for line in read_lines(place) if line.strip())
        counted = NGramLM(texts, len(target), order or 5)
        if not counted.counts:
            raise DataError(f"{place}: found no text, expected lines to count n-grams of")
        return counted
    if order is not None:
        raise ConfigError("--language-model-order goes with a text file, found a run")
    run = Run(place)
    model = run.model(predictor.device)
    if not isinstance(model, LanguageModel):
        raise RunError(f'{place}: found task = "{run.config.task}", expected a text file or a run of "language-model"')
    theirs = run.tokenizers()[1]
    if theirs.fingerprint() != target.fingerprint():
        raise RunError(
            f"{place}: found a vocabulary of {len(theirs):,} {theirs.kind}, expected the very same as the targets of "
            f"{predictor.run.folder} ({len(target):,} {target.kind})"
        )
    return NeuralLM(model, place)


def partial_method(given: Mapping[str, Any]) -> Method | None:
    """The method that options name, but for a draft, which needs its run; mistakes show before any run is read."""
    table = {name: given[name] for name in ("temperature", "top_k", "top_p", "seed") if name in given}
    sampling = settings.build(Sampling, table)
    if "sample" in given:
        return sampling
    if "mbr" in given:
        return MinimumBayesRisk(given["mbr"], given.get("mbr_metric", "chrf"), sampling)
    return Exhaustive(given["exhaustive"]) if "exhaustive" in given else None
