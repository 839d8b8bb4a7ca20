"""Scores of trivial systems beside those of a run: copy, most frequent, memorise, nearest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dragoman.base import DataError, DragomanError
from dragoman.classical import Memorise, Nearest, NearestConfig
from dragoman.data import Example, TrainValidSplit
from dragoman.data.tokenizers import BytesConfig, ByteTokenizer
from dragoman.inference.evaluation import metric_names
from dragoman.runs import Run
from dragoman.scoring import Units, higher_is_better, metrics_for, score_labels, score_table

if TYPE_CHECKING:
    from dragoman.inference.labeler import Labeler

MIN_COMMON = 0.1  # copying is a baseline if this share of the reference's words stands in the source
Baselines = dict[str, dict[str, float]]  # name of the baseline → metric → score


def training_examples(run: Run) -> Iterator[Example]:
    """The training examples of a run, read from its files again."""
    try:
        yield from TrainValidSplit(
            run.config.data, lambda doing, count: None, run.task.example_format(run.config)
        ).train("reading")
    except DragomanError as error:
        raise DataError(f"--baseline reads the training data of {run.folder} again: {error}") from None


def baselines_of(loaded: Any, examples: Sequence[Example], metrics: Sequence[str], all_: bool) -> Baselines:
    """The scores of baselines that need no training; with `all_` also of those that read the training data."""
    run = loaded.run
    if run.task.head_decoder is not None:
        return label_baselines(loaded, examples, metrics, all_=all_)
    units = run.config.data.units
    return text_baselines(run, examples, metric_names(metrics, run.task, units), units, all_=all_)


def can_copy(examples: Sequence[Example]) -> bool:
    """Whether sources and references have words in common, so that copying means something."""
    common = total = 0
    for example in examples:
        words = Counter(example.references[0].split())
        total += words.total()
        common += (words & Counter(example.source.split())).total()
    return common >= MIN_COMMON * max(1, total)


def text_baselines(
    run: Run, examples: Sequence[Example], names: Iterable[str], units: Units, *, all_: bool
) -> Baselines:
    """Copy where it applies; with `all_` also memorise and nearest, from the training data."""
    outputs: dict[str, list[str]] = {}
    if can_copy(examples):
        outputs["copy"] = [example.source for example in examples]
    if all_:
        tokenizer = ByteTokenizer(BytesConfig())
        encode = tokenizer.encode
        memorise, nearest = Memorise(tokenizer.space), Nearest(NearestConfig())
        pairs = ((example.source, example.references[0]) for example in training_examples(run))
        memorise.count((tuple(encode(source)), tuple(encode(target))) for source, target in pairs)
        nearest.load(memorise.tensors)
        encoded = [encode(example.source) for example in examples]
        for name, model in (("memorise", memorise), ("nearest", nearest)):
            outputs[name] = [tokenizer.decode(best.tokens) for best, *_ in model.transduce(encoded, 1, 1)]
    references = [example.references for example in examples]
    sources = [example.source for example in examples]
    scores = {
        name: score_table(texts, references, names, units=units, sources=sources) for name, texts in outputs.items()
    }
    others = ("segments", "signatures", "intervals")
    return {name: {key: table[key] for key in table if key not in others} for name, table in scores.items()}


def label_baselines(labeler: Labeler, examples: Sequence[Example], names: Sequence[str], *, all_: bool) -> Baselines:
    """Always the most frequent label or tag of these examples; with `all_` memorised labels and tags of words."""
    decoder = labeler.head_decoder
    if decoder.outputs not in ("labels", "tags"):
        return {}
    tags = decoder.outputs == "tags"
    expected = [decoder.parse_reference(example.references[0]) for example in examples]
    common = Counter(tag for row in expected for tag in row) if tags else Counter(expected)
    most = most_frequent(common)
    constant = [(most,) * len(row) for row in expected] if tags else [most] * len(expected)
    predictions: dict[str, list[Any]] = {f"always {most}": constant}
    if all_:
        predictions["memorise"] = memorised_labels(labeler, examples, tags)
    metrics = metrics_for(decoder.outputs)
    return {
        name: score_labels(metrics, values, expected, names, labeler.labels) for name, values in predictions.items()
    }


def most_frequent(counts: Counter[str]) -> str:
    return min(counts, key=lambda label: (-counts[label], label))


def memorised_labels(labeler: Labeler, examples: Sequence[Example], tags: bool) -> list[Any]:
    """The most frequent training label of each text, or tag of each word; of unknown ones the most frequent at all."""
    counts: dict[str, Counter[str]] = {}
    for example in training_examples(labeler.run):
        target = labeler.head_decoder.parse_reference(example.references[0])
        for unit, label in zip(example.source.split(" "), target, strict=True) if tags else [(example.source, target)]:
            counts.setdefault(unit, Counter())[label] += 1
    known = {unit: most_frequent(counter) for unit, counter in counts.items()}
    usual = most_frequent(sum(counts.values(), Counter[str]()))
    if not tags:
        return [known.get(example.source, usual) for example in examples]
    return [tuple(known.get(word, usual) for word in example.source.split(" ")) for example in examples]


def best_baseline(baselines: Mapping[str, Mapping[str, float]], metric: str) -> tuple[str, float] | None:
    """The baseline with the best score by a metric, and that score; None if none has it."""
    sign = 1 if higher_is_better(metric) else -1
    ranked = [(sign * scores[metric], name) for name, scores in baselines.items() if metric in scores]
    if not ranked:
        return None
    score, name = max(ranked)
    return name, sign * score
