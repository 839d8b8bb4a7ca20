"""Parts of another run's weights, freezing and rates by name, on models of the house."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dragoman.base import config as settings
from dragoman.base.errors import ConfigError, RunError
from dragoman.data.batch import batch_of
from dragoman.data.tokenizers.base import PAD
from dragoman.data.tokenizers.characters import CharactersConfig, CharacterTokenizer
from dragoman.data.tokenizers.labels import LabelVocabulary
from dragoman.data.tokenizers.load import train_tokenizer
from dragoman.data.tokenizers.words import WordsConfig
from dragoman.models.config import EncoderDecoderConfig, TransformerConfig
from dragoman.models.encoder_decoder import EncoderDecoder
from dragoman.models.encoders.bert import BertEncoderConfig
from dragoman.models.encoders.recurrent import RecurrentEncoderConfig
from dragoman.models.language_model import LanguageModel, LanguageModelConfig
from dragoman.models.layers.config import RotaryConfig
from dragoman.models.layers.embeddings import build_embedding
from dragoman.models.masked_lm import MaskedLM, MaskedLMConfig
from dragoman.models.tagger import Tagger, TaggerConfig
from dragoman.training.config import OptimizerConfig, RateConfig, StartFromConfig
from dragoman.training.optimizer import build_optimizer
from dragoman.training.trained_weights import freeze, rate_factors
from dragoman.training.transfer import VocabularyPair, all_named_weights, load_parts, transfer

WORDS = 17
BERT = BertEncoderConfig(
    layers=1, width=8, heads=2, feedforward=12, max_positions=10, dropout=0.0, attention_dropout=0.0
)
STACK = TransformerConfig(layers=2, width=8, heads=2, feedforward=12, dropout=0.0, positions=RotaryConfig())


def seeded(kind: Any, seed: int, *arguments: Any, **options: Any) -> Any:
    torch.manual_seed(seed)
    model = kind(*arguments, **options)
    with torch.no_grad():
        for part in model.parameters():
            part.add_(torch.randn_like(part))
    return model


class Classifier(nn.Module):
    """As a task that starts from a masked model: its encoder, and a layer of its own."""

    def __init__(self, words: int = WORDS, config: BertEncoderConfig = BERT) -> None:
        super().__init__()
        self.encoder = MaskedLM(MaskedLMConfig(encoder=config), words).encoder
        self.output = nn.Linear(config.width, 3)


def copies(model: nn.Module) -> dict[str, Tensor]:
    return {name: part.detach().clone() for name, part in model.named_parameters()}


def test_an_encoder_goes_into_another_task_and_the_rest_is_told() -> None:
    old = seeded(MaskedLM, 1, MaskedLMConfig(encoder=BERT), WORDS)
    new = seeded(Classifier, 2)
    before = copies(new)
    found = transfer(new, all_named_weights(old), ["encoder"], run="runs/bert")
    batch = batch_of([[5, 6, 7], [8]])
    ours, theirs = (one.eval().encoder(batch.source.data, batch.source.mask) for one in (new, old))
    assert torch.equal(ours.values, theirs.values)
    assert torch.equal(new.output.weight, before["output.weight"])
    assert {name for name, _ in found.left} == {"output.weight", "output.bias"}
    assert "mask_vector" in found.unused
    assert not any(name.startswith("encoder.") for name in found.unused)
    assert found.numbers == sum(part.numel() for part in new.encoder.parameters())
    text = found.lines("runs/bert")
    total = len(before)
    assert text[0] == f"from runs/bert: {total - 2} of {total} weights loaded, {found.numbers:,} numbers"
    assert [line.split() for line in text[1:4]] == [
        ["part", "loaded", "in", "part", "not", "found", "other", "shape"],
        ["encoder", str(total - 2), "0", "0", "0"],
        ["output", "0", "0", "2", "0"],
    ]
    assert text[4] == "not loaded: output.weight, output.bias (not in the parts loaded from runs/bert)"
    assert text[5].startswith("not used of runs/bert: mask_vector, transform.weight")


def test_all_of_a_run_gives_the_same_model() -> None:
    old, new = (seeded(LanguageModel, seed, LanguageModelConfig(stack=STACK), WORDS) for seed in (1, 2))
    found = transfer(new, all_named_weights(old))
    assert found.left == found.unused == found.partly == ()
    batch = batch_of([[]], [[5, 6, 7]])
    assert torch.equal(new.eval()(batch).total, old.eval()(batch).total)


def test_what_has_another_shape_is_left_and_explained() -> None:
    more = replace(BERT, segments=5)
    old = seeded(MaskedLM, 1, MaskedLMConfig(encoder=more), WORDS)
    new = seeded(Classifier, 2)
    before = copies(new)
    found = transfer(new, all_named_weights(old), ["encoder"], run="runs/bert")
    assert ("encoder.segments", "found 5 × 8, expected 2 × 8") in found.left
    assert torch.equal(new.encoder.segments, before["encoder.segments"])
    assert torch.equal(new.encoder.positions, old.encoder.positions)
    assert "not loaded: encoder.segments (found 5 × 8, expected 2 × 8)" in found.lines("runs/bert")


@pytest.mark.parametrize(("there", "here"), [(20, 10), (10, 20)])
def test_of_positions_the_first_of_both_come_over(there: int, here: int) -> None:
    old = seeded(MaskedLM, 1, MaskedLMConfig(encoder=replace(BERT, max_positions=there)), WORDS)
    new = seeded(Classifier, 2, config=replace(BERT, max_positions=here))
    before = copies(new)
    found = transfer(new, all_named_weights(old), ["encoder"], run="runs/bert")
    assert torch.equal(new.encoder.positions[:11], old.encoder.positions[:11])
    assert torch.equal(new.encoder.positions[11:], before["encoder.positions"][11:])
    assert f"loaded in part: encoder.positions (11 of {here + 1} positions, the first of both)" in found.lines("x")
    batch = batch_of([[5, 6, 7], [8]])
    ours, theirs = (one.eval().encoder(batch.source.data, batch.source.mask) for one in (new, old))
    assert torch.equal(ours.values, theirs.values)


def test_a_language_model_becomes_a_decoder_under_another_name() -> None:
    old = seeded(LanguageModel, 1, LanguageModelConfig(stack=STACK, output_bias=False), WORDS)
    config = EncoderDecoderConfig(tie="target", encoder=STACK, decoder=STACK)
    new = seeded(EncoderDecoder, 2, config, WORDS, WORDS)
    before = copies(new)
    found = transfer(new, all_named_weights(old), ["stack:decoder"])
    assert torch.equal(new.decoder.blocks[1].attention.project.weight, old.stack.blocks[1].attention.project.weight)
    assert torch.equal(new.output.weight, old.output.weight)  # tied here as there
    assert torch.equal(new.decoder.blocks[0].cross.query.weight, before["decoder.blocks.0.cross.query.weight"])
    left = {name for name, _ in found.left}
    assert all(".cross." in name or ".cross_norm." in name or name.startswith("encoder.") for name in left)
    assert found.unused == ("output.weight",)


def test_tied_tables_are_found_by_any_of_their_names() -> None:
    """The old model has one table for all, under the encoder's name; the new one has three."""
    old = seeded(EncoderDecoder, 1, EncoderDecoderConfig(tie="all", encoder=STACK, decoder=STACK), WORDS, WORDS)
    new = seeded(EncoderDecoder, 2, EncoderDecoderConfig(tie="none", encoder=STACK, decoder=STACK), WORDS, WORDS)
    found = transfer(new, all_named_weights(old), ["embeddings"])
    assert found.loaded == ("encoder.input.embedding.weight", "decoder.input.embedding.weight")
    table = old.encoder.input.embedding.weight
    assert torch.equal(new.encoder.input.embedding.weight, table)
    assert torch.equal(new.decoder.input.embedding.weight, table)
    assert not torch.equal(new.output.weight, table)
    back = transfer(old, all_named_weights(new), ["decoder"])
    assert "encoder.input.embedding.weight" in back.loaded
    assert torch.equal(old.output.weight, new.decoder.input.embedding.weight)


