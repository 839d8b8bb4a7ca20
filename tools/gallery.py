"""Make the gallery of the documentation: live pages of six models, a comparison, the ladder, a model in the browser.

python tools/gallery.py docs/gallery              train what runs/gallery does not have yet, then draw every page
python tools/gallery.py docs/gallery --steps 4    a trial: as little training

The models learn from the CMU dictionary (extra `demo`) and from numbers, on the CPU, once. Every call draws the
pages again, with the present code. The ladder was trained on a GPU: its numbers are kept, and drawn as well.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import inspect
import json
import os
import random
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dragoman.auto import demonstration
from dragoman.base.errors import DragomanError
from dragoman.cli import guarded
from dragoman.exchange.web_runtime import find_runtime
from dragoman.inspect.views.figures import new_figure, save_plot

ROOT = Path(__file__).resolve().parent.parent
LADDER = ROOT / "benchmarks" / "results" / "ladder.json.gz"
TEST_WORDS = 500  # of the comparison
STRESSED = 40_000  # words with their stress
LINES = 3_000  # pictures of numbers
PRINTED = "1,847,206"  # the number on the picture of the page
HEADING = "# Gallery\n"
sys.path.insert(0, str(ROOT))
from examples import number_names  # noqa: E402

# -- Data ------------------------------------------------------------------------------------------------------------


def sounds(folder: Path) -> None:
    """English words and their sounds, and words that no model was trained on."""
    pairs, held = demonstration.split()
    write(folder / "sounds.tsv", (f"{word}\t{text}" for word, text in pairs))
    chosen = sorted(held, key=demonstration.hashed)[:TEST_WORDS]
    write(folder / "sounds-test.tsv", ("\t".join((word, *held[word])) for word in chosen))


def numbers(folder: Path) -> None:
    """Numbers and their names."""
    number_names.main([str(folder / "numbers.tsv"), str(folder / "numbers-test.tsv")])


def stress(folder: Path) -> None:
    """Sounds of a word and the stress of each: 1, 2 or 0 for vowels, - for consonants."""
    rows = []
    for word, text in demonstration.dictionary(stress=True):
        if demonstration.hashed(word) >= demonstration.TEST_SHARE and any(character.isdigit() for character in text):
            parts = (re.fullmatch(r"([A-Z]+)(\d?)", sound) for sound in text.split())
            rows.append("".join(f"{part[1]}\t{part[2] or '-'}\n" for part in parts if part))
    write(folder / "stress.tsv", random.Random(1).sample(sorted(set(rows)), STRESSED))


def lines(folder: Path) -> None:
    """Numbers as pictures, in letters of different sizes, places and greys, with noise; the last is for the page."""
    import numpy
    from PIL import Image, ImageDraw, ImageFont

    draw, noise = random.Random(1), numpy.random.default_rng(1)
    (folder / "pictures").mkdir(exist_ok=True)
    rows = []
    for number in range(LINES + 1):
        text = f"{draw.randrange(10 ** draw.randint(2, 7)):,}" if number < LINES else PRINTED
        font = ImageFont.load_default(draw.randint(13, 17))
        paper = Image.new("L", (round(font.getlength(text)) + 12, 24), draw.randint(225, 255))
        ImageDraw.Draw(paper).text((draw.randint(3, 8), draw.randint(1, 4)), text, draw.randint(0, 90), font)
        pixels = numpy.asarray(paper) + noise.normal(0, 8, (paper.height, paper.width))
        name = f"{number:04d}.png" if number < LINES else "line.png"
        Image.fromarray(pixels.clip(0, 255).astype("uint8")).save(folder / "pictures" / name)
        rows.append(f"{name}\t{text}")
    write(folder / "lines.tsv", rows[:-1])


def write(path: Path, rows: Iterable[str]) -> None:
    path.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")


# -- Models ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Model:
    """A run and its page."""

    name: str
    title: str
    about: str
    data: Callable[[Path], None]
    file: str
    settings: tuple[str, ...]
    text: str  # what the page is about
    view: str | None  # of the small picture; None: the picture that the model reads

    def training(self, steps: int | None) -> tuple[str, ...]:
        """The command that trains it."""
        fewer: tuple[str, ...] = ()
        if steps is not None:
            fewer = (f"train.steps={steps}", f"train.validate_every={steps}")
            fewer += () if "task=tag" in self.settings else ("train.decode=4",)  # a tagger has no search
        return ("train", self.file, "--run", f"runs/{self.name}", *self.settings, *fewer)

    def page(self) -> tuple[str, ...]:
        return ("inspect", f"runs/{self.name}", self.text, "--output", f"{self.name}.html")


SHORT = ("train.optimizer.schedule=cosine", "train.optimizer.learning_rate=0.006", "train.optimizer.warmup=30")
MODELS = (
    Model(
        "attention", "Letters to sounds with attention",
        "GRUs read a word that they have never seen and write its sounds. The page has attention, gates and states "
        "over time, how far gradients reach back, and the beam as a tree.",
        sounds, "sounds.tsv", ("preset=demo-rnn", "train.steps=400", "train.validate_every=200"), "dragoman",
        "attention",
    ),
    Model(
        "transformer", "The same with a Transformer",
        "Every head of every layer, one attention step by step from q and k to W^O, what the model would say after "
        "each layer, and the output without a head.",
        sounds, "sounds.tsv", ("preset=demo-transformer", "train.steps=500", "train.validate_every=250"), "dragoman",
        "attention",
    ),
    Model(
        "hard", "Numbers to names with hard attention",
        "The model attends to one character at a time, from left to right, and training sums over all alignments.",
        numbers, "numbers.tsv",
        ("preset=wu-2019-small", "tokenizer.source.kind=characters", "tokenizer.target.kind=words", "train.steps=800",
         "train.validate_every=400"),
        "7,041", "attention",
    ),
    Model(
        "ngrams", "Letters to sounds without a network",
        "An n-gram transducer counts chunks of letters and sounds that belong together. The page shows how sure it is "
        "of each sound, and what changes without a letter.",
        sounds, "sounds.tsv", ("preset=demo-ngrams",), "dragoman", "whatif",
    ),
    Model(
        "lines", "Printed numbers, read with CTC",
        "Convolutions and an LSTM read the picture of a number. The page shows the picture, the probability of every "
        "character along it, and how repeated characters and blanks become the text.",
        lines, "lines.tsv",
        ("task=transcribe", "tokenizer.source.kind=line-image", "tokenizer.source.height=24", "data.media=pictures",
         "model.encoder.subsampling.channels=[8,16]", "model.encoder.inner.layers=1", "model.encoder.inner.width=96",
         "train.steps=400", "train.batch_tokens=2000", "train.validate_every=200", *SHORT),
        "pictures/line.png", None,
    ),
    Model(
        "stress", "The stress of sounds, tagged",
        "A bidirectional LSTM with a CRF tags each sound of a word: 1 and 2 for main and second stress, 0 for none, "
        "- for consonants. The page shows how sure each tag is and which sounds it depends on.",
        stress, "stress.tsv",
        ("task=tag", "tokenizer.source.kind=words", "model.encoder.kind=recurrent", "model.encoder.embedding=32",
         "model.encoder.width=128", "train.steps=200", "train.batch_tokens=3000", "train.validate_every=100", *SHORT),
        "D R AE G AH M AH N", "labels",
    ),
)  # fmt: skip
COMPARED = ("ngrams", "attention", "transformer")
COMPARISON = (
    "compare", *(f"runs/{name}" for name in COMPARED), "--test", "sounds-test.tsv", "--metric", "per",
    "--metric", "exact_match", "--sentence", "dragoman", "--title", "Letters to sounds: three models",
    "--output", "compare.html",
)  # fmt: skip
EXPORT = ("export", "runs/attention", "--to", "web", "--output", "web")


def train(model: Model, steps: int | None) -> None:
    """Train a model in the present folder, unless the run of the same settings and data is there."""
    command = model.training(steps)
    wanted = hashlib.sha256("\n".join([*command, inspect.getsource(model.data)]).encode()).hexdigest()
    finished = Path(f"runs/{model.name}.finished")
    if finished.is_file() and finished.read_text() == wanted:
        return
    finished.unlink(missing_ok=True)
    model.data(Path())
    started = Path(f"runs/{model.name}.started")  # a build that was stopped goes on; other settings begin again
    if not started.is_file() or started.read_text() != wanted:
        shutil.rmtree(f"runs/{model.name}", ignore_errors=True)
        started.parent.mkdir(exist_ok=True)
        started.write_text(wanted)
    call(*command)
    finished.write_text(wanted)


def call(*words: str) -> None:
    """A command of Dragoman in this process; an error ends the build."""
    print(f"$ {shell(words)}", flush=True)
    if (code := guarded(list(words))) != 0:
        raise SystemExit(code)


def shell(words: Iterable[str]) -> str:
    return shlex.join(("dragoman", *words))


# -- Pages -----------------------------------------------------------------------------------------------------------


def draw_model(model: Model, output: Path) -> None:
    """The page of a model, and its small picture."""
    page = output / f"{model.name}.html"
    *command, _ = model.page()
    call(*command, str(page))
    if model.view is None:
        shutil.copyfile(model.text, page.with_suffix(".png"))
    else:
        call(*command, str(page.with_suffix(".svg")), "--view", model.view)


def draw_report(report: Path, page: Path) -> None:
    """A kept report of `dragoman compare` as a page, and its scores as a small picture."""
    call("compare", str(report), "--output", str(page))
    views: list[dict[str, Any]] = json.loads(report.read_text(encoding="utf-8"))["views"]
    scores = next(view["data"] for view in views if view["kind"] == "scores")
    metric = scores["metrics"][0]
    rows = [(row["name"], row["scores"][metric["name"]]) for row in reversed(scores["rows"])]
    figure = new_figure(6.0, 1.0 + 0.35 * len(rows))
    axes = figure.add_subplot()
    errors = [
        [score["score"] - score["low"] for _, score in rows],
        [score["high"] - score["score"] for _, score in rows],
    ]
    axes.barh([name for name, _ in rows], [score["score"] for _, score in rows], xerr=errors, color="#0b69a3")
    axes.set_xlabel(f"{metric['label']} ({'higher' if metric['higher'] else 'lower'} is better), 95 % interval")
    save_plot(figure, page.with_suffix(".svg"))


def draw_ladder(output: Path) -> None:
    report = Path("ladder.json")
    report.write_bytes(gzip.decompress(LADDER.read_bytes()))
    draw_report(report, output / "ladder.html")


def draw_comparison(output: Path) -> None:
    *command, _ = COMPARISON
    call(*command, "compare.json")
    draw_report(Path("compare.json"), output / "compare.html")


def export_page(output: Path, runtime: str | None) -> None:
    """A model that runs in the browser."""
    given = () if runtime is None else ("--runtime", runtime)
    *command, _ = EXPORT
    call(*command, str(output / "web"), *given)
    (output / "web" / "MODEL_CARD.md").unlink()  # it would become a page of the site


def entry(name: str, title: str, about: str, *commands: tuple[str, ...], page: str = "", picture: str = "") -> str:
    """A page in the index: its picture, what it shows, and the commands that made it."""
    page = page or f"{name}.html"
    shown = f"[![{title}]({picture}){{ width=360 }}]({page})\n\n" if picture else ""
    made = "\n".join(map(shell, commands))
    return f"### [{title}]({page})\n\n{shown}{about}\n\n```sh\n{made}\n```\n"


def index(exported: bool, steps: int | None) -> str:
    """The first page of the gallery."""
    parts = [
        HEADING,
        "Every page here is live and needs no network. The build of this site trained six small models on a CPU, each "
        "in one to three minutes, and drew their pages with the commands below.\n",
        "## Six models from inside\n",
    ]
    for model in MODELS:
        picture = f"{model.name}{'.png' if model.view is None else '.svg'}"
        parts.append(entry(model.name, model.title, model.about, model.training(steps), model.page(), picture=picture))
    parts.append("## Models beside each other\n")
    about = "Three of these models on words that none has seen: scores with intervals, p-values, curves, outputs."
    parts.append(entry("compare", "A comparison", about, COMPARISON, picture="compare.svg"))
    about = (
        "A classical model and five networks on the 29,000 pairs of Multi30k, German to English, each network with "
        "3,000 steps on one H200. What each step changed, with scores, outputs, attention, gradients and cost."
    )
    command = (
        "compare",
        "--ladder",
        "multi30k.tsv",
        "--test",
        "test2016.tsv",
        "--steps",
        "3000",
        "--output",
        "ladder.html",
    )
    parts.append(entry("ladder", "The ladder of architectures", about, command, picture="ladder.svg"))
    if exported:
        parts.append("## A model in the browser\n")
        about = "The first model above runs in this page, without a server: type a word. It needs WebAssembly."
        parts.append(entry("web", "Pronounce a word", about, EXPORT, page="web/index.html"))
    return "\n".join(parts)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description="Make the gallery of the documentation.")
    parser.add_argument("output", type=Path, help="the folder of the pages; an older gallery there is replaced")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "gallery", help="where data and runs are kept")
    parser.add_argument("--steps", type=int, help="training steps of every network, for a trial")
    parser.add_argument("--runtime", help="the unpacked npm package onnxruntime-web; by default npm fetches it once")
    parser.add_argument("--without-web", action="store_true", help="leave out the model that runs in the browser")
    given = parser.parse_args(arguments)
    output = given.output.resolve()
    runtime = None if given.runtime is None else str(Path(given.runtime).resolve())
    if output.exists() and any(output.iterdir()):
        old = output / "index.md"
        if not old.is_file() or not old.read_text(encoding="utf-8").startswith(HEADING):
            sys.exit(f"gallery: found {output}, which is no gallery; expected a new folder, or one made before")
        shutil.rmtree(output)
    if not given.without_web:
        try:
            find_runtime(runtime)  # before anything is trained
        except DragomanError as error:
            sys.exit(f"gallery: {error}, or --without-web")
    given.runs.mkdir(parents=True, exist_ok=True)
    os.chdir(given.runs)
    for model in MODELS:
        train(model, given.steps)
    output.mkdir(parents=True, exist_ok=True)
    (output / "index.md").write_text(HEADING, encoding="utf-8")  # first, so that a stopped build can be replaced
    for model in MODELS:
        draw_model(model, output)
    draw_comparison(output)
    draw_ladder(output)
    if not given.without_web:
        export_page(output, runtime)
    (output / "index.md").write_text(index(not given.without_web, given.steps), encoding="utf-8")
    print(f"gallery: {output}")


if __name__ == "__main__":
    main(sys.argv[1:])
