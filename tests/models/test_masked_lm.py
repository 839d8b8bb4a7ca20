"""Masked language models against Hugging Face's BERT, and the statistics of masking."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForPreTraining

from dragoman.base import config as settings
from dragoman.base.errors import ConfigError, DataError
from dragoman.data.batch import Batch, batch_of, token_batch
from dragoman.data.tokenizers.base import EOS, PAD, SOS
from dragoman.models.encoders.bert import BertEncoderConfig
from dragoman.models.masked_lm import MaskedLM, MaskedLMConfig, concatenate_rows, num_masked

WORDS = 41
MASK = 40  # of Hugging Face's table; we have no such word
ENCODER = BertEncoderConfig(
    layers=3, width=16, heads=4, feedforward=24, max_positions=23, dropout=0.0, attention_dropout=0.0
)


def shake(model: nn.Module) -> None:
    with torch.no_grad():
        for part in model.parameters():
            part.add_(0.1 * torch.randn_like(part))


def built(words: int = WORDS, **changes: Any) -> MaskedLM:
    torch.manual_seed(5)
    model = MaskedLM(MaskedLMConfig(**({"encoder": ENCODER} | changes)), words)
    shake(model)
    return model.eval()


# --- against BERT


def bert() -> BertForPreTraining:
    torch.manual_seed(2)
    theirs = BertForPreTraining(
        BertConfig(
            vocab_size=WORDS, hidden_size=16, num_hidden_layers=3, num_attention_heads=4, intermediate_size=24,
            max_position_embeddings=24, layer_norm_eps=1e-5, pad_token_id=PAD, attn_implementation="eager",
        )
    )  # fmt: skip
    shake(theirs)
    return theirs.eval()


def like_bert(theirs: BertForPreTraining) -> MaskedLM:
    ours = MaskedLM(MaskedLMConfig(encoder=ENCODER, next_sentence=True), WORDS).eval()
    table, head = theirs.bert.embeddings, theirs.cls.predictions
    pairs = [
        (ours.encoder.embedding_norm, table.LayerNorm),
        (ours.transform, head.transform.dense),
        (ours.transform_norm, head.transform.LayerNorm),
        (ours.pooler, theirs.bert.pooler.dense),
        (ours.next_sentence, theirs.cls.seq_relationship),
    ]
    with torch.no_grad():
        ours.encoder.embedding.weight.copy_(table.word_embeddings.weight)
        ours.encoder.positions.copy_(table.position_embeddings.weight)
        ours.encoder.segments.copy_(table.token_type_embeddings.weight)
        ours.mask_vector.copy_(table.word_embeddings.weight[MASK])
        ours.output.bias.copy_(head.bias)
        for block, layer in zip(ours.encoder.blocks, theirs.bert.encoder.layer, strict=True):
            parts = [getattr(layer.attention.self, name) for name in ("query", "key", "value")]
            block.attention.project.weight.copy_(torch.cat([part.weight for part in parts]))
            block.attention.project.bias.copy_(torch.cat([part.bias for part in parts]))
            pairs += [
                (block.attention.output, layer.attention.output.dense),
                (block.attention_norm, layer.attention.output.LayerNorm),
                (block.feedforward.widen, layer.intermediate.dense),
                (block.feedforward.narrow, layer.output.dense),
                (block.feedforward_norm, layer.output.LayerNorm),
            ]
        for mine, its in pairs:
            assert mine is not None
            mine.load_state_dict(its.state_dict())
    assert ours.output.weight is ours.encoder.embedding.weight
    return ours


def test_outputs_for_one_and_two_masked_texts_are_berts() -> None:
    theirs = bert()
    ours = like_bert(theirs)
    rows = [[5, 6, 7, 8, EOS, 9, 10, EOS], [11, 12, EOS], [13, EOS, 14, 15, 16, 17, EOS], [18, 19, 20, 21, 22, 23, EOS]]
    source = torch.full((4, 9), PAD)
    for place, row in enumerate(rows):
        source[place, : len(row)] = torch.tensor(row)
    mask = source != PAD
    hidden = torch.zeros_like(mask)
    hidden[0, 2] = hidden[2, 3] = hidden[3, 0] = True
    shown = torch.cat([torch.full((4, 1), SOS), source.masked_fill(hidden, MASK)], 1)
    texts = torch.tensor(
        [[0, 0, 0, 0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 0, 1, 1, 1, 1, 1, 1], [0, 0, 0, 1, 1, 1, 1, 1, 1, 1],
         [0, 0, 0, 0, 0, 0, 0, 0, 1, 1]]
    )  # fmt: skip
    attention = torch.cat([torch.ones(4, 1, dtype=torch.bool), mask], 1)
    with torch.no_grad():
        expected = theirs(input_ids=shown, token_type_ids=texts, attention_mask=attention.long())
        memory = ours.encoder(source, mask, hidden, ours.mask_vector)
        places = torch.arange(9).expand(4, -1)
        logits = ours.logits(memory, places)
        assert ours.pooler is not None
        assert ours.next_sentence is not None
        related = ours.next_sentence(torch.tanh(ours.pooler(memory.final[0])))
    torch.testing.assert_close(logits[mask], expected.prediction_logits[:, 1:][mask], rtol=0.0, atol=1e-5)
    torch.testing.assert_close(related, expected.seq_relationship_logits, rtol=0.0, atol=1e-5)
    with torch.no_grad():
        filled = ours.fill(source, mask, hidden)
    torch.testing.assert_close(
        filled[hidden], expected.prediction_logits[:, 1:][hidden].log_softmax(-1), rtol=0.0, atol=1e-5
    )


def test_the_loss_on_masked_tokens_is_berts() -> None:
    """All chosen tokens become [MASK]; Hugging Face gets labels at the positions that we chose."""
    theirs = bert()
    ours = like_bert(theirs)
    ours.config = MaskedLMConfig(
        encoder=ENCODER, next_sentence=False, mask_replace=1.0, random_replace=0.0, mlm_probability=0.3
    )
    ours.pooler = ours.next_sentence = None
    batch = batch_of([[5, 6, 7, 8, 9, 10, 11], [12, 13, 14]])
    ours.train()
    torch.manual_seed(9)
    loss = ours(batch)
    torch.manual_seed(9)
    masking = ours.mask_tokens(batch.source.data, batch.source.mask)
    labels = torch.full_like(batch.source.data, -100).scatter(1, masking.positions, masking.target)
    labels[labels == PAD] = -100
    assert int((labels != -100).sum()) == int(loss.count) == 2 + 1
    assert torch.equal(labels != -100, masking.masked)
    shown = torch.cat([torch.full((2, 1), SOS), batch.source.data.masked_fill(masking.masked, MASK)], 1)
    attention = torch.cat([torch.ones(2, 1, dtype=torch.long), batch.source.mask.long()], 1)
    scores = theirs(input_ids=shown, attention_mask=attention).prediction_logits[:, 1:]
    expected = nn.functional.cross_entropy(scores.flatten(0, 1), labels.flatten(), reduction="sum")
    torch.testing.assert_close(loss.total, expected, rtol=0.0, atol=1e-5)


# --- what is hidden


def random_batch(rows: int, length: int) -> Batch:
    random = np.random.default_rng(0)
    return batch_of([random.integers(4, 200, random.integers(1, length)).tolist() for _ in range(rows)])


def test_lengths_determine_the_number_of_masked_tokens_and_shares_are_met() -> None:
    model = built(200).train()
    batch = random_batch(500, 60)
    torch.manual_seed(1)
    found = model.mask_tokens(batch.source.data, batch.source.mask)
    lengths = batch.source.mask.sum(1).numpy() - 1
    real = found.target != PAD
    assert torch.equal(real.sum(1), num_masked(lengths, 0.15))
    assert num_masked(np.array([1, 2, 3, 10, 100]), 0.15).tolist() == [1, 1, 1, 2, 15]
    # Every place once, never <eos> or padding, and the target is what stood there.
    for row in range(500):
        places = found.positions[row][real[row]].tolist()
        assert len(set(places)) == len(places)
        assert max(places) < lengths[row]
        assert found.target[row][real[row]].tolist() == batch.source.data[row, places].tolist()
    chosen = torch.zeros_like(batch.source.mask)
    for row in range(500):
        chosen[row, found.positions[row][real[row]]] = True
    assert torch.equal(found.source[~chosen], batch.source.data[~chosen])
    assert not (found.masked & ~chosen).any()
    count = int(real.sum())
    hidden = int(found.masked.sum())
    exchanged = int((found.source != batch.source.data).sum())
    for seen, share in ((hidden, 0.8), (exchanged, 0.1)):
        assert abs(seen / count - share) < 4 * math.sqrt(share * (1 - share) / count)
    strangers = found.source[found.source != batch.source.data]
    assert strangers.min() >= 4
    assert strangers.max() < 200
    assert not (found.masked & (found.source != batch.source.data)).any()


def test_every_position_is_masked_equally_often() -> None:
    model = built(200).train()
    source = torch.tensor([[*range(10, 30), EOS, PAD, PAD]]).repeat(4000, 1)
    torch.manual_seed(3)
    found = model.mask_tokens(source, source != PAD)
    seen = torch.bincount(found.positions[found.target != PAD], minlength=23) / 4000
    assert seen[20:].sum() == 0
    assert float((seen[:20] - 0.15).abs().max()) < 4.5 * math.sqrt(0.15 * 0.85 / 4000)


def test_two_texts_and_rows_without_text() -> None:
    model = built(200).train()
    source = torch.tensor([[5, 6, EOS, 7, 8, EOS], [EOS, EOS, PAD, PAD, PAD, PAD]])
    for seed in range(40):
        torch.manual_seed(seed)
        found = model.mask_tokens(source, source != PAD)
        assert (found.source[0, [2, 5]] == EOS).all()
        assert torch.equal(found.source[1], source[1])
        assert (found.target != PAD).sum(1).tolist() == [1, 0]
    loss = model(token_batch(source))
    assert int(loss.count) == 1
    assert torch.isfinite(loss.total)


def test_validation_masks_the_same_tokens_every_time_and_training_does_not() -> None:
    model, batch = built(200), random_batch(20, 23)
    first, second = model(batch).total, model(batch).total
    assert torch.equal(first, second)
    scores = model.score(batch)
    torch.testing.assert_close(-scores.log_probabilities.sum(), first)
    assert int(scores.mask.sum()) == int(model(batch).count)
    model.train()
    torch.manual_seed(1)
    third = model(batch).total
    assert not torch.equal(third, model(batch).total)
    torch.manual_seed(1)
    assert torch.equal(third, model(batch).total)


def test_padding_and_neighbours_change_nothing() -> None:
    model = built()
    rows = [[5, 6, 7], [8, 9, 10, 11, 12, EOS, 13], [14]]
    together = batch_of(rows)
    none = torch.zeros_like(together.source.mask)
    with torch.no_grad():
        memory = model.encoder(together.source.data, together.source.mask, none, model.mask_vector)
        plain = model.encoder(together.source.data, together.source.mask)
        assert torch.equal(memory.values, plain.values)
        for place, row in enumerate(rows):
            alone = batch_of([row])
            one = model.encoder(alone.source.data, alone.source.mask)
            torch.testing.assert_close(memory.values[place, : len(row) + 1], one.values[0], rtol=0.0, atol=1e-5)
            torch.testing.assert_close(memory.final[0][place], one.final[0][0], rtol=0.0, atol=1e-5)


# --- pairs


def test_concatenated_rows_have_no_padding_between() -> None:
    lefts, rights = [[5, 6, EOS], [7, EOS], [8, 9, 10, EOS]], [[11, EOS], [12, 13, 14, EOS], [EOS]]

    def padded(rows: list[list[int]]) -> Tensor:
        width = max(map(len, rows))
        return torch.tensor([row + [PAD] * (width - len(row)) for row in rows])

    found = concatenate_rows(padded(lefts), padded(rights))
    assert found.shape == (3, 8)
    for row, left, right in zip(found.tolist(), lefts, rights, strict=True):
        assert row == left + right + [PAD] * (8 - len(left) - len(right))


def test_half_of_the_second_texts_are_swapped_and_labelled() -> None:
    model = built(200, next_sentence=True).train()
    batch = token_batch(
        torch.tensor([[10 + row, EOS] for row in range(60)]).repeat(20, 1)[:60],
        torch.tensor([[100 + row, EOS] for row in range(60)]),
    )
    share = []
    for seed in range(30):
        torch.manual_seed(seed)
        rows, follows, _ = model._rows(batch)
        assert follows is not None
        assert torch.equal(follows, rows[:, 2] - rows[:, 0] == 90)
        share.append(float(follows.float().mean()))
    assert abs(np.mean(share) - 0.5) < 4 * 0.5 / math.sqrt(30 * 60)
    loss = model(batch)
    loss.total.backward()
    assert all(part.grad is not None for part in model.parameters())
    alone = batch.map(lambda part: part[:1])
    assert model._rows(alone)[1] is not None
    assert bool(model._rows(alone)[1].all())  # type: ignore[union-attr]


def test_swapping_second_texts_changes_no_count() -> None:
    """The trainer divides by a count that is known before any random choice."""
    model, random = built(200, next_sentence=True).train(), np.random.default_rng(1)
    for rows in (1, 2, 3, 8):
        lengths = random.integers(1, 11, (2, rows))
        left, right = ([random.integers(4, 200, size).tolist() for size in side] for side in lengths)
        batch = batch_of(left, right)
        for seed in range(6):
            torch.manual_seed(seed)
            assert int(model(batch).count) == num_masked(lengths, model.config.mlm_probability).sum()
            found, follows, _ = model._rows(batch)
            assert follows is not None
            seconds = []
            for row, first, second, kept in zip(found.tolist(), left, right, follows.tolist(), strict=True):
                assert row[: len(first) + 1] == [*first, EOS]
                seconds.append([token for token in row[len(first) + 1 :] if token not in (PAD, EOS)])
                assert (seconds[-1] == second) == kept
            assert sorted(seconds) == sorted(right)


def test_it_learns_to_predict_from_both_sides() -> None:
    """Every word occurs twice in a row, so a model that reads both sides can predict the masked one."""
    torch.manual_seed(0)
    encoder = BertEncoderConfig(
        layers=1, width=32, heads=2, feedforward=64, max_positions=12, dropout=0.0, attention_dropout=0.0
    )
    model = MaskedLM(MaskedLMConfig(mlm_probability=0.25, encoder=encoder), 14)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    losses = []
    for _ in range(120):
        words = torch.randint(4, 14, (32, 4)).repeat_interleave(2, 1)
        source = torch.cat([words, torch.full((32, 1), EOS)], 1)
        loss = model(token_batch(source))
        (loss.total / loss.count).backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.total.detach() / loss.count))
    assert np.mean(losses[:10]) > 2.2
    assert np.mean(losses[-20:]) < 0.8  # 0.4 is the best there is: sometimes both are hidden


# --- settings


def test_settings_and_long_rows() -> None:
    config = MaskedLMConfig(encoder=ENCODER, next_sentence=True)
    assert settings.build(MaskedLMConfig, settings.as_table(config)) == config
    with pytest.raises(ConfigError, match=r"random_replace: found 0.3, expected at most 0.2 with mask_replace = 0.8"):
        settings.build(MaskedLMConfig, {"random_replace": 0.3})
    with pytest.raises(ConfigError, match=r"next_sentence: found true with encoder.segments = 1, expected at least 2"):
        settings.build(MaskedLMConfig, {"next_sentence": True, "encoder": {"segments": 1}})
    with pytest.raises(ConfigError, match=r"heads: found 5, expected a divisor of width = 16"):
        settings.build(MaskedLMConfig, {"encoder": {"heads": 5, "width": 16}})
    with pytest.raises(DataError, match=r"a source of 24 tokens \(<eos> counts\), but the model reads at most 23"):
        built()(batch_of([[5] * 23]))
