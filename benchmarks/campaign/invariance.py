"""An output does not depend on its batch: inputs × batch sizes × architectures × beam, sampling and constraints.

Models have random weights in float64, so that rounding cannot tip the balance between two outputs. `--device cuda` also
captures the searches as CUDA graphs. A case is one architecture with one search.

python benchmarks/campaign/invariance.py [INPUTS] [--device cuda] [--processes P] [--seconds S] [--output FAILURES]
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from benchmarks.campaign.lanes import Lanes, Outcome, add_options, scratch
from dragoman.data.collate import batches_by_length
from dragoman.data.tokenizers.base import EOS
from dragoman.decoding.config import SearchConfig
from dragoman.decoding.constraints.automata import ConstraintAutomaton
from dragoman.decoding.constraints.phrases import RequiredPhrases
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.sampling import Sampling
from dragoman.decoding.searches import search
from dragoman.models.config import EncoderDecoderConfig
from dragoman.models.encoder_decoder import EncoderDecoder
from tests.contract.conftest import DECODER_CASES, ENCODER_CASES

VOCABULARY = 24
BATCH_SIZES = (1, 3, 16, 64, 1000)
ARCHITECTURES = {
    "transformer": ("transformer", "transformer"),
    "rotary": ("rotary-rms-gated-grouped", "rotary-rms-gated-grouped"),
    "gru": ("recurrent", "gru"),
    "luong": ("recurrent", "luong"),
    "convs2s": ("convs2s", "convs2s"),
    "mixed": ("transformer", "gru"),
}
Searched = Callable[[EncoderDecoder, Any, list[int]], list[list[Hypothesis]]]


def model_of(name: str, device: str) -> EncoderDecoder:
    """Random weights, far from even chances, that like to end."""
    torch.manual_seed(7)
    encoder, decoder = ARCHITECTURES[name]
    config = EncoderDecoderConfig(
        tie="none", output_bias=True, encoder=ENCODER_CASES[encoder], decoder=DECODER_CASES[decoder]
    )
    model = EncoderDecoder(config, VOCABULARY, VOCABULARY).double().to(device).eval()
    with torch.no_grad():
        for part in model.parameters():
            part.mul_(2.0)
        model.output.bias[EOS] += 2
    return model


def beam(model: EncoderDecoder, batch: Any, indices: list[int]) -> list[list[Hypothesis]]:
    return search(model, batch, SearchConfig(beam=4, max_length=12), 1.0, 2)


def greedy(model: EncoderDecoder, batch: Any, indices: list[int]) -> list[list[Hypothesis]]:
    return search(model, batch, SearchConfig(beam=1, max_length=12), 1.0)


def sampling(model: EncoderDecoder, batch: Any, indices: list[int]) -> list[list[Hypothesis]]:
    return search(model, batch, SearchConfig(max_length=12), 1.0, 2, method=Sampling(seed=3))


def constrained(model: EncoderDecoder, batch: Any, indices: list[int]) -> list[list[Hypothesis]]:
    """Every third input must hold a phrase of its own."""
    automata = [
        None if index % 3 else ConstraintAutomaton([RequiredPhrases([[(4 + index % 9, 5)]])], VOCABULARY)
        for index in indices
    ]
    return search(model, batch, SearchConfig(beam=3, max_length=12), 1.0, constraints=automata)


SEARCHES: dict[str, Searched] = {"greedy": greedy, "beam": beam, "sampling": sampling, "constrained": constrained}


def outputs(
    model: EncoderDecoder, sources: list[list[int]], size: int, how: Searched, device: str
) -> dict[int, list[tuple[tuple[int, ...], float]]]:
    """All hypotheses of every source, found in batches of a size."""
    found = {}
    for indices, batch in batches_by_length(sources, size):
        for index, some in zip(indices, how(model, batch.to(torch.device(device)), list(indices)), strict=True):
            found[index] = [(one.tokens, round(one.normalised, 6)) for one in some]
    return found


def sources_of(count: int) -> tuple[list[list[int]], list[int]]:
    """Random sources, and another order of them."""
    draw = random.Random(5)
    sources = [[draw.randrange(4, VOCABULARY) for _ in range(draw.randint(1, 14))] for _ in range(count)]
    order = list(range(count))
    draw.shuffle(order)
    return sources, order


def compare(count: int, device: str, name: str, kind: str) -> list[str]:
    """What differs between batch sizes, for one architecture and one search."""
    sources, order = sources_of(count)
    model, how, differing = model_of(name, device), SEARCHES[kind], []
    expected = outputs(model, sources, BATCH_SIZES[-1], how, device)
    for size in BATCH_SIZES[:-1]:
        # Constraints belong to an input by its index, so only the others may change their order.
        places = order if kind != "constrained" else list(range(count))
        found = outputs(model, [sources[place] for place in places], size, how, device)
        wrong = [place for number, place in enumerate(places) if found[number] != expected[place]]
        if wrong:
            differing.append(f"{name}, {kind}, batches of {size}: {len(wrong)} of {count}, first {wrong[0]}")
    return differing


def campaign(count: int, device: str = "cpu", names: tuple[str, ...] = tuple(ARCHITECTURES)) -> tuple[int, list[str]]:
    """How many outputs were compared, and what differed."""
    differing = [line for name in names for kind in SEARCHES for line in compare(count, device, name, kind)]
    return count * (len(BATCH_SIZES) - 1) * len(names) * len(SEARCHES), differing


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("inputs", nargs="?", type=int, default=1000)
    parser.add_argument("--device", default="cpu")
    add_options(parser)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    cases = [(name, kind) for kind in SEARCHES for name in ARCHITECTURES]

    def case(number: int, folder: Path) -> Outcome:
        differing = compare(arguments.inputs, arguments.device, *cases[number])
        outputs = arguments.inputs * (len(BATCH_SIZES) - 1)
        return Outcome(Counter({f"outputs of {cases[number][1]}": outputs}), "; ".join(differing))

    with scratch("invariance") as folder:
        report = Lanes(f"invariance on {arguments.device}", Path(folder), arguments, 3600).run(len(cases), case)
    return report.show()


if __name__ == "__main__":
    sys.exit(main())
