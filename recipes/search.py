"""Compare decoding methods on one test set: quality, significance against beam 5, time per sentence; terminology.

    python recipes/search.py --data PATH_TO_DATA --runs runs/recipes/multi30k-en-de-transformer-{1,2,3} \
        --other runs/recipes/multi30k-en-de-luong-1 --reverse runs/recipes/multi30k-de-en-modern-transformer-1

The runs are those of the recipe multi30k-en-de-transformer, one per seed. Writes the file
that --result names and prints it as tables.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from run import HERE, hardware, read_lines

Table = dict[str, Any]
REQUIRED, SENTENCES = 2, 200


def synchronised() -> float:
    """The time after all queued GPU work is done."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def timed(predict: Callable[[list[str]], list[str]], sources: list[str]) -> tuple[list[str], float]:
    """The outputs, and milliseconds per sentence; the first sentences run once before, to warm up."""
    predict(sources[:64])
    started = synchronised()
    outputs = predict(sources)
    return outputs, 1000 * (synchronised() - started) / len(sources)


def ways(predictors: list[Any], other: Any, reverse: Any, rows: int) -> dict[str, Callable[[list[str]], list[str]]]:
    """Each decoding method as a function from sources to outputs; the first predictor is the main model."""
    from dragoman.decoding.mbr import MinimumBayesRisk
    from dragoman.decoding.options import RerankModel
    from dragoman.decoding.sampling import Sampling

    first = predictors[0]

    def told(predictor: Any, **options: Any) -> Callable[[list[str]], list[str]]:
        return lambda texts: [one.text for one in predictor.predict(texts, batch_size=rows, **options)]

    found = {
        "beam 5": told(first, beam=5),
        "greedy": told(first, beam=1),
        "sampling": told(first, method=Sampling(seed=1)),
        "32 samples + MBR (chrF)": told(first, method=MinimumBayesRisk(samples=32, seed=1)),
        "32 samples top-p 0.9 + MBR (BLEU)": told(
            first, method=MinimumBayesRisk(samples=32, metric="bleu", top_p=0.9, seed=1)
        ),
    }
    if len(predictors) > 1:
        found[f"ensemble of {len(predictors)}, beam 5"] = told(first, beam=5, ensemble=predictors[1:])
    if other is not None:
        found["ensemble with another architecture, beam 5"] = told(first, beam=5, ensemble=[other])
    if reverse is not None:
        found["beam 5 + reverse model"] = told(first, beam=5, rerank=RerankModel(reverse, 0.5))
    return found


def test_set(data: Path, most: int | None) -> tuple[list[str], list[str]]:
    """Sources and references of test2016, or the first of them."""
    source, reference = (read_lines(data / f"multi30k/test_2016_flickr.{side}.gz")[:most] for side in ("en", "de"))
    return source, reference


def comparison(
    sources: list[str], references: list[str], predictors: list[Any], other: Any, reverse: Any, work: Path, rows: int
) -> list[Table]:
    """BLEU, chrF, p-values against beam 5 and time of every method, with each run as the main model."""
    from dragoman.scoring.registry import select_metrics
    from dragoman.scoring.significance import compare_to_baseline

    found = []
    for place, lead in enumerate(predictors):
        others = [one for one in predictors if one is not lead]
        outputs: dict[str, list[str]] = {}
        times: dict[str, float] = {}
        for name, predict in ways([lead, *others], other, reverse, rows).items():
            outputs[name], times[name] = timed(predict, sources)
            (work / f"search-{place + 1}-{re.sub('[^a-z0-9]+', '-', name.lower())}.txt").write_text(
                "".join(f"{line}\n" for line in outputs[name]), encoding="utf-8"
            )
            print(f"run {place + 1}: {name}, {times[name]:.2f} ms a sentence", flush=True)
        standings = compare_to_baseline(
            outputs, [[line] for line in references], select_metrics(["bleu", "chrf"], "words")
        )
        rows_found = [one.as_dict() | {"milliseconds": times[one.system]} for one in standings]
        found.append({"run": str(lead.run.folder.name), "standings": rows_found})
    return found


