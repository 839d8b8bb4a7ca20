"""Word alignments from attention: any tokenization, every architecture, and reorderings that are known."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import dragoman
from dragoman.base.errors import ConfigError, DataError
from dragoman.data.collate import PAIR_COLLATOR
from dragoman.data.tokenizers.base import Tokenizer
from dragoman.data.tokenizers.characters import CharactersConfig
from dragoman.data.tokenizers.language_tags import LanguageTagTokenizer
from dragoman.data.tokenizers.load import TokenizerConfig, train_tokenizer
from dragoman.data.tokenizers.pair_codec import PairCodec
from dragoman.data.tokenizers.subwords import SubwordsConfig
from dragoman.data.tokenizers.words import WordsConfig
from dragoman.inference.align.alignment import (
    NO_ALIGNMENT,
    Aligner,
    AttentionView,
    align_pairs,
    all_views,
    heads_by_layer,
    links_from_weights,
    select_view,
    symmetrize,
    token_word_shares,
    word_spans,
)
from dragoman.inference.align.alignments import WordAlignment
from dragoman.inference.align.attention import attention_map
from dragoman.inference.long_inputs import InputTooLongError, LengthLimits
from dragoman.inference.predictor import Predictor
from dragoman.models.config import EncoderDecoderConfig, TransformerConfig
from dragoman.models.convs2s import ConvS2SDecoderConfig, ConvS2SEncoderConfig
from dragoman.models.decoders.recurrent import FixedContextDecoderConfig, LuongDecoderConfig, RecurrentDecoderConfig
from dragoman.models.encoder_decoder import EncoderDecoder
from dragoman.models.encoders.character_words import CharacterWordsConfig
from dragoman.models.encoders.recurrent import RecurrentEncoderConfig
from dragoman.models.layers.cells import GRUConfig
from dragoman.models.registry import DecoderConfig, EncoderConfig
from dragoman.scoring.alignment import GoldAlignment, Links, alignment_score
from tests.conftest import TrainedFolder, call, quiet_machine

TEXTS = ["the old cat's hat", "ein alter Hut 東京", "a b", "hello, world"]
PAIRS = [
    ("the old cat's hat", "ein alter Hut"),
    ("  hello,  world ", "東京 💥 a"),
    ("a", "b"),
    ("", "a b"),
    ("a b", " "),
    ("hat hat hat hat", "a hat"),
]
RECURRENT = RecurrentEncoderConfig(cell=GRUConfig(), layers=1, embedding=8, width=6)
TRANSFORMER = TransformerConfig(layers=3, width=8, heads=2, feedforward=12, dropout=0.0)
CONVOLUTIONAL = ConvS2SEncoderConfig(layers=2, embedding=8, widths=(8, 8), kernels=(3, 3))
MODELS: dict[str, tuple[EncoderConfig, DecoderConfig]] = {
    "recurrent": (RECURRENT, RecurrentDecoderConfig(cell=GRUConfig(), layers=1, embedding=8, width=6)),
    "luong": (RECURRENT, LuongDecoderConfig(cell=GRUConfig(), layers=1, embedding=8, width=6)),
    "transformer": (TRANSFORMER, TRANSFORMER),
    "convolutional": (
        CONVOLUTIONAL,
        ConvS2SDecoderConfig(layers=2, embedding=8, widths=(8, 8), kernels=(3, 3)),
    ),
}
TOKENIZERS: dict[str, TokenizerConfig] = {
    "words": WordsConfig(),
    "characters": CharactersConfig(),
    "subwords": SubwordsConfig(vocab_size=290),
}


def predictor_of(encoder: EncoderConfig, decoder: DecoderConfig, tokenizer: Tokenizer, tags: Any = ()) -> Any:
    torch.manual_seed(5)
    source = LanguageTagTokenizer(tokenizer, tags) if tags else tokenizer
    config = EncoderDecoderConfig(tie="none", encoder=encoder, decoder=decoder)
    model = EncoderDecoder(config, len(source), len(tokenizer), tags=len(tags), space=source.space).eval()
    with torch.no_grad():
        for part in model.parameters():
            part.add_(0.4 * torch.randn_like(part))
    told: Any = SimpleNamespace(
        model=model,
        by_letter=(False, False),
        device=torch.device("cpu"),
        collator=PAIR_COLLATOR,
        source_tokenizer=source,
        target_tokenizer=tokenizer,
        codec=PairCodec(source, tokenizer),
        tags=tuple(tags),
        config=SimpleNamespace(model=config),
        length_limits=LengthLimits(256, "data.max_length", 10_000),
        reads_files=False,
        reads_match=0.0,
        context=0,
        unseen_in=lambda text: [],
    )
    return told


def slow_words(predictor: Any, source: str, target: str, view: AttentionView) -> torch.Tensor:
    """Weights over words of one pair, token by token: columns are summed, rows averaged."""
    found = attention_map(predictor, source, target)
    weights = found.layers[view.layer]
    weights = weights.mean(0) if view.head is None else weights[view.head]
    left, right = word_spans(source), word_spans(target)
    out = torch.zeros(len(right), len(left))
    spans = predictor.source_tokenizer.spans(source)
    for row, (start, stop) in enumerate(right):
        tokens = [
            place
            for place, (first, end) in enumerate(predictor.target_tokenizer.spans(target))
            if target[first:end].strip() and start < end <= stop
        ]
        for column, (begin, finish) in enumerate(left):
            entries = [p for p, (first, end) in enumerate(spans) if source[first:end].strip() and begin < end <= finish]
            for token in tokens:
                out[row, column] += weights[token + view.shifted, entries].sum() / len(tokens)
    return out


@pytest.mark.parametrize("units", ["words", "characters"])
@pytest.mark.parametrize("name", MODELS)
def test_weights_over_words_are_those_of_their_tokens(name: str, units: str) -> None:
    """Batched and padded pairs give the weights of single pairs, for every architecture with attention."""
    predictor = predictor_of(*MODELS[name], train_tokenizer(TOKENIZERS[units], TEXTS))
    layer, heads = list(heads_by_layer(predictor).items())[-1]
    last = [AttentionView(layer, heads - 1 if heads > 1 else None, shifted) for shifted in (False, True)]
    for view in (select_view(predictor), *last):
        found = list(align_pairs(predictor, PAIRS, view=view, batch_size=3))
        assert [one.source for one in found] == [tuple(source.split()) for source, _ in PAIRS]
        assert [one.target for one in found] == [tuple(target.split()) for _, target in PAIRS]
        for (source, target), one in zip(PAIRS, found, strict=True):
            assert one.weights.shape == (len(one.target), len(one.source))
            if one.weights.numel():
                expected = slow_words(predictor, source, target, view)
                torch.testing.assert_close(one.weights, expected, rtol=0, atol=1e-5)
                assert one.links == {(int(row.argmax()), place) for place, row in enumerate(expected)}
            else:
                assert str(one) == ""


def test_bytes_and_pieces_belong_to_their_words() -> None:
    predictor = predictor_of(*MODELS["luong"], train_tokenizer(TOKENIZERS["subwords"], TEXTS))
    source = "cat's 💥x"
    assert any(
        piece.startswith("<0x")
        for piece in predictor.source_tokenizer.pieces(predictor.source_tokenizer.encode(source))
    )
    (found,) = align_pairs(predictor, [(source, "hat 💥")])
    total = attention_map(predictor, source, "hat 💥").mean()
    # All but what <eos> and a space of its own got is told of a word.
    assert found.weights.shape == (2, 2)
    assert float(found.weights.sum(1).max()) <= 1 + 1e-6
    spans = predictor.source_tokenizer.spans(source)
    blank = [place for place, (first, end) in enumerate(spans) if first < end and not source[first:end].strip()]
    lost = total[:, [*blank, len(spans)]].sum(1)
    rows = token_word_shares(predictor.target_tokenizer.spans("hat 💥"), word_spans("hat 💥"), total.shape[0])
    expected = (rows / rows.sum(0)).T @ (1 - lost)
    torch.testing.assert_close(found.weights.sum(1), expected, rtol=0, atol=1e-5)


def test_a_character_to_word_encoder_is_aligned_by_word() -> None:
    encoder = CharacterWordsConfig(embedding=4, kernels=(1, 2), filters=(4, 4), inner=RECURRENT)
    predictor = predictor_of(encoder, MODELS["recurrent"][1], train_tokenizer(CharactersConfig(), TEXTS))
    source, target = "the old  cat's", "a b"
    (found, _) = align_pairs(predictor, [(source, target), ("hat hat hat hat hat", "a")])
    weights = attention_map(predictor, source, target).mean()  # (a, space, b, <eos>) × (the, old, cat's, <eos>)
    torch.testing.assert_close(found.weights, weights[[0, 2], :3], rtol=0, atol=1e-5)


def test_a_language_tag_is_no_word() -> None:
    predictor = predictor_of(*MODELS["recurrent"], train_tokenizer(WordsConfig(), TEXTS), tags=("de", "fr"))
    (found,) = align_pairs(predictor, [("old hat", "ein Hut")], tag="fr")
    (other,) = align_pairs(predictor, [("<2fr> old hat", "ein Hut")])
    assert found.source == other.source == ("old", "hat")
    assert torch.equal(found.weights, other.weights)
    weights = attention_map(predictor, "<2fr> old hat", "ein Hut").mean()
    torch.testing.assert_close(found.weights, weights[:2, 1:3], rtol=0, atol=1e-5)


def test_views_are_selected_by_name_and_number() -> None:
    predictor = predictor_of(*MODELS["transformer"], train_tokenizer(WordsConfig(), TEXTS))
    assert select_view(predictor) == AttentionView("decoder.blocks.1.cross")
    assert select_view(predictor, "3", 2, True) == AttentionView("decoder.blocks.2.cross", 1, True)
    assert select_view(predictor, "decoder.blocks.0.cross").layer == "decoder.blocks.0.cross"
    assert len(all_views(predictor)) == 6
    for arguments, message in (
        ((4,), "found 4, expected 1 to 3"),
        (("decoder.blocks.1.cros",), "Did you mean 'decoder.blocks.1.cross'"),
        ((1, 3), "head: found 3, expected 1 to 2"),
    ):
        with pytest.raises(ConfigError, match=message):
            select_view(predictor, *arguments)
    blind = predictor_of(
        RECURRENT,
        FixedContextDecoderConfig(cell=GRUConfig(), layers=1, embedding=8, width=6),
        train_tokenizer(WordsConfig(), TEXTS),
    )
    with pytest.raises(DataError, match="has no attention from output to source"):
        list(align_pairs(blind, PAIRS))


def test_links_from_weights() -> None:
    weights = torch.tensor([[0.1, 0.6, 0.3], [0.4, 0.1, 0.4], [0.0, 0.0, 0.0]])
    assert links_from_weights(weights) == {(1, 0), (0, 1)}
    assert links_from_weights(weights, 0.3) == {(1, 0), (2, 0), (0, 1), (2, 1)}
    one = WordAlignment(("a", "b", "c"), ("x", "y", "z"), links_from_weights(weights), weights)
    other = WordAlignment(one.target, one.source, frozenset({(0, 1), (2, 2)}), weights.T)
    assert str(symmetrize(one, other, "intersection")) == "1-0"
    assert str(symmetrize(one, other, "union")) == "0-1 1-0 2-2"
    with pytest.raises(ConfigError, match="Did you mean 'union'"):
        symmetrize(one, other, "unoin")


# --- a truth that is known


# Each word's partner has it as its own, so a run that translates and turns round is its own reverse.
LEXICON = {f"w{letter}": f"w{partner}" for letter, partner in zip("abcdefgh", "efghabcd", strict=True)}


def reversed_pairs(count: int, seed: int) -> list[tuple[str, str, Links]]:
    """A word-by-word translation in reverse order, and its links."""
    draw, rows = random.Random(seed), []
    for _ in range(count):
        source = [draw.choice(list(LEXICON)) for _ in range(draw.randint(2, 5))]
        target = [LEXICON[word] for word in reversed(source)]
        links = frozenset((len(source) - 1 - place, place) for place in range(len(source)))
        rows.append((" ".join(source), " ".join(target), links))
    return rows


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Predictor]:
    folder = tmp_path_factory.mktemp("reversed")
    lines = [f"{source}\t{target}\n" for source, target, _ in reversed_pairs(400, 1)]
    (folder / "pairs.tsv").write_text("".join(lines))
    side = {"cell": "gru", "layers": 1, "embedding": 16, "width": 32}
    words = {"kind": "words", "split": "spaces"}
    table = {
        "data": {"train": str(folder / "pairs.tsv")},
        "tokenizer": {"source": words, "target": words},
        "model": {
            "tie": "none",
            "label_smoothing": 0.0,
            "encoder": side | {"kind": "recurrent"},
            "decoder": side | {"kind": "luong"},
        },
        "train": {
            "steps": 150,
            "batch_tokens": 256,
            "validate_every": 150,
            "save_every": 150,
            "decode": 5,
            "average": "none",
            "device": "cpu",
            "optimizer": {"learning_rate": 2e-2, "warmup": 20},
        },
    }
    with quiet_machine(folder / "cache"):
        yield dragoman.train(table, run=folder / "run", quiet=True)


def test_attention_finds_a_learned_reordering(learned: Predictor) -> None:
    rows = reversed_pairs(60, 2)
    pairs, gold = [row[:2] for row in rows], [GoldAlignment(row[2], row[2]) for row in rows]
    score = alignment_score([one.links for one in align_pairs(learned, pairs)], gold)
    assert score.error_rate < 0.1
    straight = [frozenset((place, place) for place in range(len(source.split()))) for source, _ in pairs]
    assert alignment_score(straight, gold).error_rate > 0.5  # the order alone does not give it away
    ranked = Aligner(learned).views_by_error_rate(pairs, gold)
    assert ranked[0] == (select_view(learned), score.error_rate)
    assert ranked[-1][1] > 0.5  # a step later it looks at the next word


def test_two_directions_choose_the_most_agreeing_views(learned: Predictor) -> None:
    rows = reversed_pairs(40, 3)
    pairs = [row[:2] for row in rows]
    ahead, behind, agreement = Aligner(learned, learned).most_agreeing_views(pairs)
    assert (ahead, behind) == (select_view(learned), select_view(learned))
    assert agreement > 0.9
    both = Aligner(learned, learned, symmetrization="intersection")
    found = [one.links for one in both(pairs)]
    gold = [GoldAlignment(row[2], row[2]) for row in rows]
    one_way = alignment_score([one.links for one in align_pairs(learned, pairs)], gold)
    assert alignment_score(found, gold).as_dict()["precision"] >= one_way.as_dict()["precision"] > 0.9


def test_the_command_aligns_pairs_and_predictions(learned: Predictor, tmp_path: Path) -> None:
    rows = reversed_pairs(20, 4)
    pairs, gold, run = tmp_path / "pairs.tsv", tmp_path / "gold", learned.run.folder
    pairs.write_text("".join(f"{source}\t{target}\n" for source, target, _ in rows))
    gold.write_text("".join(" ".join(f"{i}-{j}" for i, j in sorted(links)) + "\n" for *_, links in rows))
    result = call("align", run, pairs)
    assert (result.code, result.err) == (0, "")
    assert result.lines == [str(one) for one in align_pairs(learned, [row[:2] for row in rows])]
    (tmp_path / "found").write_text(result.out)
    scored = json.loads(call("score-alignment", gold, tmp_path / "found", "--json").out)
    assert scored["aer"] < 0.1
    chosen = call("align", run, pairs, "--gold", gold, "--batch-size", "7")
    assert chosen.out == result.out
    assert "read: decoder.attention, mean over heads, token as output (error rate" in chosen.err
    joined = call("align", run, pairs, "--reverse", run, "--combine", "union")
    assert "agreement" in joined.err
    for line, one_way in zip(joined.lines, result.lines, strict=True):
        assert set(line.split()) >= set(one_way.split())
    (row, *_) = (json.loads(line) for line in call("align", run, pairs, "--json").lines)
    assert set(row) == {"source", "target", "links", "weights"}
    assert len(row["weights"]) == len(row["target"])
    written = call("align", run, "--predict", stdin=f"{rows[0][0]}\n\n".encode())
    text = learned.predict([rows[0][0]])[0].text
    assert written.lines == [f"{text}\t{next(align_pairs(learned, [(rows[0][0], text)]))}", "\t"]
    table = tmp_path / "sources.tsv"
    table.write_text(f"{rows[0][0]}\tanother column\n")
    assert call("align", run, table, "--predict").lines == written.lines[:1], "it is read as predict reads it"
    for arguments, message in (
        ((), "name either FILE or both"),
        ((pairs, "--layer", "2"), "layer: found 2, expected 1 to 1"),
        ((pairs, "--gold", gold, "--shift"), "leave out --layer"),
        (("--predict", "--source", pairs, "--target", pairs), "sources alone"),
    ):
        failed = call("align", run, *arguments)
        assert failed.code == 2
        assert message in failed.err


def test_python_aligns_as_the_command_does(learned: Predictor, tmp_path: Path) -> None:
    rows = reversed_pairs(20, 4)
    pairs = [row[:2] for row in rows]
    (tmp_path / "pairs.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
    expected = call("align", learned.run.folder, tmp_path / "pairs.tsv", "--threshold", "0.3").lines
    options = dragoman.AlignOptions(threshold=0.3)
    for data in (pairs, tmp_path / "pairs.tsv"):
        assert [str(one) for one in learned.align(data, options)] == expected
        assert [str(one) for one in dragoman.align(learned.run.folder, data, options)] == expected
    raw = [str(one) for one in dragoman.align(None, pairs, dragoman.AlignOptions(model="ibm1"))]
    assert raw == call("align", "--model", "ibm1", tmp_path / "pairs.tsv").lines
    sources = [source for source, _ in pairs]
    written = list(dragoman.align(learned, sources, dragoman.AlignOptions(predict=True)))
    assert isinstance(written[0], WordAlignment)
    assert written[0].output == learned.predict(sources[:1])[0].text
    with pytest.raises(ConfigError, match="layer=… goes with a run, found model=hmm"):
        dragoman.AlignOptions(model="hmm", layer="2")


def test_pairs_to_align_are_checked_as_inputs_are(learned: Predictor) -> None:
    """A pair that cannot be aligned left all others of its batch without links."""
    refused, unknown, warnings = dict[int, Exception](), dict[int, list[str]](), list[str]()
    pairs = [("wa wb", "we wf"), ("wa " * 5_000, "we"), ("\ufeffwa wb", "we w\x80f"), ("wa other", "we"), ("", "we")]
    with pytest.raises(InputTooLongError, match=r"input 2: source: found 5,000 tokens"):
        learned.align(pairs)
    found = learned.align(
        pairs, on_refused=refused.__setitem__, on_unknown=unknown.__setitem__, on_warning=warnings.append
    )
    assert list(refused) == [2]
    assert unknown == {4: ["other"]}
    assert found[1] == NO_ALIGNMENT
    assert (found[2].links, found[2].source) == (found[0].links, found[0].source)
    assert (found[4].source, found[4].target, found[4].links) == ((), ("we",), frozenset())
    assert warnings == []


def exchanged_pairs(count: int, seed: int) -> list[tuple[str, str, Links]]:
    """A word-by-word translation in which neighbours are swapped, and its links."""
    draw, rows = random.Random(seed), []
    for _ in range(count):
        source = [draw.choice(list(LEXICON)) for _ in range(draw.randint(2, 5))]
        order = [place ^ 1 if place ^ 1 < len(source) else place for place in range(len(source))]
        links = frozenset((place, number) for number, place in enumerate(order))
        rows.append((" ".join(source), " ".join(LEXICON[source[place]] for place in order), links))
    return rows


@pytest.mark.slow
def test_the_view_chosen_on_few_pairs_is_the_best_on_many(tmp_path: Path) -> None:
    """A Transformer of two layers and two heads learns to swap neighbours; one of its views has the alignment."""
    (tmp_path / "pairs.tsv").write_text(
        "".join(f"{source}\t{target}\n" for source, target, _ in exchanged_pairs(600, 1))
    )
    side = {"kind": "transformer", "layers": 2, "width": 32, "heads": 2, "feedforward": 64, "dropout": 0.0}
    words = {"kind": "words", "split": "spaces"}
    steps = {"steps": 300, "validate_every": 300, "save_every": 300}
    table = {
        "data": {"train": str(tmp_path / "pairs.tsv")},
        "tokenizer": {"source": words, "target": words},
        "model": {
            "tie": "none",
            "label_smoothing": 0.0,
            "encoder": side | {"positions": "learned"},
            "decoder": side | {"positions": "learned"},
        },
        "train": steps
        | {"batch_tokens": 512, "decode": 5, "average": "none", "device": "cpu"}
        | {"optimizer": {"learning_rate": 5e-3, "warmup": 30}},
    }
    with quiet_machine(tmp_path / "cache"):
        run = dragoman.train(table, run=tmp_path / "run", quiet=True)
    few, many = exchanged_pairs(15, 2), exchanged_pairs(80, 3)

    def golden(rows: list[tuple[str, str, Links]]) -> list[GoldAlignment]:
        return [GoldAlignment(row[2], row[2]) for row in rows]

    aligner = Aligner(run)
    view = aligner.views_by_error_rate([row[:2] for row in few], golden(few))[0][0]
    rates = dict(aligner.views_by_error_rate([row[:2] for row in many], golden(many)))
    assert rates[view] < 0.1
    assert rates[view] <= min(rates.values()) + 0.03
    others = (rate for other, rate in rates.items() if other.layer != view.layer and not other.shifted)
    assert max(others) > rates[view] + 0.05


def test_single_words_are_aligned_letter_by_letter(inside: TrainedFolder) -> None:
    """Every pair of words was the one link 0-0."""
    inside.write("letters.tsv", "abc\tABC\nface\tFACE\n")
    (row, *_) = (json.loads(line) for line in call("align", inside.run, "letters.tsv", "--json").lines)
    assert row["source"] == [letter.lower() for letter in row["target"]]
    assert all(len(letter) == 1 for letter in row["source"])
    assert len(row["links"]) == len(row["target"])
