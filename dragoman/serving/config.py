"""The settings of a server: `serve.toml` and the options of `dragoman serve`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from dragoman.base.config import Range, Size, as_table, build, read_toml, setting
from dragoman.decoding import EngineName, Precision, SearchOverrides

Seconds = Annotated[float, Range(0.0, 86_400.0, exclusive_minimum=True)]
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
BASE_URL = re.compile(r"https?://[A-Za-z0-9._~:\[\]-]+(?:/[A-Za-z0-9._~/-]*)?")
LANGUAGE = re.compile(r"[A-Za-z0-9._-]{1,35}")


@dataclass(frozen=True)
class ModelConfig:
    """A run to serve."""

    run: str = setting(help="the run folder")
    name: str = setting("", help="what requests call it; the name of the folder if empty")
    source: str = setting("", help='language code of its sources, such as "de"; from a name like "de-en" if empty')
    target: str = setting("", help="language code of its outputs; its tags if it was trained with tags")
    memory: str = setting("", help="translation memory (.tsv, .tmx): sources that it has get the translation there")
    default_format: str = setting("text", help='"html" reads texts as HTML unless a request says otherwise')

    def problems(self) -> Iterator[str]:
        """Names that could not be written in a request."""
        if self.name and not NAME.fullmatch(self.name):
            yield f"name: found {self.name!r}, expected letters, digits, dots, hyphens and underscores"
        for side in ("source", "target"):
            if (code := getattr(self, side)) and not LANGUAGE.fullmatch(code):
                yield f"{side}: found {code!r}, expected a language code such as de or pt-BR"
        if self.default_format not in ("text", "html"):
            yield f"default_format: found {self.default_format!r}, expected text or html"


@dataclass(frozen=True)
class LimitsConfig:
    """What a request may ask for, and how much may wait."""

    body: Size = setting(10_000_000, help="bytes of a request body")
    json: Size = setting(2_000_000, help="bytes of a body without files")
    items: Size = setting(1_000, help="texts in a request")
    characters: Size = setting(50_000, help="characters of all texts of a request together")
    sentence: Size = setting(
        1_500, help="characters of a sentence; a longer one is cut at clauses when texts are split"
    )
    beam: Size = setting(16, help="beam width, and outputs per input")
    samples: Size = setting(64, help="outputs that a decoding method may draw or search for each text")
    tokens: Size = setting(1_024, help="max_length and max_tokens of a request")
    work: Size = setting(
        400_000, help="tokens that a request may have searched: texts × hypotheses or samples × tokens of an output"
    )
    batch_time: Seconds = setting(
        1.0, help="seconds that a batch should take at most; an input that takes longer is computed beside the others"
    )
    queue: Size = setting(512, help="sentences that wait; further requests are answered 503")
    wait: Annotated[float, Range(0.0, 86_400.0)] = setting(
        4.0, help="seconds of expected waiting above which a request is answered 503; 0: only the queue counts"
    )
    pattern: Annotated[int, Range(0, 200)] = setting(
        0, help="characters of a regular expression; 0 refuses them: a hard one can take a worker a minute"
    )
    streams: Size = setting(4, help="token streams at the same time")
    request_time: Seconds = setting(30.0, help="seconds until an unfinished request is given up and answered 503")
    read_time: Seconds = setting(15.0, help="seconds that a client may take to send a request")
    grace: Seconds = setting(35.0, help="seconds after SIGTERM until the process has ended, whatever it computes")
    corrections: Size = setting(100_000_000, help="bytes of all corrections that are kept; further ones are refused")
    files: Size = setting(
        200, help="translated files of a client that wait to be fetched; another one pushes out its oldest"
    )
    file_bytes: Size = setting(200_000_000, help="bytes of these files together")
    glossaries: Size = setting(200, help="stored glossaries of a client; further ones are refused")
    glossary_bytes: Size = setting(20_000_000, help="bytes of these glossaries together")
    connections: Size = setting(1_000, help="open connections per worker; further ones are answered 503")


@dataclass(frozen=True)
class ServeConfig:
    """Which runs to serve, where, and within which limits."""

    models: tuple[ModelConfig, ...] = setting((), help="the runs")
    host: str = setting("127.0.0.1", help="address to listen on; 0.0.0.0 is every network interface", flag="--host")
    port: Annotated[int, Range(0, 65_535)] = setting(5000, help="port to listen on; 0 takes a free one", flag="--port")
    workers: Size = setting(
        1, help="processes; each has its own copy of the models and its own queue", flag="--workers"
    )
    threads: Annotated[int, Range(0)] = setting(0, help="CPU threads of a worker; 0: the cores divided by the workers")
    device: str = setting("auto", help="where to compute: auto, cpu, cuda, cuda:N or mps", flag="--device")
    engine: EngineName = setting("auto", help="auto, torch or ctranslate2")
    precision: Precision = setting(
        "float32", help="int8 with ctranslate2 and bfloat16 on a GPU are faster; texts may differ a little"
    )
    batch_size: Size = setting(32, help="sentences computed together at most", flag="--batch-size")
    search: SearchOverrides = setting(SearchOverrides(), help="how to search where a request does not say it")
    min_confidence: Annotated[float, Range(0.0, 1.0)] | None = setting(
        None,
        help="outputs of lower confidence are left out and marked as refused; needs calibrated runs",
        flag="--min-confidence",
    )
    token: str = setting(
        "",
        help="secret that requests must bring; empty: none (the variable DRAGOMAN_TOKEN also sets it)",
        flag="--token",
    )
    cors: tuple[str, ...] = setting((), help='origins whose pages may call the server, such as "https://example.org"')
    base_url: str = setting(
        "",
        help="address of the server in links of its answers, such as https://example.org/translate; its own if empty",
    )
    corrections: str = setting(
        "",
        help="folder that keeps corrections of clients (/suggest); empty: the server takes none",
        flag="--corrections",
    )
    folder: str = setting(
        "", help="folder that keeps stored glossaries when the server starts again; empty: only until it stops"
    )
    keep_numbers: bool = setting(
        False, help="leave 1,234.5 in documents as it is where the target language has 1.234,5"
    )
    page: bool = setting(True, help="whether / is a web page for people")
    limits: LimitsConfig = setting(LimitsConfig(), help="what requests may ask for")

    def problems(self) -> Iterator[str]:
        if self.base_url and not BASE_URL.fullmatch(self.base_url):
            yield f"base_url: found {self.base_url!r}, expected an address such as https://example.org"
        names = [model.name or Path(model.run).resolve().name for model in self.models]
        if twice := next((name for name in names if names.count(name) > 1), None):
            yield f"models: found the name {twice!r} twice; give each model a name of its own"


def load_config(path: str | Path) -> ServeConfig:
    """Read serve.toml; relative paths are relative to the file."""
    table = read_toml(path)
    config = build(ServeConfig, table, origin=path)
    folder = Path(path).parent
    models = [
        as_table(model) | {"run": str(folder / model.run), "memory": str(folder / model.memory) if model.memory else ""}
        for model in config.models
    ]
    folders = {name: str(folder / own) for name in ("corrections", "folder") if (own := getattr(config, name))}
    return build(ServeConfig, as_table(config) | {"models": models} | folders, origin=path)
