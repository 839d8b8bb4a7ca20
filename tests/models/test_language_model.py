"""Language models: the laws of decoders, torch's LSTM, Hugging Face's GPT-2 and Llama, and the penalties."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from dragoman.base import config as settings
from dragoman.base.errors import ConfigError, DataError
from dragoman.data.batch import Tokens, batch_of, token_batch
from dragoman.data.bptt import BpttPlan, Segment
from dragoman.data.tokenizers.base import EOS, PAD, SOS
from dragoman.decoding.beam import BeamOptions, beam_search
from dragoman.decoding.greedy import greedy_search
from dragoman.inference.dynamic_evaluation import DynamicEvaluation, dynamic_likelihood, gradient_sizes
from dragoman.models.config import TransformerConfig
from dragoman.models.contracts import map_tensors
from dragoman.models.heads.softmax import MAX_LOGITS
from dragoman.models.kernels.cpu_dropout import dropout
from dragoman.models.kernels.torch_rnn import BY_TORCH
from dragoman.models.language_model import (
    STACKS,
    EmbeddingDropout,
    LanguageModel,
    LanguageModelConfig,
    RecurrentStackConfig,
    WeightDropout,
    carried_tensors,
    restore_carried,
)
from dragoman.models.layers.cells import GRUConfig, LSTMConfig, MogrifierLSTMConfig
from dragoman.models.layers.config import (
    LearnedConfig,
    LinearConfig,
    LocalConfig,
    NoPositionsConfig,
    RelativeBiasConfig,
    RelativeConfig,
    RotaryConfig,
    SegmentsConfig,
)
from dragoman.scoring.perplexity import TextSize

WORDS = 23
CLOSE: dict[str, Any] = {"rtol": 0.0, "atol": 1e-10}


def segment_of(source: Tensor, target: Tensor, carried: Any = None, fresh: bool = True) -> Segment:
    return Segment(Tokens.from_padded(source), target, carried, fresh)


def transformer(**changes: Any) -> TransformerConfig:
    return TransformerConfig(**({"layers": 2, "width": 8, "heads": 2, "feedforward": 12, "dropout": 0.0} | changes))


def recurrent(**changes: Any) -> RecurrentStackConfig:
    none = {"input_dropout": 0.0, "dropout": 0.0, "weight_dropout": 0.0}
    return RecurrentStackConfig(**({"layers": 3, "embedding": 6, "width": 10} | none | changes))


CASES = {
    "lstm": LanguageModelConfig(stack=recurrent()),
    "gru": LanguageModelConfig(stack=recurrent(cell=GRUConfig(), last=7), tie=False, output_bias=False),
    "mixture": LanguageModelConfig(stack=recurrent(last=9, cell=MogrifierLSTMConfig(rounds=2)), mixture=3),
    "sinusoidal": LanguageModelConfig(stack=transformer()),
    "learned": LanguageModelConfig(
        segment=40, stack=transformer(positions=LearnedConfig(max_positions=40), norm="post")
    ),
    "linear": LanguageModelConfig(stack=transformer(positions=NoPositionsConfig(), attention=LinearConfig())),
    "rotary": LanguageModelConfig(
        memory=3, stack=transformer(positions=RotaryConfig(), norm_kind="rms", gated=True, heads=4, key_heads=2)
    ),
    "local": LanguageModelConfig(
        memory=3, stack=transformer(positions=RotaryConfig(base=30.0), attention=LocalConfig(window=3))
    ),
    "local-relative": LanguageModelConfig(
        memory=2, stack=transformer(positions=RelativeConfig(distance=2), attention=LocalConfig(window=2))
    ),
    "segments": LanguageModelConfig(
        memory=2, stack=transformer(positions=RotaryConfig(base=30.0), attention=SegmentsConfig(length=2))
    ),
    "segments-bias": LanguageModelConfig(
        memory=4,
        stack=transformer(positions=RelativeBiasConfig(buckets=4, distance=5), attention=SegmentsConfig(length=4)),
    ),
}
# For whom segments with a carried state are one long sequence: nobody sees farther back than what is carried.
ENDLESS = ["lstm", "gru", "mixture", "local", "local-relative", "segments", "segments-bias"]


@pytest.fixture(autouse=True)
def precise() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(3)
    yield
    torch.set_default_dtype(torch.float32)


def build(config: LanguageModelConfig, words: int = WORDS) -> LanguageModel:
    model = LanguageModel(config, words)
    shake(model)
    return model.eval()


def shake(model: nn.Module) -> None:
    """Perturb all weights, so that biases and norms matter."""
    with torch.no_grad():
        for part in model.parameters():
            part.add_(0.2 * torch.randn_like(part))


@pytest.fixture(params=CASES, ids=list(CASES))
def model(request: pytest.FixtureRequest) -> LanguageModel:
    return build(CASES[request.param])


def tokens_of(rows: int, length: int) -> Tensor:
    return torch.randint(4, WORDS, (rows, length))


def test_every_stack_has_a_case() -> None:
    assert {type(case.stack) for case in CASES.values()} == set(STACKS)
    for case in CASES.values():
        assert settings.build(LanguageModelConfig, settings.as_table(case)) == case


# --- the laws


@pytest.mark.parametrize("sizes", [[1] * 9, [4, 5], [1, 7, 1], [8, 1]])
def test_any_split_gives_the_same_outputs_and_gradients(model: LanguageModel, sizes: list[int]) -> None:
    tokens, weight = tokens_of(3, 9), torch.randn(3, 9, model.stack.width)

    def gradients(parts: list[int]) -> tuple[Tensor, list[Tensor]]:
        model.zero_grad()
        state, outputs = model.stack.start(3), []
        for part in tokens.split(parts, 1):
            hidden, state = model.stack(part, state)
            outputs.append(hidden)
        out = torch.cat(outputs, 1)
        (out * weight).sum().backward()
        return out.detach(), [part.grad.clone() for part in model.stack.parameters() if part.grad is not None]

    whole, expected = gradients([9])
    split, found = gradients(sizes)
    torch.testing.assert_close(split, whole, **CLOSE)
    torch.testing.assert_close(found, expected, **CLOSE)
    assert len(found) > 5


@pytest.mark.parametrize("sizes", [[9], [1] * 9, [3, 6]])
def test_static_and_growing_caches_agree(model: LanguageModel, sizes: list[int]) -> None:
    tokens = tokens_of(2, 9)
    with torch.no_grad():
        expected, _ = model.stack(tokens, model.stack.start(2))
        state, outputs = model.stack.start(2, capacity=11), []
        for part in tokens.split(sizes, 1):
            hidden, state = model.stack(part, state)
            outputs.append(hidden)
    torch.testing.assert_close(torch.cat(outputs, 1), expected, **CLOSE)


def test_no_token_sees_the_future_and_rows_do_not_see_each_other(model: LanguageModel) -> None:
    tokens = tokens_of(3, 8)
    changed = tokens.clone()
    changed[:, 5] = (changed[:, 5] - 4 + 7) % (WORDS - 4) + 4
    changed[2] = tokens_of(1, 8)[0]
    with torch.no_grad():
        first, second = (model.stack(part, model.stack.start(3))[0] for part in (tokens, changed))
    assert torch.equal(first[:2, :5], second[:2, :5])
    assert not torch.allclose(first[:2, 5:], second[:2, 5:])


@pytest.mark.parametrize("name", ENDLESS)
def test_carried_segments_are_one_long_sequence(name: str) -> None:
    model = build(CASES[name])
    text = tokens_of(2, 25)
    expected = model(segment_of(text[:, :-1], text[:, 1:]))
    carried = model.empty_carry(2)
    map_tensors(carried, lambda part: part.fill_(9.0))  # a fresh segment reads none of it
    totals, scores = [], []
    for place in range(0, 24, 4):
        source, target = text[:, place : place + 4], text[:, place + 1 : place + 5]
        kept = map_tensors(carried, torch.clone)
        scores.append(model.score(segment_of(source, target, kept, fresh=place == 0)).log_probabilities)
        totals.append(model(segment_of(source, target, carried, fresh=place == 0)).total)
    torch.testing.assert_close(sum(totals), expected.total, **CLOSE)
    torch.testing.assert_close(-torch.cat(scores, 1).sum(), expected.total, **CLOSE)
    assert int(expected.count) == 48
    # Without what is carried it would be something else.
    alone = sum(
        model(segment_of(text[:, place : place + 4], text[:, place + 1 : place + 5])).total for place in range(0, 24, 4)
    )
    assert abs((alone - expected.total).item()) > 1e-3


def test_full_attention_carries_its_last_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one long sequence, every query sees its own segment and the three positions before it, layer by layer."""
    model = build(CASES["rotary"])
    text, carried = tokens_of(2, 16), model.empty_carry(2)
    found = []
    for place in range(0, 15, 5):
        piece = segment_of(text[:, place : place + 5], text[:, place + 1 : place + 6], carried, fresh=place == 0)
        found.append(model.score(piece).log_probabilities)
    for block in model.stack.blocks:
        monkeypatch.setattr(block.attention, "visible", lambda query, key: key >= query // 5 * 5 - 3)
        monkeypatch.setattr(block.attention, "block", 1000)  # so that it asks what is seen
    expected = model.score(segment_of(text[:, :-1], text[:, 1:])).log_probabilities
    torch.testing.assert_close(torch.cat(found, 1), expected, **CLOSE)


@pytest.mark.parametrize("by_torch", [False, True])
def test_gradients_stop_where_a_segment_begins_and_the_history_is_left_alone(
    by_torch: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if by_torch:  # its kernel reads the state again for the gradient, as on a GPU
        monkeypatch.setitem(BY_TORCH, "cpu", frozenset({"lstm"}))
    model = build(CASES["lstm"])
    text, carried = tokens_of(2, 9), model.empty_carry(2)
    model(segment_of(text[:, :4], text[:, 1:5], carried))
    before = map_tensors(carried, torch.clone)
    assert not any(part.requires_grad for part in carried_tensors(carried).values())
    loss = model(segment_of(text[:, 4:8], text[:, 5:], carried, fresh=False))
    loss.total.backward()  # although what was read has been replaced in the meantime
    state = model.stack.resume(before)
    hidden, _ = model.stack(text[:, 4:8], state)
    found = {name: part.grad.clone() for name, part in model.named_parameters() if part.grad is not None}
    model.zero_grad()
    nn.functional.cross_entropy(model.output(hidden).flatten(0, 1), text[:, 5:].flatten(), reduction="sum").backward()
    for name, part in model.named_parameters():
        torch.testing.assert_close(found[name], part.grad, **CLOSE)


def test_the_carry_can_be_saved_and_restored() -> None:
    model = build(CASES["segments"])
    text, carried, again = tokens_of(2, 9), model.empty_carry(2), model.empty_carry(2)
    model(segment_of(text[:, :4], text[:, 1:5], carried))
    saved = {name: part.clone() for name, part in carried_tensors(carried).items()}
    assert len(saved) == 4
    restore_carried(again, saved)
    piece = segment_of(text[:, 4:8], text[:, 5:], fresh=False)
    first, second = (model(replace(piece, carried=one)).total for one in (carried, again))
    assert torch.equal(first, second)
    assert carried_tensors(build(CASES["sinusoidal"]).empty_carry(2)) == {}


def test_a_padded_last_segment_counts_only_what_is_real(model: LanguageModel) -> None:
    source, target = tokens_of(2, 8), tokens_of(2, 8)
    short = [
        model(segment_of(source[row : row + 1, :size], target[row : row + 1, :size])) for row, size in ((0, 8), (1, 5))
    ]
    source[1, 5:], target[1, 5:] = PAD, PAD
    both = model(segment_of(source, target))
    torch.testing.assert_close(both.total, short[0].total + short[1].total, **CLOSE)
    assert int(both.count) == 13


# --- searching


def test_search_and_teacher_forcing_agree_after_a_prompt(model: LanguageModel) -> None:
    prompts = torch.cat([torch.full((2, 1), EOS), tokens_of(2, 4)], 1)
    batch = token_batch(prompts)
    limits = torch.tensor([6, 9])
    greedy = greedy_search(model.step, model.start(batch), limits)
    best = beam_search(model.step, model.start(batch), limits, BeamOptions(4, n_best=2))
    one = beam_search(model.step, model.start(batch), limits, BeamOptions(1))
    for row in range(2):
        assert one[row][0].tokens == greedy[row].tokens
        for hypothesis in [greedy[row], *best[row]]:
            alone = token_batch(prompts[row : row + 1], torch.tensor([hypothesis.tokens]))
            scores = model.score(alone).log_probabilities[0]
            torch.testing.assert_close(scores, torch.tensor(hypothesis.token_scores), **CLOSE)
            # The same from the whole as one text.
            whole = torch.cat([prompts[row], alone.target[0]])[None]
            text = model.score(segment_of(whole[:, :-1], whole[:, 1:])).log_probabilities[0, 4:]
            torch.testing.assert_close(scores, text, **CLOSE)


def test_read_and_step_agree(model: LanguageModel) -> None:
    batch = batch_of([[], []], [[5, 6, 7], [8]])
    tokens = torch.cat([torch.full((2, 1), SOS), tokens_of(2, 4)], 1)
    read, _ = model.read(tokens, model.start(batch))
    state = model.start(batch)
    for place in range(5):
        found, state = model.step(tokens[:, place], state)
        torch.testing.assert_close(read[:, place], found, **CLOSE)


def test_lines_are_scored_like_running_text(model: LanguageModel) -> None:
    lines = [[5, 6, 7, 8], [9], [10, 11]]
    loss = model(batch_of([[]] * 3, lines))
    texts = [torch.tensor([[EOS, *line, EOS]]) for line in lines]
    expected = sum(model(segment_of(text[:, :-1], text[:, 1:])).total for text in texts)
    torch.testing.assert_close(loss.total, expected, **CLOSE)
    assert int(loss.count) == 10


def test_prompts_of_different_lengths_are_refused() -> None:
    with pytest.raises(DataError, match=r"prompts of \[3, 5\] tokens in one batch, expected prompts of one length"):
        build(CASES["lstm"]).start(batch_of([[5, 6], [7, 8, 9, 10]]))


# --- oracles


def test_recurrent_stack_is_torchs_lstm() -> None:
    """One nn.LSTM a layer, since the sizes differ; outputs, states and gradients."""
    model = build(LanguageModelConfig(stack=recurrent(cell=LSTMConfig(recurrent_init="uniform"))))
    theirs = nn.ModuleList(nn.LSTM(inputs, width, batch_first=True) for inputs, width in ((6, 10), (10, 10), (10, 6)))
    with torch.no_grad():
        for layer, one in zip(model.stack.layers, theirs, strict=True):
            for ours, name in (
                ("input_weight", "weight_ih_l0"),
                ("hidden_weight", "weight_hh_l0"),
                ("bias", "bias_ih_l0"),
            ):
                getattr(one, name).copy_(getattr(layer.cell, ours))
            one.bias_hh_l0.zero_()
    text = tokens_of(4, 13)
    loss = model.train()(segment_of(text[:, :-1], text[:, 1:]))
    loss.total.backward()
    ours = model.output.weight.grad.clone()
    recurrent_gradients = [layer.cell.hidden_weight.grad.clone() for layer in model.stack.layers]
    model.zero_grad()
    x = nn.functional.embedding(text[:, :-1], model.output.weight)
    for one in theirs:
        x, _ = one(x)
    logits = nn.functional.linear(x, model.output.weight, model.output.bias)
    expected = nn.functional.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten(), reduction="sum")
    expected.backward()
    torch.testing.assert_close(loss.total, expected, **CLOSE)
    torch.testing.assert_close(ours, model.output.weight.grad, **CLOSE)
    torch.testing.assert_close(recurrent_gradients, [one.weight_hh_l0.grad for one in theirs], **CLOSE)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_transformer_is_gpt2(dtype: torch.dtype, tolerance: float) -> None:
    torch.set_default_dtype(dtype)
    config = GPT2Config(
        vocab_size=WORDS,
        n_positions=30,
        n_embd=16,
        n_layer=3,
        n_head=4,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        attn_implementation="eager",
    )
    theirs = GPT2LMHeadModel(config).to(dtype).eval()
    shake(theirs)
    ours = LanguageModel(
        LanguageModelConfig(
            tie=False,  # GPT-2 ties its tables, but does not scale its embeddings by √D
            output_bias=False,
            stack=TransformerConfig(
                layers=3,
                width=16,
                heads=4,
                feedforward=64,
                dropout=0.0,
                activation="gelu-tanh",
                positions=LearnedConfig(max_positions=30),
            ),
        ),
        WORDS,
    ).eval()
    with torch.no_grad():
        ours.stack.input.embedding.weight.copy_(theirs.transformer.wte.weight / 4)
        ours.stack.input.positions.table.copy_(theirs.transformer.wpe.weight)
        ours.output.weight.copy_(theirs.lm_head.weight)
        for block, other in zip(ours.stack.blocks, theirs.transformer.h, strict=True):
            for mine, its in (
                (block.attention.project, other.attn.c_attn),
                (block.attention.output, other.attn.c_proj),
                (block.feedforward.widen, other.mlp.c_fc),
                (block.feedforward.narrow, other.mlp.c_proj),
            ):
                mine.weight.copy_(its.weight.T)
                mine.bias.copy_(its.bias)
            block.attention_norm.load_state_dict(other.ln_1.state_dict())
            block.feedforward_norm.load_state_dict(other.ln_2.state_dict())
        ours.stack.norm.load_state_dict(theirs.transformer.ln_f.state_dict())
    text = torch.randint(4, WORDS, (3, 20))
    with torch.no_grad():
        logits = ours.output(ours.stack(text, ours.stack.start(3))[0])
        torch.testing.assert_close(logits, theirs(text).logits, rtol=0.0, atol=tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-5)])
