"""How words such as `constraints.require=ship` write the options of decoding. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, get_args, get_origin

from dragoman.base import ConfigError, DataError
from dragoman.base.config import fields_of, setting, type_hints
from dragoman.decoding.config import SearchConfig

if TYPE_CHECKING:
    from dragoman.decoding.constraints.source import Terminology

T = TypeVar("T")
Texts = tuple[str, ...]
OWN = "own"  # the choice of a setting with named choices; the others have None, which is no name


class Words(NamedTuple):
    """How words write an option that Python takes as another value, or at another place."""

    place: str
    annotation: Any  # what the strict loader reads
    default: Any = None
    read: Callable[[Any], Any] = lambda value: value  # the option of the value
    note: str = ""  # what help adds


def option(default: T, help: str, words: Words | None = None, remote: str | None = None, flag: str = "") -> T:
    """A field of `DecodingOptions`; without `words` its name is the place and its type is what words write.

    Clients of a server may give a field with `remote`, which names the limit of the server that caps it, or is empty.
    """
    made: Any = field(default=default, metadata={"help": help, "words": words, "remote": remote, "flag": flag})
    return made  # type: ignore[no-any-return]


def searched(name: str, remote: str = "", flag: str = "") -> Any:
    """A setting of the search; None is the run's own."""
    annotation, help = type_hints(SearchConfig)[name], fields_of(SearchConfig)[name].metadata["help"]
    words = Words(f"search.{name}", annotation | None)
    if get_origin(annotation) is Literal:
        choices: Any = Literal[OWN, *get_args(annotation)]
        words = Words(words.place, choices, OWN, lambda value: None if value == OWN else value, f"; {OWN}: the run's")
    return option(None, help, words, remote, flag)


def constraint(
    name: str, help: str, read: Callable[[Any], Any], annotation: Any = str | None, note: str = "", remote: Any = ""
) -> Any:
    words = Words(f"constraints.{name}", annotation, () if annotation == Texts else None, read, note)
    return option(None, help, words, remote)


def read_text(text: str | None) -> str | None:
    if text == "":
        raise ConfigError("found nothing, expected text")
    return text


def read_phrases(phrases: Texts) -> list[str] | None:
    if twice := next((phrase for phrase in phrases if phrases.count(phrase) > 1), None):
        raise ConfigError(f"found '{twice}' twice, expected each phrase once")
    return list(phrases) or None


def read_named(entries: Texts) -> dict[str, str] | None:
    if wrong := next((entry for entry in entries if not entry.partition("=")[2]), None):
        raise ConfigError(f"found '{wrong}', expected NAME=TEXT")
    return {name: text for name, _, text in (entry.partition("=") for entry in entries)} or None


def read_allowed(file: str | None) -> list[str] | None:
    from dragoman.data.readers import read_lines

    texts = None if file is None else list(read_lines(file))
    if texts == []:
        raise DataError(f"{file}: found no line, expected the allowed outputs, one per line")
    return texts


def read_terminology(file: str | None) -> Terminology | None:
    from dragoman.decoding.constraints.source import Terminology

    return None if file is None else Terminology.read(file)


@dataclass(frozen=True)
class RerankSettings:
    """Runs that rerank the outputs of the beam."""

    runs: tuple[str, ...] = setting((), help="runs trained from target to source, or language models of the target")
    weights: tuple[float, ...] = setting(
        (), help="score = own + weight × that of the run, both means per token; one for each run, else 1"
    )
    tag: str | None = setting(None, help="tag for a run that was trained with several tags")

    def problems(self) -> Iterator[str]:
        if self.weights and len(self.weights) != len(self.runs):
            yield f"weights: found {len(self.weights)} for {len(self.runs)} rerank.runs, expected one for each or none"
        if self.tag is not None and not self.runs:
            yield "tag: needs rerank.runs"
