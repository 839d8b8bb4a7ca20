"""Targets that are no text, and series of numbers: each between what a file says and what a store's row holds."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from dragoman.config import settings
from dragoman.config.settings import setting
from dragoman.data.media.codec import MEDIA, Features
from dragoman.data.tokenizers.tokenizer import Tokenizer, _hash, _read, _write, load_tokenizer
from dragoman.errors import ConfigError, DataError, RunError, nearest


@dataclass(frozen=True)
class NumbersConfig:
    """Numbers with spaces between them, scaled by what the training data hold."""

    kind: ClassVar[str] = "numbers"
    scale: Literal["standard", "range", "none"] = setting(
        "standard", help="numbers are scaled to mean 0 and deviation 1, to the range from 0 to 1, or not at all"
    )


@dataclass(frozen=True)
class RunTokenizerConfig:
    """The units that another run has learned."""

    kind: ClassVar[str] = "run"
    run: str = setting(help="its folder")
    side: Literal["source", "target"] = setting("source", help="its units of the source, or of the target")

    @property
    def units(self) -> str:
        """The kind of these units; empty if that cannot be told."""
        try:
            return str(json.loads((Path(self.run) / "tokenizer" / f"{self.side}.json").read_bytes())["kind"])
        except (OSError, ValueError, KeyError, TypeError):
            return ""


class FewLabelsError(DataError):
    """Training data with nothing to tell apart."""


class UnknownLabelError(DataError):
    """A label that was not in the training data."""


class Labels:
    """A fixed set of labels, numbered from 0 in their sorted order."""

    kind: ClassVar[str] = "labels"
    tags: tuple[str, ...] = ()
    space: int | None = None

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._ids = {name: index for index, name in enumerate(self.names)}

    @classmethod
    def learn(cls, labels: Iterable[str]) -> Labels:
        """All labels there are, sorted; one alone would leave nothing to learn."""
        names = sorted(Counter(labels))
        if len(names) < 2:
            raise FewLabelsError(f"found {len(names)} label ({', '.join(names)}), expected at least two different ones")
        return cls(names)

    def __len__(self) -> int:
        return len(self.names)

    def number(self, label: str) -> int:
        """The number of a label; an UnknownLabelError if training had none like it."""
        found = self._ids.get(label)
        if found is None:
            match = nearest(label, self.names)
            shown = ", ".join(self.names[:12]) + (", …" if len(self.names) > 12 else "")
            better = f". Did you mean '{match}'?" if match else ""
            raise UnknownLabelError(f"found the label '{label}', expected one of the training data ({shown}){better}")
        return found

    def encode(self, text: str) -> list[int]:
        """The numbers of labels with spaces between them; one that holds a space is one label."""
        return [self._ids[text]] if text in self._ids else [self.number(label) for label in text.split(" ")]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The same for several texts."""
        return [self.encode(text) for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        """Labels with spaces between them."""
        return " ".join(self.names[index] for index in ids)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The label of each number."""
        return [self.names[index] for index in ids]

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Nothing asks where labels stand."""
        raise NotImplementedError

    def files(self, folder: Path, name: str) -> tuple[Path, ...]:
        """The file that `save` writes."""
        return (Path(folder) / f"{name}.json",)

    def save(self, folder: Path, name: str) -> None:
        """Write the labels in their order."""
        table = {"kind": self.kind, "labels": self.names, "fingerprint": self.fingerprint()}
        _write(self.files(folder, name)[0], json.dumps(table, indent=2, ensure_ascii=False) + "\n")

    def fingerprint(self) -> str:
        """A hash of the labels and their order."""
        return _hash({"kind": self.kind, "labels": self.names})

    @classmethod
    def load(cls, table: dict[str, Any]) -> Labels:
        """From what `save` wrote."""
        if not all(isinstance(label, str) for label in table["labels"]):
            raise ValueError("labels: expected texts")
        return cls(table["labels"])


def finite(text: str) -> float:
    """A number as people write it; a ValueError for anything else."""
    value = float(text)
    if not math.isfinite(value) or "_" in text:
        raise ValueError(f"found '{text}'")
    return value


class Numbers:
    """Numbers as (x − shift) / scale; `decode` gives them back as they were."""

    kind: ClassVar[str] = "numbers"
    tags: tuple[str, ...] = ()
    space: int | None = None

    def __init__(self, config: NumbersConfig, shift: float = 0.0, scale: float = 1.0) -> None:
        self.config, self.shift, self.scale = config, shift, scale

    @classmethod
    def learn(cls, config: NumbersConfig, texts: Iterable[str]) -> Numbers:
        """The scale that the numbers of these texts ask for, in flat memory."""
        count, mean, spread = 0, 0.0, 0.0
        low, high = math.inf, -math.inf
        for text in texts:
            for value in map(finite, text.split()):
                count += 1
                step = value - mean
                mean += step / count
                spread += step * (value - mean)  # Welford 1962
                low, high = min(low, value), max(high, value)
        if not count:
            raise DataError("no numbers to learn from")
        shift, scale = {
            "none": (0.0, 1.0),
            "standard": (mean, math.sqrt(spread / count) if spread < math.inf else math.inf),
            "range": (low, high - low),
        }[config.scale]
        if not math.isfinite(scale):
            raise DataError('the numbers are too large for their spread to be measured; set scale = "range"')
        return cls(config, shift, scale or 1.0)

    def __len__(self) -> int:
        return 1

    def encode(self, text: str) -> list[Any]:
        """Scaled numbers."""
        return [(finite(number) - self.shift) / self.scale for number in text.split()]

    def encode_batch(self, texts: Sequence[str]) -> list[list[Any]]:
        """The same for several texts."""
        return [self.encode(text) for text in texts]

    def value(self, scaled: float) -> float:
        """A number as it was before it was scaled."""
        return scaled * self.scale + self.shift

    def decode(self, ids: Sequence[float]) -> str:
        """Numbers with spaces between them."""
        return " ".join(f"{self.value(scaled):.7g}" for scaled in ids)

    def pieces(self, ids: Sequence[float]) -> list[str]:
        """Each number as text."""
        return [self.decode([scaled]) for scaled in ids]

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Nothing asks where numbers stand."""
        raise NotImplementedError

    def files(self, folder: Path, name: str) -> tuple[Path, ...]:
        """The file that `save` writes."""
        return (Path(folder) / f"{name}.json",)

    def save(self, folder: Path, name: str) -> None:
        """Write the scale."""
        table = {"kind": self.kind, **asdict(self.config), "shift": self.shift, "divisor": self.scale}
        text = json.dumps(table | {"fingerprint": self.fingerprint()}, indent=2) + "\n"
        _write(self.files(folder, name)[0], text)

    def fingerprint(self) -> str:
        """A hash of the scale."""
        return _hash({"kind": self.kind, "shift": self.shift, "divisor": self.scale})

    @classmethod
    def load(cls, table: dict[str, Any]) -> Numbers:
        """From what `save` wrote."""
        return cls(settings.build(NumbersConfig, {"scale": table["scale"]}), table["shift"], table["divisor"])


CODECS: dict[str, Any] = {Labels.kind: Labels, Numbers.kind: Numbers, **dict.fromkeys(MEDIA, Features)}


def tokenizer_of(config: RunTokenizerConfig) -> Tokenizer:
    """The tokenizer of another run, without the separator or tags that were put around it."""
    folder = Path(config.run)
    if not (folder / "tokenizer").is_dir():
        raise ConfigError(f"tokenizer.{config.side}.run: found '{folder}', expected the folder of a run")
    codec: Any = load_codec(folder / "tokenizer", config.side)
    while hasattr(codec, "inner"):
        codec = codec.inner
    if isinstance(codec, Labels | Numbers | Features):
        better = ' (side = "target" may have some)' if config.side == "source" else ""
        raise ConfigError(f"tokenizer: the {config.side} of {folder} has {codec.kind}, expected units of text{better}")
    return codec  # type: ignore[no-any-return]


def load_codec(folder: Path, name: str) -> Tokenizer:
    """The tokenizer, labels or numbers that were saved in a folder under a name."""
    path = Path(folder) / f"{name}.json"
    try:
        table = json.loads(_read(path))
        kind = table.get("kind")
    except (ValueError, AttributeError):
        kind = None  # damaged: let the tokenizers say so
    if kind not in CODECS:
        return load_tokenizer(folder, name)
    try:
        codec: Tokenizer = CODECS[kind].load(table)
        expected = table["fingerprint"]
    except (KeyError, TypeError, ValueError, ConfigError) as error:
        raise RunError(f"{path}: damaged file of {kind} ({error})") from None
    if codec.fingerprint() != expected:
        raise RunError(f"{path}: damaged file of {kind} (it was changed after it was saved)")
    return codec
