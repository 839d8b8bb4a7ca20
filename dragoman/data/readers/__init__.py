"""Readers of data files, plain or compressed, in constant memory."""

from dragoman.base.face import face
from dragoman.data.readers.base import READERS
from dragoman.data.readers.columns import CsvReader, TextReader, TsvReader
from dragoman.data.readers.records import JsonReader, ParquetReader
from dragoman.data.readers.tmx import TmxReader

for _reader in (TextReader(), TsvReader(), CsvReader(), JsonReader(), ParquetReader(), TmxReader()):
    READERS.add(_reader)

__getattr__, __dir__ = face(__name__, __file__)