def demanded(references: list[str], seed: int = 1) -> list[list[str]]:
    """Two different words of each reference, of four letters or more, drawn with a seed; [] where it has fewer."""
    draw = random.Random(seed)
    out = []
    for reference in references:
        words = sorted(set(re.findall(r"\b[^\W\d_]{4,}\b", reference)))
        out.append(draw.sample(words, REQUIRED) if len(words) >= REQUIRED else [])
    return out


def terminology(sources: list[str], references: list[str], predictor: Any, rows: int) -> Table:
    """Require two words of the reference in each of 200 test sentences; compare with unconstrained decoding."""
    from dragoman.scoring.registry import select_metrics

    asked = demanded(references)
    places = [place for place, words in enumerate(asked) if words][:SENTENCES]
    texts, words = [sources[place] for place in places], [asked[place] for place in places]
    truths = [[references[place]] for place in places]

    def free(beam: int) -> Callable[[list[str]], list[str]]:
        return lambda some: [one.text for one in predictor.predict(some, beam=beam, batch_size=rows)]

    def bound(beam: int) -> Callable[[list[str]], list[str]]:
        return lambda some: [
            one.text for one in predictor.predict(some, beam=beam, batch_size=rows, require=words[: len(some)])
        ]

    found: Table = {"sentences": len(texts), "required": REQUIRED, "rows": rows}
    for name, predict in (("free", free(5)), ("required", bound(5))):
        outputs, milliseconds = [], []
        for _ in range(3):
            outputs, once = timed(predict, texts)
            milliseconds.append(once)
        held = [[word in text for word in some] for text, some in zip(outputs, words, strict=True)]
        found[name] = {
            "milliseconds": sorted(milliseconds)[1],
            "words_held": sum(map(sum, held)),
            "sentences_satisfied": sum(map(all, held)),
            **{
                key: one.score(one.statistics(outputs, truths))
                for key, one in select_metrics(["bleu", "chrf"], "words").items()
            },
        }
    found["time_ratio"] = found["required"]["milliseconds"] / found["free"]["milliseconds"]
    return found


def show(result: Table) -> None:
    """The result as two tables in Markdown."""
    print("| run | way | BLEU | chrF | p (BLEU, bootstrap) | p (randomisation) | ms/sentence |")
    print("|---|---|---|---|---|---|---|")
    for one in result["comparison"]:
        chrf = {row["system"]: row["score"] for row in one["standings"] if row["metric"] == "chrf"}
        for row in one["standings"]:
            if row["metric"] == "bleu":
                versus = row["versus"]
                chances = f"{versus['bootstrap']:.3f} | {versus['randomisation']:.3f}" if versus else "|"
                print(
                    f"| {one['run']} | {row['system']} | {row['score']:.2f} | {chrf[row['system']]:.2f} | {chances} "
                    f"| {row['milliseconds']:.2f} |"
                )
    print(json.dumps(result["terminology"], indent=2))


def main() -> None:
    """Compare, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder that holds the data sets")
    parser.add_argument("--runs", type=Path, nargs="+", required=True, help="runs of one recipe, one per seed")
    parser.add_argument("--other", type=Path, help="a run of another architecture with the same vocabulary")
    parser.add_argument("--reverse", type=Path, help="a run from the target language to the source language")
    parser.add_argument("--work", type=Path, default=Path("runs/recipes"), help="outputs go here")
    parser.add_argument("--result", type=Path, default=HERE / "results" / "multi30k-en-de-search.json")
    parser.add_argument("--rows", type=int, default=128, help="sentences in a batch")
    parser.add_argument("--most", type=int, help="only the first sentences, for trials")
    options = parser.parse_args()
    from dragoman.inference.load import load_predictor

    predictors = [load_predictor(run, engine="torch") for run in options.runs]
    other, reverse = (load_predictor(run, engine="torch") if run else None for run in (options.other, options.reverse))
    options.work.mkdir(parents=True, exist_ok=True)
    texts = test_set(options.data, options.most)
    result = {
        "recipe": "multi30k-en-de-search",
        "about": "Multi30k English → German test2016, the runs of multi30k-en-de-transformer searched in several ways",
        "hardware": hardware(),
        "batch": options.rows,
        "terminology": [terminology(*texts, predictor, options.rows) for predictor in predictors],
        "comparison": comparison(*texts, predictors, other, reverse, options.work, options.rows),
    }
    options.result.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    show(result)


if __name__ == "__main__":
    main()
