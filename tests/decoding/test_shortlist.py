"""A shortlist restricts the output tokens and changes nothing else, against the plain search."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from dragoman.base.errors import DataError
from dragoman.classical.word_alignment import learn_lexicon
from dragoman.data.batch import batch_of
from dragoman.data.store import StoreWriter, TokenStore
from dragoman.data.tokenizers.base import EOS
from dragoman.decoding.config import SearchConfig
from dragoman.decoding.method import Request
from dragoman.decoding.searches import limits_for, search
from dragoman.decoding.shortlist import Shortlist, ShortlistFile
from dragoman.inference.load import load_predictor
from dragoman.models.config import EncoderDecoderConfig, TransformerConfig
from dragoman.models.decoders.recurrent import LuongDecoderConfig
from dragoman.models.encoder_decoder import EncoderDecoder
from dragoman.models.encoders.recurrent import RecurrentEncoderConfig
from tests.conftest import TrainedFolder, call

VOCABULARY = 60
STACK = TransformerConfig(layers=1, width=16, heads=2, feedforward=32, dropout=0.0)
MODELS = {
    "transformer": EncoderDecoderConfig(encoder=STACK, decoder=STACK),
    "recurrent, biased": EncoderDecoderConfig(
        encoder=RecurrentEncoderConfig(embedding=16, width=16),
        decoder=LuongDecoderConfig(embedding=16, width=16),
        output_bias=True,
    ),
}


def model_of(name: str) -> EncoderDecoder:
    torch.manual_seed(3)
    model = EncoderDecoder(MODELS[name], VOCABULARY, VOCABULARY).double().eval()
    with torch.no_grad():
        for part in model.parameters():
            part.mul_(2.0)
        if model.output.bias is not None:
            model.output.bias.normal_()
    return model


def sources(count: int = 9) -> list[list[int]]:
    draw = np.random.default_rng(5)
    return [draw.integers(4, VOCABULARY, draw.integers(1, 9)).tolist() for _ in range(count)]


def some(count: int = 3) -> Shortlist:
    """A few tokens for every source token, and two for all of them."""
    draw = torch.Generator().manual_seed(1)
    likely = torch.randint(4, VOCABULARY, (VOCABULARY, count), generator=draw)
    likely[0] = EOS  # padding
    return Shortlist(torch.tensor([7, 9]), likely, VOCABULARY)


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("name", MODELS)
def test_a_shortlist_of_the_whole_vocabulary_changes_nothing(name: str, beam: int) -> None:
    model, batch = model_of(name), batch_of(sources())
    config = SearchConfig(beam=beam, max_length=10)
    everything = Shortlist(torch.arange(VOCABULARY), torch.full((VOCABULARY, 1), EOS), VOCABULARY)
    plain = search(model, batch, config, 2.0, n_best=beam)
    listed = search(model, batch, config, 2.0, n_best=beam, method=everything)
    assert [[one.tokens for one in row] for row in listed] == [[one.tokens for one in row] for row in plain]
    for mine, theirs in zip(listed, plain, strict=True):
        assert [one.score for one in mine] == pytest.approx([one.score for one in theirs], abs=1e-9)


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("name", MODELS)
def test_only_listed_tokens_are_output_and_neighbours_change_nothing(name: str, beam: int) -> None:
    model, few = model_of(name), some()
    config = SearchConfig(beam=beam, max_length=8)
    together = search(model, batch_of(sources()), config, 2.0, n_best=beam, method=few)
    unlisted = 0
    for source, found in zip(sources(), together, strict=True):
        (alone,) = search(model, batch_of([source]), config, 2.0, n_best=beam, method=few)
        assert [one.tokens for one in alone] == [one.tokens for one in found]
        assert [one.score for one in alone] == pytest.approx([one.score for one in found], abs=1e-9)
        own = few.listed(batch_of([source]).source.data)[0]
        assert all(own[token] for one in found for token in one.tokens)
        (plain,) = search(model, batch_of([source]), config, 2.0)
        unlisted += sum(not own[token] for token in plain[0].tokens)
    assert unlisted > 10  # so that it could have failed


def test_scores_are_those_of_the_listed_tokens_alone() -> None:
    model, few, source = model_of("transformer"), some(), sources()[0]
    batch = batch_of([source])
    limits = limits_for(batch, SearchConfig(max_length=8), 2.0)
    request = Request(model, batch, limits, SearchConfig(beam=1), 1, str)
    ((found,),) = few.search(request)
    own = few.listed(batch.source.data)
    with torch.no_grad():
        logits = model.logits(batch_of([source], [list(found.tokens[:-1])]))[0]
    wanted = logits.masked_fill(~own, -torch.inf).log_softmax(-1)[range(len(found.tokens)), list(found.tokens)]
    assert list(found.token_scores) == pytest.approx(wanted.tolist(), abs=1e-9)


def test_model_one_finds_the_translation_of_every_word(tmp_path: Path) -> None:
    """Token s is translated by 100 − s, in any order, beside a word without a source."""
    draw = np.random.default_rng(2)
    rows = [draw.choice(np.arange(4, 40), draw.integers(2, 6), replace=False).tolist() for _ in range(400)]
    with StoreWriter(tmp_path / "store", 40, 100) as writer:
        writer.add(rows, [draw.permutation([*(100 - np.array(row)), 50]).tolist() for row in rows])
    lexicon = learn_lexicon(TokenStore(tmp_path / "store"), 40, pairs=10_000)
    table = lexicon.most_probable(40, 2, EOS)
    assert table[4:, 0].tolist() == [100 - token for token in range(4, 40)]
    assert table[:4].tolist() == [[EOS, EOS]] * 4  # never seen
    sums = np.bincount(lexicon.sources, lexicon.probabilities)
    assert sums[sums > 0] == pytest.approx(1.0)
    without = lexicon.most_probable(40, 1, EOS, without=[96, 50])
    assert without[4, 0] not in (96, 50)
    assert without[5, 0] == 95


# With a trained run, by the command line


def test_a_run_predicts_with_its_shortlist(inside: TrainedFolder, tmp_path: Path) -> None:
    file = tmp_path / "list.safetensors"
    result = call("shortlist", inside.run, "--likely", "3", "--frequent", "0", "--output", file, "--json")
    assert result.code == 0, result.err
    told = json.loads(result.out)
    assert told["file"] == str(file)
    assert told["coverage"] > 0.95  # letters become capitals
    lines = b"abba\n\ncafe\n"
    plain = call("predict", inside.run, "engine=torch", stdin=lines)
    listed = call("predict", inside.run, "method=shortlist", f"method.file={file}", "--beam", "5", stdin=lines)
    assert listed.code == 0, listed.err
    assert listed.out == plain.out
    run = load_predictor(inside.run, "cpu", engine="torch")
    few = ShortlistFile(file).open(run, run.model)
    letters = set("abba" + "ABBA")
    own = few.listed(batch_of([run.source_tokenizer.encode("abba")]).source.data)[0].nonzero()[4:, 0].tolist()
    assert letters & set(run.target_tokenizer.pieces(own)) >= set("AB")
    assert not set(run.target_tokenizer.pieces(own)) >= set("ABCDEFGHIJ")


def test_wrong_shortlists_are_refused(inside: TrainedFolder, tmp_path: Path) -> None:
    file, broken, other = (tmp_path / name for name in ("list.safetensors", "broken.safetensors", "other.safetensors"))
    assert call("shortlist", inside.run, "--output", file).code == 0
    broken.write_bytes(b"no such thing")
    save_file({"weights": torch.zeros(2)}, other)
    for path, expected in (
        ("auto", "no such file, expected a shortlist; dragoman shortlist RUN makes one"),
        (broken, "found no shortlist"),
        (other, "found weights in it"),
    ):
        result = call("predict", inside.run, "method=shortlist", f"method.file={path}", stdin=b"abba\n")
        assert (result.code, result.err.count("\n")) == (2, 1)
        assert expected in result.err
    for more, expected in (
        (("--sample",), "found --sample and method, expected one of them"),
        (("constraints.prefix=A",), "go with beam search alone"),
        ((f"ensemble.runs={inside.run}",), "shortlist: found Ensemble"),
    ):
        result = call(
            "predict", inside.run, "engine=torch", "method=shortlist", f"method.file={file}", *more, stdin=b"abba\n"
        )
        assert (result.code, result.err.count("\n")) == (2, 1)
        assert expected in result.err
    run = load_predictor(inside.run, "cpu", engine="torch")
    few = Shortlist(torch.tensor([5]), torch.full((len(run.source_tokenizer), 1), EOS), len(run.target_tokenizer))
    few.save(other, run.target_tokenizer, run.source_tokenizer)
    with pytest.raises(DataError, match="made for another source vocabulary"):
        ShortlistFile(other).open(run, run.model)


def test_ctranslate2_gives_the_same_with_the_whole_vocabulary(inside: TrainedFolder, tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2", reason="the extra 'fast' (ctranslate2) is not installed")
    texts = [row.split("\t")[0] for row in (inside.folder / "test.tsv").read_text().splitlines()]
    run = load_predictor(inside.run, "cpu", engine="ctranslate2")
    size, reading = len(run.target_tokenizer), len(run.source_tokenizer)
    everything = Shortlist(torch.arange(size), torch.full((reading, 1), EOS), size)
    for beam in (1, 4):
        plain = run.predict(texts, beam=beam)
        assert [one.text for one in run.predict(texts, beam=beam, method=everything)] == [one.text for one in plain]
    ending = Shortlist(torch.tensor([], dtype=torch.long), torch.full((reading, 1), EOS), size)
    assert {one.text for one in run.predict(texts, beam=1, method=ending)} == {""}
