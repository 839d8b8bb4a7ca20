"""An exported .argosmodel: what Argos Translate reads of it, and Argos Translate itself where it is installed."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import ctranslate2
import pytest
import sentencepiece

from dragoman.inference.load import load_run
from tests.conftest import call
from tests.exchange.families import TEXTS
from tests.exchange.test_huggingface_import import tiny_run

BEAM = 4  # of Argos Translate


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("argos")
    run = tiny_run(folder, "pre", "all")
    said = call(
        "export", run, "--to", "argos", "--precision", "float32", "--source-language", "en", "--target-language", "de",
        "--output", folder / "en_de.argosmodel",
    )  # fmt: skip
    assert said.code == 0, said.err
    return folder


def expected(folder: Path) -> list[str]:
    run = load_run(folder / "trained", "cpu", beam=BEAM, length_penalty=0.2, stop="complete")
    return [one.text for one in run.predict(TEXTS["source"])]


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


# Argos splits texts into sentences with stanza or minisbd, which need downloads. Here a text is one sentence instead.
SCRIPT = """
import json, sys, types
stanza, minisbd = types.ModuleType("stanza"), types.ModuleType("minisbd")
minisbd.models = types.SimpleNamespace(cache_dir="", list_models=lambda: ["en"])
class SBDetect:
    def __init__(self, *arguments, **options): pass
    def sentences(self, text): return [text]
minisbd.SBDetect = SBDetect
sys.modules |= {"stanza": stanza, "minisbd": minisbd}
from argostranslate import package, translate
package.install_from_path(__import__("pathlib").Path(sys.argv[1]))
print(json.dumps([translate.translate(text, "en", "de") for text in json.load(sys.stdin)]))
"""


@pytest.mark.skipif(importlib.util.find_spec("argostranslate") is None, reason="argostranslate is not installed")
def test_argos_translate_installs_and_runs_it(exported: Path, tmp_path: Path) -> None:
    places = {
        "ARGOS_PACKAGES_DIR": str(tmp_path / "packages"),
        "XDG_DATA_HOME": str(tmp_path),
        "XDG_CONFIG_HOME": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, exported / "en_de.argosmodel"], input=json.dumps(TEXTS["source"]), text=True,
        capture_output=True, env=os.environ | places | {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [text.strip() for text in json.loads(done.stdout)] == expected(exported)
