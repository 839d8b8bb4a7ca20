"""The laws of encoders and decoders (docs/explanation/architecture.md): they raise AssertionError if broken.

All are meant for a model in evaluation mode and float64: see `small_model` and `in_float64`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from dragoman.data import Batch, batch_of, token_batch
from dragoman.data.tokenizers import PAD, SOS
from dragoman.decoding import BeamOptions, Scorer, beam_search, greedy_search
from dragoman.models import EncoderDecoder, EncoderDecoderConfig, State
from dragoman.models.kernels import GraphInputs

VOCABULARY = 11
SPACE = 7  # the token between words, for encoders that read characters
SOURCES = [[5, 6, 7, 8, 9], [10, 4], [12, 11, 7], [4]]
TARGETS = [[4, 5, 6], [7, 8, 9, 10, 4, 5], [6], [5, 5]]
TOLERANCE = 1e-10
SPLITS = ([1] * 7, [3, 4], [1, 5, 1], [6, 1])  # of the longest target and <eos>
CACHE_SPLITS = ([7], [1] * 7, [2, 5])
BEAMS = (1, 3)
SCORERS = {"power": Scorer(), "gnmt": Scorer(0.6, "gnmt")}


def assert_close(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=0.0, atol=TOLERANCE)


@contextmanager
def in_float64() -> Iterator[None]:
    """Make float64 the default precision of torch inside the block."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def small_model(
    encoder: Any, decoder: Any, tie: str = "target", smoothing: float = 0.1, seed: str = ""
) -> EncoderDecoder:
    """A model with random weights from the settings of an encoder and a decoder; equal seeds give equal weights."""
    torch.manual_seed(zlib.crc32(seed.encode()))
    config = EncoderDecoderConfig(
        tie=tie if decoder.output_width else "none",  # type: ignore[arg-type]
        label_smoothing=smoothing,
        encoder=encoder,
        decoder=decoder,
    )
    model = EncoderDecoder(config, VOCABULARY + 2, VOCABULARY, space=SPACE)
    model.copied = torch.tensor([token if 4 <= token < VOCABULARY else PAD for token in range(VOCABULARY + 2)])
    with torch.no_grad():  # so that biases and norms matter
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def inputs_of(batch: Batch) -> Tensor:
    begin = batch.target.new_full((batch.target.shape[0], 1), SOS)
    return torch.cat([begin, batch.target[:, :-1]], 1)


def gradients_of(model: EncoderDecoder) -> dict[str, Tensor]:
    """Gradients of all parameters that have one; a decoder may leave some of the memory unused."""
    gradients = {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}
    assert gradients
    return gradients


def in_parts(model: EncoderDecoder, tokens: Tensor, state: State, sizes: Sequence[int]) -> Tensor:
    outputs = []
    for part in torch.split(tokens, list(sizes), 1):
        hidden, state = model.decoder(part, state)
        outputs.append(hidden)
    return torch.cat(outputs, 1)


def any_split_agrees(model: EncoderDecoder, sizes: Sequence[int]) -> None:
    """Law 1: any split of the target tokens over several calls gives the same outputs and gradients."""
    batch = batch_of(SOURCES, TARGETS)
    tokens = inputs_of(batch)
    weight = torch.randn(tokens.shape[0], tokens.shape[1], model.decoder.width)
    whole = in_parts(model, tokens, model.start(batch), [tokens.shape[1]])
    torch.autograd.backward((whole * weight).sum())
    expected = gradients_of(model)
    model.zero_grad()
    split = in_parts(model, tokens, model.start(batch), sizes)
    torch.autograd.backward((split * weight).sum())
    assert_close(split, whole)
    assert_close(gradients_of(model), expected)


def caches_agree(model: EncoderDecoder, sizes: Sequence[int]) -> None:
    """Law 1: a cache of fixed capacity and a growing one give the same outputs."""
    batch = batch_of(SOURCES, TARGETS)
    tokens = inputs_of(batch)
    with torch.no_grad():
        growing = in_parts(model, tokens, model.start(batch), [7])
        static = in_parts(model, tokens, model.start(batch, capacity=9), sizes)
    assert_close(static, growing)


