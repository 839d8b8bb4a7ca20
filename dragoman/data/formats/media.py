"""Recordings, lines and pictures with the texts that answer them: one line of a manifest names a file and its text."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

from dragoman.data.examples import Example, Fault, Pairs
from dragoman.data.feature_store import FeatureColumn, feature_statistics, write_features
from dragoman.data.formats.formats import Codecs, Examples, Row
from dragoman.data.media.archives import ARCHIVES, PARTED, is_archive, location, members, parted
from dragoman.data.media.audio import AudioConfig
from dragoman.data.media.codec import Features
from dragoman.data.readers.pairs import read_pairs
from dragoman.data.tokenizers.tokenizer import Tokenizer, learn
from dragoman.errors import DataError
from dragoman.files import digest

if TYPE_CHECKING:
    from dragoman.data.corpus import DataConfig, TokenizersConfig


def located(base: str | Path, name: str) -> str:
    """Where a name from a manifest stands; one that says so itself stands there."""
    return location(base, name) if is_relative(name) else name


def is_relative(name: str) -> bool:
    """Whether a name from a manifest needs the folder or archive that files are in."""
    return PARTED not in name and not Path(name).is_absolute()


def check_media(base: str, setting: str) -> None:
    """Refuse what files cannot be in, before each of them is said to be missing; `setting` is where it was named."""
    path = Path(base)
    if path.is_dir() or (path.is_file() and is_archive(path)):
        return
    found = "which is neither" if path.exists() else "which does not exist"
    raise DataError(f"{setting}: found '{base}', {found}; expected a folder or an archive ({', '.join(ARCHIVES)})")


class MediaShape:
    """A file and one or more texts; each text is a target of its own.

    `known` comes from a store of features: the number of every location's row, or what is wrong with it, which is then
    a fault of the line that names it.
    """

    def __init__(self, name: str, several: bool, known: Mapping[str, int | Fault] | None = None) -> None:
        """`several`: without data.columns all columns after the first are texts."""
        self.name, self.several, self.known = name, several, known
        self.column: FeatureColumn | None = None

    def read(self, config: DataConfig, entry: str | Pairs, several: bool) -> Iterator[Example | Fault]:
        """The lines of a manifest, each example with the location of its file."""
        path = entry.paths[0] if isinstance(entry, Pairs) else entry
        base = config.media or Path(path).parent
        items = read_pairs(
            entry,
            columns=config.columns,
            several_references=self.several,
            max_characters=config.max_characters,
            header=config.header,
        )
        looked_at = not config.media
        for item in items:
            if isinstance(item, Fault):
                yield item
                continue
            if not looked_at and is_relative(item.source):
                check_media(config.media, "data.media")
                looked_at = True
            yield self.checked(item._replace(at=located(base, item.source)))

    def checked(self, example: Example) -> Example | Fault:
        """The example, or what is wrong with its file."""
        found = (self.known or {}).get(example.at)
        return Fault(example.place, found.kind, str(found)) if isinstance(found, Fault) else example

    def gathered(
        self, folder: Path, examples: Iterable[Example], config: Any, note: Callable[[str, int], None]
    ) -> MediaShape:
        """The same shape after all files were read once, into a store in `folder`."""
        places = list(dict.fromkeys(example.at for example in examples))
        known: dict[str, int | Fault] = {place: number for number, place in enumerate(places)}
        doing = f"reading {len(places):,} file{'' if len(places) == 1 else 's'}"
        for fault in write_features(folder, places, config, lambda done: note(doing, done)):
            known[fault.place] = fault
        shape = MediaShape(self.name, self.several, known)
        shape.column = FeatureColumn(folder)
        return shape

    def learn(self, config: DataConfig, tokenizers: TokenizersConfig, examples: Examples) -> Codecs:
        """The scale of the features, where it is that of the training data, and the vocabulary of all texts."""
        reader: Any = tokenizers.source
        assert tokenizers.target is not None, "checked with the configuration"
        mean = deviation = None
        if isinstance(reader, AudioConfig) and reader.normalise == "corpus":
            assert self.column is not None
            numbers = [self._number(example) for example in examples.train("measuring features")]
            found = feature_statistics(self.column, numbers)
            mean, deviation = found[0].tolist(), found[1].clamp(min=1e-5).tolist()
        texts = (text for example in examples.train("learning the vocabulary") for text in example.references)
        target = learn(tokenizers.target, texts)  # type: ignore[arg-type]
        source: Any = Features(reader, mean, deviation)
        return source, target

    def _number(self, example: Example) -> int:
        number = (self.known or {})[example.at]
        assert isinstance(number, int), "what has a fault is no example"
        return number

    def rows(self, examples: Sequence[Example], source: Tokenizer, target: Tokenizer) -> list[Row | Fault]:
        """The number of the features, and the tokens of a text; as many rows as there are texts."""
        if self.known is None:  # in memory: features themselves
            left = source.encode_batch([example.tagged for example in examples])
        else:
            left = [[self._number(example)] for example in examples]
        right = iter(target.encode_batch([text for example in examples for text in example.references]))
        return [(row, next(right)) for row, example in zip(left, examples, strict=True) for _ in example.references]

    def fits(self, row: Row, max_length: int) -> bool:
        """The text alone counts; how long a recording may be says tokenizer.source."""
        return len(row[1]) <= max_length

    def terms(self, row: Row) -> int:
        """Tokens."""
        return len(row[1])

    def inputs(
        self, texts: Sequence[str], source: Tokenizer, first: int = 1
    ) -> tuple[list[list[Any]], list[list[Any]] | None]:
        """Features."""
        return source.encode_batch(texts), None

    def dtypes(self, source: Tokenizer, target: Tokenizer, max_length: int) -> Mapping[str, str]:
        """Sources are numbers of rows."""
        return {"source": "uint32"}

    def record(self, example: Example) -> dict[str, Any]:
        """The location from anywhere, and the text or texts."""
        archive, name = parted(example.at)
        at = f"{Path(archive).absolute()}{PARTED}{name}" if archive else str(Path(name).absolute())
        return {"source": at, "target": list(example.references) if self.several else example.references[0]}

    def digest(self, examples: Iterable[Example]) -> str:
        """A hash of the bytes of all files that examples name; a file that is missing has none."""
        total = hashlib.blake2b(digest_size=16)
        for path in dict.fromkeys(parted(example.at).archive or example.at for example in examples):
            try:
                total.update(digest(Path(path)).encode())
            except OSError:
                total.update(b"missing")
        return total.hexdigest()


SOUNDS = (".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".aif", ".aiff", ".au", ".caf", ".sph", ".w64")
PICTURES = (
    *(".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".gif", ".webp"),
    *(".pbm", ".pgm", ".ppm", ".pnm", ".jp2", ".avif"),
)
TRANSCRIPTS = MediaShape("transcripts", several=False)
CAPTIONS = MediaShape("captions", several=True)


class Listed(NamedTuple):
    """The locations that a name stands for, and how many files beside them were passed over."""

    places: list[str]
    passed: int = 0


def listed(path: str | Path, endings: tuple[str, ...]) -> Listed:
    """The files of a folder or archive with one of these endings, sorted by name; manifests and the like are passed."""
    path = Path(path)
    if path.is_dir():
        found = [str(one) for one in sorted(path.iterdir()) if one.is_file()]
    else:
        found = [f"{path}{PARTED}{name}" for name in sorted({name for name in members(str(path)).values() if name})]
    kept = [
        one for one in found if one.lower().endswith(endings) and not PurePath(parted(one).name).name.startswith(".")
    ]
    if not kept:
        count = f"{len(found):,} file{'s' * (len(found) != 1)}"
        expected = f"expected names in {', '.join(endings)}; files of other endings can be named in a list"
        raise DataError(f"{path}: found {count} in it, none of them a {kind_of(endings)}; {expected}")
    return Listed(kept, len(found) - len(kept))


def kind_of(endings: tuple[str, ...]) -> str:
    """What files with these endings are."""
    return "recording" if endings is SOUNDS else "picture"


def is_media(path: str | Path) -> bool:
    """Whether a name is that of a recording, a picture, an archive or a folder, and not of a list of them."""
    named = PARTED in str(path) or Path(path).is_dir() or is_archive(path)
    return named or str(path).lower().endswith((*SOUNDS, *PICTURES)) or _is_no_text(Path(path))


def _is_no_text(path: Path) -> bool:
    """Whether a file, whatever its ending, begins with bytes that no list of names has."""
    if not path.is_file() or path.suffix.lower() in (".gz", ".zst"):
        return False
    with path.open("rb") as file:
        return b"\0" in file.read(1024)


def inputs_of(path: str | Path, endings: tuple[str, ...]) -> Listed:
    """The locations that a name of such a kind stands for; a file that is named itself may have any ending."""
    alone = PARTED in str(path) or not (Path(path).is_dir() or is_archive(path))
    return Listed([str(path)]) if alone else listed(path, endings)
