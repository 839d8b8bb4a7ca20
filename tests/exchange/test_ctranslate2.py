"""CTranslate2 is an oracle we did not write: it must compute the same probabilities and find the same outputs."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
from dataclasses import fields, make_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

import dragoman
from dragoman import runs
from dragoman.base.errors import ConfigError
from dragoman.data.batch import batch_of
from dragoman.data.collate import batches_by_length
from dragoman.data.tokenizers.base import EOS
from dragoman.decoding.config import SearchConfig
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.options import DecodingOptions, RerankModel
from dragoman.decoding.sampling import Sampling
from dragoman.decoding.searches import search
from dragoman.inference.engine import ctranslate2 as exchange
from dragoman.inference.engine import ctranslate2_export
from dragoman.inference.engine.choice import Call, chosen, unsupported
from dragoman.inference.engine.engine import Engine, EngineSearch
from dragoman.inference.predictor import Prediction, Predictor
from dragoman.models.config import EncoderDecoderConfig, TransformerConfig
from dragoman.models.encoder_decoder import EncoderDecoder
from dragoman.models.encoders.recurrent import RecurrentEncoderConfig
from dragoman.models.layers.config import (
    LearnedConfig,
    LinearConfig,
    LocalConfig,
    NoPositionsConfig,
    RelativeBiasConfig,
    RelativeConfig,
    RotaryConfig,
    SinusoidalConfig,
)
from dragoman.models.traits import DecoderTraits, EncoderTraits
from dragoman.models.transformer import TransformerDecoder, TransformerEncoder
from dragoman.runs.tasks.config import build
from tests.conftest import call, words, write_rows

ctranslate2 = pytest.importorskip("ctranslate2", reason="the extra 'fast' (ctranslate2) is not installed")

VOCABULARY = 50
SETTINGS: dict[str, dict[str, Any]] = {
    "paper": {"norm": "post"},
    "pre-norm": {},
    "modern": {
        "norm_kind": "rms",
        "activation": "silu",
        "gated": True,
        "bias": False,
        "positions": RotaryConfig(500.0),
        "key_heads": 2,
    },
    "no bias": {"bias": False, "activation": "gelu", "gated": True},
    "one key head": {"key_heads": 1, "activation": "gelu-tanh", "positions": SinusoidalConfig("halves")},
    "learned": {"positions": LearnedConfig(96), "norm": "post", "norm_kind": "rms"},
    "no positions": {"positions": NoPositionsConfig()},
    "T5": {"positions": RelativeBiasConfig(8, 16), "score": "dot", "norm_kind": "rms", "bias": False},
    "relative": {"positions": RelativeConfig(3), "key_heads": 2},
}


class Numbers:
    """A tokenizer whose pieces are numbers."""

    tags = ()

    def __len__(self) -> int:
        return VOCABULARY

    def pieces(self, ids: Any) -> list[str]:
        return [f"t{number}" for number in ids]


def model_of(name: str, ending: float = 4.0) -> EncoderDecoder:
    """A model of random weights, big ones, that likes to end."""
    torch.manual_seed(1)
    stack = TransformerConfig(layers=2, width=32, heads=4, feedforward=48, **SETTINGS[name])
    config = EncoderDecoderConfig(
        encoder=stack, decoder=stack, output_bias=True, tie="all" if name == "paper" else "target"
    )
    model = EncoderDecoder(config, VOCABULARY, VOCABULARY).eval()
    with torch.no_grad():
        for part in model.parameters():
            part.add_(torch.randn_like(part) * 0.15)
        model.output.bias[:3] -= 6
        model.output.bias[EOS] += ending
    return model


def rows(count: int, seed: int = 0) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(4, VOCABULARY) for _ in range(draw.randint(1, 12))] for _ in range(count)]


def engine_of(model: EncoderDecoder, folder: Path, workers: int = 2) -> Engine:
    tokenizer: Any = Numbers()
    ctranslate2_export.export(model, (tokenizer, tokenizer), folder, "float32")
    return Engine(folder, tokenizer, tokenizer, "float32", workers)


def own_search(
    model: EncoderDecoder, sources: list[list[int]], config: SearchConfig, n_best: int = 1
) -> dict[int, list[Hypothesis]]:
    """The hypotheses of our own search for every source."""
    return {
        index: hypotheses
        for indices, batch in batches_by_length(sources, 64)
        for index, hypotheses in zip(indices, search(model, batch, config, 1.0, n_best), strict=True)
    }


@pytest.mark.parametrize("name", SETTINGS)
def test_every_token_has_the_same_probability_and_every_search_the_same_outputs(name: str, tmp_path: Path) -> None:
    model = model_of(name)
    engine = engine_of(model, tmp_path)
    sources, targets = rows(60), rows(60, seed=1)
    told = engine.translator.score_batch(
        *([[f"t{token}" for token in row] for row in part] for part in (sources, targets))
    )
    ours = model.score(batch_of(sources, targets)).log_probabilities
    for one, row in zip(told, ours.tolist(), strict=True):
        assert one.log_probs == pytest.approx(row[: len(one.log_probs)], abs=2e-5)

    limit, asked = 30, 0
    for config in (SearchConfig(beam=1), SearchConfig(), SearchConfig(beam=3, length_penalty=0.0)):
        most = config.beam
        settings = SearchConfig(config.beam, config.length_penalty, stop="complete", max_length=limit - 1)
        plain = own_search(model, sources, settings, most)
        for scores in (True, False):
            for place, found in engine.search(sources, [limit] * 60, EngineSearch(settings, most, 16, scores)):
                if found is None:
                    continue
                asked += 1
                assert [one.tokens for one in found] == [one.tokens for one in plain[place]]
                if scores:
                    for mine, other in zip(found, plain[place], strict=True):
                        assert mine.token_scores == pytest.approx(other.token_scores, abs=2e-5)
                        assert mine.normalised == pytest.approx(other.normalised, abs=2e-5)
    assert asked > 100, "nearly everything was left to our own search"


def test_lengths_repeats_and_complete_hypotheses_are_as_in_our_own_search(tmp_path: Path) -> None:
    model, sources, asked = model_of("modern"), rows(40), 0
    engine = engine_of(model, tmp_path)
    greedy = [
        SearchConfig(beam=1, min_length=least, no_repeat_ngram=size) for least in (0, 3, 40) for size in (0, 1, 2)
    ]
    for config in greedy + [SearchConfig(beam=3, num_complete=number) for number in (1, 2, 5)]:
        config = replace(config, stop="complete", max_length=15)
        assert not list(unsupported(Call(config, DecodingOptions()), VOCABULARY))
        plain = own_search(model, sources, config, config.beam)
        for scores in (True, False):
            for place, found in engine.search(sources, [16] * 40, EngineSearch(config, config.beam, 16, scores)):
                asked += found is not None
                assert found is None or [one.tokens for one in found] == [one.tokens for one in plain[place]]
    assert asked > 400, "nearly everything was left to our own search"


@pytest.mark.parametrize("beam", [1, 4])
def test_what_reaches_its_longest_length_ends_as_in_our_own_search(beam: int, tmp_path: Path) -> None:
    model = model_of("paper", ending=0.0)
    engine = engine_of(model, tmp_path)
    config, sources = SearchConfig(beam=beam, stop="complete", max_length=5), rows(40)
    plain = own_search(model, sources, config)
    found = dict(engine.search(sources, [6] * 40, EngineSearch(config, scores=beam > 1)))
    assert any(len(one[0].tokens) == 6 for one in plain.values())
    if beam > 1:
        assert any(one is None for one in found.values())
    for place, one in found.items():
        assert one is None or one[0].tokens == plain[place][0].tokens


def test_an_engine_leaves_torch_its_threads(tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        engine = engine_of(model_of("paper"), tmp_path)
        assert torch.get_num_threads() == 2
        list(engine.search(rows(4), [20] * 4, EngineSearch(SearchConfig(beam=1))))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)


def test_int8_is_near(tmp_path: Path) -> None:
    model, tokenizer = model_of("paper"), Numbers()
    ctranslate2_export.export(model, (tokenizer, tokenizer), tmp_path, "int8")
    engine = Engine(tmp_path, tokenizer, tokenizer, "int8", 1)  # type: ignore[arg-type]
    sources, targets = rows(20), rows(20, seed=1)
    ours = model_of("paper").score(batch_of(sources, targets)).log_probabilities.sum(1).tolist()
    assert model.score(batch_of(sources, targets)).log_probabilities.sum(1).tolist() == ours  # it is left as it was
    told = engine.translator.score_batch(
        *([[f"t{token}" for token in row] for row in part] for part in (sources, targets))
    )
    found = torch.tensor([sum(one.log_probs) for one in told])
    error = (found - torch.tensor(ours)).abs().mean()
    # With other sources, scores differ more. CPUs without 8-bit dot products are less exact: their sums saturate.
    others = model.score(batch_of(sources[::-1], targets)).log_probabilities.sum(1)
    assert 1e-4 < error < 0.75 * (others - torch.tensor(ours)).abs().mean()


def test_all_reasons_against_a_model_come_at_once() -> None:
    config = EncoderDecoderConfig(
        encoder=TransformerConfig(attention=LocalConfig(), score="cosine"),
        decoder=TransformerConfig(attention=LinearConfig()),
    )
    with pytest.raises(ConfigError) as caught:
        exchange.check_exportable(config)
    assert str(caught.value) == (
        "CTranslate2 cannot run this model: model.encoder.attention: found 'local', expected 'full'; "
        "model.encoder.score: found 'cosine', expected 'scaled-dot' or 'dot'; "
        "model.decoder.attention: found 'linear', expected 'full'"
    )
    recurrent = EncoderDecoderConfig(encoder=RecurrentEncoderConfig())
    assert exchange.blockers(recurrent) == ["model.encoder.kind: found 'recurrent', expected 'transformer'"]
    assert chosen("auto", "float32", recurrent, "cpu") == "torch"
    with pytest.raises(ConfigError, match=r"model\.encoder\.kind: found 'recurrent'"):
        chosen("ctranslate2", "float32", recurrent, "cpu")


def test_an_option_that_the_engine_does_not_know_goes_to_our_own_search() -> None:
    """The engine has an allow-list: a new option or setting with another value than its default is refused."""
    novel = make_dataclass("Novel", [("entropy_bonus", float, 0.0)], bases=(DecodingOptions,), frozen=True)
    assert list(unsupported(Call(SearchConfig(beam=1), novel()), 50)) == []
    assert list(unsupported(Call(SearchConfig(beam=1), novel(entropy_bonus=0.5)), 50)) == ["entropy_bonus = 0.5"]
    settings = make_dataclass("Settings", [("entropy_bonus", float, 0.0)], bases=(SearchConfig,), frozen=True)
    changed = Call(settings(beam=1, entropy_bonus=0.5), DecodingOptions())
    assert list(unsupported(changed, 50)) == ["search.entropy_bonus = 0.5"]


def test_a_new_option_is_searched_by_torch_and_an_error_where_the_engine_is_required(run: Path) -> None:
    novel = make_dataclass("Novel", [("entropy_bonus", float, 0.0)], bases=(DecodingOptions,), frozen=True)
    predictor = dragoman.load(run, "cpu")
    for options, engine_searches in ((novel(), True), (novel(entropy_bonus=0.5), False)):
        call_ = Call(replace(predictor.config.search, stop="complete"), options)
        assert predictor.backend(options).engines.can_search(call_) == engine_searches
    insisting = novel(entropy_bonus=0.5, engine="ctranslate2")
    with pytest.raises(ConfigError, match=r"which cannot do entropy_bonus = 0\.5; expected auto or torch"):
        predictor.backend(insisting).engines.can_search(Call(predictor.config.search, insisting))


def test_every_search_setting_is_an_option() -> None:
    assert {field.name for field in fields(SearchConfig)} <= {field.name for field in fields(DecodingOptions)}


def test_searches_it_does_not_do_alike_are_known() -> None:
    complete = SearchConfig(stop="complete")
    for config, found in {
        SearchConfig(): "search.stop = 'ahead'",
        complete: None,
        SearchConfig(beam=1, stop="certain", normalisation="gnmt"): None,
        SearchConfig(stop="certain"): "search.stop = 'certain'",
        replace(complete, normalisation="gnmt"): "search.normalisation = 'gnmt'",
        replace(complete, normalisation="none"): None,
        replace(complete, no_repeat_ngram=2): "search.no_repeat_ngram = 2",
        SearchConfig(beam=1, no_repeat_ngram=2, min_length=3): None,
        replace(complete, num_complete=2): None,
        replace(complete, beam=4, beam_groups=2): "search.beam_groups = 2",
        replace(complete, beam=30): "a beam of 30 over a vocabulary of 50",
    }.items():
        reasons = list(unsupported(Call(config, DecodingOptions()), 50))
        assert reasons == ([] if found is None else [found])
    assert list(unsupported(Call(SearchConfig(), DecodingOptions(engine="ctranslate2")), 50)) == []
    sampled = Call(complete, DecodingOptions(method=Sampling()))
    assert list(unsupported(sampled, 50)) == ["the method Sampling"]
    assert list(unsupported(Call(complete, DecodingOptions(rerank=RerankModel("back"), n_best=3)), 50)) == []
    with pytest.raises(ConfigError, match="precision: found 'int8', which only the engine ctranslate2 has"):
        chosen("torch", "int8", EncoderDecoderConfig(), "cpu")


def test_names_of_tokens_are_texts_and_no_two_are_alike() -> None:
    class Odd:
        def __len__(self) -> int:
            return 7

        def pieces(self, ids: Any) -> list[str]:
            return ["<pad>", "<unk>", "<sos>", "<eos>", "<eos>", "\ud800", "<4>"]

    assert exchange.names(Odd()) == ["<pad>", "<unk>", "<sos>", "<eos>", "<4>", "<5>", "<6>"]  # type: ignore[arg-type]


# ---------------------------------------------------------------------- trained runs

SMALL = {"layers": 2, "width": 32, "heads": 4, "feedforward": 64, "dropout": 0.0}
TRAINED: dict[str, dict[str, Any]] = {
    "paper": {"norm": "post"},
    "modern": {
        "norm_kind": "rms",
        "activation": "silu",
        "gated": True,
        "bias": False,
        "positions": {"kind": "rotary"},
        "key_heads": 2,
    },
}


@pytest.fixture(scope="module", params=TRAINED)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has half learned to turn words round: right about some, sure about few."""
    folder = tmp_path_factory.mktemp("engine")
    torch.set_num_threads(1)
    write_rows(folder / "pairs.tsv", [(word, word[::-1].upper()) for word in words(400)])
    stack = {"kind": "transformer", **SMALL, **TRAINED[request.param]}
    table = {
        "data": {"train": str(folder / "pairs.tsv"), "holdout": 20, "cache": str(folder / "cache")},
        "tokenizer": {"source": {"kind": "characters"}, "target": {"kind": "characters"}},
        "model": {"encoder": stack, "decoder": stack},
        "train": {
            "steps": 120,
            "batch_tokens": 512,
            "validate_every": 120,
            "decode": 0,
            "optimizer": {"learning_rate": 5e-3, "warmup": 20},
            "average": {"kind": "none"},
        },
    }
    runs.train(build(table), folder / "run")
    return folder / "run"


