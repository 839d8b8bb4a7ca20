"""Our beam search against that of Hugging Face and of CTranslate2, over random models, sources and options.

Hugging Face's `generate` searches over our own model, so that only the searches can differ: beams, length penalty,
minimum and maximum length, no-repeat n-grams. Its diverse beam search left the library with version 5; ours is compared
with a plain one in tests/decoding/test_diverse_beam.py. At the maximum length the searches differ on purpose (ours lets
hypotheses end, the others cut them), so sources that get so far are counted and left out.

python benchmarks/campaign/differential.py [COUNT] [--processes P] [--seconds S] [--output FAILURES] [--seed SEED]
"""

from __future__ import annotations

import argparse
import copy
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from benchmarks.campaign.lanes import Lanes, Outcome, add_options, scratch
from dragoman.data.batch import Batch, batch_of, token_batch
from dragoman.data.tokenizers.base import EOS, PAD, SOS
from dragoman.decoding.config import SearchConfig
from dragoman.decoding.hypothesis import SUPPRESSED_TOKENS
from dragoman.decoding.searches import search
from dragoman.models.config import EncoderDecoderConfig
from dragoman.models.encoder_decoder import EncoderDecoder
from tests.contract.conftest import DECODER_CASES, ENCODER_CASES

VOCABULARY, SOURCES = 24, 5


def random_model(draw: random.Random) -> EncoderDecoder:
    """A model whose probabilities are far from even, so that no two hypotheses score alike."""
    torch.manual_seed(draw.randrange(1 << 30))
    encoder = ENCODER_CASES[draw.choice(("transformer", "recurrent", "convs2s"))]
    decoder = DECODER_CASES[draw.choice(("transformer", "gru", "luong", "convs2s"))]
    model = EncoderDecoder(
        EncoderDecoderConfig(tie="none", output_bias=True, encoder=encoder, decoder=decoder), VOCABULARY, VOCABULARY
    )
    model = model.double().eval()
    with torch.no_grad():
        for part in model.parameters():
            part.mul_(2.0)
        if model.output.bias is not None:
            model.output.bias[EOS] += draw.uniform(1, 6)
    return model


def hugging_face(model: EncoderDecoder) -> Any:
    """Our model as one that `generate` can search."""
    from transformers import GenerationConfig, GenerationMixin, PretrainedConfig, PreTrainedModel
    from transformers.modeling_outputs import CausalLMOutput

    class Wrapped(PreTrainedModel, GenerationMixin):  # type: ignore[misc]
        config_class = PretrainedConfig
        main_input_name = "input_ids"
        _supports_cache_class = False

        def __init__(self) -> None:
            super().__init__(PretrainedConfig(vocab_size=VOCABULARY, num_hidden_layers=1))
            self.place = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
            self.generation_config = GenerationConfig(eos_token_id=EOS, pad_token_id=PAD, bos_token_id=SOS)

        def prepare_inputs_for_generation(self, input_ids: Any, source: Any = None, **rest: Any) -> dict[str, Any]:
            return {"input_ids": input_ids, "source": source}

        def forward(self, input_ids: Any, source: Any = None, **rest: Any) -> Any:
            batch = token_batch(source)
            log_probabilities, _ = model.read(input_ids, model.start(batch))
            return CausalLMOutput(logits=log_probabilities)

    return Wrapped().eval()


Found = list[list[tuple[tuple[int, ...], float]]]


