"""Text ↔ token ids: words, characters and sub-words, all with the same four special symbols."""

from __future__ import annotations

import hashlib
import io
import json
import random
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cache, lru_cache
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Protocol

import sentencepiece

from dragoman.config import settings
from dragoman.config.settings import Range, setting
from dragoman.data.tokenizers.language_tags import NAME, Tagged
from dragoman.data.tokenizers.text_pair import Joined
from dragoman.errors import ConfigError, DataError, RunError, hint

PAD, UNK, SOS, EOS = 0, 1, 2, 3
SPECIALS = ("<pad>", "<unk>", "<sos>", "<eos>")
UNKNOWN_SURFACE = "⁇"

JOINER = "￭"
# A core is a word or one character, so no core of the text itself can look like this.
_ESCAPED_JOINER = "&joiner;"

# Sentencepiece writes a space as U+2581; for one in the text a code point that is no character stands in.
_SPACE_MARK, _MARK_STAND_IN = "\u2581", "\U0010fffe"
# Its byte-pair trainer aborts the whole process on a word of more than 65,535 characters.
_LEARNING_CHARACTERS = 10_000

_CACHED_CHUNKS = 200_000
_CACHED_CHUNK_LENGTH = 40


class NoTextError(DataError):
    """Training data with nothing to learn units from."""


@dataclass(frozen=True)
class WordsConfig:
    """Words and punctuation marks as tokens, or whatever stands between single spaces."""

    kind: ClassVar[str] = "words"
    vocabulary: Annotated[int, Range(5)] = setting(30_000, help="at most so many tokens, special symbols included")
    minimum_count: Annotated[int, Range(1)] = setting(1, help="rarer words become <unk>")
    split: Literal["punctuation", "spaces"] = setting(
        "punctuation", help="at punctuation too, or only at spaces (phonemes, text tokenised elsewhere)"
    )


@dataclass(frozen=True)
class CharactersConfig:
    """Every code point is a token, the space included."""

    kind: ClassVar[str] = "characters"
    vocabulary: Annotated[int, Range(5)] = setting(10_000, help="at most so many tokens, special symbols included")
    minimum_count: Annotated[int, Range(1)] = setting(1, help="rarer characters become <unk>")


@dataclass(frozen=True)
class SubwordsConfig:
    """Pieces of words learned by sentencepiece; characters without a piece become their bytes."""

    kind: ClassVar[str] = "subwords"
    vocabulary: Annotated[int, Range(261)] = setting(
        8_000, help="at most so many pieces, special symbols and the 256 bytes included"
    )
    algorithm: Literal["bpe", "unigram"] = setting("bpe", help="how pieces are chosen")
    sample: Annotated[int, Range(1)] = setting(500_000, help="sentences to learn from")
    coverage: Annotated[float, Range(0.98, 1)] = setting(
        1.0, help="share of the text's characters that get a piece of their own; the others become bytes"
    )


TokenizerConfig = WordsConfig | CharactersConfig | SubwordsConfig
_KINDS: dict[str, type[TokenizerConfig]] = {
    config.kind: config for config in (WordsConfig, CharactersConfig, SubwordsConfig)
}


Span = tuple[int, int]  # the first character and the one after the last; of a character's bytes all but one have none


class Tokenizer(Protocol):
    """What every tokenizer does; encoding never adds <sos> or <eos>."""

    @property
    def kind(self) -> str:
        """The kind of its units."""

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags it reads at the front of a text; most know none."""

    @property
    def space(self) -> int | None:
        """The id of a token that is one space, where there is such a token."""

    def __len__(self) -> int: ...

    def encode(self, text: str) -> list[int]:
        """The token ids of a text."""

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The token ids of several texts, the fast way."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, without <pad>, <sos> and <eos>; <unk> shows as ⁇."""

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """A readable unit for each id."""

    def spans(self, text: str) -> list[Span]:
        """Which characters of a text each token of `encode` stands for."""

    def files(self, folder: Path, name: str) -> tuple[Path, ...]:
        """The files that `save` writes."""

    def save(self, folder: Path, name: str) -> None:
        """Write the tokenizer as plain files."""

    def fingerprint(self) -> str:
        """A hash of the vocabulary and the rules, the same wherever and however it was saved."""