def select_and_reorder_commute(model: EncoderDecoder) -> None:
    """Law 2: `select` and `reorder` of a state commute with stepping."""
    batch = batch_of(SOURCES, TARGETS)
    tokens = inputs_of(batch)
    rows = torch.tensor([2, 0, 0, 3])
    with torch.no_grad():
        _, state = model.decoder(tokens[:, :2], model.start(batch))
        after, moved = model.decoder(tokens[:, 2:4], state)

        def step(part: Tensor, state: State) -> Tensor:
            return model.decoder(part, state)[0]

        assert_close(step(tokens[rows, 2:4], state.select(rows)), after[rows])
        assert_close(step(tokens[rows, 4:5], moved.select(rows)), step(tokens[:, 4:5], moved)[rows])
        # Three hypotheses per source: reorder them within their source, then select some sources.
        wide = state.expand(3)
        fan = tokens.repeat_interleave(3, 0).clone()
        fan[:, 2] = torch.arange(12) % (VOCABULARY - 4) + 4
        stepped = model.decoder(fan[:, 2:3], wide)[1]
        following = step(fan[:, 3:4], stepped)
        order = torch.tensor([1, 1, 0, 5, 4, 3, 6, 8, 8, 11, 9, 10])
        assert_close(step(fan[order, 3:4], stepped.reorder(order)), following[order])
        sources, kept = torch.tensor([3, 1]), torch.tensor([9, 10, 11, 3, 4, 5])
        assert_close(step(fan[kept, 3:4], stepped.select(sources)), following[kept])


def source_padding_changes_nothing(model: EncoderDecoder) -> None:
    """Law 3: padding of the source changes no logit."""
    batch = batch_of(SOURCES, TARGETS)
    extra = batch.source.data.new_full((len(SOURCES), 5), PAD)
    longer = torch.cat([batch.source.data, extra], 1)
    with torch.no_grad():
        plain = model.logits(batch)
        padded = model.logits(token_batch(longer, batch.target))
    assert_close(padded, plain)


def target_padding_changes_nothing(model: EncoderDecoder) -> None:
    """Law 3: padding of the target changes neither loss nor gradient."""
    batch = batch_of(SOURCES, TARGETS)
    extra = batch.target.new_full((len(TARGETS), 4), PAD)
    results = []
    for target in (batch.target, torch.cat([batch.target, extra], 1)):
        model.zero_grad()
        loss = model(replace(batch, target=target))
        loss.total.backward()
        assert int(loss.count) == sum(len(row) + 1 for row in TARGETS)
        results.append((loss.total.detach(), gradients_of(model)))
    assert_close(results[1], results[0])


def rows_are_independent(model: EncoderDecoder) -> None:
    """Law 4: rows of a batch do not see each other."""
    batch = batch_of(SOURCES, TARGETS)
    with torch.no_grad():
        together = model.logits(batch)
        for row, (source, target) in enumerate(zip(SOURCES, TARGETS, strict=True)):
            alone = model.logits(batch_of([source], [target]))[0]
            assert_close(together[row, : alone.shape[0]], alone)


def no_token_sees_the_future(model: EncoderDecoder) -> None:
    """Law 5: no token sees a later one."""
    batch = batch_of(SOURCES, TARGETS)
    changed = batch.target.clone()
    changed[:, 3:] = (changed[:, 3:] + 1) % VOCABULARY
    with torch.no_grad():
        before, after = model.logits(batch), model.logits(replace(batch, target=changed))
    assert_close(after[:, :4], before[:, :4])
    assert (after[:, 4:] - before[:, 4:]).abs().max() > 1e-6


def search_scores_are_teacher_forced(model: EncoderDecoder, width: int) -> None:
    """Law 6: the search score of a hypothesis is its teacher-forced score."""
    batch = batch_of(SOURCES)
    limits = torch.tensor([6, 7, 5, 9])
    outputs = beam_search(model.step, model.start(batch), limits, BeamOptions(width, n_best=width))
    for source, hypotheses in zip(SOURCES, outputs, strict=True):
        assert hypotheses
        for hypothesis in hypotheses:
            with torch.no_grad():
                scores = model.score(batch_of([source], [hypothesis.tokens[:-1]]))
            assert_close(torch.tensor(hypothesis.token_scores), scores.log_probabilities[0])
            assert abs(hypothesis.score - float(scores.log_probabilities.sum())) <= TOLERANCE


def beam_of_one_is_greedy(model: EncoderDecoder) -> None:
    """Law 7: a beam of one is greedy search."""
    batch = batch_of(SOURCES)
    limits = torch.tensor([6, 7, 5, 9])
    wide = beam_search(model.step, model.start(batch), limits, BeamOptions(1))
    greedy = greedy_search(model.step, model.start(batch), limits)
    assert [row[0].tokens for row in wide] == [row.tokens for row in greedy]
    for left, right in zip(wide, greedy, strict=True):
        assert abs(left[0].score - right.score) <= TOLERANCE
        assert abs(left[0].normalised - right.normalised) <= TOLERANCE