@torch.no_grad()
def theirs(model: EncoderDecoder, batch: Batch, config: SearchConfig) -> Found:
    """All hypotheses of Hugging Face's beam search with their scores."""
    rows = len(batch.source)
    out = hugging_face(model).generate(
        torch.full((rows, 1), SOS),
        source=batch.source.data,
        num_beams=config.beam,
        num_return_sequences=config.beam,
        early_stopping=True,
        length_penalty=config.length_penalty,
        max_new_tokens=config.max_length + 1,
        min_new_tokens=config.min_length or None,
        no_repeat_ngram_size=config.no_repeat_ngram,
        suppress_tokens=list(SUPPRESSED_TOKENS),
        do_sample=False,
        use_cache=False,
        output_scores=True,
        return_dict_in_generate=True,
    )
    found: Found = [[] for _ in range(rows)]
    scores = out.sequences_scores.tolist() if config.beam > 1 else [0.0] * rows
    for number, (row, score) in enumerate(zip(out.sequences[:, 1:].tolist(), scores, strict=True)):
        tokens = row[: row.index(EOS) + 1] if EOS in row else row
        found[number // config.beam].append((tuple(tokens), score))
    return found


def against_hugging_face(draw: random.Random, counts: Counter[str]) -> str:
    """What differs; empty if nothing does."""
    model = random_model(draw)
    sources = [[draw.randrange(4, VOCABULARY) for _ in range(draw.randint(1, 8))] for _ in range(SOURCES)]
    batch = batch_of(sources)
    config = SearchConfig(
        beam=draw.choice((1, 2, 3, 5, 8)),
        length_penalty=draw.choice((0.0, 0.6, 1.0, 2.0)),
        min_length=draw.choice((0, 0, 2, 5)),
        no_repeat_ngram=draw.choice((0, 0, 1, 2, 3)),
        max_length=draw.choice((6, 12, 30)),
        stop="complete",  # the rule of both others
    )
    ours = search(model, batch, config, 1.0, config.beam)
    for source, (mine, other) in enumerate(zip(ours, theirs(model, batch, config), strict=True)):
        longest = max(len(tokens) for tokens, _ in other)
        if longest > config.max_length or max(len(one.tokens) for one in mine) > config.max_length:
            counts["at the maximum length"] += 1
            continue
        counts["the same"] += 1
        if [one.tokens for one in mine] != [tokens for tokens, _ in other]:
            rounded = search(copy.deepcopy(model).float(), batch, config, 1.0, config.beam)[source]
            if close(mine) or [one.tokens for one in rounded] != [one.tokens for one in mine]:
                counts["a tie"] += 1  # float32, in which they compare scores, decides
                continue
            return f"{config}, source {source}: ours {[one.tokens for one in mine]}, theirs {other}"
        for one, (_, score) in zip(mine, other, strict=True):
            if config.beam > 1 and abs(one.normalised - score) > 1e-5 * max(1.0, abs(score)):  # theirs is float32
                return f"{config}, source {source}: score {one.normalised}, theirs {score}"
    return ""


class AgainstCTranslate2:
    """One exported model for each kind of Transformer; every case has its own sources and options."""

    def __init__(self, folder: Path) -> None:
        from tests.exchange import test_ctranslate2 as cases

        self.cases = cases
        self.models = {name: cases.model_of(name) for name in cases.SETTINGS}
        self.engines = {}
        for name, model in self.models.items():
            (folder / name).mkdir()
            self.engines[name] = cases.engine_of(model, folder / name, workers=1)

    def __call__(self, draw: random.Random, counts: Counter[str]) -> str:
        from dragoman.inference.engine.engine import EngineSearch

        name = draw.choice(list(self.models))
        config = SearchConfig(
            beam=draw.choice((1, 2, 4, 6)),
            length_penalty=draw.choice((0.0, 0.6, 1.0)),
            max_length=draw.choice((8, 29)),
            stop="complete",
        )
        sources = self.cases.rows(8, seed=draw.randrange(1 << 30))
        plain = self.cases.own_search(self.models[name], sources, config, config.beam)
        limits = [config.max_length + 1] * len(sources)
        for place, found in self.engines[name].search(sources, limits, EngineSearch(config, config.beam, 4)):
            if found is None:
                counts["left to our search"] += 1
                continue
            counts["the same"] += 1
            if [one.tokens for one in found] != [one.tokens for one in plain[place]]:
                if close(plain[place]):
                    counts["a tie"] += 1
                    continue
                return f"{name}, {config}: {sources[place]}: {found} and {plain[place]}"
        return ""


def close(hypotheses: list[Any]) -> bool:
    """Whether two neighbouring hypotheses score alike to five digits, so that float32 decides their order."""
    scores = [one.normalised for one in hypotheses]
    return any(abs(one - other) < 1e-5 for one, other in pairwise(scores))


class Differential:
    """One case against one of the other searches, in the process of a lane."""

    def __init__(self, seed: int, folder: Path | None = None) -> None:
        """With a folder for its models against CTranslate2, else against Hugging Face."""
        self.seed, self.folder = seed, folder
        self.case: Callable[[random.Random, Counter[str]], str] | None = None if folder else against_hugging_face

    def __call__(self, number: int, folder: Path) -> Outcome:
        if self.case is None:  # engines have threads, which a fork would lose
            assert self.folder is not None
            self.case = AgainstCTranslate2(Path(tempfile.mkdtemp(dir=self.folder)))
        counts: Counter[str] = Counter()
        return Outcome(counts, self.case(random.Random(f"{self.seed}/{number}"), counts))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", nargs="?", type=int, default=1000)
    add_options(parser)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    code = 0
    for name, package in (("Hugging Face", "transformers"), ("CTranslate2", "ctranslate2")):
        if find_spec(package) is None:
            print(f"differential, {name}: left out, since {package} is not installed")
            continue
        with scratch("differential") as folder:
            case = Differential(arguments.seed, Path(folder) if package == "ctranslate2" else None)
            report = Lanes(f"differential, {name}", Path(folder), arguments, 300).run(arguments.count, case)
        code |= report.show()
    return code


if __name__ == "__main__":
    sys.exit(main())
