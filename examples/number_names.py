"""Pairs of a number and its English name: something to learn from in a minute.

python examples/number_names.py                       print them
python examples/number_names.py pairs.tsv test.tsv    write them, every 23rd pair to the second file
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

SMALL = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
]
TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]


def name(number: int) -> str:
    """The English name of a number below a million."""
    if number < 20:
        return SMALL[number]
    if number < 100:
        rest = f"-{SMALL[number % 10]}" if number % 10 else ""
        return TENS[number // 10 - 2] + rest
    unit, word = (1000, "thousand") if number >= 1000 else (100, "hundred")
    rest = f" {name(number % unit)}" if number % unit else ""
    return f"{name(number // unit)} {word}{rest}"


def main(files: list[str]) -> None:
    """Print or write six thousand numbers, the small ones among them."""
    random.seed(1)
    numbers = {*range(100), *(random.randrange(10 ** random.randint(3, 6)) for _ in range(6000))}
    lines = [f"{number:,}\t{name(number)}\n" for number in sorted(numbers)]
    if not files:
        sys.stdout.writelines(lines)
        return
    train, test = map(Path, files)
    train.write_text("".join(line for count, line in enumerate(lines, 1) if count % 23), encoding="utf-8")
    test.write_text("".join(lines[22::23]), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
