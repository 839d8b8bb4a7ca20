"""Open the files and runs that a decoding method needs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from dragoman.classical.arpa import is_arpa, read_arpa
from dragoman.classical.ngram import NGramModel
from dragoman.config import settings
from dragoman.data.readers.lines import read_lines
from dragoman.decoding.ctc import LMFusion
from dragoman.decoding.exhaustive import Exhaustive
from dragoman.decoding.joint_ctc import AttentionSearch, CTCFusionSearch, JointSearch
from dragoman.decoding.mbr import MinimumBayesRisk
from dragoman.decoding.methods import Method
from dragoman.decoding.ngram import NeuralLM, NGramLM
from dragoman.decoding.options import CTCDecoding, Draft, LanguageModelFusion, ShortlistFile
from dragoman.decoding.sampling import Sampling
from dragoman.decoding.shortlist import NAME, Shortlist, shortlist_model
from dragoman.decoding.speculative import Speculative
from dragoman.errors import ConfigError, DataError, RunError
from dragoman.inference.loaded import Seq2SeqRun, check_same_vocabularies, load_seq2seq
from dragoman.models.language_model import LanguageModel
from dragoman.models.transcriber import Transcriber
from dragoman.runs import Run


def open_method(
    method: Method | Draft | ShortlistFile | CTCDecoding | None, run: Seq2SeqRun, model: Any
) -> Method | None:
    """The method that searches with `model`, the run's own or an ensemble; None is greedy or beam search."""
    match method:
        case Draft():
            return speculative(run, method)
        case ShortlistFile():
            return shortlist(run, method.file, model)
        case CTCDecoding():
            return transcribing(run, method, model)
        case Sampling() | MinimumBayesRisk() | Exhaustive():
            return settings.build(type(method), settings.as_table(method))  # checks the ranges
        case _:
            return method


def speculative(run: Seq2SeqRun, draft: Draft) -> Speculative:
    """Greedy search in `run` with the tokens that a draft run proposes: the same output in fewer calls."""
    small = load_seq2seq(draft.run, str(run.device))
    check_same_vocabularies(run.run, small.run, "a draft")
    if run.codec.copies and not small.codec.copies:
        raise ConfigError(f"draft: {draft.run} cannot copy words that it does not know, as {run.run.folder} can")
    return Speculative(small.model, draft.tokens)


def shortlist(run: Seq2SeqRun, file: str | Path = "auto", model: Any = None) -> Shortlist:
    """Read a shortlist of target tokens; "auto" is the file in the run folder."""
    shortlist_model(run.model if model is None else model)
    path = run.run.folder / NAME if file == "auto" else Path(file)
    return Shortlist.load(path, run.source_tokenizer, run.target_tokenizer)


def transcribing(run: Seq2SeqRun, options: CTCDecoding, model: Any) -> Method | None:
    """How a transcriber finds its text; None: by CTC alone."""
    if not isinstance(model, Transcriber):
        name = "decoding-mode" if options.language_model is None else "language-model"
        raise ConfigError(
            f'--{name} goes with task = "transcribe" and CTC (model.kind = "transcriber"); {run.run.folder} has '
            f'task = "{run.config.task}", model.kind = "{getattr(run.config.model, "kind", "")}"'
        )
    fusion, language = None, options.language_model
    numbers = {"ctc_weight": options.ctc_weight}
    if language is not None:
        numbers |= {"language_model_weight": language.weight, "language_model_bonus": language.bonus}
    for name, value in numbers.items():
        if not math.isfinite(value):
            raise ConfigError(f"--{name.replace('_', '-')}: found {value}, expected a finite number")
    if language is not None:
        fusion = LMFusion(language_scorer(run, language), language.weight, language.bonus)
    if options.mode == "attention":
        return AttentionSearch()
    if options.mode == "joint":
        return JointSearch(options.ctc_weight, fusion)
    return CTCFusionSearch(fusion) if fusion is not None else None


def language_scorer(run: Seq2SeqRun, language: LanguageModelFusion) -> NGramLM | NeuralLM:
    """A language model of the run's target tokens: n-grams of a text file, or a trained run."""
    target, path = run.target_tokenizer, language.model
    if not Path(path).is_dir():
        if is_arpa(path):
            return NGramLM(read_arpa(path, target, language.order))
        rows = [target.encode(line) for line in read_lines(path) if line.strip()]
        if not rows:
            raise DataError(f"{path}: found no text, expected lines to count n-grams of")
        return NGramLM.of_rows(rows, len(target), language.order or 5)
    if language.order is not None:
        raise ConfigError("--language-model-order goes with a text file, found a run")
    other = Run(path)
    model = other.model(run.device)
    if not isinstance(model, LanguageModel | NGramModel):
        raise RunError(f'{path}: found task = "{other.config.task}", expected a text file or a run of "language-model"')
    theirs = other.tokenizers()[1]
    if theirs.fingerprint() != target.fingerprint():
        raise RunError(
            f"{path}: found a vocabulary of {len(theirs):,} {theirs.kind}, expected the very same as the targets of "
            f"{run.run.folder} ({len(target):,} {target.kind})"
        )
    return NGramLM(model) if isinstance(model, NGramModel) else NeuralLM(model, str(path))
