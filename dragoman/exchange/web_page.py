"""Export a run as a web page that needs no server: the model, its tokenizers and a runtime in a folder or in one file.

The graphs are those of `--to onnx`, with the attention of every step. The page and its modules are in
`dragoman/web/offline`; they search, tokenize and split as `dragoman predict` does.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from string import Template
from typing import Any

import torch
from torch import nn

from dragoman.base import ConfigError, MissingExtraError, __version__
from dragoman.data import SourceReader, language_name, languages_of_name
from dragoman.data.tokenizers import (
    EOS,
    PAD,
    SOS,
    ByteLevelBPETokenizer,
    SentencePieceTokenizer,
    SubwordTokenizer,
    VocabularyTokenizer,
)
from dragoman.decoding import SUPPRESSED_TOKENS, SearchConfig
from dragoman.exchange.card import test_rows, training_rows
from dragoman.exchange.onnx import (
    LONGEST,
    decode_greedily,
    model_blockers,
    write_graphs,
)
from dragoman.exchange.onnx_greedy import GreedyDecoder
from dragoman.exchange.onnx_int8 import PrecisionCheck, compare_labels, compare_texts, write_int8
from dragoman.exchange.onnx_labels import LABEL_GRAPH, GraphOutputs, label_blockers, words_of, write_label_graph
from dragoman.exchange.web_runtime import BINARY, FILES, MODULE, find_runtime
from dragoman.inference.engine import Exporter, encoder_decoder
from dragoman.models import EncoderDecoder
from dragoman.runs import Run, import_record
from dragoman.runs.tasks import encoder_of, length_limit
from dragoman.web import asset, bundle, json_for_html, modules_of, security_policy

FORMAT = 1  # of model.json
ENTRY = "offline-page"
LABEL_TASKS = ("classify", "tag")
TASKS = ("translate", *LABEL_TASKS)
STYLES = ("style.css", "panels.css")
# The page reads its own files and compiles WebAssembly; nothing else, and nothing from elsewhere.
POLICY = "; ".join(
    (
        "default-src 'none'", "script-src 'self' 'wasm-unsafe-eval'", "style-src 'self'", "img-src 'self' data:",
        "connect-src 'self'", "worker-src 'self'", "manifest-src 'self'", "base-uri 'none'", "form-action 'none'",
    )
)  # fmt: skip
# Settings of a search that pages do not have.
UNSUPPORTED = ("coverage_penalty", "min_length", "no_repeat_ngram", "beam_groups")


class WebExporter(Exporter):
    """The exporter of `dragoman export --to web`."""

    name = "web"
    about = "a web page that runs the model in the browser, without a server: a folder, or with --single one file"
    options = ("precision", "source_language", "target_language", "single", "runtime")

    def blockers(self, run: Run) -> list[str]:
        if run.task.name not in TASKS:
            return [f"task: found {run.task.name!r}, expected {' or '.join(map(repr, TASKS))}"]
        if run.task.name in LABEL_TASKS:
            return label_run_blockers(run)
        reasons = model_blockers(run.config.model)
        for side, tokenizer in zip(("source", "target"), run.tokenizers(), strict=True):
            reasons += tokenizer_blockers(tokenizer, side)
        default = SearchConfig()
        for name in UNSUPPORTED:
            if (value := getattr(run.config.search, name)) != (expected := getattr(default, name)):
                reasons.append(f"search.{name}: found {value}, expected {expected}")
        return reasons

    def export(self, run: Run, path: Path, options: Mapping[str, str]) -> None:
        if (precision := options.get("precision")) == "float16":
            raise ConfigError(f"--precision: found {precision!r}, expected float32 or int8 for a web page")
        runtime = find_runtime(options.get("runtime"))  # before the slow part
        folder = path.with_name(f"{path.name}.parts") if "single" in options else path
        folder.mkdir()
        model = folder / "model"
        model.mkdir()
        if run.task.name in LABEL_TASKS:
            labels: Any = run.model(torch.device("cpu"))
            write_label_graph(labels, model / LABEL_GRAPH)
            table = label_table(run, labels, options)
            compare = partial(compare_labels, run, labels)
        else:
            network = encoder_decoder(run)
            graphs = write_graphs(network, model, attention=True)
            table = model_table(run, network, options) | {"caches": graphs.caches, "attention_heads": graphs.heads}
            compare = partial(compare_texts, run, table)
        table["about"].append(("Precision", choose_precision(model, precision, compare)))
        (model / "model.json").write_text(json.dumps(table, ensure_ascii=False, separators=(",", ":")), "utf-8")
        title = " → ".join(table["languages"]) if all(table["languages"]) else run.folder.resolve().name
        if "single" in options:
            path.write_text(single_page(title, model, runtime), encoding="utf-8")
            shutil.rmtree(folder)
        else:
            write_page(title, folder, runtime)

    def decode(self, run: Run, path: Path, sources: Sequence[Sequence[int]]) -> list[list[int]]:
        with model_folder(path) as folder:
            table = json.loads((folder / "model.json").read_text(encoding="utf-8"))
            return decode_greedily(GreedyDecoder(folder, table), sources)

    def label_outputs(self, run: Run, path: Path, model: Any) -> GraphOutputs:
        with model_folder(path) as folder:
            return GraphOutputs(model, folder / LABEL_GRAPH)


def label_run_blockers(run: Run) -> list[str]:
    source = run.tokenizers()[0]
    if not source.is_text:
        return [f"tokenizer.source.kind: found {source.kind!r}, expected a tokenizer of texts"]
    reasons = label_blockers(run.config.model) + tokenizer_blockers(source, "source")
    if source.separator is not None:
        reasons.append(f"data.columns: found {len(run.config.data.columns)}, expected one text and its label")
    return reasons


def label_table(run: Run, network: Any, options: Mapping[str, str]) -> dict[str, Any]:
    """Everything that the page of a classifier or tagger needs to know besides the graph."""
    source, labels = run.tokenizers()
    chain = getattr(network, "chain", None)
    positions = length_limit(encoder_of(run.config))[1]
    return {
        **source_table(run, options),
        "labels": list(labels.names),
        "words": words_of(network),
        "chain": chain and {name: weight.tolist() for name, weight in chain.named_parameters()},
        "max_tokens": min(LONGEST, positions or LONGEST) - 1,
        "about": [
            *about(run, network, "examples", options),
            ("Source", f"{len(source):,} {source.kind}"),
            ("Labels", f"{len(labels.names):,}"),
        ],
    }


def choose_precision(folder: Path, wanted: str | None, compare: Callable[[Path, Path], PrecisionCheck | None]) -> str:
    """Leave graphs of the wanted precision in a folder, by default int8 if validation lines show no loss; say which."""
    if wanted == "float32":
        return "float32"
    small = folder.with_name("int8")
    small.mkdir()
    for graph in folder.glob("*.onnx"):
        write_int8(graph, small / graph.name)
    check = compare(folder, small)
    chosen = wanted == "int8" or (check is not None and check.lossless)
    for graph in small.iterdir() if chosen else ():
        graph.replace(folder / graph.name)
    shutil.rmtree(small)
    return f"{'int8 weights' if chosen else 'float32'} ({check or 'not compared: the validation data are gone'})"


def model_table(run: Run, model: EncoderDecoder, options: Mapping[str, str]) -> dict[str, Any]:
    """Everything that the page needs to know besides the graphs."""
    source, target = run.tokenizers()
    shared = source.fingerprint() == target.fingerprint() and not source.tags
    longest = [run.config.data.max_length]
    if (positions := length_limit(encoder_of(run.config))[1]) is not None:
        longest.append(positions - 1)  # <eos> takes one
    return {
        **source_table(run, options),
        "suppressed": list(SUPPRESSED_TOKENS),
        "prompt": list(model.config.prompt),
        "length_ratio": run.data["length_ratio"],
        "max_positions": min(model.max_positions or LONGEST, LONGEST - len(model.config.prompt)),
        "max_tokens": min(longest),
        "search": asdict(run.config.search),
        "target": None if shared else tokenizer_spec(target),
        "about": [
            *about(run, model, "pairs", options),
            ("Source", f"{len(source):,} {source.kind}"),
            ("Target", f"{len(target):,} {target.kind}"),
        ],
    }


def source_table(run: Run, options: Mapping[str, str]) -> dict[str, Any]:
    """What every task has: how texts are read."""
    characters = run.data.get("characters")
    if not isinstance(characters, dict) or run.config.train.pretrained is not None:
        characters = {}  # it has learned from more than its own data
    return {
        "format": FORMAT,
        "task": run.task.name,
        "languages": language_names(run, options),
        "special": {"pad": PAD, "sos": SOS, "eos": EOS},
        "max_characters": run.config.data.max_characters,
        "source": tokenizer_spec(run.tokenizers()[0]),
        "characters": characters.get("source"),
    }


def language_names(run: Run, options: Mapping[str, str]) -> list[str]:
    """The names of both languages: as the options say, else by the name of the run; empty where neither does."""
    found = languages_of_name(run.folder.resolve().name)
    given = (options.get("source_language") or found[0], options.get("target_language") or found[1])
    return [language_name(code) if code else "" for code in given]


def about(run: Run, model: nn.Module, unit: str, options: Mapping[str, str]) -> list[tuple[str, str]]:
    """What the page says about its model, whatever its task; MODEL_CARD.md of a folder says more."""
    training = dict(training_rows(run))
    rows = [
        ("Run", run.folder.resolve().name),
        ("Model", f"{sum(parameter.numel() for parameter in model.parameters()):,} parameters"),
        ("Training data", f"{run.data['train'].get('pairs', 0):,} {unit}"),
        ("Training", f"{training['steps']} steps, {training['time']}, hardware: {training['hardware']}"),
        ("Made with", f"Dragoman {__version__}"),
    ]
    if "scores" in options:
        rows += [(f"Test set, {name}", score) for name, score in test_rows(options["scores"])]
    rows += [("Licence", name) for name in (options.get("licence"), import_record(run.folder).get("licence")) if name]
    return rows


# --- the page


def write_page(title: str, folder: Path, runtime: Path) -> None:
    """Write everything beside model/: page, modules, styles, runtime, service worker, and the list of all files."""
    (folder / "runtime").mkdir()
    for name in FILES:
        shutil.copyfile(runtime / name, folder / "runtime" / name)
    for name, text in modules_of(ENTRY).items():
        (folder / f"{name}.js").write_text(text, encoding="utf-8")
    for name in (*STYLES, "icon.svg"):
        (folder / name).write_text(asset(name), encoding="utf-8")
    page = Template(asset("offline/index.html")).substitute(policy=html.escape(POLICY), title=html.escape(title))
    (folder / "index.html").write_text(page, encoding="utf-8")
    names = {"title": json.dumps(title)[1:-1], "short": json.dumps(title[:30])[1:-1]}
    manifest = Template(asset("offline/manifest.webmanifest")).substitute(names)
    (folder / "manifest.webmanifest").write_text(manifest, encoding="utf-8")
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    listed = ["./", *(f"./{path.relative_to(folder).as_posix()}" for path in files)]
    (folder / "files.json").write_text(json.dumps(listed, indent=0), encoding="utf-8")
    content = hashlib.blake2b(digest_size=8)
    for path in files:
        content.update(path.read_bytes())
    worker = asset("offline/service-worker.js").replace("$version", f"dragoman-{content.hexdigest()}")
    (folder / "service-worker.js").write_text(worker, encoding="utf-8")


def single_page(title: str, model: Path, runtime: Path) -> str:
    """One HTML file with everything inside; binary files are compressed, which browsers undo."""
    files = {path.name: path.read_bytes() for path in sorted(model.iterdir())}
    files["runtime.wasm"] = (runtime / BINARY).read_bytes()
    packed = {name: base64.b64encode(gzip.compress(data, mtime=0)).decode("ascii") for name, data in files.items()}
    script = inline_runtime((runtime / MODULE).read_text(encoding="utf-8")) + bundle(ENTRY)
    style = "\n".join(map(asset, STYLES))
    icon = base64.b64encode(asset("icon.svg").encode("utf-8")).decode("ascii")
    return Template(asset("offline/single.html")).substitute(
        policy=html.escape(security_policy([script], [style], webassembly=True)),
        title=html.escape(title),
        icon=f"data:image/svg+xml;base64,{icon}",
        style=style,
        files=json_for_html(packed),
        script=script,
    )


@contextmanager
def model_folder(path: Path) -> Iterator[Path]:
    """The files of the model of an exported folder or, unpacked, of a page with everything inside."""
    if path.is_dir():
        yield path / "model"
        return
    embedded = re.search(r'<script type="application/json" id="files">(.*?)</script>', path.read_text("utf-8"), re.S)
    assert embedded is not None, f"{path}: single_page wrote it"
    with tempfile.TemporaryDirectory() as scratch:
        for name, packed in json.loads(embedded[1]).items():
            Path(scratch, name).write_bytes(gzip.decompress(base64.b64decode(packed)))
        yield Path(scratch)


def inline_runtime(source: str) -> str:
    """The module of the runtime as a global value: a script inside a page cannot import another one."""
    match = re.search(r"export\{([^}]*)\};?\s*(?://# sourceMappingURL=\S*\s*)?$", source)
    assert match is not None, f"{MODULE} ends with its exports"
    names = [name.split(" as ") for name in match[1].split(",")]
    exports = ", ".join(f"{name[-1].strip()}: {name[0].strip()}" for name in names)
    body = source[: match.start()]
    assert "</script" not in body, f"{MODULE} would end the script element"
    return f"globalThis.embeddedRuntime = (() => {{\n{body}\nreturn {{ {exports} }};\n}})();\n"


# --- tokenizers as JSON for dragoman/web/offline/tokenizers.js

KINDS = ("subwords", "words", "characters", "bytes", "sentencepiece", "wordpiece", "byte-level-bpe")
ALGORITHMS = {1: "unigram", 2: "bpe"}  # model_type of a SentencePiece file


def tokenizer_spec(tokenizer: SourceReader) -> dict[str, Any]:
    """Settings, vocabulary and rules of a text tokenizer, whatever wraps it."""
    inner = tokenizer.innermost
    spec: dict[str, Any] = json.loads(tokenizer.contents()[0])
    if isinstance(inner, VocabularyTokenizer):
        spec["tokens"] = inner.pieces(range(len(inner)))
    if isinstance(inner, SubwordTokenizer | SentencePieceTokenizer):
        spec["model"] = sentencepiece_spec(inner.model)
    if isinstance(inner, SentencePieceTokenizer):
        spec["codes"] = sorted(inner.codes)
    if isinstance(inner, ByteLevelBPETokenizer):
        spec["merges"] = str(inner.contents()[2]).splitlines()
    return spec


def tokenizer_blockers(tokenizer: SourceReader, side: str) -> list[str]:
    inner = tokenizer.innermost
    if inner.kind not in KINDS:
        return [f"tokenizer.{side}.kind: found {inner.kind!r}, expected one of {', '.join(map(repr, KINDS))}"]
    if isinstance(inner, SubwordTokenizer | SentencePieceTokenizer):
        kind = parsed(inner.model).trainer_spec.model_type
        if kind not in ALGORITHMS:
            return [f"tokenizer.{side}: found a SentencePiece model of type {kind}, expected unigram or BPE"]
    return []


def parsed(model: bytes) -> Any:
    try:
        from sentencepiece import sentencepiece_model_pb2
    except ImportError:
        raise MissingExtraError("dragoman export --to web", "protobuf", "export") from None
    messages: Any = sentencepiece_model_pb2
    return messages.ModelProto.FromString(model)


def sentencepiece_spec(model: bytes) -> dict[str, Any]:
    proto = parsed(model)
    trainer, normalizer = proto.trainer_spec, proto.normalizer_spec
    return {
        "pieces": [piece.piece for piece in proto.pieces],
        "scores": [float(f"{piece.score:.9g}") for piece in proto.pieces],  # nine digits tell all float32 apart
        "types": [piece.type for piece in proto.pieces],
        "algorithm": ALGORITHMS[trainer.model_type],
        "byte_fallback": trainer.byte_fallback,
        "unk_surface": trainer.unk_surface,
        "whitespace_as_suffix": trainer.treat_whitespace_as_suffix,
        "add_dummy_prefix": normalizer.add_dummy_prefix,
        "remove_extra_whitespaces": normalizer.remove_extra_whitespaces,
        "charsmap": base64.b64encode(normalizer.precompiled_charsmap).decode("ascii"),
    }
