"""An XML parser for files of strangers: it resolves no entity and reads no other file."""

from __future__ import annotations

from typing import Any, NoReturn
from xml.parsers import expat

from dragoman.errors import DataError

MAX_DEPTH = 256


class SafeParser:
    """Feeds data to expat; subclasses handle tags and texts. `name` starts all messages."""

    def __init__(self, name: str, encoding: str | None = None) -> None:
        self.name, self.depth = name, 0
        self._parser = expat.ParserCreate(encoding)
        self._parser.buffer_text = True
        self._parser.EntityDeclHandler = self._refuse_entities
        self._parser.StartElementHandler, self._parser.EndElementHandler = self._start, self._end
        self._parser.CharacterDataHandler = self.characters

    def feed(self, data: bytes, final: bool) -> None:
        """Parse more of the file; an error is a DataError with its place."""
        try:
            self._parser.Parse(data, final)
        except expat.ExpatError as error:
            place = f"{self.name}:{self._parser.ErrorLineNumber}:{self._parser.ErrorColumnNumber + 1}"
            raise DataError(f"{place}: found no well-formed XML ({expat.ErrorString(error.code)})") from None
        except (ValueError, LookupError):  # of an encoding that Python does not have
            raise DataError(f"{self.name}: found an unknown encoding, expected UTF-8") from None

    @property
    def line(self) -> int:
        return int(self._parser.CurrentLineNumber)

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        """Called for every start tag."""

    def end(self, tag: str) -> None:
        """Called for every end tag."""

    def characters(self, data: str) -> None:
        """Called for text."""

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise DataError(f"{self.name}: found more than {MAX_DEPTH} elements inside each other, expected fewer")
        self.start(tag, attributes)

    def _end(self, tag: str) -> None:
        self.depth -= 1
        self.end(tag)

    def _refuse_entities(self, *declared: Any) -> NoReturn:
        raise DataError(f"{self.name}: found a declaration of an entity, expected none; remove it from the DOCTYPE")
