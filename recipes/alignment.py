"""Word alignments from attention, scored against manual alignments: two runs train both directions, then align.

    python recipes/alignment.py --data PATH_TO_DATA [--seeds 1 2 3] [--steps 4000]
    python recipes/alignment.py --data PATH_TO_DATA --em ibm1 hmm

No text comes with the gold alignments (English-French, Canadian parliament), so the runs train on Tatoeba and
Multi30k, rewritten in the style of that text (words separated from punctuation, "d'" as "de", "du" as "de le"), and
from the 447 sentence pairs themselves without their links, as word aligners always do. Writes
recipes/results/alignment-en-fr.json. With --em, `dragoman align --model` learns from the same text instead, in minutes,
and the result is recipes/results/alignment-en-fr-em.json.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from run import HERE, hardware, read_lines

ELIDED = {"c": "ce", "d": "de", "j": "je", "l": "le", "m": "me", "n": "ne", "qu": "que", "s": "se", "t": "te"}
JOINED = {"du": "de le", "des": "de les", "au": "à le", "aux": "à les"}
OWN_TEXT = 8  # how often the sentences to be aligned come: they are few and of another kind than the rest
CONFIG = """
preset = "transformer-small"
[data.train]
source = "{source}"
target = "{target}"
[tokenizer.source]
kind = "subwords"
vocab_size = 8000
[train]
steps = {steps}
batch_tokens = 8192
validate_every = {steps}
save_every = {steps}
decode = 64
metric = "loss"
patience = 0
[train.optimizer]
learning_rate = 2e-3
schedule = "cosine"
warmup = 400
"""


def parted(text: str) -> str:
    """Separate words from punctuation by spaces."""
    return " ".join(re.findall(r"\w+(?:[-’']\w+)*|[^\w\s]", text))


def english(text: str) -> str:
    """A sentence as the English side of the gold text is written."""
    return re.sub(r"(\w)['’](s|re|ve|ll|d|m|t)\b", r"\1 '\2", parted(text))


def french(text: str) -> str:
    """A sentence as the French side is written: nothing elided, nothing contracted."""
    text = re.sub(r"\b(qu|[cdjlmnst])['’]\s?(?=\w)", lambda found: ELIDED[found[1].lower()] + " ", text, flags=re.I)
    return re.sub(r"\b(du|des|au|aux)\b", lambda found: JOINED[found[1].lower()], parted(text), flags=re.I)


def prepare(data: Path, work: Path) -> dict[str, Path]:
    """The training text, one file per language."""
    pairs: list[tuple[str, str]] = []
    with gzip.open(data / "tatoeba_pairs/train.eng-fra.tsv.gz", "rt", encoding="utf-8") as file:
        pairs += [tuple(line.rstrip("\n").split("\t")[:2]) for line in file]  # type: ignore[misc]
    captions = (read_lines(data / f"multi30k/train.{side}.gz") for side in ("en", "fr"))
    pairs += zip(*captions, strict=True)
    rewritten = [(english(one), french(other)) for one, other in pairs]
    own = list(zip(*(read_lines(data / f"word_alignment/enfr.{side}.gz") for side in ("en", "fr")), strict=True))
    rewritten += own * OWN_TEXT
    found = {}
    for place, language in enumerate(("en", "fr")):
        found[language] = work / f"alignment.{language}"
        found[language].write_text("".join(f"{pair[place]}\n" for pair in rewritten), encoding="utf-8")
    return found


def dragoman(*words: str, log: Path, output: Path | None = None) -> None:
    """Run a command; its messages go to the log."""
    with log.open("a", encoding="utf-8") as errors, (output or log).open("a" if output is None else "w") as out:
        subprocess.run([sys.executable, "-m", "dragoman", *words], check=True, stdout=out, stderr=errors)


def train(files: dict[str, Path], source: str, target: str, seed: int, steps: int, work: Path) -> Path:
    """One direction with one seed."""
    name = f"alignment-{source}-{target}-{seed}"
    (work / f"{name}.toml").write_text(CONFIG.format(source=files[source], target=files[target], steps=steps))
    dragoman(
        "train", str(work / f"{name}.toml"), f"train.seed={seed}", "--run", str(work / name), log=work / f"{name}.log"
    )
    return work / name


def error_rates(data: Path, work: Path, seed: int) -> dict[str, Any]:
    """AER of each direction alone and of both joined, with layers chosen without the gold links."""
    texts = {side: str(data / f"word_alignment/enfr.{side}.gz") for side in ("en", "fr")}
    runs = {pair: str(work / f"alignment-{pair}-{seed}") for pair in ("en-fr", "fr-en")}
    sides = ["--source", texts["en"], "--target", texts["fr"]]
    ways = {
        "en-fr": [runs["en-fr"], *sides],
        "fr-en": [runs["fr-en"], "--source", texts["fr"], "--target", texts["en"]],
        **{
            f"both, {way}": [runs["en-fr"], *sides, "--reverse", runs["fr-en"], "--combine", way]
            for way in ("intersection", "grow-diag", "grow-diag-final-and")
        },
    }
    for name in list(ways):
        ways[f"{name}, shifted"] = [*ways[name], "--shift"]
    found = {}
    for name, words in ways.items():
        links = work / f"alignment-{seed}.txt"
        dragoman("align", *words, log=work / "alignment.log", output=links)
        swap = ["--swap"] if name.startswith("fr-en") else []
        scored = work / "alignment.json"
        gold = str(data / "word_alignment/enfr.gold.gz")
        flags = ["--gold-from", "1", "--hypothesis-from", "0", "--json", *swap]
        dragoman("score-alignment", gold, str(links), *flags, log=work / "alignment.log", output=scored)
        found[name] = json.loads(scored.read_text())
    return found


def em_error_rates(data: Path, work: Path, kinds: list[str]) -> None:
    """AER of word aligners without a network, learned from the same text."""
    files = prepare(data, work)
    lines = [files[side].read_text(encoding="utf-8").splitlines() for side in ("en", "fr")]
    corpus, gold = work / "alignment.tsv", str(data / "word_alignment/enfr.gold.gz")
    corpus.write_text("".join(f"{one}\t{other}\n" for one, other in zip(*lines, strict=True)), encoding="utf-8")
    texts = [f"--{name}={data}/word_alignment/enfr.{side}.gz" for name, side in (("source", "en"), ("target", "fr"))]
    rates, seconds = {}, {}
    for kind in kinds:
        for way in ("intersection", "grow-diag", "grow-diag-final-and"):
            started = time.time()
            links, scored = work / f"alignment-{kind}-{way}.txt", work / "alignment.json"
            words = ["--model", kind, *texts, "--learn-from", str(corpus), "--combine", way]
            dragoman("align", *words, log=work / "alignment.log", output=links)
            seconds[f"{kind}, {way}"] = round(time.time() - started, 1)
            flags = ["--gold-from", "1", "--hypothesis-from", "0", "--json"]
            dragoman("score-alignment", gold, str(links), *flags, log=work / "alignment.log", output=scored)
            rates[f"{kind}, {way}"] = json.loads(scored.read_text())
            print(f"{kind}, {way:<24}{100 * rates[f'{kind}, {way}']['aer']:6.2f} %", flush=True)
    result = {
        "recipe": "alignment-en-fr-em",
        "about": "Alignment error rate of IBM models and HMMs, English-French, 447 hand-aligned pairs",
        "hardware": hardware(),
        "pairs": len(lines[0]),
        "seconds": seconds,
        "aer": rates,
    }
    (HERE / "results" / "alignment-en-fr-em.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    """Train, align, score, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder that holds the data sets")
    parser.add_argument("--work", type=Path, default=Path("runs/recipes"), help="runs, logs and links go here")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--score-only", action="store_true", help="align with runs that are in --work already")
    parser.add_argument("--em", nargs="+", metavar="MODEL", help="score these models of align --model instead")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    if options.em:
        em_error_rates(options.data, options.work, options.em)
        return
    started = time.time()
    if not options.score_only:
        files = prepare(options.data, options.work)
        for seed in options.seeds:
            for source, target in (("en", "fr"), ("fr", "en")):
                train(files, source, target, seed, options.steps, options.work)
    seeds = {seed: error_rates(options.data, options.work, seed) for seed in options.seeds}
    means = {
        name: statistics.mean(rates[name]["aer"] for rates in seeds.values()) for name in next(iter(seeds.values()))
    }
    result = {
        "recipe": "alignment-en-fr",
        "about": "Alignment error rate of attention, English-French, 447 hand-aligned pairs",
        "hardware": hardware(),
        "seconds": round(time.time() - started, 1),
        "steps": options.steps,
        "mean_aer": means,
        "seeds": seeds,
    }
    (HERE / "results" / "alignment-en-fr.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    for name, rate in sorted(means.items(), key=lambda item: item[1]):
        print(f"{name:<36}{100 * rate:6.2f} %")


if __name__ == "__main__":
    main()