def all_of(prediction: Prediction) -> list[Prediction]:
    return [prediction, *prediction.alternatives]


def test_texts_of_trained_runs_are_those_of_our_own_search(run: Path) -> None:
    texts = [*words(200, seed=7), "", "zzz ü"]
    ours, engine = dragoman.load(run, engine="torch"), dragoman.load(run, engine="ctranslate2")
    for mine, other in zip(ours.predict(texts, beam=1), engine.predict(texts, beam=1), strict=True):
        assert (mine.text, mine.tokens) == (other.text, other.tokens)
        assert mine.token_scores == pytest.approx(other.token_scores, abs=1e-4)
        assert mine.score == pytest.approx(other.score, abs=1e-4)
    beam = {"beam": 5, "n_best": 5, "stop": "complete"}
    pairs = list(zip(ours.predict(texts, **beam), engine.predict(texts, **beam), strict=True))
    unlike = 0
    for mine, other in pairs:
        if [one.text for one in all_of(mine)] != [one.text for one in all_of(other)]:
            unlike += 1
            continue
        for left, right in zip(all_of(mine), all_of(other), strict=True):
            assert left.token_scores == pytest.approx(right.token_scores, abs=1e-4)
    assert unlike <= 1  # two scores may be nearly the same; on the machine it was written on, none are


