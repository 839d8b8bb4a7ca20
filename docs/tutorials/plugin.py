# %% [markdown]
# # Write a plug-in
#
# Your field has a measure of its own, or a file format that nobody else has. You add both to Dragoman in a file each,
# without touching its code: a metric that all commands know, and a reader for your files. Then you check them against
# the rules that the built-in ones keep, and make a package of them.
#
# **You need** an empty folder and `pip install dragoman`. This takes a minute.

# %% [script]
import subprocess


def sh(command: str) -> None:
    """Run a command in a shell; stop if it fails."""
    print(f"$ {command}", flush=True)
    subprocess.run(command, shell=True, check=True)


# %% [markdown]
# ## A metric
#
# Say that you turn digits into words, and a text with a wrong number is useless, however many words are right. So you
# count *numbers that are right as a whole*. A metric has two functions: `count` gives a row of statistics for every
# text, `combine` makes scores of their sums. Corpus scores, confidence intervals and significance tests all use the
# same two.

# %%
from pathlib import Path

Path("number_accuracy.py").write_text(
    '''"""Share of the numbers of the reference that the output has at the same place, separated by commas."""

import dragoman
from dragoman.extend import Statistics, TextMetric, as_rows, ratio, signature


def count(hypotheses, references):
    rows = []
    for hypothesis, texts in zip(hypotheses, references, strict=True):
        found = hypothesis.split(", ")
        expected = texts[0].split(", ")
        rows.append([sum(a == b for a, b in zip(found, expected)), max(len(found), len(expected))])
    return Statistics(as_rows(rows), signature(references, tok="comma"))


def combine(sums):
    return ratio(sums[..., 0], sums[..., 1])


dragoman.register(
    TextMetric(
        name="number_accuracy",
        label="number accuracy",
        about="numbers that are right as a whole",
        count=count,
        combine=combine,
    )
)
''',
    encoding="utf-8",
)

# %% [markdown]
# `dragoman --import MODULE` loads a plug-in from the current folder for one command. Nothing else has to be
# configured: the metric has help, an interval, a plot.

# %%
Path("references.txt").write_text("seven, twenty-one\nforty, two\nnine\n", encoding="utf-8")
Path("outputs.txt").write_text("seven, twenty-two\nforty, two\nnine\n", encoding="utf-8")

# %%
sh(
    "dragoman --import number_accuracy score outputs.txt references.txt"
    " --metric number_accuracy --metric wer --intervals"
)

# %% [markdown]
# ## A reader
#
# Your pairs are in files that look like `17 => seventeen ; checked by Ann`. A reader is a class with the suffixes of
# its files and a method `pairs`. `parse_lines` reads the lines (also of `.gz` files) and reports bytes that are no
# UTF-8. A line that makes no sense raises `FaultError`: then `dragoman check` can name it.

# %%
Path("arrows.py").write_text(
    '''"""Files with "source => target ; remark" on each line."""

import dragoman
from dragoman.extend import FaultError, Reader, make_example, parse_lines


class ArrowReader(Reader):
    """Reads .arrows files; remarks are left out."""

    suffixes = (".arrows",)
    about = "lines of source => target ; remark"

    def pairs(self, path, options):
        def parse(line, number):
            source, arrow, rest = line.partition(" => ")
            if not arrow:
                raise FaultError("wrong-columns", "found no ' => ', expected source => target")
            target = rest.partition(" ; ")[0]
            return make_example(source, [target], str(path), number, options.max_characters)

        return parse_lines(path, parse)


dragoman.register(ArrowReader())
''',
    encoding="utf-8",
)

# %% [markdown]
# Now every command reads such files. Here are more than a thousand lines, and one with a mistake.

# %%
import random

ONES = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
NAMES = {10 * ten + one: f"{TENS[ten - 2]}-{ONES[one - 1]}" for ten in range(2, 10) for one in range(1, 10)}

random.seed(1)
rows = sorted({tuple(random.choices(list(NAMES), k=random.randint(1, 3))) for _ in range(2000)})
random.shuffle(rows)
lines = [f"{', '.join(map(str, row))} => {', '.join(NAMES[n] for n in row)} ; checked by Ann" for row in rows]
Path("test.arrows").write_text("\n".join(lines[:200]) + "\n", encoding="utf-8")
Path("numbers.arrows").write_text("\n".join([*lines[200:], "99 -> ninety-nine"]) + "\n", encoding="utf-8")
print(*lines[:3], sep="\n")

# %%
sh(
    "dragoman --import arrows --import number_accuracy train numbers.arrows --run runs/numbers preset=ngram-transducer"
    " train.metric=number_accuracy"
)
sh(
    "dragoman --import arrows --import number_accuracy evaluate runs/numbers test.arrows"
    " --metric number_accuracy --metric exact_match --intervals"
)

# %% [markdown]
# Training says which line it left out and why. The metric even selects the best checkpoint (`train.metric`) of models
# that have several.
#
# ## Check them
#
# `dragoman.testing` has the rules that every built-in part keeps, as functions that raise an `AssertionError` with
# the rule that is broken: does the metric give the same score in any order of texts? Is a perfect output the best?
# Does the reader read compressed files? Put these lines into your tests.

# %%
import arrows  # noqa: F401
import number_accuracy  # noqa: F401

from dragoman.extend import check_metric, check_reader

check_metric("number_accuracy")
check_reader(".arrows", b"1 => one ; Ann\n2 => two\n", [("1", "one"), ("2", "two")])
print("both keep all rules")

# %% [markdown]
# ## Make a package
#
# With `--import` you name the modules in every command. A package with an *entry point* is found by itself after `pip
# install .`:
#
# ```toml
# [project]
# name = "dragoman-numbers"
# version = "0.1"
# dependencies = ["dragoman"]
#
# [project.entry-points."dragoman.plugins"]
# numbers = "dragoman_numbers"
# ```
#
# The module `dragoman_numbers` imports `number_accuracy` and `arrows`.
# [examples/plugin](../../examples/plugin/README.md) is a complete package to copy, with a decoder, a metric, a
# reader, an objective and their tests.
#
# ## What could go wrong
#
# - *"no such metric".* The module was not imported: is `--import` before the name of the command, and the file in
#   this folder?
# - *A run needs the plug-in later.* Its folder names modules and versions, but never imports them: a folder from a
#   stranger stays data. Loading it says what to import.
# - *A name is taken.* A second metric or reader of the same name is refused.
#
# ## Where to go on
#
# [Extending](../how-to/extending/index.md) has a recipe for each of the ten kinds of plug-ins: decoder, encoder,
# objective, metric, reader, decoding method, constraint, task, exporter and document format.
