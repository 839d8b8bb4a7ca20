"""Do the intervals of `dragoman curve` hold? Predict from half of the data what all of it gives, then train on all.

    python benchmarks/learning_curves.py DATA FOLDER [SET...]

DATA has the practice sets, FOLDER gets the trainings; the same command goes on where it stopped. Every set is cut into
1/16, 1/8, 1/4, 1/2 and all. The curve is fitted to the first four sizes and judged by the last one, with the models
that fit in seconds. The sets of `DESIGN` decided how the interval is computed; those of `HELD_BACK` did not.
"""

from __future__ import annotations

import gzip
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from dragoman.auto.curve import learning_curve
from dragoman.auto.options import CurveOptions
from dragoman.training.display import Display

PARTS = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)


class PracticeSet(NamedTuple):
    """A file of pairs, how many of them to use at most, and a model that is fitted in seconds."""

    file: str
    pairs: int = 10**9
    settings: tuple[str, ...] = ("preset=ngram-transducer",)
    metric: str = "exact_match"


PHRASES = ("preset=phrase-based",)
DESIGN = {
    "g2p Spanish": PracticeSet("wikipron_g2p/spa.medium.train.tsv.gz"),
    "g2p Polish": PracticeSet("wikipron_g2p/pol.medium.train.tsv.gz"),
    "g2p Turkish, few": PracticeSet("wikipron_g2p/tur.low.train.tsv.gz"),
    "spelling Icelandic": PracticeSet("histnorm/icelandic-icepahc.train.tsv.gz", 16_000),
    "inflection Turkish": PracticeSet("inflection/turkish.high.train.tsv.gz"),
    "inflection Arabic": PracticeSet("inflection/arabic.high.train.tsv.gz"),
    "Tatoeba en-fr": PracticeSet("tatoeba_pairs/train.eng-fra.tsv.gz", 2_000, PHRASES, "bleu"),
}
HELD_BACK = {
    "g2p Czech": PracticeSet("wikipron_g2p/ces.medium.train.tsv.gz"),
    "g2p Ukrainian": PracticeSet("wikipron_g2p/ukr.medium.train.tsv.gz"),
    "g2p Thai": PracticeSet("wikipron_g2p/tha.medium.train.tsv.gz"),
    "g2p Tagalog": PracticeSet("wikipron_g2p/tgl.medium.train.tsv.gz"),
    "g2p Swedish, few": PracticeSet("wikipron_g2p/swe.low.train.tsv.gz"),
    "g2p Basque, few": PracticeSet("wikipron_g2p/eus.low.train.tsv.gz"),
    "spelling German": PracticeSet("histnorm/german-ridges.train.tsv.gz", 16_000),
    "spelling Slovene": PracticeSet("histnorm/slovene-bohoric.train.tsv.gz", 16_000),
    "inflection Finnish": PracticeSet("inflection/finnish.high.train.tsv.gz"),
    "inflection German": PracticeSet("inflection/german.high.train.tsv.gz"),
    "inflection Spanish": PracticeSet("inflection/spanish.high.train.tsv.gz"),
    "transliteration": PracticeSet("transliteration/en-he.train.tsv.gz", 16_000),
}


def lines_of(path: Path) -> Iterator[str]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        yield from file


def write_pairs(data: Path, practice: PracticeSet, path: Path) -> None:
    """Pairs from all over a practice set (Tatoeba begins with the shortest) as a file of two columns."""
    rows = list(lines_of(data / practice.file))
    step = max(1, len(rows) // practice.pairs)
    kept = ("\t".join(row.rstrip("\n").split("\t")[:2]) + "\n" for row in rows[::step][: practice.pairs])
    path.write_text("".join(kept), encoding="utf-8")


def report(name: str, practice: PracticeSet, data: Path, folder: Path) -> bool:
    """Print a row of the table; returns whether the truth lies within the interval."""
    place = folder / name.replace(" ", "-").replace(",", "")
    place.mkdir(parents=True, exist_ok=True)
    pairs = place / "pairs.tsv"
    if not pairs.exists():
        write_pairs(data, practice, pairs)
    options = CurveOptions(metric=practice.metric, overrides=practice.settings, parts=PARTS, device="cpu")
    curve = learning_curve(str(pairs), place / "curve", options, Display(quiet=True))
    half, whole = curve.points[-2], curve.points[-1]
    scale, more = curve.text_metric.scale, whole.pairs - half.pairs
    predicted, truth = curve.gain(more, points=4), whole.score - half.score
    low, high = predicted.interval
    holds = low <= truth <= high
    measured = " ".join(f"{scale * point.score:.1f}" for point in curve.points[:-1])
    cells = [
        name, f"{half.pairs:,} + {more:,}", measured, f"{scale * predicted.gain:+.1f}",
        f"{scale * low:.1f} to {scale * high:.1f}", f"{scale * truth:+.1f}", "yes" if holds else "no",
    ]  # fmt: skip
    print(f"| {' | '.join(cells)} |", flush=True)
    return holds


def main() -> None:
    data, folder, chosen = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
    for title, sets in (("design", DESIGN), ("held back", HELD_BACK)):
        print(f"\n| {title} | pairs | scores of 1/16 to 1/2 | predicted | interval | truth | within |")
        print("|---|---|---|---|---|---|---|")
        named = {name: practice for name, practice in sets.items() if not chosen or name in chosen or title in chosen}
        holding = [report(name, practice, data, folder) for name, practice in named.items()]
        print(f"\n{sum(holding)} of {len(holding)}")


if __name__ == "__main__":
    main()