def test_a_beam_of_the_engine_never_loses_to_greedy_search(tmp_path: Path) -> None:
    model = model_of("paper", ending=3.0)
    engine, sources = engine_of(model, tmp_path), rows(80)
    lost = {}
    for stop in ("ahead", "complete"):
        found = {}
        for beam in (1, 3):
            config = SearchConfig(beam=beam, stop=stop, max_length=29)
            found[beam] = dict(engine.search(sources, [30] * 80, EngineSearch(config)))
        pairs = [(found[3][place], found[1][place]) for place in range(80)]
        lost[stop] = sum(mine[0].normalised < other[0].normalised - 1e-4 for mine, other in pairs if mine and other)
    assert lost["ahead"] == 0 < lost["complete"], lost


def test_streams_keep_their_order_and_batches_change_nothing(run: Path) -> None:
    engine = dragoman.load(run, engine="ctranslate2")
    texts = words(90, seed=3)
    whole = [one.text for one in engine.predict(texts)]
    assert [one.text for one in engine.stream(texts, window=40, batch_size=7, scores=False)] == whole
    assert [engine.predict([text])[0].text for text in texts[:20]] == whole[:20]


def test_the_model_folder_is_made_once_and_anew_for_other_weights(run: Path, tmp_path: Path) -> None:
    own = tmp_path / "run"
    shutil.copytree(run, own, ignore=shutil.ignore_patterns("ctranslate2-*"))
    folder = own / "ctranslate2-float32"

    def asked() -> str:
        return dragoman.load(own, engine="ctranslate2").predict(["abcde"])[0].text

    first = asked()
    made = (folder / "model.bin").stat().st_mtime_ns
    assert asked() == first
    assert (folder / "model.bin").stat().st_mtime_ns == made
    assert [path.name for path in own.iterdir() if path.name.startswith(".")] == []

    from safetensors.torch import load_file, save_file

    tensors = load_file(own / "weights.safetensors")
    save_file({name: part * 0.0 for name, part in tensors.items()}, own / "weights.safetensors")
    assert asked() != first
    assert (folder / "model.bin").stat().st_mtime_ns != made
    (folder / "made-from.json").write_text("{")
    assert asked() != first  # a damaged one is made anew