def test_rows_of_other_vocabularies_are_matched_by_token() -> None:
    theirs = [f"t{number}" for number in range(WORDS)]
    ours = ["t3", "new", "t0", "t16", "t1"]
    old = seeded(MaskedLM, 1, MaskedLMConfig(encoder=BERT), WORDS)
    new = seeded(Classifier, 2, len(ours))
    before = copies(new)
    found = transfer(new, all_named_weights(old), ["encoder"], [VocabularyPair(theirs, ours)])
    table, other = new.encoder.embedding.weight, old.encoder.embedding.weight
    assert torch.equal(table[[0, 2, 3, 4]], other[[3, 0, 16, 1]])
    assert torch.equal(table[1], before["encoder.embedding.weight"][1])
    assert found.partly == (("encoder.embedding.weight", "4 of 5 tokens, those that both vocabularies have"),)
    assert torch.equal(new.encoder.positions, old.encoder.positions)


def test_parts_that_are_not_there_are_refused() -> None:
    old = seeded(LanguageModel, 1, LanguageModelConfig(stack=STACK), WORDS)
    new = seeded(Classifier, 2)
    with pytest.raises(ConfigError, match=r"parts: runs/x has no weights of 'stck'. Did you mean 'stack'\?"):
        transfer(new, all_named_weights(old), ["stck"], run="runs/x")
    with pytest.raises(
        ConfigError, match=r"parts: this model has no weights of 'stack'. Expected one of: encoder, out"
    ):
        transfer(new, all_named_weights(old), ["stack"], run="runs/x")
    with pytest.raises(ConfigError, match=r"'stack:encoder' of runs/x \(encoder.* has no name in common .*\(encoder\."):
        transfer(new, {"stack.zzz": torch.zeros(2)}, ["stack:encoder"], run="runs/x")
    with pytest.raises(ConfigError, match=r"'all' of runs/x \(zzz\) has no name in common with this model \(encoder"):
        transfer(new, {"zzz": torch.zeros(2)}, run="runs/x")
    wide = BertEncoderConfig(layers=1, width=16, heads=2, feedforward=24, max_positions=12, segments=3)
    other = seeded(MaskedLM, 3, MaskedLMConfig(encoder=wide), WORDS + 1)
    told = r"nothing of runs/y fits this model: encoder\.positions: found 13 × 16, expected 11 × 8; .*\(and 17 more\)"
    with pytest.raises(RunError, match=told):
        transfer(new, all_named_weights(other), ["encoder"], run="runs/y")


