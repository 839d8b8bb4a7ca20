"""The variants of a recipe as a Markdown table, and BLEU by sentence length as a plot.

    python recipes/compare.py multi30k-de-en [--picture docs/images/bleu-by-length.png --draw sutskever bahdanau]

Reads what `recipes/run.py` wrote to recipes/results/.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
Table = dict[str, Any]


def results(name: str) -> list[Table]:
    """The results of every variant, best first."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in (HERE / "results").glob(f"{name}-*.json")]
    found = [result for result in found if "variant" in result]
    return sorted(found, key=lambda result: -mean(result, "moses_bleu"))


def mean(result: Table, score: str) -> float:
    """The mean of a score over seeds, on the first test set."""
    return float(next(iter(result["mean"].values()))[score])


def row(result: Table) -> str:
    """One line of the table."""
    seeds = result["seeds"]
    test = next(iter(result["mean"]))
    each = [seed["tests"][test]["moses_bleu"] for seed in seeds]
    spread = f" ({', '.join(f'{value:.1f}' for value in each)})" if len(each) > 1 else ""
    beside = f"{result['beside']:.1f}" if result.get("beside") else ""
    speed = statistics.mean(seed["target_tokens_per_second"] for seed in seeds)
    minutes = statistics.mean(seed["train_seconds"] for seed in seeds) / 60
    return (
        f"| {result['variant']} | {mean(result, 'moses_bleu'):.1f}{spread} | {mean(result, 'bleu'):.1f} | {beside} "
        f"| {seeds[0]['parameters'] / 1e6:.1f} M | {speed:,.0f} | {minutes:.1f} |"
    )


def main() -> None:
    """Print the table; draw if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="a recipe with variants")
    parser.add_argument("--picture", help="draw BLEU by sentence length to this file")
    parser.add_argument("--draw", nargs="+", metavar="VARIANT", help="which variants to draw; all without")
    options = parser.parse_args()
    found = results(options.name)
    if not found:
        parser.error(f"no results of '{options.name}' in {HERE / 'results'}; run recipes/run.py first")
    print("| model | BLEU, lowercased Moses tokens | sacreBLEU | beside | parameters | tokens/s | minutes |")
    print("|---|---|---|---|---|---|---|")
    for result in found:
        print(row(result))
    if options.picture:
        from dragoman.inspect.views.figures import new_figure, save_plot

        drawing = new_figure(7.5, 4.6)
        axes = drawing.subplots()
        for result in found:
            if not options.draw or result["variant"] in options.draw:
                test = next(iter(result["mean"]))
                groups = result["seeds"][0]["tests"][test]["by_length"]
                middles = [(group["min_length"] + group["max_length"]) / 2 for group in groups]
                axes.plot(middles, [group["bleu"] for group in groups], marker="o", label=result["variant"])
        axes.set(xlabel="words of the source", ylabel="BLEU", ylim=(0, None), title=f"{options.name}, {test}")
        axes.grid(alpha=0.25)
        axes.legend(frameon=False, fontsize=9)
        print(save_plot(drawing, options.picture))


if __name__ == "__main__":
    main()
