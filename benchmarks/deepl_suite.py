"""Count how many tests of DeepL's own Python library pass against our server.

    git clone https://github.com/DeepLcom/deepl-python
    pip install keyring
    python benchmarks/deepl_suite.py deepl-python

The tests were written for DeepL's mock server, which knows a few examples, one style and one translation memory. This
trains runs that know these examples by heart, serves them, stores the style through the library itself, and runs the
tests of the checkout unchanged; only the ids of the mock's style and memory become those of this server. Tests that ask
the mock for faults (by headers) cannot pass.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.serving_fuzz import server
from dragoman.base import config as settings
from dragoman.runs import train
from dragoman.runs.tasks.config import build
from dragoman.training.display import Display

KEY = "mock_server"  # with which the tests sign in
RULES = {"dates_and_times": {"calendar_era": "use_bc_and_ad"}}
INSTRUCTIONS = [{"label": "Brief", "prompt": "Be brief"}]
Pairs = Sequence[tuple[str, str]]
MEMORISE: dict[str, Any] = {"model": {"kind": "memorise"}}
# Glossaries and context need a neural network.
_LAYER = {"layers": 1, "width": 64, "heads": 2, "feedforward": 128, "dropout": 0}
NEURAL: dict[str, Any] = {
    "model": {"encoder": _LAYER, "decoder": _LAYER},
    "train": {
        "steps": 200, "validate_every": 100, "device": "cpu", "optimizer": {"learning_rate": 5e-3, "warmup": 20},
        "average": {"kind": "none"},
    },
}  # fmt: skip
# What the tests need of pytest: settings of an older pydantic, and our ids in place of the mock's.
PLUGIN = """
import os, pydantic, pydantic.v1
pydantic.BaseSettings = pydantic.v1.BaseSettings

def pytest_collection_modifyitems(items):
    for item in items:
        for name in {"DEFAULT_STYLE_ID", "DEFAULT_TM_ID"} & set(vars(item.module)):
            setattr(item.module, name, os.environ[name])
"""


def memorised(place: Path, name: str, pairs: dict[str, Pairs], kind: dict[str, Any] = MEMORISE, **data: Any) -> Path:
    """A run that knows pairs by heart, those of each tag apart; "" is no tag."""
    files = []
    for tag, own in pairs.items():
        path = place / f"{name}{tag}.tsv"
        path.write_text("".join(f"{source}\t{target}\n" for source, target in own), encoding="utf-8")
        files.append({"file": str(path)} | ({"tag": tag} if tag else {}))
    tokenizers = {side: {"kind": "bytes"} for side in ("source", "target")}
    table = {"task": "translate", "data": {"train": files, "valid": files, **data}, "tokenizer": tokenizers}
    train(build(settings.merge(table, kind)), place / name, Display(quiet=True))
    return place / name


def make_runs(place: Path, texts: dict[str, str]) -> list[dict[str, str]]:
    """The models of the server: all that the mock server knows."""
    beam, strahl = texts["EN"], texts["DE"]
    german = [(beam, strahl), ("Apple", "Apfel"), ("Banana", "Banane"), ("artist", "Maler"), ("prize", "Gewinn")]
    formal, informal = ("How are you?", "Wie geht es Ihnen?"), ("How are you?", "Wie geht es dir?")
    english = [(target, source) for source, target in german]
    scharf = [("Das ist ein Messer", "That is a knife"), ("Das ist scharf!", "That is sharp!")]
    runs = {
        "en-de": memorised(
            place,
            "en-de",
            {
                tag: [*german, last]
                for tag, last in {"de": formal, "de-formal": formal, "de-informal": informal}.items()
            },
            NEURAL,
        ),
        "de-en": memorised(place, "de-en", {"": english}, NEURAL),
        "de-en.context": memorised(place, "de-en.context", {"": scharf}, NEURAL, context=1),
        "de-en.style": memorised(place, "de-en.style", {"en": english, "en-use-bc-and-ad-be-brief": english}),
        "en-fr": memorised(place, "en-fr", {"": [(beam, texts["FR"])]}),
        "en-tr": memorised(place, "en-tr", {"": [(beam, texts["TR"])]}),
        "fr-de": memorised(place, "fr-de", {"": [(texts["FR"], strahl)]}),
        "en-en": memorised(place, "en-en", {"": [(beam, beam)]}),
    }
    sources = sorted({code.split("-")[0].lower() for code in texts} - {"de", "en"})
    for code in sources:
        own = [(text, beam) for name, text in texts.items() if name.split("-")[0].lower() == code]
        runs[f"{code}-en"] = memorised(place, f"{code}-en", {"": own})
    memory = place / "memory.tsv"
    memory.write_text(f"{strahl}\t{beam}\n", encoding="utf-8")
    models = []
    for name, run in runs.items():
        source, target = name.split(".")[0].split("-")
        models.append(
            {"run": str(run), "source": source, "target": target} | ({"memory": str(memory)} if name == "de-en" else {})
        )
    return models


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkout", type=Path, help="folder of DeepLcom/deepl-python, with its tests")
    parser.add_argument("rest", nargs="*", help="further arguments of pytest")
    given = parser.parse_args()
    checkout = given.checkout.resolve()
    sys.path.insert(0, str(checkout))  # the library of the tests, not an installed one
    import deepl

    source = (checkout / "tests" / "conftest.py").read_text(encoding="utf-8")
    texts = dict(re.findall(r'^    "([A-Z-]+)": "(.*)",$', source, re.MULTILINE))
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        os.environ.setdefault("DRAGOMAN_CACHE", str(place / "cache"))
        config = "".join(
            "[[models]]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in model.items())
            for model in make_runs(place, texts)
        )
        (place / "serve.toml").write_text(f'token = "{KEY}"\n{config}', encoding="utf-8")
        (place / "mock_data.py").write_text(PLUGIN, encoding="utf-8")
        with server("--config", str(place / "serve.toml")) as (url, _):
            client = deepl.DeepLClient(KEY, server_url=url)
            style = client.create_style_rule("Default Style Rule", "en", RULES, INSTRUCTIONS)
            (memory,) = client.list_translation_memories()
            environment = os.environ | {
                "PYTHONPATH": os.pathsep.join([str(place), str(checkout), os.environ.get("PYTHONPATH", "")]),
                "DEEPL_SERVER_URL": url, "DEEPL_MOCK_SERVER_PORT": url.rpartition(":")[2], "DEEPL_AUTH_KEY": KEY,
                "DEFAULT_STYLE_ID": style.style_id, "DEFAULT_TM_ID": memory.translation_memory_id,
            }  # fmt: skip
            command = [sys.executable, "-m", "pytest", "-q", "-p", "mock_data", "-o", "addopts=", "tests", *given.rest]
            raise SystemExit(subprocess.run(command, cwd=checkout, env=environment).returncode)


if __name__ == "__main__":
    main()
