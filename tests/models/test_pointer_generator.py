"""The pointer-generator against the equations of See et al. 2017, written out in float64."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest
import torch

from dragoman.data.batch import batch_of
from dragoman.data.formats.pairs import COPY_FORMAT, PAIR_FORMAT
from dragoman.data.rows import TokensWithCopies
from dragoman.data.tokenizers.base import EOS, PAD, UNK
from dragoman.data.tokenizers.characters import CharactersConfig
from dragoman.data.tokenizers.language_tags import LanguageTagTokenizer
from dragoman.data.tokenizers.load import train_tokenizer
from dragoman.data.tokenizers.pair_codec import MAX_COPIES, PairCodec, copying_codec
from dragoman.data.tokenizers.words import WordsConfig
from dragoman.decoding.config import SearchConfig
from dragoman.decoding.searches import search
from dragoman.inference.engine.ctranslate2 import blockers
from dragoman.models.config import EncoderDecoderConfig, ExponentialDecayConfig, TransformerConfig
from dragoman.models.decoders.pointer_generator import PointerGenerator, PointerGeneratorConfig
from dragoman.models.decoders.recurrent import RecurrentDecoderConfig
from dragoman.models.encoder_decoder import EncoderDecoder
from dragoman.models.encoders.recurrent import RecurrentEncoderConfig
from dragoman.models.heads.decoder_head import teacher_inputs
from dragoman.models.layers.rnn_attention import AdditiveConfig
from dragoman.runs.tasks.translate import copied_ids

V = 11  # size of the target vocabulary; the source has two words more
# The third source has two unknown words, the first of them twice, and a known one that the target vocabulary lacks.
SOURCES = [
    TokensWithCopies([5, 6, 7, 5], [0, 0, 0, 0]),
    TokensWithCopies([12, 4], [0, 0]),
    TokensWithCopies([UNK, 9, UNK, UNK, 11], [1, 0, 2, 1, 3]),
]
TARGETS = [[5, 8], [4, 4, 10], [V + 1, 9, V, V + 2, UNK]]


def model_of(inner: str, width: int = 8, vocabulary: int = 11) -> EncoderDecoder:
    torch.manual_seed(3)
    transformer = TransformerConfig(layers=1, width=width, heads=2, feedforward=2 * width, dropout=0.0)
    recurrent = RecurrentDecoderConfig(embedding=width, width=width, attention=AdditiveConfig(width=width), dropout=0.0)
    decoder = {"transformer": transformer, "recurrent": recurrent}[inner]
    encoder = RecurrentEncoderConfig(embedding=width, width=width, dropout=0.0) if inner == "recurrent" else transformer
    config = EncoderDecoderConfig(
        encoder=encoder, decoder=PointerGeneratorConfig(inner=decoder), label_smoothing=0.0, tie="none"
    )
    model = EncoderDecoder(config, vocabulary + 2, vocabulary)
    model.copied = torch.tensor([token if 4 <= token < vocabulary else PAD for token in range(vocabulary + 2)])
    return model


@pytest.fixture(params=["recurrent", "transformer"])
def model(request: pytest.FixtureRequest) -> EncoderDecoder:
    return model_of(request.param).double().eval()


def by_hand(model: EncoderDecoder, source: TokensWithCopies, prefix: list[int]) -> list[float]:
    """p(y) after a prefix: equations 4, 8 and 9, entry by entry."""
    decoder = model.decoder
    assert isinstance(decoder, PointerGenerator)
    batch = batch_of([source])
    memory = model.encode(batch.source.data, batch.source.mask, batch.copies)
    read = torch.tensor([[2, *(token if token < V else UNK for token in prefix)]])
    hidden, _ = decoder.inner(read, decoder.inner.start(memory))
    h, keys, values = hidden[0, -1], memory.keys[0], memory.values[0]
    query = decoder.query.weight @ h
    scores = [float(query @ (decoder.key.weight @ key)) / math.sqrt(len(query)) for key in keys]
    total = sum(math.exp(score) for score in scores)
    attention = [math.exp(score) / total for score in scores]
    context = torch.stack([weight * value for weight, value in zip(attention, values, strict=True)]).sum(0)
    x = decoder.embedding(read)[0, -1]
    z = float(decoder.gate.weight[0] @ torch.cat([context, h, x]) + decoder.gate.bias[0])
    generate = 1 / (1 + math.exp(-z))
    logits = (decoder.output.weight @ (h + decoder.context.weight @ context)).tolist()
    normaliser = sum(math.exp(logit) for logit in logits)
    probabilities = [generate * math.exp(logit) / normaliser for logit in logits] + [0.0] * MAX_COPIES
    for token, copy, weight in zip([*source, EOS], [*source.copies, 0], attention, strict=True):
        probabilities[V + copy - 1 if copy else token if 4 <= token < V else UNK] += (1 - generate) * weight
    return probabilities


def test_probabilities_are_the_papers(model: EncoderDecoder) -> None:
    with torch.no_grad():
        found = model.logits(batch_of(SOURCES, TARGETS)).exp()
        for row, (source, target) in enumerate(zip(SOURCES, TARGETS, strict=True)):
            for place in range(len(target) + 1):
                expected = by_hand(model, source, target[:place])
                assert found[row, place].tolist() == pytest.approx(expected, abs=1e-12)
                assert sum(expected) == pytest.approx(1.0)


def test_the_loss_of_the_target_alone_is_that_of_the_distribution(model: EncoderDecoder) -> None:
    batch = batch_of(SOURCES, TARGETS)
    with torch.no_grad():
        assert float(model(batch).total) == pytest.approx(-float(model.score(batch).log_probabilities.sum()), abs=1e-10)


def test_gradients_are_those_of_finite_differences(model: EncoderDecoder) -> None:
    batch = batch_of(SOURCES, TARGETS)
    model(batch).total.backward()
    generator = torch.Generator().manual_seed(1)
    for name, weight in model.named_parameters():
        assert weight.grad is not None, name
        index = int(torch.randint(weight.numel(), (1,), generator=generator))
        losses = []
        for change in (1e-6, -1e-6):
            with torch.no_grad():
                weight.view(-1)[index] += change
                losses.append(float(model(batch).total))
                weight.view(-1)[index] -= change
        assert float(weight.grad.view(-1)[index]) == pytest.approx((losses[0] - losses[1]) / 2e-6, abs=1e-6), name


def test_separate_vocabularies_match_by_text() -> None:
    source = train_tokenizer(CharactersConfig(), ["abcde"])
    target = train_tokenizer(CharactersConfig(), ["xecb"])
    ids = copied_ids(source, target)
    for letter, copied in (("a", PAD), ("b", target.encode("b")[0]), ("e", target.encode("e")[0])):
        assert int(ids[source.encode(letter)[0]]) == copied


@pytest.mark.parametrize("beam", [1, 3])
def test_the_search_writes_copies_of_its_own_source_alone(model: EncoderDecoder, beam: int) -> None:
    """All tokens are possible, and the score of an output is the teacher-forced one."""
    config, copied = SearchConfig(beam=beam, max_length=6), set()
    with torch.no_grad():
        torch.nn.init.constant_(model.decoder.gate.bias, -3.0)  # type: ignore[union-attr]
        together = search(model, batch_of(SOURCES), config, 1.0, n_best=beam)
        for row, found in enumerate(together):
            (alone,) = search(model, batch_of([SOURCES[row]]), config, 1.0, n_best=beam)
            assert [one.tokens for one in alone] == [one.tokens for one in found]
            own = {V + copy - 1 for copy in SOURCES[row].copies if copy}
            for one in found:
                copied |= {token for token in one.tokens if token >= V}
                assert own >= {token for token in one.tokens if token >= V}
                assert UNK not in one.tokens
                score = model.score(batch_of([SOURCES[row]], [one.tokens[:-1]])).log_probabilities.sum()
                assert one.score == pytest.approx(float(score), abs=1e-10)
    assert copied


def test_unknown_words_of_a_source_have_ids_of_their_own() -> None:
    source = train_tokenizer(WordsConfig(), ["to meets and Bob ."])
    target = train_tokenizer(WordsConfig(), ["trifft und ( ) ."])
    codec, size = copying_codec(source, target), len(target)
    text = "Ann meets (Zoe) and Ann . Bob"
    (row,), (ids,) = codec.encode_pairs([text], ["Zoe trifft (Ann) und Bob und Eve"])
    # Ann meets ( Zoe ) and Ann . Bob: the target knows "." alone; its brackets stand apart from words
    assert isinstance(row, TokensWithCopies)
    assert row.copies == [1, 2, 3, 4, 5, 6, 1, 0, 7]
    assert row == source.encode(text)
    extended = codec.target_of(text)
    assert extended.pieces(ids)[:1] == ["Zoe"]
    assert extended.decode(ids) == "Zoe trifft (Ann) und Bob und ⁇"
    assert extended.encode("Zoe trifft (Ann) und Bob und Eve") == ids
    assert len(target) == size, "the tokenizer itself is as it was"
    assert codec.target_of("trifft und .") is target
    assert codec.encode_sources([text]) == [row]


def test_a_language_tag_is_no_copy() -> None:
    joint = train_tokenizer(WordsConfig(), ["a b c"])
    codec = copying_codec(LanguageTagTokenizer(joint, ["de"]), joint)
    (row,), (ids,) = codec.encode_pairs(["<2de> Zoe a Ann"], ["Ann b Zoe"])
    assert isinstance(row, TokensWithCopies)
    assert row.copies == [0, 1, 0, 2]
    assert ids == [len(joint) + 1, joint.encode("b")[0], len(joint)]
    assert codec.target_of("<2de> Zoe a Ann").decode(ids) == "Ann b Zoe"
    assert codec.source.decode(row) == "<2de> ⁇ a ⁇"


def test_a_share_of_the_loss_is_that_of_the_softmax_alone(model: EncoderDecoder) -> None:
    batch, pointer = batch_of(SOURCES, TARGETS), model.decoder
    assert isinstance(pointer, PointerGenerator)
    whole = model.train()(batch).total
    logits = pointer._read(teacher_inputs(batch.target), model.start(batch))[0]
    losses, known = model.scored_losses(batch)[0], batch.target < V
    generated = torch.nn.functional.cross_entropy(logits.transpose(1, 2), batch.target * known, reduction="none")
    alone = torch.where(known & (batch.target != PAD), generated, losses).sum()  # only the pointer has unknown words
    pointer.generation = 0.3
    torch.testing.assert_close(model(batch).total, 0.7 * whole + 0.3 * alone)
    torch.testing.assert_close(model.eval()(batch).total, whole)  # validation measures the mixture
    decoder = PointerGeneratorConfig(generation=0.3, inner=RecurrentDecoderConfig())
    assert any("decoder.generation" in line for line in EncoderDecoderConfig(decoder=decoder, truncate=4).problems())


@pytest.mark.parametrize("changes", [{"truncate": 2}, {"forcing": ExponentialDecayConfig()}])
def test_a_loss_in_parts_knows_the_copies(changes: dict[str, Any]) -> None:
    """Label smoothing covers the vocabulary, not the copies, which most sources lack."""
    model, batch = model_of("recurrent").double().train(), batch_of(SOURCES, TARGETS)
    whole = model(batch).total
    model.config = replace(model.config, **changes)
    torch.testing.assert_close(model(batch).total, whole)  # the schedule starts with teacher forcing
    model.config = replace(model.config, label_smoothing=0.1)
    real = batch.target != PAD
    scores = model.logits(batch).detach()[..., :V].mean(-1)[real]
    torch.testing.assert_close(model(batch).total, 0.9 * whole - 0.1 * scores.sum())


def test_sources_with_too_many_unknown_words_keep_the_first() -> None:
    joint = train_tokenizer(WordsConfig(), ["a b c"])
    codec, words = copying_codec(joint, joint), [f"w{number}" for number in range(MAX_COPIES + 5)]
    (row,), (ids,) = codec.encode_pairs([" ".join(words)], [" ".join(reversed(words))])
    assert isinstance(row, TokensWithCopies)
    assert row.copies == [*range(1, MAX_COPIES + 1), *[0] * 5]
    assert ids[:5] == [UNK] * 5
    assert ids[5:] == [len(joint) + number for number in reversed(range(MAX_COPIES))]


def test_characters_and_words_are_never_compared() -> None:
    words, characters = train_tokenizer(WordsConfig(), ["a b"]), train_tokenizer(CharactersConfig(), ["a b"])
    assert type(copying_codec(words, characters)) is PairCodec


def test_it_learns_to_copy_a_large_vocabulary_fast() -> None:
    """Eighty steps over sixty words. Without the pointer the same model gets one of fifty rows right."""
    torch.manual_seed(0)
    rng = random.Random(1)
    model = model_of("recurrent", width=32, vocabulary=64)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)

    def rows(count: int) -> list[list[int]]:
        return [rng.choices(range(4, 64), k=rng.randint(2, 5)) for _ in range(count)]

    for _ in range(80):
        shown = rows(32)
        loss = model(batch_of(shown, shown))
        optimizer.zero_grad()
        (loss.total / loss.count).backward()
        optimizer.step()
    unseen = rows(50)
    found = search(model.eval(), batch_of(unseen), SearchConfig(beam=1), 1.0)
    assert sum(list(row[0].tokens[:-1]) == source for row, source in zip(found, unseen, strict=True)) >= 40


def test_ctranslate2_steps_aside() -> None:
    assert blockers(EncoderDecoderConfig(decoder=PointerGeneratorConfig(inner=TransformerConfig()))) == [
        "model.decoder.kind: found 'pointer-generator', expected 'transformer'"
    ]


def test_a_word_that_can_be_copied_is_not_unknown() -> None:
    rows = [TokensWithCopies([UNK, 5, UNK], [1, 0, 0]), [UNK, 5]]
    assert [COPY_FORMAT.unknown_count(row) for row in rows] == [1, 1]
    assert PAIR_FORMAT.unknown_count([UNK, 5]) == 1
