"""The page of every task in one browser: every tab is clicked, and any error of a script fails."""

from __future__ import annotations

import base64
import contextlib
import gzip
import html
import json
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dragoman.base import config as settings
from dragoman.base.errors import DataError
from dragoman.data.examples import Example
from dragoman.inference.load import load_run
from dragoman.inspect.measure.comparison import System, compare_runs, forcing_views, story_view
from dragoman.inspect.options import InspectOptions
from dragoman.inspect.views.inspection import Inspection, inspect
from dragoman.runs import train
from dragoman.runs.tasks.config import build
from dragoman.runs.tasks.table import TASKS
from dragoman.web.page import page_data, plain
from tests.conftest import call, quiet_machine, words
from tests.runs.tasks import test_media_end_to_end as media
from tests.runs.tasks.test_masked_language_model import BERT, sentence
from tests.web.test_browser import Opened, browser, compared, playwright, pytestmark, written  # noqa: F401

pytest.importorskip("PIL", reason="pictures need pillow (extra 'media')")

LADDER = Path(__file__).parents[2] / "benchmarks" / "results" / "ladder.json.gz"
TINY: dict[str, Any] = {"steps": 2, "validate_every": 2, "batch_tokens": 400, "optimizer": {"warmup": 1}}
SHORT = {"search": {"max_length": 4, "beam": 2}, "train": {"decode": 2}}  # outputs of untrained models have no end
STACK = {"kind": "transformer", "layers": 2, "width": 16, "heads": 2, "feedforward": 16, "dropout": 0.0}
LIMIT = {"data": {"max_length": 20}}
RECURRENT = {"kind": "recurrent", "embedding": 8, "width": 8, "dropout": 0.0}
NUMBERS = {"source": {"kind": "numbers"}}
SERIES = {"kind": "classifier", "encoder": {**RECURRENT, "embedding": 1}}
# name → task, its file, further tables, and the text to inspect.
Case = tuple[str, str, dict[str, Any], str]
CASES: dict[str, Case] = {
    "transformer": ("translate", "pairs", {"model": {"encoder": STACK, "decoder": STACK}}, "der kleine Hund"),
    "phrases": ("translate", "pairs", {"model": {"kind": "phrase-based", "tune": 0}}, "der kleine Hund"),
    "aligner": ("translate", "pairs", {"model": {"kind": "word-aligner", "method": "ibm3"}}, "der kleine Hund"),
    "chunks": ("translate", "pairs", {"model": {"kind": "ngram-transducer"}}, "der kleine Hund"),
    "classifier": ("classify", "labels", {"model": {"encoder": STACK, "pooling": {"kind": "queries"}}}, "a big dog"),
    "bert": ("classify", "labels", {**LIMIT, "model": {"encoder": BERT}}, "the big dog"),
    "series": ("regress", "series", {"tokenizer": NUMBERS, "model": SERIES}, "0.1 0.2 0.3"),
    "steps": (
        "regress", "series",
        {**LIMIT, "tokenizer": NUMBERS,
         "model": {**SERIES, "pooling": {"kind": "step-weights", "steps": 20}}}, "0.1 0.2 0.3",
    ),
    "kalman": ("regress", "series", {"tokenizer": NUMBERS, "model": {"kind": "kalman", "iterations": 2}}, ".1 .2 .3"),
    "tagger": ("tag", "tags", {"model": {"encoder": RECURRENT, "crf": True}}, "the big dog"),
    "hmm": ("tag", "tags", {"model": {"kind": "hmm"}}, "the big dog"),
    "language model": ("language-model", "texts", {"model": {"stack": STACK, "segment": 8}}, "the big dog barks"),
    "n-grams": ("language-model", "texts", {"model": {"kind": "ngram"}}, "the big dog barks"),
    "masked": (
        "masked-language-model", "texts",
        {**LIMIT, "model": {"encoder": BERT}}, "the [MASK] dog [MASK] at the old dog",
    ),
    "pairs of texts": (
        "masked-language-model", "texts",
        {**LIMIT, "model": {"next_sentence": True, "encoder": BERT}}, "the big dog [MASK]",
    ),
}  # fmt: skip
MEDIA = {"speech": "test0.wav", "joint": "test0.wav", "captions": "test0.png", "patches": "test0.png",
         "video": "clip0", "sounds": "sound0.wav"}  # fmt: skip