# --- words and characters: a list of tokens


class _Listed:
    """A vocabulary that is a plain list; a text that spells "<eos>" never becomes the special symbol."""

    kind: ClassVar[str]
    tags: tuple[str, ...] = ()

    def __init__(self, config: WordsConfig | CharactersConfig, tokens: Sequence[str]) -> None:
        self.config = config
        self._tokens = (*SPECIALS, *tokens)
        self._ids = {token: index for index, token in enumerate(tokens, len(SPECIALS))}
        self.space = self._ids.get(" ")

    def __len__(self) -> int:
        return len(self._tokens)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """A readable unit for each id."""
        return [self._tokens[index] for index in ids]

    def files(self, folder: Path, name: str) -> tuple[Path, ...]:
        """The files that `save` writes."""
        return _paths(folder, name, "json", "vocabulary.jsonl")

    def save(self, folder: Path, name: str) -> None:
        """Write settings and vocabulary, one token a line: the line's number, from 0, is the token's id."""
        table, vocabulary = self.files(folder, name)
        _write(table, _settings_text(self.config, self.fingerprint()))
        # Escaping what cannot be printed keeps line separators, controls and lone surrogates harmless.
        lines = (json.dumps(token, ensure_ascii=not token.isprintable()) for token in self._tokens)
        _write(vocabulary, "\n".join(lines) + "\n")

    def fingerprint(self) -> str:
        """A hash of the vocabulary and the rules."""
        return _hash({"kind": self.kind, "split": getattr(self.config, "split", ""), "tokens": self._tokens})


class Characters(_Listed):
    """Every code point is a token."""

    kind: ClassVar[str] = CharactersConfig.kind

    def encode(self, text: str) -> list[int]:
        """The token ids of a text."""
        get = self._ids.get
        return [get(character, UNK) for character in text]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The token ids of several texts."""
        return [self.encode(text) for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids."""
        return "".join(_shown(self._tokens, ids))

    def spans(self, text: str) -> list[Span]:
        """One character a token."""
        return [(place, place + 1) for place in range(len(text))]


class Words(_Listed):
    """Words and punctuation, or tokens between spaces.

    With split="punctuation" a joiner (￭) on the punctuation says where no space stands and all whitespace but
    single spaces between two tokens is a token; so decode(encode(text)) == text while no token is unknown.
    """

    kind: ClassVar[str] = WordsConfig.kind

    def __init__(self, config: WordsConfig, tokens: Sequence[str]) -> None:
        super().__init__(config, tokens)
        self._punctuation = config.split == "punctuation"
        self._cache: dict[str, tuple[int, ...]] = {}
        self._surfaces = [_surface(token) for token in self._tokens]
        self._surfaces[UNK] = (UNKNOWN_SURFACE, False, False)

    def encode(self, text: str) -> list[int]:
        """The token ids of a text."""
        if not self._punctuation:
            get = self._ids.get
            return [get(token, UNK) for token in _split_spaces(text)]
        known, look_up, ids = self._cache.get, self._look_up, list[int]()
        for chunk in _chunks(text):
            ids.extend(known(chunk) or look_up(chunk))
        return ids

    def _look_up(self, chunk: str) -> tuple[int, ...]:
        get = self._ids.get
        ids = tuple(get(token, UNK) for token in _marked(chunk))
        if len(chunk) <= _CACHED_CHUNK_LENGTH and len(self._cache) < _CACHED_CHUNKS:
            self._cache[chunk] = ids
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The token ids of several texts."""
        return [self.encode(text) for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids."""
        if not self._punctuation:
            return " ".join(_shown(self._tokens, ids))
        parts: list[str] = []
        glued = True
        for index in ids:
            if index in (PAD, SOS, EOS):
                continue
            text, glue_before, glue_after = self._surfaces[index]
            if not (glued or glue_before):
                parts.append(" ")
            parts.append(text)
            glued = glue_after
        return "".join(parts)

    def spans(self, text: str) -> list[Span]:
        """The characters of every word or mark; joiners stand for none."""
        if not self._punctuation:
            return [match.span() for match in re.finditer("[^ ]+", text)]
        spans, end = list[Span](), 0
        for chunk in _chunks(text):
            first = end = text.index(chunk, end)
            for core in _cores().finditer(chunk):
                spans.append((first + core.start(), first + core.end()))
            end += len(chunk)
        return spans