def encoder_ignores_padding_and_neighbours(model: EncoderDecoder) -> None:
    """Law 8: the memory of a source depends on nothing but the source."""
    batch = batch_of(SOURCES)
    longer = torch.cat([batch.source.data, batch.source.data.new_full((4, 3), PAD)], 1)
    with torch.no_grad():
        memory = model.encode(longer, longer != PAD)
        for row, source in enumerate(SOURCES):
            alone = batch_of([source])
            expected = model.encode(alone.source.data, alone.source.mask)
            # Real entries, which need not be one a token.
            seen, entries = memory.mask[row], expected.mask[0]
            assert entries.any()
            assert_close(memory.keys[row, seen], expected.keys[0, entries])
            assert_close(memory.values[row, seen], expected.values[0, entries])
            for left, right in zip(memory.final, expected.final, strict=True):
                assert_close(left[row], right[0])


def accumulated_gradients_agree(model: EncoderDecoder) -> None:
    """Law 9: accumulated gradients are those of one big batch."""
    batch = batch_of(SOURCES, TARGETS)
    whole = model(batch)
    (whole.total / whole.count).backward()
    expected = gradients_of(model)
    model.zero_grad()
    for rows in (slice(0, 1), slice(1, 4)):
        part = model(batch_of(SOURCES[rows], TARGETS[rows]))
        (part.total / whole.count).backward()
    assert_close(gradients_of(model), expected)


def beam_is_no_worse_than_greedy(model: EncoderDecoder, scorer: Scorer) -> None:
    """Law 12: the output of a beam never scores below the greedy one."""
    batch, limits = batch_of(SOURCES), torch.tensor([6, 9, 5, 12])
    wide = beam_search(model.step, model.start(batch), limits, BeamOptions(2), scorer)
    greedy = greedy_search(model.step, model.start(batch), limits, scorer)
    for mine, other in zip(wide, greedy, strict=True):
        assert mine[0].normalised >= other.normalised - TOLERANCE


def requests_do_not_interfere(model: EncoderDecoder) -> None:
    """State is a value: one model serves two requests at once."""
    first, second = batch_of(SOURCES[:2]), batch_of(SOURCES[2:])
    tokens = torch.tensor([SOS, SOS])
    with torch.no_grad():
        alone, _ = model.step(torch.tensor([5, 6]), model.step(tokens, model.start(first))[1])
        _, state = model.step(tokens, model.start(first))
        _, other = model.step(tokens, model.start(second))
        model.step(torch.tensor([7, 8]), other)
        interleaved, _ = model.step(torch.tensor([5, 6]), state)
    assert_close(interleaved, alone)


def longer_rows_move_no_memory(model: EncoderDecoder) -> None:
    """A captured CUDA graph keeps the addresses of weights and buffers, so no input may make a model replace them."""
    batch = batch_of(SOURCES, TARGETS)
    read = GraphInputs(model)
    tokens = inputs_of(batch).repeat(1, 60)[:, : model.max_positions or 420]
    with torch.no_grad():
        model.decoder(tokens, model.start(batch))
        model.decoder(tokens[:, :1], model.start(batch, capacity=tokens.shape[1]))
    assert not read.moved()


LAWS: tuple[Callable[[EncoderDecoder], None], ...] = (
    *(partial(any_split_agrees, sizes=sizes) for sizes in SPLITS),
    *(partial(caches_agree, sizes=sizes) for sizes in CACHE_SPLITS),
    select_and_reorder_commute,
    source_padding_changes_nothing,
    target_padding_changes_nothing,
    rows_are_independent,
    no_token_sees_the_future,
    *(partial(search_scores_are_teacher_forced, width=width) for width in BEAMS),
    beam_of_one_is_greedy,
    encoder_ignores_padding_and_neighbours,
    accumulated_gradients_agree,
    *(partial(beam_is_no_worse_than_greedy, scorer=scorer) for scorer in SCORERS.values()),
    requests_do_not_interfere,
    longer_rows_move_no_memory,
)


def check_laws(model: EncoderDecoder, name: str) -> None:
    """Check all laws; an AssertionError names the part and the law that it breaks."""
    for law in LAWS:
        model.zero_grad()
        try:
            law(model)
        except AssertionError as error:
            text = (law.func if isinstance(law, partial) else law).__doc__ or ""
            raise AssertionError(f"{name} breaks a law. {text}\n{error}") from error