PATCHES = {"kind": "patches", "size": 4, "inner": {**STACK, "positions": {"kind": "learned", "max_positions": 16}}}
NETWORK = {"kind": "pictures", "network": {"channels": [8], "blocks": 1, "width": 8}}
FRAMES: dict[str, tuple[str, dict[str, Any]]] = {
    "video": ("caption", {
        "tokenizer": {"source": {"kind": "video", "size": 8}, "target": {"kind": "words"}},
        "model": {"encoder": {"kind": "frames", "subsampling": NETWORK, "inner": RECURRENT}, "decoder": RECURRENT},
        **SHORT,
    }),
    "sounds": ("tag", {"tokenizer": {"source": media.AUDIO}, "model": {"encoder": {
        "kind": "frames", "subsampling": {"kind": "frame-stacking", "frames": 1}, "inner": RECURRENT,
    }}}),
}  # fmt: skip
Pages = Callable[[str], Inspection]


def write_data(place: Path) -> None:
    draw = random.Random(1)
    sentences = [sentence(draw) for _ in range(60)]
    names = words(6)
    picked = [draw.sample(["der", "kleine", "Hund", *names], 3) for _ in range(60)]
    rows = {
        "pairs.tsv": [f"{' '.join(row)}\t{' '.join(row).upper()}" for row in picked],
        "labels.tsv": [f"{' '.join(words[:4])}\t{draw.choice('ab')}" for words in sentences],
        "series.tsv": [
            f"{' '.join(f'{draw.gauss(0, 1):.2f}' for _ in range(6))}\t{draw.random():.2f}" for _ in range(60)
        ],
        "tags.tsv": ["\n".join(f"{word}\t{'DA'[word != 'the']}" for word in words) + "\n" for words in sentences],
        "texts.txt": [" ".join(words) for words in sentences],
    }
    for name, lines in rows.items():
        (place / name).write_text("\n".join(lines) + "\n")
    for number in range(12):
        clip, sound = place / f"clip{number}", draw.choices(list(media.TONES), k=2)
        clip.mkdir()
        for frame in range(draw.randint(3, 5)):
            (clip / f"{frame}.png").write_bytes(media.picture("red", "left", draw))
        (place / f"sound{number}.wav").write_bytes(media.recording(sound, draw))
    (place / "video.tsv").write_text("".join(f"clip{number}\ta red square\n" for number in range(12)))
    tags = "low@0.1 high@9"  # ends in seconds
    (place / "sounds.tsv").write_text("".join(f"sound{number}.wav\t{tags}\n" for number in range(12)))


def table(name: str, place: Path) -> dict[str, Any]:
    if name in FRAMES:
        train = {"task": FRAMES[name][0], "data": {"train": str(place / f"{name}.tsv"), "holdout": 4}, "train": TINY}
        return dict(settings.merge(train, FRAMES[name][1]))
    if name in MEDIA:
        own = media.table("captions" if name == "patches" else name, place)
        if name == "patches":
            own = {**own, "model": {**own["model"], "encoder": PATCHES}}
        return dict(settings.merge(settings.merge(own, {"train": TINY}), SHORT))
    task, data, further, _ = CASES[name]
    file = next(place.glob(f"{data}.*"))
    further = dict(settings.merge(further, SHORT)) if task == "translate" else further
    return dict(
        settings.merge(
            {
                "task": task, "data": {"train": str(file), "holdout": 8},
                "tokenizer": {"source": {"kind": "words"}},
                "train": TINY,
            },
            further,
        )
    )  # fmt: skip


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pages]:
    """The inspection of each case; a run is trained for two steps when it is first asked for."""
    place = tmp_path_factory.mktemp("tasks")
    write_data(place)
    media.write_data(place)
    for archive, member in (("sounds.tar.gz", "test0.wav"), ("pictures.tar", "test0.png")):
        media.unpack(place / archive, member)
    found: dict[str, Inspection] = {}

    def inspected(name: str) -> Inspection:
        if name not in found:
            run = place / "runs" / name.replace(" ", "-")
            train(build(table(name, place)), run)
            text = str(place / MEDIA[name]) if name in MEDIA else CASES[name][3]
            found[name] = inspect(load_run(run, "cpu"), text)
        return found[name]

    with quiet_machine(place / "cache"), contextlib.chdir(place):
        yield inspected