def test_transformer_is_llama(dtype: torch.dtype, tolerance: float) -> None:
    """Llama makes its angles in float32, whatever its weights are."""
    torch.set_default_dtype(dtype)
    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        rms_norm_eps=1e-6,
        tie_word_embeddings=False,
        attn_implementation="eager",
    )
    theirs = LlamaForCausalLM(config).to(dtype).eval()
    shake(theirs)
    ours = LanguageModel(
        LanguageModelConfig(
            tie=False,
            output_bias=False,
            stack=TransformerConfig(
                layers=2,
                width=16,
                heads=4,
                key_heads=2,
                feedforward=24,
                dropout=0.0,
                activation="silu",
                gated=True,
                bias=False,
                norm_kind="rms",
                positions=RotaryConfig(),
            ),
        ),
        WORDS,
    ).eval()
    with torch.no_grad():
        ours.stack.input.embedding.weight.copy_(theirs.model.embed_tokens.weight / 4)
        ours.output.weight.copy_(theirs.lm_head.weight)
        for block, other in zip(ours.stack.blocks, theirs.model.layers, strict=True):
            parts = [getattr(other.self_attn, f"{part}_proj").weight for part in "qkv"]
            block.attention.project.weight.copy_(torch.cat(parts))
            block.attention.output.weight.copy_(other.self_attn.o_proj.weight)
            for mine, its in (("gate", "gate_proj"), ("widen", "up_proj"), ("narrow", "down_proj")):
                getattr(block.feedforward, mine).weight.copy_(getattr(other.mlp, its).weight)
            block.attention_norm.load_state_dict(other.input_layernorm.state_dict())
            block.feedforward_norm.load_state_dict(other.post_attention_layernorm.state_dict())
        ours.stack.norm.load_state_dict(theirs.model.norm.state_dict())
    text = torch.randint(4, WORDS, (3, 20))
    with torch.no_grad():
        logits = ours.output(ours.stack(text, ours.stack.start(3))[0])
        torch.testing.assert_close(logits, theirs(text).logits, rtol=0.0, atol=tolerance)


