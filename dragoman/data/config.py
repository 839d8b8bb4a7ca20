"""The settings under `data` and `tokenizer`, and the files that they name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from glob import has_magic
from pathlib import Path
from typing import Annotated, Any, Literal

from dragoman.base import ConfigError, DataError, suggestion
from dragoman.base.config import Range, setting
from dragoman.data.examples import Pairs
from dragoman.data.media.feature_extractor import MediaConfig
from dragoman.data.readers.base import ReadOptions
from dragoman.data.tokenizers.characters import CharactersConfig
from dragoman.data.tokenizers.load import RunTokenizerConfig, TokenizerConfig
from dragoman.data.tokenizers.numbers import NumbersConfig
from dragoman.data.tokenizers.subwords import SubwordsConfig

Files = str | tuple[str | Pairs, ...] | Pairs
MAX_LENGTH_RATIO = 10_000.0  # target tokens for one source token


@dataclass(frozen=True)
class DataConfig:
    """The files of training and validation examples, and which of the examples to use."""

    train: Files = setting(
        help="the training file in the format of the task (pairs, labelled texts, plain text, a manifest), a list of "
        'files, a pattern such as "data/*.tsv.gz", an address such as "https://…" or "s3://…", or parallel files '
        '{ source = "a.en", target = "a.de" }; .tsv, .csv, .jsonl, .parquet or .tmx, also .gz or .zst; a table may '
        'name a language tag or a weight, as in { file = "a.tsv", tag = "de", weight = 2.0 }'
    )
    valid: Files | None = setting(
        None, help="the same for validation; without it some training examples are set aside (holdout)"
    )
    general: Files | None = setting(
        None,
        help="fine-tuning: a file of general text in the same format, scored before training and at every validation, "
        "to see what the model forgets; it selects nothing",
    )
    columns: tuple[str, ...] = setting(
        (),
        help='the columns to read, such as ["2", "3"] or ["en", "de"]; for two texts and a label or number '
        'name three, as in ["4", "5", "1"]; of a .tmx file name the languages',
    )
    header: bool = setting(False, help="the first line of every tab-separated file names its columns")
    tag_column: str | int = setting(
        "",
        help="translate: the column with a tag of each pair, such as the formality of the target; --tag chooses one",
    )
    document_column: str | int = setting("", help="with context: the column that names the document of each pair")
    context: Annotated[int, Range(0, 16)] = setting(
        0,
        help="translate: the model also reads so many sentences before each source, of the same document; a blank "
        "line ends a document",
    )
    memory: Annotated[float, Range(0.0, 0.99)] = setting(
        0.0,
        help="translate: the model also reads the translation of the training source most like each source, if it is "
        "at least so much alike (0.5, say), and that of the fuzzy match of --memory in prediction; 0: it does not",
    )
    holdout: Annotated[int, Range(1, None)] = setting(
        2000,
        help="without valid: about this many examples become validation data, at most a tenth, chosen by a hash of "
        "the source; language models and masked language models on text pairs take the last lines",
    )
    faults: Literal["few", "skip", "refuse", "stop"] = setting(
        "few",
        help="lines that cannot be used: few skips them up to one line in a thousand and names them, skip skips all, "
        "refuse stops at any (stop: its older name)",
    )
    max_length: Annotated[int, Range(1, None)] = setting(
        256,
        help="training skips examples with more tokens than this; a masked language model cuts its texts into rows of "
        "at most this many tokens",
    )
    max_characters: Annotated[int, Range(1, None)] = setting(10_000, help="a longer line is a fault")
    media: str = setting(
        "", help="transcribe and caption: the folder or .tar(.gz) with the files; empty: the folder of the manifest"
    )
    units: Literal["words", "phonemes"] = setting(
        "words", help="what the space-separated target symbols are; decides whether WER or PER is reported"
    )
    hallucinate: Annotated[int, Range(0, 10_000_000)] = setting(
        0,
        help="for few pairs that share their stems, such as inflected forms: add this many made-up training pairs in "
        "which random letters replace the stem on both sides",
    )
    shuffle: Literal["corpus", "shards"] = setting(
        "corpus", help="every epoch shuffles the whole corpus; shards, of older versions, is refused with the reason"
    )
    cache: str = setting("", help="folder for tokenised data; default $DRAGOMAN_CACHE or ~/.cache/dragoman")

    @property
    def reading(self) -> ReadOptions:
        return ReadOptions(
            self.columns, self.header, max_characters=self.max_characters, tag_column=str(self.tag_column),
            document_column=str(self.document_column),
        )  # fmt: skip

    @property
    def tags(self) -> list[str]:
        """The language tags of all training files, each once, in the order of their ids."""
        return sorted({tag for entry in file_list(self.train) if (tag := tag_of(entry)) is not None})

    @property
    def has_tags(self) -> bool:
        return bool(self.tag_column) or bool(self.tags)

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each training file that has one, by its path; the others count once."""
        entries = [entry for entry in file_list(self.train) if isinstance(entry, Pairs)]
        return {entry.paths[0]: entry.weight for entry in entries if entry.weight is not None}

    @property
    def reads_more(self) -> bool:
        """Whether a model reads more than the source: sentences before it, or a translation of a similar one."""
        return bool(self.context or self.memory)

    def without_columns(self, **changed: Any) -> DataConfig:
        """These settings for files of source and target alone."""
        return replace(self, columns=(), header=False, tag_column="", document_column="", **changed)

    def check_shuffle(self) -> None:
        """Refuse to train by a setting of older versions; runs that were trained by it still predict."""
        if self.shuffle == "shards":
            raise ConfigError(
                'data.shuffle: found "shards", expected "corpus": training now shuffles the whole corpus from its '
                "shards on disk, with 18 bytes of memory for each pair. Tokenise the data beforehand with `dragoman "
                "check`, where no GPU is needed; training then starts at once. A run that started with "
                '"shards" cannot resume: train a new one, with train.start_from to begin with its weights'
            )

    def problems(self) -> Iterator[str]:
        tags = self.tags
        if tags and self.tag_column:
            yield f"tag_column: found '{self.tag_column}' and tags of files ({', '.join(tags)}), expected one of them"
        if self.document_column and not self.context:
            yield f"document_column: found '{self.document_column}', which is for data.context; set it, such as 2"
        if self.memory and (self.context or self.has_tags):
            yield f"memory: found {self.memory:g} with context or tags, expected one of them"
        for name, files in (("train", self.train), ("valid", self.valid)):
            if files == ():
                yield f"{name}: found an empty list, expected at least one file of pairs"
            for entry in file_list(files) if files is not None else ():
                tag, shown = tag_of(entry), " and ".join(paths_of(entry))
                if isinstance(entry, Pairs) and entry.weight is not None and name == "valid":
                    yield f"valid: found the weight {entry.weight:g} for {shown}, expected none: it is for training"
                if tags and tag is None:
                    yield f"{name}: found no tag for {shown}, expected one, since others have tags ({', '.join(tags)})"
                elif tag is not None and tag not in tags:
                    known = f"expected one of those in train ({', '.join(tags) or 'none'}){suggestion(tag, tags)}"
                    yield f"{name}: found the tag '{tag}' for {shown}, {known}"