def test_every_task_has_a_case() -> None:
    tasks = {case[0] for case in CASES.values()} | {media.CASES[name]["task"] for name in MEDIA if name in media.CASES}
    assert tasks == set(TASKS)


# Inside the page, so that all tabs take one call: the heading and the text of each, after a step where there are steps.
CLICK_ALL = """() => [...document.querySelectorAll("[role=tab]")].map((tab) => {
  tab.click();
  document.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight", bubbles: true }));
  return [document.querySelector("main h2").innerText, document.body.innerText];
})"""


def test_every_tab_of_every_page(browser: Any, pages: Pages, tmp_path: Path) -> None:  # noqa: F811
    """The Input tab of captions died, and the page stayed at the view before it."""
    for name in (*CASES, *MEDIA):
        found = pages(name)
        opened = Opened(browser, written(tmp_path / "p.html", "inspect-page", found._data()))
        clicked = opened.page.evaluate(CLICK_ALL)
        assert [title for title, _ in clicked] == [view.title for view in found.views], (name, opened.complaints)
        for title, shown in clicked:
            assert not re.search(r"undefined|NaN|\[object", shown), (name, title)
        assert not opened.complaints, (name, opened.complaints)
        opened.check()
        opened.page.context.close()


def test_every_tab_of_two_runs(browser: Any, pages: Pages, tmp_path: Path) -> None:  # noqa: F811
    both = replace(pages("transformer"), beside=pages("tagger"))
    opened = Opened(browser, written(tmp_path / "p.html", "inspect-page", both._data()), width=2000)
    clicked = opened.page.evaluate(CLICK_ALL)
    titles = {
        view.kind: view.title for side in (pages("tagger"), both) for view in side.views
    }  # the first run names them
    kinds = dict.fromkeys(view.kind for side in (both, pages("tagger")) for view in side.views)
    assert [title for title, _ in clicked] == [titles[kind] for kind in kinds]
    assert opened.page.locator(".run-name").all_inner_texts() == ["transformer", "tagger"]
    opened.check()


def test_every_tab_of_a_comparison(browser: Any, pages: Pages, tmp_path: Path) -> None:  # noqa: F811
    """A phrase-based system had no panel beside the attention of the others."""
    names = ("phrases", "transformer", "aligner", "chunks")
    runs = {name: [pages(name).subject.loaded.run.folder] for name in names}
    pairs = (("der kleine Hund", "DER KLEINE HUND"), ("Hund der", "HUND DER"))
    test = [Example(source, (target,), "test.tsv", line) for line, (source, target) in enumerate(pairs, 1)]
    chosen: dict[str, Any] = {"metrics": ("bleu",), "draws": 20, "seed": 1, "device": "cpu", "sentence": None}
    views = compare_runs(runs, test, **chosen, cost=False, say=lambda line: None)
    scores = next(view for view in views if view.kind == "scores").data
    figures = ("attentions", "lengths", "curves", "flows", "cost")  # those that are there are drawn
    views.insert(0, story_view([(name, 2017, "Something changes.", figures) for name in names], scores))
    systems = [System(name, [], {}, {}, tuple(folders)) for name, folders in runs.items()]
    exposure, padding = forcing_views(systems, test, "cpu", lambda line: None)
    assert [one["name"] for one in exposure.data["systems"]] == ["transformer"]
    for batch in padding.data["batches"]:
        assert batch["positions"] == 2 * max(batch["target"])
        assert padding.data["tokens"] == padding.data["systems"][0]["tokens"] == sum(batch["target"])
    views += [exposure, padding]
    opened = Opened(browser, compared(tmp_path / "c.html", views))
    clicked = opened.page.evaluate(CLICK_ALL)
    assert [title for title, _ in clicked] == [view.title for view in views], opened.complaints
    for title, shown in clicked:
        assert not re.search(r"undefined|NaN|\[object|BLEU \(lower", shown), title
    opened.check()
    maps = next(view for view in views if view.kind == "attentions").data["maps"]
    assert [(one["name"], one["weights"] is not None) for one in maps] == [(name, True) for name in names[:3]]


