"""Completions and likelihoods of a language model, against plain loops that read the whole text each time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from dragoman.base.errors import DataError
from dragoman.data.batch import batch_of
from dragoman.data.bptt import BpttPlan, RunningText
from dragoman.data.store import StoreWriter, TokenStore
from dragoman.data.tokenizers.base import EOS
from dragoman.decoding.hypothesis import SUPPRESSED_TOKENS
from dragoman.decoding.sampling import Sampling
from dragoman.inference.completer import check_length, complete
from dragoman.inference.completion import CompletionOptions
from dragoman.inference.target_scores import token_scores
from dragoman.models.config import TransformerConfig
from dragoman.models.language_model import LanguageModel, LanguageModelConfig, RecurrentStackConfig
from dragoman.models.layers.config import LearnedConfig, RotaryConfig, SegmentsConfig
from dragoman.scoring.perplexity import TextLikelihood, TextSize, text_size
from dragoman.training.validation import Abandoned, text_likelihood

WORDS = 13
CPU = torch.device("cpu")
CASES = {
    "lstm": LanguageModelConfig(stack=RecurrentStackConfig(layers=2, embedding=8, width=12)),
    "learned": LanguageModelConfig(
        stack=TransformerConfig(layers=2, width=8, heads=2, feedforward=16, positions=LearnedConfig(max_positions=24))
    ),
    "segments": LanguageModelConfig(
        memory=4,
        stack=TransformerConfig(
            layers=2, width=8, heads=2, feedforward=16, positions=RotaryConfig(), attention=SegmentsConfig(length=4)
        ),
    ),
}
PROMPTS: list[list[int]] = [[], [5, 6, 7], [8], [5, 6, 8], [9, EOS, 4], [12, 11, 10, 9, 8, 7]]


@pytest.fixture(params=CASES, ids=list(CASES))
def model(request: pytest.FixtureRequest) -> Iterator[LanguageModel]:
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(1)
    built = LanguageModel(CASES[request.param], WORDS).eval()
    with torch.no_grad():
        for part in built.parameters():
            part.add_(0.5 * torch.randn_like(part))
    yield built
    torch.set_default_dtype(torch.float32)


def next_scores(model: LanguageModel, text: list[int]) -> Tensor:
    """Log-probability of every next token, reading the text from its beginning."""
    with torch.no_grad():
        hidden, _ = model.stack(torch.tensor([[EOS, *text]]), model.stack.start(1))
        return model.output(hidden[0, -1]).log_softmax(-1)


def by_hand(model: LanguageModel, prompt: list[int], longest: int, one_line: bool) -> tuple[list[int], list[float]]:
    tokens: list[int] = []
    scores: list[float] = []
    while len(tokens) < longest:
        found = next_scores(model, prompt + tokens)
        ranked = found.clone()
        ranked[list(SUPPRESSED_TOKENS)] = -math.inf
        tokens.append(int(ranked.argmax()))
        scores.append(found[tokens[-1]].item())
        if one_line and tokens[-1] == EOS:
            break
    return tokens, scores


@pytest.mark.parametrize("one_line", [True, False])
def test_greedy_completions_are_those_of_a_plain_loop(model: LanguageModel, one_line: bool) -> None:
    with torch.no_grad():
        model.output.bias[EOS] += 1.5  # so that some lines end
    found = complete(model, PROMPTS, CompletionOptions(12, one_line=one_line, batch_size=2))
    ends = 0
    for prompt, (one,) in zip(PROMPTS, found, strict=True):
        tokens, scores = by_hand(model, prompt, 12, one_line)
        assert one.tokens == tuple(tokens)
        assert one.token_scores == pytest.approx(scores, abs=1e-10)
        assert EOS not in one.tokens[:-1] or not one_line
        ends += EOS in one.tokens
    assert ends


def test_samples_follow_from_prompt_and_seed_alone(model: LanguageModel) -> None:
    sampling = Sampling(temperature=1.3, top_k=8, seed=4)
    together = complete(model, PROMPTS, CompletionOptions(7, sampling=sampling, samples=3))
    for prompt, found in zip(PROMPTS, together, strict=True):
        alone = complete(model, [prompt], CompletionOptions(7, sampling=sampling, samples=3, batch_size=1))[0]
        assert [one.tokens for one in alone] == [one.tokens for one in found]
        assert all(len(one.tokens) == 7 for one in found)
    assert len({one.tokens for one in together[1]}) > 1
    other = complete(
        model, PROMPTS, CompletionOptions(7, sampling=Sampling(temperature=1.3, top_k=8, seed=5), samples=3)
    )
    assert [one.tokens for row in other for one in row] != [one.tokens for row in together for one in row]


def test_samples_are_as_likely_as_the_model_says(model: LanguageModel) -> None:
    count = 4000
    found = complete(model, [[5, 6]], CompletionOptions(1, sampling=Sampling(seed=2), samples=count))[0]
    chances = next_scores(model, [5, 6]).exp()
    chances[list(SUPPRESSED_TOKENS)] = 0
    chances /= chances.sum()
    drawn = torch.bincount(torch.tensor([one.tokens[0] for one in found]), minlength=WORDS) / count
    assert float((drawn - chances).abs().max()) < 4 * 0.5 / math.sqrt(count)


def test_prompts_that_leave_no_positions_are_refused() -> None:
    model = LanguageModel(CASES["learned"], WORDS).eval()
    assert len(complete(model, [[5] * 13], CompletionOptions(11))[0][0].tokens) == 11
    with pytest.raises(DataError, match=r"prompt 2: found 14 tokens .* and 12 to write, expected at most 24"):
        check_length(model, [5] * 13, 12, "prompt 2")


# --- likelihoods


def test_text_likelihood_is_the_sum_over_the_text(model: LanguageModel, tmp_path: Path) -> None:
    lines = [[5, 6], [], [7, 8, 9, 10, 4, 4, 5], [11], [12, 5, 6, 7]]
    with StoreWriter(tmp_path / "store", 1, WORDS) as writer:
        writer.add([[]] * len(lines), lines)
    text = RunningText(TokenStore(tmp_path / "store").target)
    tokens = text.span(0, len(text)).tolist()
    plan = BpttPlan(text, 1, 8, shuffled=False)
    found, share = text_likelihood(model, plan, TextSize(10, 20, 30), CPU)
    if model.max_positions is not None:  # without memory: every segment anew
        pieces = [tokens[index : index + 9] for index in range(0, len(tokens) - 1, 8)]
    else:
        pieces = [tokens]
    expected, right = 0.0, 0
    for piece in pieces:
        with torch.no_grad():
            hidden, _ = model.stack(torch.tensor([piece[:-1]]), model.stack.start(1))
            scores = model.output(hidden[0]).log_softmax(-1)
        expected -= scores.gather(1, torch.tensor(piece[1:])[:, None]).sum().item()
        right += int((scores.argmax(-1) == torch.tensor(piece[1:])).sum())
    assert found.nats == pytest.approx(expected, abs=1e-9)
    assert found.tokens == len(tokens) - 1 == 19
    assert share == right / 19

    def stop() -> None:
        raise Abandoned

    with pytest.raises(Abandoned):
        text_likelihood(model, plan, TextSize(), CPU, stop)


def test_text_sizes_count_line_ends() -> None:
    lines = ["to be , or", "", " naïve "]
    assert text_size(lines) == TextSize(4 + 1 + 0 + 1 + 1 + 1, 10 + 1 + 1 + 7 + 1, 10 + 1 + 1 + 8 + 1)
    assert text_size(lines[:1]) + text_size(lines[1:]) == text_size(lines)


def test_likelihoods_do_not_depend_on_the_tokens() -> None:
    coarse, fine = (TextLikelihood(120.0, tokens, TextSize(20, 100, 110)) for tokens in (25, 60))
    assert coarse.perplexity != fine.perplexity
    assert coarse.scores()["word_perplexity"] == fine.scores()["word_perplexity"] == math.exp(6)
    assert coarse.scores()["character_nats"] == fine.scores()["character_nats"] == 1.2
    assert coarse.scores()["byte_bits"] == pytest.approx(120 / math.log(2) / 110)
    assert TextLikelihood(1e9, 1, TextSize()).perplexity == math.exp(700)
    assert set(coarse.scores()) == {
        "loss", "perplexity", "word_perplexity", "character_perplexity", "character_nats", "byte_bits",
    }  # fmt: skip


def test_token_scores_are_those_of_teacher_forcing(model: LanguageModel) -> None:
    rows = [[5, 6, 7], [], [8, 9, 10, 11, 12], [4] * 24, [6]]
    found = token_scores(model, [([], row) for row in rows], batch_of, CPU, batch_size=2)
    for row, (scores, _) in zip(rows, found, strict=True):
        if model.max_positions is not None and len(row) >= model.max_positions:
            assert scores == [-math.inf] * (len(row) + 1)
            continue
        expected = [next_scores(model, row[:index])[token].item() for index, token in enumerate([*row, EOS])]
        assert scores == pytest.approx(expected, abs=1e-10)
