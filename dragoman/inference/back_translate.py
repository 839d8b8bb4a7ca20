"""Back-translation: synthetic sources for target text, by a run from target to source (Sennrich et al. 2016)."""

from __future__ import annotations

import hashlib
import random
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from dragoman.data.examples import FaultError, check_text
from dragoman.inference.inputs import StreamOptions
from dragoman.inference.long_inputs import OnWarning
from dragoman.inference.prediction import Prediction
from dragoman.inference.predictor import Predictor
from dragoman.inference.unseen import UnseenInputs

MARK = "<BT>"  # in front of a synthetic source (Caswell et al. 2019)
BLANK = "_"  # in place of a word that noise has taken


class Pair(NamedTuple):
    """A synthetic source and its real target."""

    source: str
    target: str


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
    mark: str = MARK
    noise: Noise | None = None
    max_ratio: float = 3.0  # of the number of words of source and target, and the other way round
    max_characters: int = 10_000
    progress: Callable[[int], None] = lambda count: None
    counts: Counter[str] = field(default_factory=Counter)
    unseen: UnseenInputs = field(default_factory=UnseenInputs)
    on_warning: OnWarning | None = None

    def pairs(self, lines: Iterable[str]) -> Iterator[Pair]:
        """A pair for every line that gives a usable one, in order and with bounded memory."""
        targets, failed = deque[str](), set[int]()  # usable lines that were read and have no source yet

        def usable() -> Iterator[str]:
            for line in lines:
                self.progress(1)
                if (text := self._usable(line)) is not None:
                    targets.append(text)
                    yield text

        stream = StreamOptions(
            on_warning=lambda line: None, on_unknown=self.unseen.add, on_failed=lambda number, error: failed.add(number)
        )
        for number, output in enumerate(self.predictor.stream(usable(), stream=stream), 1):
            target = targets.popleft()
            if number in failed:
                self.counts["failed"] += 1
            elif (pair := self._pair(output, target)) is not None:
                self.counts["pairs"] += 1
                yield pair
        self.unseen.warn(self.on_warning)

    def _usable(self, line: str) -> str | None:
        text = " ".join(line.split())
        try:
            check_text(text, "line", self.max_characters)
        except FaultError as fault:
            self.counts["empty line" if fault.kind == "empty-side" else fault.kind] += 1
            return None
        return text

    def _pair(self, output: Prediction, target: str) -> Pair | None:
        source = " ".join(output.text.split())
        if not source:
            self.counts["empty output"] += 1
            return None
        lengths = len(source.split()) + 3, len(target.split()) + 3  # short lines may differ more
        if max(lengths) > self.max_ratio * min(lengths):  # a search that ended too early or repeats itself
            self.counts["unlike length"] += 1
            return None
        source = self.noise(source) if self.noise is not None else source
        return Pair(f"{self.mark} {source}" if self.mark else source, target)