@dataclass(frozen=True)
class TokenizersConfig:
    """The tokenizers of source and target."""

    source: TokenizerConfig | NumbersConfig | RunTokenizerConfig | MediaConfig = setting(
        SubwordsConfig(),
        help="source tokenizer; numbers: a series, for regress; run: the tokenizer of another run; audio, line-image, "
        "picture: media files, for transcribe and caption",
    )
    target: TokenizerConfig | NumbersConfig | RunTokenizerConfig | None = setting(
        None,
        help="target tokenizer; without it source and target share one vocabulary (or one scale of numbers); "
        "labels and tags need none",
    )

    def problems(self) -> Iterator[str]:
        if isinstance(self.target, CharactersConfig) and self.target.features:
            yield f'target.features: found "{self.target.features}", expected none: only sources have features'


def file_list(files: Files) -> list[str | Pairs]:
    """The entries of a setting, each pattern such as "data/*.tsv.gz" replaced by the files that it matches."""
    return [match for entry in (files if isinstance(files, tuple) else (files,)) for match in _matches(entry)]


def _matches(entry: str | Pairs) -> Sequence[str | Pairs]:
    if not isinstance(entry, Pairs):  # Python callers may also give a Path
        return matching_files(str(entry))
    if not any(map(has_magic, entry.paths)):
        return [entry]
    if entry.file is not None:
        return [replace(entry, file=path) for path in matching_files(entry.file)]
    sources, targets = matching_files(str(entry.source)), matching_files(str(entry.target))
    if len(sources) != len(targets):
        raise DataError(
            f"{entry.source}, {entry.target}: found {len(sources)} files of sources and {len(targets)} of targets, "
            "expected as many of each, in the same alphabetical order"
        )
    return [replace(entry, source=source, target=target) for source, target in zip(sources, targets, strict=True)]


def matching_files(path: str) -> list[str]:
    """The files that a pattern matches, in alphabetical order; the path itself if it is none or matches nothing."""
    if not has_magic(path) or Path(path).exists():
        return [path]
    anchor = Path(path).anchor
    return sorted(map(str, Path(anchor).glob(path[len(anchor) :]))) or [path]


def paths_of(files: Files) -> list[str]:
    return [path for entry in file_list(files) for path in (entry.paths if isinstance(entry, Pairs) else [entry])]


def tag_of(entry: str | Pairs) -> str | None:
    return entry.tag if isinstance(entry, Pairs) else None