# --- freezing and rates


def test_frozen_weights_stay_and_the_others_move() -> None:
    model = seeded(LanguageModel, 1, LanguageModelConfig(stack=STACK), WORDS)
    frozen = freeze(model, ["stack.blocks.0", "*.norm.weight"])
    assert frozen == [
        name for name in copies(model) if name.startswith("stack.blocks.0.") or name.endswith(".norm.weight")
    ]
    before = copies(model)
    optimizer = build_optimizer(OptimizerConfig(weight_decay=0.1), model)
    model(batch_of([[]], [[5, 6, 7]])).total.backward()
    optimizer.step()
    for name, part in model.named_parameters():
        assert torch.equal(part, before[name]) == (name in frozen)


def test_a_shared_weight_is_frozen_by_either_name() -> None:
    model = seeded(LanguageModel, 1, LanguageModelConfig(stack=STACK), WORDS)
    assert freeze(model, ["output"]) == ["stack.input.embedding.weight", "output.bias"]


def test_names_that_fit_nothing_are_refused() -> None:
    model = seeded(LanguageModel, 1, LanguageModelConfig(stack=STACK), WORDS)
    with pytest.raises(ConfigError, match=r"train.freeze: no weight is called 'outptu'. Did you mean 'output'\?"):
        freeze(model, ["outptu"])
    with pytest.raises(ConfigError, match=r"train.rates\[1\].names: no weight is called 'stack.bloks.0'"):
        rate_factors(model, [RateConfig("stack"), RateConfig("stack.bloks.0")])
    with pytest.raises(ConfigError, match=r"freezes all weights"):
        freeze(model, ["*"])


@pytest.mark.parametrize("empty", ["", " "])
def test_an_empty_name_does_not_stand_for_all_weights(empty: str) -> None:
    model = seeded(LanguageModel, 1, LanguageModelConfig(stack=STACK), WORDS)
    expected = rf"found '{empty}', expected the beginning of names, or a pattern"
    with pytest.raises(ConfigError, match=rf"train.rates\[1\].names: {expected}"):
        rate_factors(model, [RateConfig("output"), RateConfig(empty)])
    with pytest.raises(ConfigError, match=f"train.freeze: {expected}"):
        freeze(model, ["output", empty])
    assert set(rate_factors(model, [RateConfig("*", 0.5)]).values()) == {0.5}  # whoever means all can say so


def test_a_rate_of_frozen_weights_is_refused_and_one_of_some_that_move_is_not() -> None:
    model = seeded(LanguageModel, 1, LanguageModelConfig(stack=STACK), WORDS)
    freeze(model, ["stack.blocks.0"])
    assert rate_factors(model, [RateConfig("stack", 0.5)])["stack.input.embedding.weight"] == 0.5
    with pytest.raises(
        ConfigError, match=r"train.rates\[0\].names: found 'stack.blocks.0', whose weights are all frozen"
    ):
        rate_factors(model, [RateConfig("stack.blocks.0")])


def test_no_name_is_proposed_twice() -> None:
    model = seeded(LanguageModel, 1, LanguageModelConfig(stack=STACK), WORDS)
    with pytest.raises(ConfigError, match="Expected one of: ") as found:
        freeze(model, ["zzz"])
    names = str(found.value).partition("Expected one of: ")[2].rstrip(".").split(", ")
    assert len(names) == len(set(names))


