"""Language tags: one token in front of the source, for every tokenizer, and never confused with text."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from dragoman.base import config as settings
from dragoman.base.errors import ConfigError, DataError, RunError
from dragoman.data.batch import batch_of
from dragoman.data.config import DataConfig, Files, TokenizersConfig
from dragoman.data.corpus import Corpus, fingerprint, prepare_corpus
from dragoman.data.examples import Example, Fault, Pairs
from dragoman.data.readers.pairs import read_pairs
from dragoman.data.split import TrainValidSplit
from dragoman.data.tokenizers.base import Tokenizer
from dragoman.data.tokenizers.characters import CharactersConfig
from dragoman.data.tokenizers.language_tags import LanguageTagTokenizer, add_tag, split_tag
from dragoman.data.tokenizers.load import TokenizerConfig, load_tokenizer, train_tokenizer
from dragoman.data.tokenizers.subwords import SubwordsConfig
from dragoman.data.tokenizers.words import WordsConfig
from dragoman.models.config import (
    EncoderDecoderConfig,
    FullSoftmaxConfig,
    SampledSoftmaxConfig,
    SoftmaxConfig,
    TransformerConfig,
)
from dragoman.models.encoder_decoder import EncoderDecoder
from dragoman.models.layers.embeddings import WordDropout
from dragoman.runs.tasks import config
from dragoman.training.validation import rows_to_decode

KINDS: dict[str, TokenizerConfig] = {
    "words": WordsConfig(),
    "spaces": WordsConfig(split="spaces"),
    "characters": CharactersConfig(),
    "bpe": SubwordsConfig(vocab_size=320),
    "unigram": SubwordsConfig(vocab_size=320, algorithm="unigram"),
}
TEXTS = ["a small dog sees a big dog", "<2de> stands in the text", "the cat, the dog <2fr> and 2 birds"]
TAGS = ("de", "fr", "pt-BR")
TOKENIZERS = {name: train_tokenizer(chosen, TEXTS) for name, chosen in KINDS.items()}


@pytest.fixture(params=KINDS)
def inner(request: pytest.FixtureRequest) -> Tokenizer:
    return TOKENIZERS[request.param]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_CACHE", str(tmp_path / "cache"))


# ---------------------------------------------------------------------- tokens


def test_a_tag_is_one_token_after_the_vocabulary(inner: Tokenizer) -> None:
    tokenizer: Tokenizer = LanguageTagTokenizer(inner, TAGS)
    assert len(tokenizer) == len(inner) + 3
    assert (tokenizer.kind, tokenizer.tags, inner.tags) == (inner.kind, TAGS, ())
    for index, tag in enumerate(TAGS):
        ids = tokenizer.encode(f"<2{tag}> a small dog")
        assert ids == [len(inner) + index, *inner.encode("a small dog")]
        assert tokenizer.pieces(ids) == [f"<2{tag}>", *inner.pieces(ids[1:])]


@pytest.mark.parametrize(
    "text",
    [
        "the dog <2de> sees",  # not at the front
        " <2de> the dog",
        "<2de>the dog",  # no space behind it
        "<2de>",
        "<2es> the dog",  # not known
        "<2DE> the dog",
        "<2> the dog",
        "2de the dog",
        "",
    ],
)
def test_everything_else_is_ordinary_text(inner: Tokenizer, text: str) -> None:
    tokenizer = LanguageTagTokenizer(inner, TAGS)
    assert tokenizer.encode(text) == inner.encode(text)
    ids = tokenizer.encode(add_tag(text, "fr"))
    assert ids == [len(inner) + 1, *inner.encode(text)]  # a second tag is text
    assert max(ids[1:], default=0) < len(inner)


def test_only_the_first_tag_is_a_tag(inner: Tokenizer) -> None:
    tokenizer = LanguageTagTokenizer(inner, TAGS)
    assert tokenizer.encode("<2fr> <2de> the dog") == [len(inner) + 1, *inner.encode("<2de> the dog")]


@given(text=st.text(max_size=30), tag=st.sampled_from(TAGS), kind=st.sampled_from(["bpe", "unigram"]))
@hypothesis_settings(max_examples=50, deadline=None)
def test_decoding_inverts_encoding(text: str, tag: str, kind: str) -> None:
    tokenizer = LanguageTagTokenizer(TOKENIZERS[kind], TAGS)
    assert tokenizer.decode(tokenizer.encode(add_tag(text, tag))) == add_tag(text, tag)
    assert split_tag(add_tag(text, tag), TAGS) == (tag, text)


def test_a_batch_is_encoded_as_its_texts_are(inner: Tokenizer) -> None:
    tokenizer = LanguageTagTokenizer(inner, TAGS)
    texts = [*TEXTS, *(add_tag(text, "de") for text in TEXTS), ""]
    assert tokenizer.encode_batch(texts) == [tokenizer.encode(text) for text in texts]
    assert tokenizer.encode_batch([]) == []
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(add_tag(text, "de"))) == add_tag(text, "de")


# ---------------------------------------------------------------------- files


def test_tags_are_kept_with_the_tokenizer(inner: Tokenizer, tmp_path: Path) -> None:
    tokenizer = LanguageTagTokenizer(inner, TAGS)
    tokenizer.save(tmp_path, "source")
    inner.save(tmp_path, "target")
    loaded = load_tokenizer(tmp_path, "source")
    assert isinstance(loaded, LanguageTagTokenizer)
    assert loaded.tags == TAGS
    assert loaded.encode("<2fr> the dog") == tokenizer.encode("<2fr> the dog")
    assert loaded.fingerprint() == tokenizer.fingerprint() != inner.fingerprint()
    assert LanguageTagTokenizer(inner, TAGS[::-1]).fingerprint() != tokenizer.fingerprint()
    assert {path.name for path in tmp_path.iterdir()} == {
        path.name for files in (tokenizer.files(tmp_path, "source"), inner.files(tmp_path, "target")) for path in files
    }
    plain = load_tokenizer(tmp_path, "target")
    assert plain.tags == ()
    assert "tags" not in json.loads((tmp_path / "target.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("tags", [["de"], [], ["d e", "fr", "pt-BR"], "de", 5, [5]])
def test_changed_tags_are_detected(tags: Any, tmp_path: Path) -> None:
    LanguageTagTokenizer(TOKENIZERS["characters"], TAGS).save(tmp_path, "source")
    path = tmp_path / "source.json"
    table = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(table | {"tags": tags}), encoding="utf-8")
    with pytest.raises(RunError, match="damaged tokenizer file"):
        load_tokenizer(tmp_path, "source")


# ---------------------------------------------------------------------- data


def write(path: Path, rows: list[tuple[str, ...]]) -> str:
    path.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


@pytest.fixture
def two(tmp_path: Path) -> DataConfig:
    """The same sources in two languages: a file of pairs, and two parallel files."""
    sources = [f"s{number}" for number in range(40)]
    german = write(tmp_path / "de.tsv", [(source, source + "d") for source in sources])
    left = write(tmp_path / "fr.source", [(source,) for source in sources])
    right = write(tmp_path / "fr.target", [(source + "f",) for source in sources])
    return DataConfig(train=(Pairs(file=german, tag="de"), Pairs(left, right, tag="fr")))


def test_entries_give_tagged_examples(two: DataConfig, tmp_path: Path) -> None:
    (tmp_path / "de.tsv").write_text("a\tb\nbroken\n", encoding="utf-8")
    assert isinstance(two.train, tuple)
    first, fault = read_pairs(two.train[0])
    assert first == Example("a", ("b",), str(tmp_path / "de.tsv"), 1, "de")
    assert isinstance(first, Example)
    assert first.model_input == "<2de> a"
    assert isinstance(fault, Fault)
    french = next(read_pairs(two.train[1]))
    assert isinstance(french, Example)
    assert (french.model_input, french.references) == ("<2fr> s0", ("s0f",))


def stored(corpus: Corpus, part: str) -> set[tuple[str, str]]:
    store = getattr(corpus, part)
    every = range(len(store))
    sources = [corpus.source_tokenizer.decode(row.tolist()) for row in store.source.rows(every)]
    return set(
        zip(sources, (corpus.target_tokenizer.decode(row.tolist()) for row in store.target.rows(every)), strict=True)
    )


def test_the_corpus_of_several_languages(two: DataConfig) -> None:
    corpus = prepare_corpus(two, TokenizersConfig(source=CharactersConfig()))
    assert corpus.source_tokenizer.tags == ("de", "fr")
    assert corpus.report["tags"] == {"de": 40, "fr": 40}
    train, valid = stored(corpus, "train"), stored(corpus, "valid")
    assert train | valid == {
        (f"<2{tag}> s{number}", f"s{number}{tag[0]}") for tag in ("de", "fr") for number in range(40)
    }
    rows = [json.loads(line) for line in corpus.valid_texts.read_text(encoding="utf-8").splitlines()]
    assert {(row["source"], row["references"][0]) for row in rows} == valid


def test_the_vocabulary_is_that_of_the_text_alone(two: DataConfig) -> None:
    corpus = prepare_corpus(two, TokenizersConfig(source=CharactersConfig()))
    everything = range(len(corpus.target_tokenizer))
    assert set(corpus.target_tokenizer.pieces(everything)[4:]) <= set("s0123456789df")
    assert isinstance(corpus.source_tokenizer, LanguageTagTokenizer)
    assert corpus.source_tokenizer.inner.fingerprint() == corpus.target_tokenizer.fingerprint()  # one for both sides
    sides = TokenizersConfig(source=CharactersConfig(), target=CharactersConfig())
    apart = prepare_corpus(two, sides)
    assert (apart.source_tokenizer.tags, apart.target_tokenizer.tags) == (("de", "fr"), ())


def test_a_source_is_in_one_part_for_all_languages(two: DataConfig) -> None:
    split = TrainValidSplit(two, lambda doing, count: None)
    train, valid = ({example.source for example in part("")} for part in (split.train, split.valid))
    assert train
    assert valid
    assert not train & valid


def test_the_fingerprint_depends_on_tags_and_layout(two: DataConfig, tmp_path: Path) -> None:
    tokenizers = TokenizersConfig(source=CharactersConfig())
    assert isinstance(two.train, tuple)
    german, french = two.train
    assert isinstance(german, Pairs)
    assert isinstance(french, Pairs)
    assert german.file is not None
    other: list[Files] = [
        (german, french),
        (german, Pairs(french.source, french.target, tag="es")),
        (Pairs(file=german.file), Pairs(french.source, french.target)),
        (german.file, Pairs(french.source, french.target)),
        (french, german),
        (german,),
        (german.file,),
        german,
        german.file,
        Pairs(french.source, french.target),
        (french.source or "", french.target or ""),
    ]
    keys = [fingerprint(DataConfig(train=files), tokenizers) for files in other]
    same = {(2, 3), (5, 7), (6, 8)}  # a file by its name or in a table; one entry alone or in a list
    assert {(j, i) for i in range(len(keys)) for j in range(i) if keys[i] == keys[j]} == same
    valid = {fingerprint(DataConfig(train=german, valid=part), tokenizers) for part in (german, german.file)}
    assert len(valid) == 2


def test_every_tag_needs_pairs(two: DataConfig, tmp_path: Path) -> None:
    (tmp_path / "de.tsv").write_text("", encoding="utf-8")
    with pytest.raises(DataError, match=r"de\.tsv: no usable pair found for the tag 'de'"):
        prepare_corpus(two, TokenizersConfig(source=CharactersConfig()))


def test_validation_decodes_as_many_of_every_tag() -> None:
    rows = [{"source": f"<2{tag}> {number}"} for tag in ("de", "fr") for number in range(10)]
    assert [row["source"] for row in rows_to_decode(rows, ("de", "fr"), 4)] == [
        "<2de> 0",
        "<2fr> 0",
        "<2de> 1",
        "<2fr> 1",
    ]
    assert len(rows_to_decode(rows, ("de", "fr"), 3)) == 3
    assert rows_to_decode(rows, (), 4) == rows[:4]
    assert rows_to_decode(rows, ("de", "fr"), 0) == []


# ---------------------------------------------------------------------- settings


def test_entries_of_every_kind_are_read_and_written_back() -> None:
    table: dict[str, Any] = {
        "data": {
            "train": [{"source": "a.en", "target": "a.de", "tag": "de"}, {"file": "more.tsv", "tag": "fr"}],
            "valid": {"file": "valid.tsv", "tag": "de"},
        }
    }
    built = config.build(table)
    assert built.data.train == (Pairs("a.en", "a.de", tag="de"), Pairs(file="more.tsv", tag="fr"))
    assert built.data.valid == Pairs(file="valid.tsv", tag="de")
    absolute = config.with_absolute_paths(built)
    assert isinstance(absolute.data.valid, Pairs)
    assert absolute.data.valid.paths == (str(Path("valid.tsv").absolute()),)
    for resolved in (built, absolute):
        assert config.build(tomllib.loads(settings.dump(resolved))) == resolved
    by_hand = config.build({"data": {"train": "x"}}, ['data.train=[{file="a.tsv", tag="de"}]'])
    assert by_hand.data.train == (Pairs(file="a.tsv", tag="de"),)


def test_the_entries_of_the_page_are_read() -> None:
    text = (Path(__file__).parents[2] / "docs" / "how-to" / "tags.md").read_text(encoding="utf-8")
    snippet = text.partition("```toml\n")[2].partition("```")[0]
    assert config.build(tomllib.loads(snippet)).data.train == (
        Pairs(file="de.tsv", tag="de"),
        Pairs("a.en", "a.fr", tag="fr"),
    )


def entry(**named: str) -> dict[str, str]:
    return {"file": "a.tsv", **named}


WRONG = [
    ([entry(tag="de"), entry()], None, "data.train: found no tag for a.tsv, expected one, since others have tags (de)"),
    ([entry(tag="de"), "b.tsv"], None, "data.train: found no tag for b.tsv, expected one, since others have tags (de)"),
    (entry(tag="de"), "b.tsv", "data.valid: found no tag for b.tsv, expected one, since others have tags (de)"),
    (
        [entry(tag="deu"), entry(tag="fra")],
        entry(tag="frau"),
        "data.valid: found the tag 'frau' for a.tsv, expected one of those in train (deu, fra). Did you mean 'fra'?",
    ),
    ("a.tsv", entry(tag="de"), "data.valid: found the tag 'de' for a.tsv, expected one of those in train (none)"),
    ([entry(tga="de")], None, "data.train[0].tga: no such setting. Did you mean 'data.train[0].tag'?"),
    ([entry(tag="<2de>")], None, "data.train[0].tag: found '<2de>', expected letters, digits, '.', '_' or '-'"),
    (entry(tag="d e"), None, "data.train.tag: found 'd e', expected letters"),
    (entry(tag=""), None, "data.train.tag: found '', expected letters"),
    ({"tag": "de"}, None, "data.train: found no file, expected source and target, or file"),
    ({"source": "a", "tag": "de"}, None, "data.train.target: missing; expected text"),
    ([entry(source="a", tag="de")], None, "data.train[0]: found source, file, expected source and target, or file"),
    ([{"file": 5, "tag": "de"}], None, "data.train[0].file: found 5 (a whole number), expected text or none"),
]  # fmt: skip


@pytest.mark.parametrize(("train", "valid", "message"), WRONG)
def test_a_wrong_entry_gives_a_one_line_error(train: object, valid: object, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.build({"data": {"train": train, "valid": valid}})
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


# ---------------------------------------------------------------------- model


@pytest.mark.parametrize("tie", ["all", "source", "inputs", "target", "none"])
@pytest.mark.parametrize("softmax", [FullSoftmaxConfig(), SampledSoftmaxConfig(size=2)])
def test_no_output_uses_the_embedding_of_a_tag(tie: Literal["all"], softmax: SoftmaxConfig) -> None:
    """Its gradient comes from the source alone, label smoothing adds nothing to it."""
    side = TransformerConfig(layers=1, width=8, heads=2, feedforward=8, dropout=0.0)
    choices = EncoderDecoderConfig(tie=tie, output_bias=True, softmax=softmax, encoder=side, decoder=side)
    model = EncoderDecoder(choices, 32, 30, tags=2).double()
    batch = batch_of([[30, 5, 6]], [[7, 8]])
    assert model.logits(batch).shape == (1, 3, 30)
    model(batch).total.backward()
    gradients = [weight.grad for weight in model.parameters() if weight.shape == (32, 8)]
    assert len(gradients) == 1  # the source embedding, whatever it is tied to
    gradient = gradients[0]
    assert gradient is not None
    assert gradient[30].abs().sum() > 0
    assert torch.equal(gradient[31], torch.zeros(8, dtype=torch.float64))  # not in the source


def test_word_dropout_spares_the_tag() -> None:
    tokens = torch.arange(12)[None].repeat(50, 1)
    dropped = WordDropout(0.9, keep_from=10)(tokens)
    assert torch.equal(dropped[:, :4], tokens[:, :4])
    assert torch.equal(dropped[:, 10:], tokens[:, 10:])
    assert (dropped[:, 4:10] == 1).any(0).all()
    side = TransformerConfig(layers=1, width=8, heads=2, feedforward=8, dropout=0.0)
    choices = EncoderDecoderConfig(word_dropout=1.0, encoder=side, decoder=side)
    model = EncoderDecoder(choices, 12, 10, tags=2).double().train()
    mask = torch.ones(1, 3, dtype=torch.bool)
    first, second, other = (
        model.encode(torch.tensor([row]), mask).keys for row in ([10, 5, 6], [10, 7, 8], [11, 5, 6])
    )
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