# --- AWD-LSTM's regularisers


@pytest.mark.parametrize("by_torch", [False, True])
def test_weight_drop_is_an_lstm_with_fewer_weights(by_torch: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights it used are those of torch's LSTM with some of W_hh zero and the others doubled."""
    if by_torch:
        monkeypatch.setitem(BY_TORCH, "cpu", frozenset({"lstm"}))
    layer = WeightDropout(build(CASES["lstm"]).stack.layers[0].cell, 0.5).train()
    x = torch.randn(2, 7, 6)
    torch.manual_seed(11)
    out, _ = layer(x, layer.cell.start(2))
    out.sum().backward()
    gradient = layer.cell.hidden_weight.grad
    torch.manual_seed(11)
    dropped = dropout(layer.cell.hidden_weight.detach(), 0.5)
    kept = dropped != 0
    assert 0.35 < float(kept.float().mean()) < 0.65
    torch.testing.assert_close(dropped[kept], 2 * layer.cell.hidden_weight.detach()[kept])
    theirs = nn.LSTM(6, 10, batch_first=True)
    with torch.no_grad():
        theirs.weight_ih_l0.copy_(layer.cell.input_weight)
        theirs.weight_hh_l0.copy_(dropped)
        theirs.bias_ih_l0.copy_(layer.cell.bias)
        theirs.bias_hh_l0.zero_()
    expected, _ = theirs(x)
    expected.sum().backward()
    torch.testing.assert_close(out, expected, **CLOSE)
    torch.testing.assert_close(gradient, theirs.weight_hh_l0.grad * kept * 2, **CLOSE)
    layer.eval()
    assert torch.equal(layer(x, layer.cell.start(2))[0], layer(x, layer.cell.start(2))[0])
    assert [name for name, _ in layer.named_parameters()] == [
        f"sequence.cell.{name}" for name in ("input_weight", "hidden_weight", "bias")
    ]


def test_a_mixture_is_the_weighted_sum_of_softmaxes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Yang et al. 2018: Σ_k π_k softmax(W tanh(L_k h)), in one chunk or several, and its gradients."""
    model = build(replace(CASES["mixture"], label_smoothing=0.1)).train()
    source, target = tokens_of(2, 7), tokens_of(2, 7)
    target[1, 4:] = PAD
    hidden = model.stack(source, model.stack.start(2))[0]
    mixture, real = model.mixture, target != PAD
    assert mixture is not None
    weights = (hidden @ mixture.prior.weight.T).softmax(-1)
    sum_of_all: Tensor = 0.0  # type: ignore[assignment]
    for number in range(3):
        rows = slice(6 * number, 6 * number + 6)
        latent = torch.tanh(hidden @ mixture.latent.weight[rows].T + mixture.latent.bias[rows])
        softmax = (latent @ model.output.weight.T + model.output.bias).softmax(-1)
        sum_of_all = sum_of_all + weights[..., number, None] * softmax
    logs = sum_of_all.log()[real]
    expected = nn.functional.nll_loss(logs, target[real], reduction="sum") * 0.9 - 0.1 * logs.mean(-1).sum()
    leaves = list(model.parameters())
    wanted = torch.autograd.grad(expected, leaves)
    for size in (1, 1 << 22):  # logits at once: a chunk for every token, or one
        monkeypatch.setitem(MAX_LOGITS, "cpu", size)
        found = model(segment_of(source, target)).total
        torch.testing.assert_close(found, expected, **CLOSE)
        torch.testing.assert_close(torch.autograd.grad(found, leaves), wanted, **CLOSE)


def test_dynamic_evaluation_is_the_published_update() -> None:
    """As in the authors' program: score, then θ += λ R (θ₀ − θ) − η g / (RMS + ε), weight by weight."""
    model, device = build(CASES["gru"]), torch.device("cpu")
    train, test = (tokens_of(1, size)[0].numpy().astype("int32") for size in (41, 18))
    plan = BpttPlan(train, 8, 5, shuffled=False)
    carried, squares = model.empty_carry(8), [torch.zeros_like(part) for part in model.parameters()]

    def gradients(segment: Segment, carried: Any) -> tuple[Tensor, list[Tensor]]:
        model.zero_grad()
        loss = model(replace(segment, carried=carried))
        (loss.total / loss.count).backward()
        return loss.total.detach(), [part.grad.clone() for part in model.parameters() if part.grad is not None]

    for part in plan.epoch(0):
        squares = [old + new**2 for old, new in zip(squares, gradients(part, carried)[1], strict=True)]
    sizes = [(square / len(plan)).sqrt() for square in squares]
    found = gradient_sizes(model, train, 5, device)
    torch.testing.assert_close(found, sizes, **CLOSE)
    first, total, carried = [part.detach().clone() for part in model.parameters()], 0.0, model.empty_carry(1)
    mean = sum(float(size.mean()) for size in sizes) / len(sizes)
    options = DynamicEvaluation(rate=0.02, decay=0.3, segment=5)
    for part in BpttPlan(test, 1, 5, shuffled=False).epoch(0):
        loss, slopes = gradients(part, carried)
        total += float(loss)
        with torch.no_grad():
            for weight, start, size, slope in zip(model.parameters(), first, sizes, slopes, strict=True):
                ratio = (size / mean).clamp(max=1 / 0.3)
                weight += 0.3 * ratio * (start - weight) - 0.02 * slope / (size + 2e-5)
    with torch.no_grad():
        for weight, start in zip(model.parameters(), first, strict=True):
            weight.copy_(start)
    likelihood, _ = dynamic_likelihood(model, test, sizes, options, TextSize(), device)
    still, _ = dynamic_likelihood(model, test, sizes, replace(options, rate=0.0), TextSize(), device)
    assert likelihood.nats == pytest.approx(total, abs=1e-10)
    assert abs(still.nats - likelihood.nats) > 1e-3
    for weight, start in zip(model.parameters(), first, strict=True):
        assert torch.equal(weight, start)


def test_penalties_are_those_of_the_paper() -> None:
    plain = LanguageModelConfig(stack=recurrent())
    both = LanguageModelConfig(stack=recurrent(), activation_penalty=2.0, change_penalty=1.0)
    model = build(both).train()
    other = LanguageModel(plain, WORDS).train()
    other.load_state_dict(model.state_dict())
    text = tokens_of(3, 10)
    segment = segment_of(text[:, :-1], text[:, 1:])
    hidden, _ = model.stack(segment.source.data, model.stack.start(3))
    activation = 2.0 * hidden.pow(2).mean()  # salesforce/awd-lstm-lm, main.py: means over everything
    change = 1.0 * (hidden[:, 1:] - hidden[:, :-1]).pow(2).mean()
    expected = other(segment).total + 27 * activation + 3 * 8 * change
    torch.testing.assert_close(model(segment).total, expected, **CLOSE)
    model.eval()
    torch.testing.assert_close(model(segment).total, other.eval()(segment).total, **CLOSE)


def test_embedding_dropout_drops_words_not_positions() -> None:
    table = EmbeddingDropout(400, 5, PAD, 0.3).train()
    tokens = torch.randint(4, 400, (50, 60))
    out, plain = table(tokens), nn.functional.embedding(tokens, table.weight)
    ratio = (out / plain)[..., 0]
    assert set(ratio.round(decimals=9).unique().tolist()) == {0.0, round(1 / 0.7, 9)}
    for word in range(4, 400):
        assert ratio[tokens == word].round(decimals=9).unique().numel() <= 1
    assert abs(float((ratio == 0).double().mean()) - 0.3) < 0.08
    assert torch.equal(table.eval()(tokens), plain)


def test_masks_are_one_for_all_steps_of_a_segment() -> None:
    model = build(LanguageModelConfig(stack=recurrent(), output_dropout=0.5)).train()
    dropped = model.dropout(torch.ones(4, 9, 6))
    assert torch.equal(dropped, dropped[:, :1].expand_as(dropped))
    assert len(set(map(tuple, dropped[:, 0].tolist()))) > 1


# --- settings


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"stack": {"kind": "recurrent", "last": 7}}, r"tie: found true, which needs equal sizes, found 400 for"),
        ({"stack": "recurrent", "memory": 4}, r"memory: found 4, expected 0: recurrent layers always carry"),
        ({"stack": "transformer", "memory": 4}, r"memory: found 4 with absolute positions = 'sinusoidal'"),
        (
            {"stack": {"positions": "rotary", "attention": {"kind": "local", "window": 3}}, "memory": 4},
            r"memory: found 4, expected at most stack.attention.window = 3",
        ),
        (
            {"stack": {"positions": "rotary", "attention": {"kind": "segments", "length": 3}}, "memory": 4},
            r"memory: found 4, expected stack.attention.length = 3",
        ),
        (
            {"stack": {"kind": "transformer", "positions": "none", "attention": "linear"}, "memory": 4},
            r"memory: found 4, but linear attention keeps no single positions",
        ),
    ],
)  # fmt: skip
def test_settings_that_contradict_each_other(table: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        settings.build(LanguageModelConfig, table)


@pytest.mark.parametrize(
    ("case", "segment", "message"),
    [
        ("segments-bias", 8, None),
        ("segments-bias", 6, "segment: found 6, expected a multiple of stack.attention.length = 4"),
        ("rotary", 2, "segment: found 2, expected at least memory = 3"),
        ("learned", 41, "segment: found 41, expected at most stack.positions.max_positions = 40"),
    ],
)
def test_segments_must_fit_what_is_carried(case: str, segment: int, message: str | None) -> None:
    table = settings.as_table(CASES[case]) | {"segment": segment}
    if message is None:
        settings.build(LanguageModelConfig, table)
        return
    with pytest.raises(ConfigError, match=message):
        settings.build(LanguageModelConfig, table)


@pytest.mark.parametrize(
    ("recipe", "parameters"),
    [
        ("tinyshakespeare", 2 * 69 * 384 + 6 * (4 * 384**2 + 2 * 384 * 1536 + 2 * 384) + 384),
        # salesforce/awd-lstm-lm counts 33,556,078: we have three special symbols more, and one bias a gate.
        ("wikitext2-lstm", 33_556_078 + 3 * 401 - 4 * (1150 + 1150 + 400)),
        ("wikitext2-transformer", 33_281 * 401 + 8 * (4 * 400 * 401 + 2 * 400 * 1600 + 2000 + 4 * 400) + 800),
    ],
)
def test_recipes_describe_models(recipe: str, parameters: int) -> None:
    path = Path(__file__).parents[2] / "recipes" / f"{recipe}.toml"
    table = tomllib.loads(path.read_text(encoding="utf-8"))["config"]
    config = settings.build(LanguageModelConfig, table["model"])
    with torch.device("meta"):
        model = LanguageModel(config, 69 if recipe == "tinyshakespeare" else 33_281)
    assert sum(part.numel() for part in model.parameters()) == parameters