def with_lists(value: Any) -> Any:
    """Data of a page as `compare --output x.json` writes them."""
    if isinstance(value, dict) and "f32" in value:
        return np.frombuffer(base64.b64decode(value["f32"]), "<f4").reshape(value["shape"]).tolist()
    if isinstance(value, dict):
        return {key: with_lists(inner) for key, inner in value.items()}
    return [with_lists(inner) for inner in value] if isinstance(value, list) else value


def test_the_published_ladder(browser: Any, tmp_path: Path) -> None:  # noqa: F811
    """It said "BLEU (lower is better)" and "undefined of the source", and had no panel for the first step.

    What is opened was drawn again from the numbers alone.
    """
    kept = json.loads(gzip.decompress(LADDER.read_bytes()))
    (tmp_path / "ladder.json").write_text(json.dumps(plain(with_lists(kept))))
    drawn = tmp_path / "ladder.html"
    result = call("compare", tmp_path / "ladder.json", "--output", drawn)
    assert result.code == 0, result.err
    page = drawn.read_text(encoding="utf-8")
    assert page_data(page)["title"] == kept["title"]
    assert html.escape(kept["title"]) in page
    (tmp_path / "other.json").write_text('{"format": 1}')
    for wrong, message in (("other.json", "no report of"), ("none.json", "cannot be read"), ("ladder.json", ".html")):
        output = () if wrong == "ladder.json" else ("--output", tmp_path / "x.html")
        assert message in call("compare", tmp_path / wrong, *output).err
    opened = Opened(browser, drawn)
    clicked = dict(opened.page.evaluate(CLICK_ALL))
    for title, shown in clicked.items():
        assert not re.search(r"undefined|NaN|\[object|BLEU \(lower", shown), title
    assert "BLEU (higher is better)" in clicked["Score by length"]
    opened.page.locator("#tab-story").click()
    steps = opened.page.locator("main ol h3").all_inner_texts()
    opened.page.locator("#tab-attentions").click()
    panels = opened.page.locator("main section h3").all_inner_texts()
    assert panels == steps
    opened.check()


def test_masked_language_models_show_their_masks(pages: Pages) -> None:
    found = pages("masked")
    source = found.subject.source
    assert source is not None
    assert source.tokens == ("the", "[MASK]", "dog", "[MASK]", "at", "the", "old", "dog", "[SEP]")
    assert not found.notes
    attention = found.view("attention").data
    assert all(layer["rows"]["tokens"] == ["[CLS]", *source.tokens] for layer in attention["layers"])
    assert attention["attribution"]["input-x-gradient"]["source"].shape == (2, 10)
    candidates = found.view("next").data
    filled = load_run(found.subject.loaded.run.folder, "cpu").predict([source.text])[0]
    for row, mask in zip(candidates["pieces"], filled.details["masks"], strict=True):
        assert mask[0]["token"] in row
    rows = found.view("positions").data["rows"]
    assert list(rows["tokens"]) == ["[CLS]", *source.tokens]
    assert rows["position"] == list(range(10))
    again = inspect(found.subject.loaded, f"{source.text}\tthe cat", InspectOptions("big barks"))
    assert again.view("positions").data["rows"]["segment"] == [0] * 10 + [1] * 3
    logs = again.view("overview").data["log_probabilities"]
    assert again.subject.target.tokens == ("big", "barks")
    torch.testing.assert_close(logs, again.subject.log_probabilities().float().detach())
    with pytest.raises(DataError, match="expected 2: one for each"):
        inspect(found.subject.loaded, source.text, InspectOptions("big"))
    alone = pages("pairs of texts")  # one text of a run that was trained with two
    assert alone.subject.target.text.startswith("the big dog ")