def _shown(tokens: Sequence[str], ids: Sequence[int]) -> list[str]:
    return [UNKNOWN_SURFACE if index == UNK else tokens[index] for index in ids if index not in (PAD, SOS, EOS)]


@cache
def _cores() -> re.Pattern[str]:
    """Words, or else single characters; marks belong to words, or vowel signs would break up Hindi."""
    marks = [code for code in range(0x300, 0x20000) if unicodedata.category(chr(code))[0] == "M"]
    ranges: list[list[int]] = []
    for code in (*marks, 0x200C, 0x200D):  # the (non-)joiners of Persian and Indic spelling
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    word = "".join(f"{chr(low)}-{chr(high)}" for low, high in ranges)
    return re.compile(rf"([\w{word}]+)|(.)", re.DOTALL)


def _chunks(text: str) -> list[str]:
    """Runs without whitespace; all whitespace but single spaces between two runs is a chunk of its own."""
    chunks = text.split()
    if " ".join(chunks) == text:
        return chunks
    parts: list[str] = re.findall(r"\S+|\s", text)
    last = len(parts) - 1
    return [
        part
        for index, part in enumerate(parts)
        if part != " " or index in (0, last) or parts[index - 1].isspace() or parts[index + 1].isspace()
    ]


def _marked(chunk: str) -> list[str]:
    """The tokens of a chunk, with a joiner on the punctuation's side of every seam inside it."""
    cores: list[tuple[str, str]] = _cores().findall(chunk)
    last = len(cores) - 1
    tokens = []
    for index, (word, other) in enumerate(cores):
        if word:
            tokens.append(word)
            continue
        before = JOINER if index else ""
        after = JOINER if index < last and cores[index + 1][0] else ""
        tokens.append(before + (_ESCAPED_JOINER if other == JOINER else other) + after)
    return tokens


def _surface(token: str) -> tuple[str, bool, bool]:
    """What a token writes, and whether it stands without a space before and after."""
    if token.isspace():
        return token, True, True
    core = token.removeprefix(JOINER).removesuffix(JOINER)
    text = JOINER if core == _ESCAPED_JOINER else core
    return text, token.startswith(JOINER), token.endswith(JOINER)


def _split_spaces(text: str) -> list[str]:
    return [token for token in text.split(" ") if token]


# --- sub-words: sentencepiece


