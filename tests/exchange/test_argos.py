"""An exported .argosmodel: what Argos Translate reads of it, and Argos Translate itself where it is installed."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import ctranslate2
import numpy as np
import onnxruntime
import pytest
import sentencepiece

from dragoman.data.sentences import split_sentences
from dragoman.inference.load import load_run
from tests.conftest import call
from tests.exchange.families import TEXTS
from tests.exchange.test_huggingface_import import tiny_run

BEAM = 4  # of Argos Translate


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("argos")
    run = tiny_run(folder, "pre", "all")
    result = call(
        "export", run, "--to", "argos", "--precision", "float32", "--source-language", "en", "--target-language", "de",
        "--output", folder / "en_de.argosmodel",
    )  # fmt: skip
    assert result.code == 0, result.err
    return folder


def expected(folder: Path, texts: Sequence[str] = tuple(TEXTS["source"])) -> list[str]:
    run = load_run(folder / "trained", "cpu", beam=BEAM, length_penalty=0.2, stop="complete")
    return [one.text for one in run.predict(texts)]


def test_the_archive_has_the_parts_that_argos_reads(exported: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(exported / "en_de.argosmodel") as archive:
        archive.extractall(tmp_path)
    (package,) = tmp_path.iterdir()
    metadata = json.loads((package / "metadata.json").read_text())
    assert (metadata["from_code"], metadata["to_code"]) == ("en", "de")
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(package / "sentencepiece.model"))
    translator = ctranslate2.Translator(str(package / "model"))
    written = translator.translate_batch([pieces.encode(text, out_type=str) for text in TEXTS["source"]], beam_size=1)
    texts = [pieces.decode_pieces(one.hypotheses[0]) for one in written]
    assert texts == [one.text for one in load_run(exported / "trained", "cpu", beam=1).predict(TEXTS["source"])]


SEVERAL = "the cat sat on the mat. Dr. Dog reads a book! Where is it?"
# Without any network: the package brings its sentence splitter.
SCRIPT = """
import json, pathlib, socket, sys
def connect(*arguments): raise AssertionError("nothing may be downloaded")
socket.socket.connect = socket.create_connection = connect
from argostranslate import package, translate
package.install_from_path(pathlib.Path(sys.argv[1]))
(translation,) = [one for language in translate.get_installed_languages() for one in language.translations_from
                  if hasattr(getattr(one, "underlying", one), "sentencizer")]
splitter = getattr(translation, "underlying", translation).sentencizer
texts = json.load(sys.stdin)
print(json.dumps([splitter.split_sentences(texts[-1]), [translate.translate(text, "en", "de") for text in texts]]))
"""


def splitter(exported: Path, tmp_path: Path) -> str:
    with zipfile.ZipFile(exported / "en_de.argosmodel") as archive:
        (name,) = [name for name in archive.namelist() if "/minisbd/" in name]
        return archive.extract(name, tmp_path)


def test_the_splitter_follows_the_rules(exported: Path, tmp_path: Path) -> None:
    session = onnxruntime.InferenceSession(splitter(exported, tmp_path), providers=["CPUExecutionProvider"])
    ids = json.loads(session.get_modelmeta().custom_metadata_map["vocab"])["_unit2id"]
    for text in (
        SEVERAL,
        "One. Two? Three!",
        "Am 3. Oktober z.B. kam J. S. Bach. Und ging... Danach nichts.",
        "“Go!” Then he left.",
        "你好。今天！「是。」他说。",
        "He won 5. Then he won 12. She won 123. Fine.",
        "¿Qué? «No.» (Maybe.) End. no end",
    ):
        units = np.array([[ids.get(char, ids["<UNK>"]) for char in text] + [ids["<PAD>"]]])
        capitals = np.array([[[float(char.isupper())] for char in text] + [[0.0]]], np.float32)
        labels = session.run(None, {"units": units, "features": capitals})[0].argmax(2)[0]
        ends = [index for index in range(len(text) - 1) if labels[index] == 2]
        parts = [text[first:end] for first, end in pairwise([0, *(index + 1 for index in ends), len(text)])]
        assert [part.strip() for part in parts] == [one.text for one in split_sentences(text)], text


@pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("argostranslate", "minisbd", "stanza"))),
    reason="Argos Translate is not installed",
)
def test_argos_translate_installs_and_runs_it(exported: Path, tmp_path: Path) -> None:
    places = {
        "ARGOS_PACKAGES_DIR": str(tmp_path / "packages"),
        "XDG_DATA_HOME": str(tmp_path),
        "XDG_CONFIG_HOME": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, exported / "en_de.argosmodel"], text=True,
        input=json.dumps([*TEXTS["source"], SEVERAL]), capture_output=True,
        env=os.environ | places | {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    sentences, texts = json.loads(done.stdout.splitlines()[-1])
    assert sentences == [one.text for one in split_sentences(SEVERAL)]
    assert [text.strip() for text in texts[:-1]] == expected(exported)
    assert texts[-1].split() == [word for text in expected(exported, sentences) for word in text.split()]
