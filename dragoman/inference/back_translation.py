"""Back-translation: synthetic sources for target text, by a run from target to source (Sennrich et al. 2016)."""

from __future__ import annotations

import hashlib
import random
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from dragoman.base import ConfigError, DataError, atomic_write, check_output, is_watched, progress
from dragoman.base.config import Limited, Range, build, setting
from dragoman.data import FaultError, check_text
from dragoman.data.readers import count_lines, pair_line

if TYPE_CHECKING:
    from dragoman.decoding import DecodingOptions
    from dragoman.inference.long_inputs import OnWarning
    from dragoman.inference.prediction import Prediction
    from dragoman.inference.predictor import Predictor

BLANK = "_"  # in place of a word that noise has taken
MAX_RATIO = 3.0  # of the number of words of source and target, and the other way round
MAX_CHARACTERS = 10_000


@dataclass(frozen=True)
class BackTranslateOptions(Limited):
    """How synthetic sources are made, and where the pairs go."""

    output: str = setting(help="the synthetic pairs: .tsv or .jsonl", flag="-o --output")
    method: Literal["beam", "sample", "noise"] = setting(
        "beam", flag="--method",
        help="beam search; sampling from the model; or beam search with words dropped, blanked and moved",
    )  # fmt: skip
    mark: str = setting("<BT>", help='word in front of synthetic sources; "" for none', flag="--mark")
    temperature: Annotated[float, Range(0.0, exclusive_minimum=True)] | None = setting(
        None, help="of --method sample. [default: 1]", flag="--temperature"
    )
    top_k: Annotated[int, Range(1)] | None = setting(
        None, help="with --method sample: among the K most probable tokens", flag="--top-k"
    )
    seed: int = setting(0, help="of --method sample and noise", flag="--seed")
    device: str = setting("auto", help="auto, cpu, cuda, cuda:N or mps", flag="--device")


def back_translate(
    run: str | Path,
    file: str | Path,
    options: BackTranslateOptions,
    decoding: DecodingOptions | None = None,
    on_warning: OnWarning | None = None,
) -> Counter[str]:
    """Write a pair for every line of target text that gets a usable source from `run`, a model of the other direction.

    `file` is read as the inputs of `run` are: its first column, or the field of its sources, in a table.
    Returns the number of pairs, and of the lines without one by the reason.
    """
    from dragoman.decoding import DecodingOptions, Sampling
    from dragoman.inference.load import load_predictor
    from dragoman.inference.opened_inputs import open_inputs, warn_user

    decoding = replace(decoding or DecodingOptions(), scores=False)
    given = {name: value for name in ("temperature", "top_k") if (value := getattr(options, name)) is not None}
    if options.method == "sample":
        if decoding.beam is not None:
            raise ConfigError("found --beam and --method sample, expected one of them")
        decoding = replace(decoding, method=build(Sampling, {**given, "seed": options.seed}))
    elif given:
        raise ConfigError(f"--{next(iter(given)).replace('_', '-')} needs --method sample")
    suffix = Path(options.output).suffix
    if suffix not in (".tsv", ".jsonl"):
        raise ConfigError(f"--output {options.output}: expected .tsv or .jsonl")
    check_output(options.output, (file,), "--output")
    predictor = load_predictor(run, options.device, decoding)
    inputs = open_inputs(predictor.run, Path(file), warn=on_warning or warn_user)
    noise = Noise(seed=options.seed) if options.method == "noise" else None
    with (
        progress("lines", count_lines(file) if is_watched() else None) as done,
        atomic_write(options.output) as beside,
        beside.open("w", encoding="utf-8", newline="\n") as out,
    ):
        work = BackTranslation(predictor, options.mark, noise, done, on_warning)
        for source, target in work.pairs(item.text for item in inputs):
            out.write(pair_line(source, target, as_object=suffix == ".jsonl"))
        if not work.counts["pairs"]:
            raise DataError(f"{file}: no line gave a pair ({dict(work.counts) or 'it is empty'})")
    return work.counts


@dataclass(frozen=True)
class Noise:
    """The noise of Edunov et al. 2018, section 3: words are left out, blanked, and moved a little."""

    drop: float = 0.1  # probability that a word is left out
    blank: float = 0.1  # probability that a word is replaced by a blank
    shuffle: int = 3  # how many places a word may move
    seed: int = 0

    def __call__(self, text: str) -> str:
        """The text with noise, which follows from the text and the seed alone."""
        key = hashlib.blake2b(f"{self.seed}\t{text}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
        draw = random.Random(int.from_bytes(key, "big"))
        words = [word for word in text.split() if draw.random() >= self.drop] or text.split()[:1]
        words = [BLANK if draw.random() < self.blank else word for word in words]
        keys = [index + draw.uniform(0, self.shuffle) for index in range(len(words))]
        return " ".join(word for _, word in sorted(zip(keys, words, strict=True), key=lambda pair: pair[0]))


@dataclass
class BackTranslation:
    """Makes pairs, and counts the lines that give none by their reason."""

    predictor: Predictor
    mark: str  # in front of a synthetic source (Caswell et al. 2019)
    noise: Noise | None = None
    progress: Callable[[int], None] = lambda count: None
    on_warning: OnWarning | None = None
    counts: Counter[str] = field(default_factory=Counter)

    def pairs(self, lines: Iterable[str]) -> Iterator[tuple[str, str]]:
        """(source, target) for every line that gives a usable pair, in order and with bounded memory."""
        from dragoman.inference.inputs import StreamOptions
        from dragoman.inference.unseen import UnseenInputs

        targets, failed, unseen = deque[str](), set[int](), UnseenInputs()  # targets were read and have no source yet

        def usable() -> Iterator[str]:
            for line in lines:
                self.progress(1)
                if (text := self._usable(line)) is not None:
                    targets.append(text)
                    yield text

        stream = StreamOptions(
            on_warning=lambda line: None, on_unknown=unseen.add, on_failed=lambda number, error: failed.add(number)
        )
        for number, output in enumerate(self.predictor.stream(usable(), stream=stream), 1):
            target = targets.popleft()
            if number in failed:
                self.counts["failed"] += 1
            elif (pair := self._pair(output, target)) is not None:
                self.counts["pairs"] += 1
                yield pair
        unseen.warn(self.on_warning)

    def _usable(self, line: str) -> str | None:
        text = " ".join(line.split())
        try:
            check_text(text, "line", MAX_CHARACTERS)
        except FaultError as fault:
            self.counts["empty line" if fault.kind == "empty-side" else fault.kind] += 1
            return None
        return text

    def _pair(self, output: Prediction, target: str) -> tuple[str, str] | None:
        source = " ".join(output.text.split())
        if not source:
            self.counts["empty output"] += 1
            return None
        lengths = len(source.split()) + 3, len(target.split()) + 3  # short lines may differ more
        if max(lengths) > MAX_RATIO * min(lengths):  # a search that ended too early or repeats itself
            self.counts["unlike length"] += 1
            return None
        source = self.noise(source) if self.noise is not None else source
        return f"{self.mark} {source}" if self.mark else source, target