class Subwords:
    """Sentencepiece without normalisation, with bytes for unseen characters: every text comes back as it was.

    The one exception is U+10FFFE, which is no character: it stands in for U+2581, sentencepiece's own space.
    """

    kind: ClassVar[str] = SubwordsConfig.kind
    tags: tuple[str, ...] = ()
    space: int | None = None  # mostly the beginning of a piece

    def __init__(self, config: SubwordsConfig, model: bytes) -> None:
        self.config = config
        self._model = model
        self._processor: Any = sentencepiece.SentencePieceProcessor(model_proto=model)

    def __len__(self) -> int:
        return int(self._processor.get_piece_size())

    def encode(self, text: str) -> list[int]:
        """The token ids of a text."""
        ids: list[int] = self._processor.encode(_without_mark(text))
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The token ids of several texts, on all cores."""
        ids: list[list[int]] = self._processor.encode([_without_mark(text) for text in texts])
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids; bytes that are no character show as U+FFFD."""
        text: str = self._processor.decode([int(index) for index in ids if index not in (PAD, SOS, EOS)])
        return text.replace(_MARK_STAND_IN, _SPACE_MARK)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """A readable unit for each id."""
        pieces: list[str] = self._processor.id_to_piece([int(index) for index in ids])
        return pieces

    def spans(self, text: str) -> list[Span]:
        """The characters of every piece, the space before a word included; of several bytes the last has all."""
        ids = self.encode(text)
        spans, end = list[Span](), -1  # sentencepiece puts a space before the text
        missing = 0  # bytes until a character is whole
        for piece, index in zip(self.pieces(ids), ids, strict=True):
            first = end
            if not self._processor.is_byte(index):
                end += len(piece)
            else:
                byte = int(piece[3:5], 16)
                missing = missing - 1 if missing else (byte >= 0xC0) + (byte >= 0xE0) + (byte >= 0xF0)
                end += not missing
            spans.append((max(0, first), max(0, end)))
        return spans

    def files(self, folder: Path, name: str) -> tuple[Path, ...]:
        """The files that `save` writes."""
        return _paths(folder, name, "json", "model", "vocab")

    def save(self, folder: Path, name: str) -> None:
        """Write settings, model and, for people to read, the pieces with their scores."""
        table, model, vocabulary = self.files(folder, name)
        _write(table, _settings_text(self.config, self.fingerprint()))
        model.write_bytes(self._model)
        shown = ((piece if piece.isprintable() else json.dumps(piece), score) for piece, score in self._scores())
        _write(vocabulary, "".join(f"{piece}\t{score:g}\n" for piece, score in shown))

    def _scores(self) -> list[tuple[str, float]]:
        indices = list(range(len(self)))
        return list(zip(self.pieces(indices), self._processor.get_score(indices), strict=True))

    def fingerprint(self) -> str:
        """A hash of the pieces with their scores and of the algorithm that joins them."""
        return _hash({"kind": self.kind, "algorithm": self.config.algorithm, "pieces": self._scores()})


def _without_mark(text: str) -> str:
    if not text.isascii():
        text = text.replace(_SPACE_MARK, _MARK_STAND_IN)
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:  # a lone surrogate, which only JSON or Python itself can have made
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _sampled(texts: Iterable[str], size: int) -> list[str]:
    """At most `size` of the texts, each with the same chance, and the same ones every time."""
    generator = random.Random(0)
    kept: list[str] = []
    for count, text in enumerate(text for text in texts if text):
        if count < size:
            kept.append(text)
        elif (place := int(generator.random() * (count + 1))) < size:
            kept[place] = text
    return kept


def _learn_subwords(config: SubwordsConfig, texts: Iterable[str]) -> Subwords:
    step = _LEARNING_CHARACTERS
    sentences = (_without_mark(text) for text in _sampled(texts, config.sample))
    slices = (text[start : start + step] for text in sentences for start in range(0, len(text), step))
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=slices,
            model_writer=model,
            model_type=config.algorithm,
            vocab_size=config.vocabulary,
            hard_vocab_limit=False,
            character_coverage=config.coverage,
            required_chars=_SPACE_MARK,  # as bytes it would not come back as a space
            byte_fallback=True,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            max_sentence_length=8 * step,  # in bytes
            num_threads=16,  # a constant: the threads' shares enter unigram's sums
            pad_id=PAD,
            unk_id=UNK,
            bos_id=SOS,
            eos_id=EOS,
            pad_piece=SPECIALS[PAD],
            unk_piece=SPECIALS[UNK],
            bos_piece=SPECIALS[SOS],
            eos_piece=SPECIALS[EOS],
            unk_surface=UNKNOWN_SURFACE,
            minloglevel=3,
        )
    except RuntimeError as error:
        if "sentences_.empty()" in str(error):
            raise NoTextError("no text to learn sub-words from") from error
        if needed := re.search(r"smaller than required_chars\. \d+ vs (\d+)", str(error)):
            raise ConfigError(
                f"vocabulary: found {config.vocabulary}, expected {needed[1]} or more for this many "
                "different characters, special symbols and bytes; or set coverage below 1"
            ) from error
        raise DataError(f"sub-words cannot be learned from this text ({error})") from error
    return Subwords(config, model.getvalue())


# --- learning, saving and loading