def test_rates_by_name_are_steps_of_their_own_length() -> None:
    """Adam's first step is as long as its rate, whatever the gradient."""
    model = seeded(LanguageModel, 1, LanguageModelConfig(stack=STACK), WORDS)
    factors = rate_factors(model, [RateConfig("stack", 0.1), RateConfig("stack.blocks.1", 0.01)])
    assert {factors[name] for name in factors if name.startswith("stack.blocks.1.")} == {0.01}
    assert factors["stack.input.embedding.weight"] == 0.1
    assert factors["output.bias"] == 1.0
    optimizer = build_optimizer(OptimizerConfig(epsilon=1e-30), model, factors)
    for group in optimizer.param_groups:
        group["lr"] = 1e-3 * group["factor"]
    before = copies(model)
    model(batch_of([[]], [[5, 6, 7]])).total.backward()
    optimizer.step()
    for name, part in model.named_parameters():
        assert part.grad is not None
        moved = (part.detach() - before[name])[part.grad.abs() > 1e-6].abs()
        if len(moved):
            assert float((moved - 1e-3 * factors[name]).abs().max()) < 2e-6, name


def test_settings() -> None:
    table = {"run": "runs/x", "parts": ["encoder"]}
    assert settings.build(StartFromConfig, table) == StartFromConfig("runs/x", ("encoder",))
    with pytest.raises(ConfigError, match="factor"):
        settings.build(RateConfig, {"names": "encoder", "factor": 0.0})


def test_the_way_out_of_another_vocabulary_names_the_setting_that_there_is() -> None:
    """Where one vocabulary serves both sides there is no tokenizer.target to set."""
    old, new = (CharacterTokenizer(CharactersConfig(), letters) for letters in ("abc", "abd"))
    model = seeded(LanguageModel, 1, LanguageModelConfig(stack=STACK), WORDS)
    start = StartFromConfig("runs/x")
    with pytest.raises(RunError, match=r'tokenizer.source = \{ kind = "run", run = "runs/x", side = "target" \}'):
        load_parts(model, all_named_weights(model), (old, old), (new, new), start)
    with pytest.raises(RunError, match=r'tokenizer.target = \{ kind = "run", run = "runs/x", side = "target" \}'):
        load_parts(model, all_named_weights(model), (old, old), (old, new), start)


@pytest.mark.parametrize(
    ("pattern", "frozen"),
    [
        ("encoder.embedding", {"encoder.embedding.weight"}),
        ("encoder.embedding*", {"encoder.embedding.weight", "encoder.embedding_norm.weight"}),
        ("*.norm.*", {"encoder.norm.weight"}),
    ],
)
def test_a_name_is_whole_between_dots(pattern: str, frozen: set[str]) -> None:
    """The examples of docs/how-to/transfer.md."""
    parts = nn.ModuleDict({name: nn.RMSNorm(2) for name in ("embedding", "embedding_norm", "norm")})
    assert set(freeze(nn.ModuleDict({"encoder": parts}), [pattern])) == frozen


def test_what_knows_other_labels_stays_and_is_told() -> None:
    words = train_tokenizer(WordsConfig(), ["a b c d e"])
    config = TaggerConfig(crf=True, encoder=RecurrentEncoderConfig(embedding=6, width=6))
    one, other = (Tagger(config, build_embedding(len(words), 6, PAD), 3, keep_from=len(words)) for _ in range(2))
    nn.init.normal_(one.chain.transitions)  # type: ignore[union-attr]
    theirs, ours = (words, LabelVocabulary(["A", "B", "C"])), (words, LabelVocabulary(["X", "Y", "Z"]))
    found = load_parts(other, all_named_weights(one), theirs, ours, StartFromConfig("there"))
    knowing = {"output.weight", "output.bias", "chain.transitions", "chain.first", "chain.last"}
    assert set(found.unused) == {name for name, _ in found.left} == knowing
    for part in ("chain", "output", "output.bias"):
        with pytest.raises(RunError, match=rf"parts: found '{part}', which predicts the labels of there, but these"):
            load_parts(other, all_named_weights(one), theirs, ours, StartFromConfig("there", ("encoder", part)))
    assert not other.chain.transitions.any()  # type: ignore[union-attr]
    load_parts(other, all_named_weights(one), theirs, theirs, StartFromConfig("there", ("chain",)))
    assert torch.equal(other.chain.transitions, one.chain.transitions)  # type: ignore[union-attr]
