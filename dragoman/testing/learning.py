"""Law 11: a model learns to copy and to reverse short random rows."""

from __future__ import annotations

import random
from typing import Any, Literal

import torch

from dragoman.data import batch_of
from dragoman.decoding import SearchConfig, search
from dragoman.models import EncoderDecoder, EncoderDecoderConfig
from dragoman.models.encoders import CharacterWordsConfig

LearningTask = Literal["copy", "reverse"]
WORDS, LONGEST = 7, 4
VOCABULARY = 4 + WORDS
LETTERS, SPACE = 3, VOCABULARY - 1  # two letters spell a word


def random_rows(chance: random.Random, count: int) -> list[list[int]]:
    return [[chance.randrange(4, VOCABULARY) for _ in range(chance.randint(1, LONGEST))] for _ in range(count)]


def expected_output(task: LearningTask, row: list[int]) -> list[int]:
    return row[::-1] if task == "reverse" else row


def encoder_input(encoder: Any, row: list[int]) -> list[int]:
    """The row itself, or its words spelled in characters for an encoder that reads those."""
    if not isinstance(encoder, CharacterWordsConfig):
        return row
    words = ([4 + (word - 4) // LETTERS, 4 + (word - 4) % LETTERS, SPACE] for word in row)
    return [letter for word in words for letter in word][:-1]


def exact_match(model: EncoderDecoder, task: LearningTask, sources: list[list[int]]) -> float:
    """The share of rows for which greedy search gives the expected output."""
    model.eval()
    batch = batch_of([encoder_input(model.config.encoder, row) for row in sources])
    outputs = search(model, batch, SearchConfig(beam=1, max_length=LONGEST + 2), ratio=1.0)
    pairs = zip(sources, outputs, strict=True)
    return sum(list(best.tokens[:-1]) == expected_output(task, source) for source, (best,) in pairs) / len(sources)


def learn(
    encoder: Any, decoder: Any, task: LearningTask, rate: float = 1.2e-2, steps: int = 180, rows: int = 64
) -> tuple[float, float]:
    """Train a model of these settings, and return the exact match on unseen rows before and after."""
    torch.manual_seed(1)
    chance = random.Random(1)
    config = EncoderDecoderConfig(label_smoothing=0.0, encoder=encoder, decoder=decoder)
    model = EncoderDecoder(config, VOCABULARY, VOCABULARY, space=SPACE)
    unseen = [row for row in random_rows(chance, 300) if len(row) > 2]
    held_out = {tuple(row) for row in unseen}
    before = exact_match(model, task, unseen[:50])
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), fused=True)
    for step in range(steps):
        model.train()
        sources = [row for row in random_rows(chance, rows) if tuple(row) not in held_out]
        inputs = [encoder_input(encoder, row) for row in sources]
        loss = model(batch_of(inputs, [expected_output(task, row) for row in sources]))
        optimizer.zero_grad()
        (loss.total / loss.count).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:  # warm up for thirty steps, then decay to zero
            group["lr"] = rate * min((step + 1) / 30, 1.5 * (1 - step / steps))
        optimizer.step()
    return before, exact_match(model, task, unseen)