def _counted(texts: Iterable[Iterable[str]], most: int = 1_000_000) -> Counter[str]:
    """How often each unit comes; when there are too many to hold, the rarest so far are forgotten."""
    counts: Counter[str] = Counter()
    forgotten = 0
    for units in texts:
        counts.update(units)
        while len(counts) > most:
            forgotten += 1
            counts = Counter({unit: count for unit, count in counts.items() if count > forgotten})
    return counts


def learn(config: TokenizerConfig, texts: Iterable[str]) -> Tokenizer:
    """The tokenizer that a configuration and a text give: always the same one for the same two."""
    if isinstance(config, SubwordsConfig):
        return _learn_subwords(config, texts)
    if isinstance(config, CharactersConfig):
        units: Iterable[Iterable[str]] = texts
    elif config.split == "spaces":
        units = map(_split_spaces, texts)
    else:
        short, limit = lru_cache(_CACHED_CHUNKS)(_marked), _CACHED_CHUNK_LENGTH
        units = (
            chain.from_iterable(short(chunk) if len(chunk) <= limit else _marked(chunk) for chunk in _chunks(text))
            for text in texts
        )
    counts = _counted(units)
    if not counts:
        raise NoTextError(f"no text to learn {config.kind} from")
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    room = max(0, config.vocabulary - len(SPECIALS))
    tokens = [token for token, count in ranked[:room] if count >= config.minimum_count]
    return Words(config, tokens) if isinstance(config, WordsConfig) else Characters(config, tokens)


def load_tokenizer(folder: Path, name: str) -> Tokenizer:
    """The tokenizer that was saved in a folder under a name."""
    path = _paths(folder, name, "json")[0]
    try:
        table = json.loads(_read(path))
        kind, expected, tags = table["kind"], table.pop("fingerprint"), table.pop("tags", [])
        separated = table.pop("separator", False)
        if not all(NAME.fullmatch(tag) for tag in tags):
            raise ValueError(f"tags: found {tags}")
        if kind not in _KINDS:
            raise RunError(f"{path}: found the kind '{kind}'. {hint(str(kind), _KINDS)}")
        config = settings.build(_KINDS[kind], table)
    except (ValueError, TypeError, KeyError, AttributeError, ConfigError) as error:
        reason = str(error).replace("\n", "; ")
        raise RunError(f"{path}: damaged tokenizer file ({reason})") from error
    tokenizer: Tokenizer
    if isinstance(config, SubwordsConfig):
        content = _paths(folder, name, "model")[0]
        try:
            tokenizer = Subwords(config, _read(content))
        except (RuntimeError, ValueError) as error:
            raise RunError(f"{content}: damaged tokenizer file (sentencepiece cannot read it)") from error
    else:
        content = _paths(folder, name, "vocabulary.jsonl")[0]
        try:
            tokens = [json.loads(line) for line in _read(content).decode("utf-8").removesuffix("\n").split("\n")]
        except ValueError as error:
            raise RunError(f"{content}: damaged tokenizer file ({error})") from error
        if not all(isinstance(token, str) for token in tokens):
            raise RunError(f"{content}: damaged tokenizer file (found a line that is not a JSON string)")
        tokens = tokens[len(SPECIALS) :]
        tokenizer = Words(config, tokens) if isinstance(config, WordsConfig) else Characters(config, tokens)
    if tags:
        tokenizer = Tagged(tokenizer, tags)
    if separated:
        tokenizer = Joined(tokenizer)
    if tokenizer.fingerprint() != expected:
        raise RunError(f"{content}: damaged tokenizer file (it is not the one that {path.name} was saved with)")
    return tokenizer


def _paths(folder: Path, name: str, *suffixes: str) -> tuple[Path, ...]:
    return tuple(Path(folder) / f"{name}.{suffix}" for suffix in suffixes)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise RunError(f"{path}: tokenizer file cannot be read ({error.strerror})") from error


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode("utf-8"))


def _settings_text(config: TokenizerConfig, fingerprint: str) -> str:
    table = {"kind": config.kind, **asdict(config), "fingerprint": fingerprint}
    return json.dumps(table, indent=2) + "\n"


def _hash(content: dict[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode("ascii"), digest_size=16).hexdigest()