def test_a_damaged_model_folder_is_made_anew(run: Path, tmp_path: Path) -> None:
    """CTranslate2 read a file with some bytes changed, and raised IndexError or gave other outputs."""
    own = tmp_path / "run"
    shutil.copytree(run, own, ignore=shutil.ignore_patterns("ctranslate2-*"))
    first = dragoman.load(own, engine="ctranslate2").predict(["abcde"])[0].text
    for name in ("model.bin", "config.json", "target_vocabulary.json", "shared_vocabulary.json"):
        path = own / "ctranslate2-float32" / name
        if not path.exists():
            continue
        whole = path.read_bytes()
        for damaged in (whole[: len(whole) // 2], bytes([whole[0] ^ 255]) + whole[1:], whole[:-9] + b"x" * 9):
            path.write_bytes(damaged)
            assert dragoman.load(own, engine="ctranslate2").predict(["abcde"])[0].text == first
            assert path.read_bytes() == whole


def test_hashes_decide_where_the_times_of_files_have_changed(run: Path, tmp_path: Path) -> None:
    dragoman.load(run, engine="ctranslate2").predict(["abc"])
    own = tmp_path / "run"
    shutil.copytree(run, own)  # copies the times of files too
    model, weights = own / "ctranslate2-float32" / "model.bin", own / "weights.safetensors"
    assert exchange.written_folder(own, weights, "float32") == model.parent
    for path in (model, weights):
        os.utime(path, (1, 1))
        assert exchange.written_folder(own, weights, "float32") == model.parent
        whole = path.read_bytes()
        path.write_bytes(bytes([whole[0] ^ 255]) + whole[1:])
        assert exchange.written_folder(own, weights, "float32") is None
        path.write_bytes(whole)


def test_a_run_that_cannot_be_written_to_is_still_searched(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "run"
    shutil.copytree(run, own, ignore=shutil.ignore_patterns("ctranslate2-*"))
    (tmp_path / "moment").mkdir()
    real = ctranslate2_export.tempfile.mkdtemp

    def refused(parent: Path, prefix: str) -> Path:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(ctranslate2_export, "make_temporary", refused)
    monkeypatch.setattr(
        ctranslate2_export.tempfile, "mkdtemp", lambda prefix: real(prefix=prefix, dir=tmp_path / "moment")
    )
    expected = dragoman.load(run, engine="torch").predict(["abcde"])[0].text
    assert dragoman.load(own, engine="ctranslate2").predict(["abcde"])[0].text == expected
    assert list((tmp_path / "moment").iterdir()) == []  # it is in memory: nothing is left behind
    assert not (own / "ctranslate2-float32").exists()


def test_auto_takes_it_where_it_can_and_torch_otherwise(run: Path) -> None:
    auto = dragoman.load(run, "cpu")
    assert isinstance(auto, Predictor)
    assert auto.backend(auto.defaults).engines.name == "ctranslate2"
    ours = dragoman.load(run, "cpu", engine="torch")
    texts = words(20, seed=5)
    for how in ({}, {"no_repeat_ngram": 2}, {"method": Sampling(seed=3)}, {"prefix": "A"}):
        found = [one.text for one in auto.predict(texts, **how)]  # type: ignore[arg-type]
        assert found == [one.text for one in ours.predict(texts, **how)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ("search.no_repeat_ngram=2",),
            "engine: found ctranslate2, which cannot do search.no_repeat_ngram = 2; expected auto or torch",
        ),
        (("--sample",), "engine: found ctranslate2, which cannot do the method Sampling; expected auto or torch"),
        (("constraints.prefix=A",), "which cannot do prefixes, phrases and other constraints"),
        (("beam_trace=trace.jsonl",), "which cannot do a trace of the beam"),
        (("ensemble.runs=RUN",), "engine: found ctranslate2, which cannot do an ensemble; expected auto or torch"),
        (("--device", "nowhere"), "device: found 'nowhere'"),
    ],
)
def test_asked_for_by_name_it_refuses_what_it_cannot_do(
    run: Path, options: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = tuple(option.replace("RUN", str(run)) for option in options)
    got = call("predict", run, "engine=ctranslate2", *options, stdin=b"abc\n")
    assert got.code == 2
    assert said in got.err
    assert got.err.count("\n") == 1


def test_the_command_line_gives_the_same_text_by_every_engine(run: Path) -> None:
    stdin = "".join(f"{word}\n" for word in words(40, seed=9)).encode()
    ours, engine, auto = (
        call("predict", run, f"engine={name}", "--device", "cpu", "search.stop=complete", stdin=stdin)
        for name in ("torch", "ctranslate2", "auto")
    )
    assert (ours.code, ours.err) == (engine.code, engine.err) == (auto.code, auto.err) == (0, "")
    assert ours.out == engine.out == auto.out
    assert call("predict", run, "precision=int8", stdin=stdin).code == 0
    wrong = call("predict", run, "engine=torch", "precision=int8", stdin=stdin)
    assert (wrong.code, "which only the engine ctranslate2 has" in wrong.err) == (2, True)


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None  # its import raises an error
from dragoman.cli import guarded
for line in sys.stdin:
    assert guarded(line.split()) == 0, line
assert "torch" not in {name.partition(".")[0] for name, module in sys.modules.items() if module is not None}
"""


def test_a_written_engine_predicts_without_torch(run: Path, tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("".join(f"{word}\n" for word in words(12, seed=4)), encoding="utf-8")
    ways = ("--beam 1", "search.stop=complete --json --n-best 2", "engine=ctranslate2", "precision=int8 --json")
    lines = [f"predict {run} {tmp_path}/words.txt {way}" for way in ways]
    with_torch = [call(*line.split()) for line in lines]  # writes the engines
    assert [got.code for got in with_torch] == [0] * len(ways)
    got = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH],
        input="\n".join(lines),
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert (got.returncode, got.stderr) == (0, "")
    outputs = [
        re.split(r"(-?\d+\.\d+(?:e-\d+)?)", out) for out in (got.stdout, "".join(each.out for each in with_torch))
    ]
    assert outputs[0][::2] == outputs[1][::2]
    # The batches that are scored follow the threads of a process, and the last bits of scores follow the batches.
    assert [*map(float, outputs[0][1::2])] == pytest.approx([*map(float, outputs[1][1::2])], abs=1e-5)


def test_the_settings_of_a_transformer_say_what_its_modules_declare() -> None:
    """They are read without the modules, which import torch."""
    for traits, module in ((DecoderTraits, TransformerDecoder), (EncoderTraits, TransformerEncoder)):
        assert not {name for name in vars(traits) if not name.startswith("__")} & set(vars(module))


def test_without_the_package_auto_is_torch_and_the_name_is_an_error(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "find_spec", lambda name: None)
    loaded = dragoman.load(run, "cpu")
    assert loaded.backend(loaded.defaults).engines.name == "torch"
    got = call("predict", run, "engine=ctranslate2", stdin=b"abc\n")
    assert got.code == 2
    assert "pip install 'dragoman[fast]'" in got.err