def test_pages_say_what_the_model_is(pages: Pages) -> None:
    def said(name: str) -> str:
        data = pages(name)._data()
        overview = data["views"][0]
        boxes = [f"{box['title']}: {box['text']}" for box in overview["data"]["boxes"]]
        return " | ".join((overview["about"], overview["data"]["summary"], *boxes))

    kalman = said("kalman")
    assert "one number" in kalman
    assert not re.search(r"probabilit|softmax|parameters|embedding", kalman)
    hmm = said("hmm")
    assert "embedding" not in hmm
    assert pages("hmm").view("tables").data["tables"][0]["name"] == "Viterbi"
    text = said("language model")
    assert "input" not in text.lower()
    assert pages("language model")._data()["target"]["name"] == "text"
    assert "earlier word" in pages("language model").view("attention").about
    assert "log-probability" not in said("series")
    assert "log" not in pages("series").view("whatif").about
    assert pages("series").view("whatif").data["measure"] == "the value"


def test_weights_that_are_no_shares_are_shown_as_they_are(browser: Any, pages: Pages, tmp_path: Path) -> None:  # noqa: F811
    found = pages("steps")
    with torch.no_grad():
        found.subject.model.pooling.weight.copy_(torch.linspace(-0.5, 0.3, 20))
    found = inspect(found.subject.loaded, "0.1 0.2 0.3")
    layer = found.view("attention").data["layers"][0]
    assert not layer["sums_to_one"]
    assert layer["entropy"] is None
    assert "sums to 1" not in found.view("attention").about
    opened = Opened(browser, written(tmp_path / "p.html", "inspect-page", found._data()), "#view=attention")
    told = opened.page.locator("main").inner_text()
    assert "−0.500" in told
    assert "may be negative" in told
    opened.check()


def test_the_viterbi_table_of_an_hmm_is_its_prediction(pages: Pages) -> None:
    found = pages("hmm")
    path = found.view("tables").data["tables"][0]["path"]
    assert [row for row, _ in path] == found.subject.batch.target[0, 0].tolist()


def test_the_terms_of_phrases_sum_to_the_score(pages: Pages) -> None:
    found = pages("phrases")
    data = found.view("phrases").data
    terms = torch.tensor(data["values"]) @ torch.tensor(data["weights"])
    assert float(terms.sum()) == pytest.approx(data["score"], abs=1e-4)
    assert [token for phrase in data["phrases"] for token in phrase["target"]] == list(found.subject.target.tokens)
    covered = sorted(place for phrase in data["phrases"] for place in range(phrase["start"], phrase["end"]))
    assert covered == list(range(3))
    best = [one for stack in data["stacks"] for one in stack["hypotheses"] if one["best"]]
    assert [one["phrase"] for one in best[1:]] == [phrase["target"] for phrase in data["phrases"][:-1]]
    with pytest.raises(DataError, match="explains its own outputs"):
        inspect(found.subject.loaded, "der kleine Hund", InspectOptions("GANZ ANDERS"))


def test_estimates_of_a_series_are_those_of_the_filter(pages: Pages) -> None:
    found = pages("kalman")
    data, run = found.view("series").data, found.subject.loaded
    forecast = run.predict(["0.1 0.2 0.3"])[0].value
    assert data["values"][0] == pytest.approx([0.1, 0.2, 0.3])
    assert data["curves"]["predicted"][0][-1][0] == pytest.approx(forecast, abs=1e-6)
    for name in ("predicted", "filtered", "smoothed"):
        assert all(low < centre < high for centre, low, high in data["curves"][name][0])
