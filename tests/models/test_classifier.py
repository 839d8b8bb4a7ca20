"""The laws for classifiers, regressors and taggers, over every encoder and every pooling, in float64."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.base import ConfigError
from dragoman.data.batch import Batch, token_batch
from dragoman.data.collate import (
    Collator,
    ScalarCollator,
    SeparateTextsCollator,
    SeriesCollator,
    TagCollator,
    TokenCollator,
)
from dragoman.data.tokenizers.base import PAD
from dragoman.inspect.views.layer_table import parameter_count
from dragoman.models.classifier import Classifier, ClassifierConfig, Regressor
from dragoman.models.encoders.character_words import CharacterWordsConfig, HashedWords
from dragoman.models.encoders.dense import DenseEncoderConfig
from dragoman.models.encoders.recurrent import RecurrentEncoderConfig
from dragoman.models.layers.cells import RNNConfig
from dragoman.models.layers.embeddings import build_embedding
from dragoman.models.layers.pooling import (
    LastConfig,
    MaxConfig,
    MeanConfig,
    QueriesConfig,
    StepWeightsConfig,
    TimeAttentionConfig,
)
from dragoman.models.sources import SeriesInput
from dragoman.models.tagger import Tagger, TaggerConfig
from dragoman.testing.laws import SPACE, VOCABULARY
from tests.contract.conftest import ENCODER_CASES

CLOSE = {"rtol": 0.0, "atol": 1e-10}
POOLINGS = {
    "last": LastConfig(), "mean": MeanConfig(), "max": MaxConfig(), "attention": TimeAttentionConfig(),
    "queries": QueriesConfig(count=2),
}  # fmt: skip
# Words of one or two tokens; token 7 is the space.
SENTENCES = [[5, 6, SPACE, 8, SPACE, 9], [10, 4], [12, SPACE, 11], [4]]
PLACES = [[0, 3, 5], [0], [0, 2], [0]]
TAGS = [[0, 2, 1], [1], [2, 0], [1]]
LABELS = [[1], [0], [2], [2]]
TAG_ROWS = [[*tags, *places] for tags, places in zip(TAGS, PLACES, strict=True)]
LABELLED, TAGGED = Collator(TokenCollator(), ScalarCollator()), Collator(TokenCollator(), TagCollator())


@pytest.fixture(autouse=True)
def in_float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def shaken(model: Any) -> Any:
    torch.manual_seed(zlib.crc32(repr(model).encode()))
    with torch.no_grad():
        for part in model.parameters():
            part.add_(0.1 * torch.randn_like(part))
    return model.eval()


def embedding(config: Any) -> nn.Module:
    return build_embedding(VOCABULARY + 2, config.embedding, PAD, SPACE)


def classifier(encoder: str, outputs: int = 3, **settings: Any) -> Classifier:
    config = ClassifierConfig(encoder=ENCODER_CASES[encoder], **settings)
    return shaken(Classifier(config, embedding(config.encoder), outputs, keep_from=VOCABULARY + 2))


def tagger(encoder: str, **settings: Any) -> Tagger:
    config = TaggerConfig(encoder=ENCODER_CASES[encoder], **settings)
    return shaken(Tagger(config, embedding(config.encoder), 3, keep_from=VOCABULARY + 2))


def padded_more(batch: Batch) -> Batch:
    """Two columns of padding on the source and, of tags, three words of padding."""
    source = nn.functional.pad(batch.source.data, (0, 2), value=PAD)
    target = batch.target
    if target.dim() == 3:
        more = torch.tensor([-1, 0]).view(1, 2, 1).expand(target.shape[0], 2, 3)
        target = torch.cat([target, more], 2)
    return token_batch(source, target)


def rows_of(model: Any, batch: Batch, place: int) -> Tensor:
    found = model.predict(batch)
    return found.probabilities[place][found.mask[place]]


def check_laws(model: Any, form: Collator, targets: list[list[int]]) -> None:
    batch = form.collate(SENTENCES, targets)
    wide = padded_more(batch)
    terms = sum(int(form.target.loss_terms(np.array([len(row)], np.int32))[0]) for row in targets)
    torch.testing.assert_close(model(wide).total, model(batch).total, **CLOSE)
    assert int(model(wide).count) == int(model(batch).count) == terms
    alone = [form.collate(SENTENCES[place : place + 1], targets[place : place + 1]) for place in range(4)]
    torch.testing.assert_close(sum(model(one).total for one in alone), model(batch).total, **CLOSE)
    for place in range(4):
        torch.testing.assert_close(rows_of(model, wide, place), rows_of(model, batch, place), **CLOSE)
        torch.testing.assert_close(rows_of(model, alone[place], 0), rows_of(model, batch, place), **CLOSE)
    sums = model.predict(batch).probabilities.sum(-1)[model.predict(batch).mask]
    torch.testing.assert_close(sums, torch.ones_like(sums), **CLOSE)


@pytest.mark.parametrize("encoder", ENCODER_CASES)
def test_padding_and_neighbours_change_no_label(encoder: str) -> None:
    check_laws(classifier(encoder), LABELLED, LABELS)


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("encoder", ["recurrent", "transformer", "character-words"])
def test_padding_and_neighbours_change_no_label_however_pooled(encoder: str, pooling: str) -> None:
    check_laws(classifier(encoder, pooling=POOLINGS[pooling], hidden=4), LABELLED, LABELS)


@pytest.mark.parametrize("crf", [False, True])
@pytest.mark.parametrize("read", ["first", "mean"])
@pytest.mark.parametrize(
    "encoder", [name for name in ENCODER_CASES if not isinstance(ENCODER_CASES[name], DenseEncoderConfig)]
)
def test_padding_and_neighbours_change_no_tag(encoder: str, read: str, crf: bool) -> None:
    if isinstance(ENCODER_CASES[encoder], CharacterWordsConfig) and read == "mean":
        pytest.skip("character-words gives one vector per word")
    check_laws(tagger(encoder, read=read, crf=crf), TAGGED, TAG_ROWS)


def test_hashed_words_keep_the_laws_and_distinguish_words() -> None:
    config = CharacterWordsConfig(
        embedding=4,
        kernels=(1,),
        filters=(3,),
        hashed=97,
        inner=RecurrentEncoderConfig(embedding=5, width=6, dropout=0.0),
    )
    model = shaken(Tagger(TaggerConfig(encoder=config), embedding(config), 3, keep_from=VOCABULARY + 2))
    check_laws(model, TAGGED, TAG_ROWS)
    hashed = model.encoder.hashed
    letters = torch.tensor([[[4, 5, 6], [4, 5, PAD], [6, 5, 4], [4, 5, 6]]])
    one, two, three, four = hashed(letters)[0]
    assert torch.equal(one, four)
    assert not torch.equal(one, two)
    assert not torch.equal(one, three)
    assert torch.equal(hashed(nn.functional.pad(letters, (0, 5)))[0, 1], two)  # whatever the longest word


def test_forms_of_a_word_are_hashed_too() -> None:
    """Words with the same lower case, beginning or ending share what that form adds, and nothing else."""
    folded = torch.tensor([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 4, 5])  # 10 and 11 are capitals of 4 and 5
    same = {
        "word": ([4, 5, 6, 7], [4, 5, 6, 7]),
        "folded": ([10, 5, 6, 7], [4, 11, 6, 7]),
        "beginning": ([4, 5, 6, 7], [4, 5, 6, 8]),
        "ending": ([4, 5, 6, 7], [9, 5, 6, 7]),
    }
    for form, (one, other) in same.items():
        for asked in same:
            hashed = HashedWords(97, 5, 0.0, (asked,))
            nn.init.normal_(hashed.weight)
            first, second = hashed(torch.tensor([[one, other]]), folded)[0]
            shares = form == asked or form == "word" or (form == "folded" and asked != "word")
            assert torch.equal(first, second) == shares, (form, asked)
    both = HashedWords(97, 5, 0.0, ("word", "ending"))
    nn.init.normal_(both.weight)
    alone = [HashedWords(97, 5, 0.0, (form,)) for form in ("word", "ending")]
    letters = torch.tensor([[[4, 5, 6, 7], [8, 9, PAD, PAD]]])
    for one in alone:
        one.weight = both.weight
    torch.testing.assert_close(both(letters), alone[0](letters) + alone[1](letters))


def test_a_word_is_read_at_its_first_token_or_as_their_mean() -> None:
    batch = TAGGED.collate(SENTENCES, TAG_ROWS)
    for read in ("first", "mean"):
        model = tagger("gru", read=read)
        values = model.encoder(batch.source.data, batch.source.mask).values
        found = model.words(batch)
        for row, groups in enumerate([[[0, 1], [3], [5]], [[0, 1]], [[0], [2]], [[0]]]):
            for word, places in enumerate(groups):
                expected = values[row, places[0]] if read == "first" else values[row, places].mean(0)
                torch.testing.assert_close(found[row, word], expected, **CLOSE)


def test_two_texts_apart_are_compared_by_four_vectors() -> None:
    model = classifier("recurrent", texts="apart")
    form = Collator(SeparateTextsCollator(separator=VOCABULARY + 1), ScalarCollator())
    pairs = [([5, 6], [8]), ([9], [4, 10, 8, 5])]
    batch = form.collate([[*one, VOCABULARY + 1, *other] for one, other in pairs], [[0], [1]])
    assert batch.source.data.shape == (2, 2, 5)
    for row, texts in enumerate(pairs):
        u, v = (model.pooled(*tokens_of(text)) for text in texts)
        vector = torch.cat([u, v, (u - v).abs(), u * v], 1)
        torch.testing.assert_close(model.outputs(batch)[row], model.output(vector)[0], **CLOSE)


def tokens_of(text: list[int]) -> tuple[Tensor, Tensor]:
    batch = LABELLED.collate([text])
    return batch.source.data, batch.source.mask


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_a_sigmoid_of_two_labels_is_torchs_binary_cross_entropy(smoothing: float) -> None:
    model = classifier("recurrent", head="sigmoid", label_smoothing=smoothing, outputs=2)
    batch = LABELLED.collate(SENTENCES, [[1], [0], [0], [1]])
    logits = model.output(model.pooled(batch.source.data, batch.source.mask))[:, 0]
    truth = batch.target[:, 0].double() * (1 - smoothing) + smoothing / 2
    expected = F.binary_cross_entropy_with_logits(logits, truth, reduction="sum")
    torch.testing.assert_close(model.train().forward(batch).total, expected, **CLOSE)
    found = model.eval().predict(batch)
    assert found.probabilities is not None
    torch.testing.assert_close(found.probabilities[:, 0, 1], logits.sigmoid(), **CLOSE)
    assert found.values[:, 0].tolist() == (logits > 0).long().tolist()
    width = model.output.in_features
    assert parameter_count(model.output) == width + 1
    assert parameter_count(classifier("recurrent", outputs=2).output) == 2 * (width + 1)
    with pytest.raises(ConfigError, match="for 3 labels"):
        classifier("recurrent", head="sigmoid")


def test_labels_are_smoothed_while_training_only() -> None:
    model = classifier("gru", label_smoothing=0.3)
    batch = LABELLED.collate(SENTENCES, LABELS)
    truth = torch.tensor(LABELS)[:, 0]
    logs = model.outputs(batch).log_softmax(-1)
    plain = -logs.gather(1, truth[:, None]).sum()
    torch.testing.assert_close(model(batch).total, plain, **CLOSE)
    torch.testing.assert_close(model.train()(batch).total, 0.7 * plain - 0.3 * logs.mean(1).sum(), **CLOSE)


@pytest.mark.parametrize(
    ("pooling", "count"), [(LastConfig(), 11), (TimeAttentionConfig(steps=20), 33), (StepWeightsConfig(steps=20), 33)]
)
def test_the_published_example_has_its_parameter_count(pooling: Any, count: int) -> None:
    encoder = RecurrentEncoderConfig(cell=RNNConfig(), embedding=1, width=2, direction="forward", dropout=0.0)
    model = shaken(Regressor(ClassifierConfig(pooling=pooling, encoder=encoder), SeriesInput(1), 1, keep_from=0))
    assert parameter_count(model) == count
    form = Collator(SeriesCollator(), ScalarCollator(torch.float64))
    series = [[0.5] * 20, [0.25, -1.0, 2.0]]
    both = form.collate(series, [[1.0], [2.0]])
    alone = sum(model(form.collate([one], [[target]])).total for one, target in zip(series, (1.0, 2.0), strict=True))
    torch.testing.assert_close(model(both).total, alone, **CLOSE)
    outputs = model.predict(both).values
    expected = (outputs - both.target).square().sum()
    torch.testing.assert_close(model(both).total, expected, **CLOSE)


def test_training_steps_can_be_captured_as_cuda_graphs() -> None:
    assert classifier("recurrent").graph_blockers == tagger("transformer", crf=True).graph_blockers == []
    assert "character-words" in tagger("character-words").graph_blockers[0]
