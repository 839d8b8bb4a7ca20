"""Labels in JavaScript are those of Python: positions of words, Viterbi paths, marginals, whole pages."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman.data.formats.labels import word_positions
from dragoman.data.tokenizers.base import EOS, PAD
from dragoman.data.tokenizers.characters import CharactersConfig, CharacterTokenizer
from dragoman.data.tokenizers.subwords import SubwordsConfig, SubwordTokenizer
from dragoman.exchange.web_page import tokenizer_spec
from dragoman.models.encoders.character_words import split_words
from dragoman.models.layers.crf import LinearChainCRF
from tests.conftest import call, write_rows
from tests.web.javascript import run_javascript
from tests.web.test_offline_page import RUNTIME, Opened, Site, browser, in_browser

__all__ = ["browser"]
LINES = ["the cat sleeps", "a  naïve\tdog", "one", "a ▁ b", "漢字 x y", "dogs cats the the"]
LABELS = ["DET", "NOUN", "VERB"]
# The scores of a word depend on its number alone; the session keeps what it was given.
LABEL = """async ({ lines, table, scores }) => {
  const seen = [];
  class Tensor { constructor(type, data, dims) { Object.assign(this, { type, data, dims }); } }
  const session = { run: async ({ source, starts }) => {
    seen.push([Array.from(source.data, Number), starts ? Array.from(starts.data, Number) : source.dims]);
    return { scores: { data: Float32Array.from(scores.slice(0, starts ? starts.dims[1] : source.dims[1]).flat()) } };
  } };
  const labeler = new module_labeler.Labeler({ Tensor }, session, table);
  return { seen, outputs: await labeler.labelAll(lines) };
}"""


@pytest.mark.parametrize("crf", [True, False], ids=["crf", "words alone"])
def test_tags_equal_those_of_torch(tmp_path: Path, crf: bool) -> None:
    torch.manual_seed(1)
    tokenizer = SubwordTokenizer.train(SubwordsConfig(vocab_size=290), [line.replace("\t", " ") for line in LINES * 9])
    chain, scores = LinearChainCRF(len(LABELS)), torch.randn(9, len(LABELS)) * 2
    for parameter in chain.parameters():
        torch.nn.init.normal_(parameter)
    table = {
        "task": "tag", "source": tokenizer_spec(tokenizer), "labels": LABELS, "special": {"eos": EOS},
        "max_characters": 100, "max_tokens": 100, "characters": None,
        "chain": {name: weight.tolist() for name, weight in chain.named_parameters()} if crf else None,
    }  # fmt: skip
    data = {"lines": LINES, "table": table, "scores": scores.tolist()}
    found = run_javascript("labeler", LABEL, data, tmp_path)
    for line, (source, starts), output in zip(LINES, found["seen"], found["outputs"], strict=True):
        text = " ".join(line.replace("\t", " ").split())
        assert source == [*tokenizer.encode(text), EOS]
        assert starts == word_positions(text, tokenizer)
        rows = scores[None, : len(starts)]
        mask = torch.ones(rows.shape[:2], dtype=torch.bool)
        path = chain.viterbi(rows, mask)[0] if crf else rows[0].argmax(-1)
        shares = chain.marginals(rows, mask)[0] if crf else rows[0].softmax(-1)
        assert output["words"] == text.split(" ")
        assert output["tags"] == [LABELS[tag] for tag in path.tolist()]
        mine = torch.tensor([list(one.values()) for one in output["probabilities"]])
        torch.testing.assert_close(mine, shares.detach(), rtol=1e-4, atol=1e-5)


def test_words_of_characters_equal_those_of_torch(tmp_path: Path) -> None:
    tokenizer = CharacterTokenizer.train(CharactersConfig(min_count=2), [" ".join(line.split()) for line in LINES * 2])
    space = tokenizer.encode(" ")[0]
    table = {
        "task": "tag", "source": tokenizer_spec(tokenizer), "labels": LABELS, "special": {"eos": EOS, "pad": PAD},
        "max_characters": 100, "max_tokens": 100, "characters": None, "chain": None,
        "words": {"space": space, "longest": 4},
    }  # fmt: skip
    data = {"lines": LINES, "table": table, "scores": torch.randn(9, len(LABELS)).tolist()}
    found = run_javascript("labeler", LABEL, data, tmp_path)
    for line, (source, sizes), output in zip(LINES, found["seen"], found["outputs"], strict=True):
        words = " ".join(line.split())
        ids = torch.tensor([[*tokenizer.encode(words), EOS]])
        expected = split_words(ids, ids != PAD, space, 4)
        assert torch.tensor(source).view(sizes).equal(expected)
        assert len(output["tags"]) == len(words.split())


def labelled(task: str) -> list[tuple[str, str]]:
    draw = random.Random(1)
    words = {"the": "DET", "a": "DET", "cat": "NOUN", "film": "NOUN", "runs": "VERB", "good": "ADJ", "bad": "ADJ"}
    rows = []
    for _ in range(300):
        chosen = draw.choices(list(words), k=draw.randint(2, 7))
        label = "good" if chosen.count("good") > chosen.count("bad") else "bad"
        rows.append((" ".join(chosen), label if task == "classify" else " ".join(words[word] for word in chosen)))
    return rows


SMALL = ["model.encoder.width=32", "model.encoder.layers=1", "tokenizer.source.kind=words"]
CASES = {
    "classify": ["model.encoder.kind=recurrent", "model.encoder.embedding=16", *SMALL],
    "tag": ["model.encoder.kind=transformer", "model.encoder.heads=2", "model.crf=true", *SMALL],
    "tag, characters": ["model.encoder.hashed=97", "model.encoder.hashed_forms=['word', 'ending']"],
}


@pytest.mark.slow  # trainings and exports
@in_browser
@pytest.mark.parametrize("case", CASES)
def test_pages_label_as_predict_does(case: str, browser: Any, cached: Path, tmp_path: Path) -> None:
    task = case.partition(",")[0]
    write_rows(tmp_path / "train.tsv", labelled(task))
    settings = [*CASES[case], "train.steps=60", "train.optimizer.warmup=5"]
    (tmp_path / "run.toml").write_text(call("new", task, f"data.train={tmp_path / 'train.tsv'}", *settings).out)
    done = call("train", tmp_path / "run.toml", "--run", tmp_path / "run", "--quiet")
    assert done.code == 0, done.err
    done = call("export", tmp_path / "run", "--to", "web", "--output", tmp_path / "site", "--runtime", str(RUNTIME))
    assert done.code == 0, done.err
    assert "of 36 validation lines have the same output" in (tmp_path / "site" / "model" / "model.json").read_text()
    assert "compared on 36 validation lines: " in done.err
    lines = ["the good film", "bad bad cat runs", "a zebra", "film"]
    predicted = call("predict", tmp_path / "run", "--json", stdin="\n".join(lines).encode()).lines
    site = Site(tmp_path / "site", tmp_path / "run")
    try:
        opened = Opened(browser, site.url)
        outputs = opened.page.evaluate("async (lines) => window.dragoman.labelAll(lines)", lines)
        opened.page.fill("#source", "\n".join(lines))
        opened.page.wait_for_selector(".tagged, .labelled")
        assert opened.page.locator(".tagged, .labelled").count() == len(lines)
        assert not opened.complaints
    finally:
        site.close()
    assert [output["text"] for output in outputs] == [json.loads(line)["text"] for line in predicted]
    assert outputs[2]["unknown"] == (["z"] if "characters" in case else ["zebra"])


def test_what_a_page_cannot_label_is_said_at_once(cached: Path, tmp_path: Path) -> None:
    write_rows(tmp_path / "train.tsv", labelled("tag"))
    small = [f"model.encoder.{name}=8" for name in ("embedding", "width")]
    settings = ["model.encoder.kind=convs2s", "model.encoder.layers=1", *small, "model.read=mean", "train.steps=1"]
    (tmp_path / "run.toml").write_text(
        call("new", "tag", f"data.train={tmp_path / 'train.tsv'}", *settings).out, encoding="utf-8"
    )
    assert call("train", tmp_path / "run.toml", "--run", tmp_path / "run", "--quiet").code == 0
    done = call("export", tmp_path / "run", "--to", "web", "--output", tmp_path / "site")
    assert done.code == 2
    assert "found 'convs2s', expected one of 'transformer', 'recurrent', 'character-words'" in done.err
    assert "model.read: found 'mean', expected 'first'" in done.err
    assert not (tmp_path / "site").exists()
