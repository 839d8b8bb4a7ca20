# %% [markdown]
# # Compare architectures, as in a lecture
#
# Why did attention replace the fixed vector? Train four networks on the same task, under the same conditions, and see
# it in one figure:
#
# ![Share of words that each network reverses without a mistake, by length](architectures/lengths.png)
#
# **You need** an empty folder and `pip install 'dragoman[plots]'`. All four networks train in about three minutes on
# a CPU.

# %% [script]
import subprocess


def sh(command: str) -> None:
    """Run a command in a shell; stop if it fails."""
    print(f"$ {command}", flush=True)
    subprocess.run(command, shell=True, check=True)


# %% [markdown]
# ## A task with one difficulty
#
# The task is to write a word backwards. Nothing has to be known about language, but the last letter of the output is
# the first one that was read, so that a network must remember all of the word. Any file of pairs can stand in for
# this one.

# %%
import random
from pathlib import Path

random.seed(1)
words = sorted({"".join(random.choices("abcdefghij", k=random.randint(2, 14))) for _ in range(6000)})
random.shuffle(words)
for name, part in {"test.tsv": words[:400], "pairs.tsv": words[400:]}.items():
    Path(name).write_text("".join(f"{word}\t{word[::-1]}\n" for word in part), encoding="utf-8")
print(words[0], "→", words[0][::-1])

# %% [markdown]
# ## Four networks
#
# A configuration says which encoder and decoder are put together. These four have about the same size, and differ in
# one idea each:
#
# | file | encoder and decoder | idea |
# |---|---|---|
# | `rnn.toml` | plain recurrent network | the last state of the encoder is all that the decoder sees |
# | `lstm.toml` | LSTM | gates decide what is kept (Hochreiter and Schmidhuber 1997; Sutskever et al. 2014) |
# | `attention.toml` | LSTM with attention | the decoder looks at every state of the encoder (Bahdanau et al. 2015) |
# | `transformer.toml` | Transformer | attention alone (Vaswani et al. 2017) |

# %%
COMMON = """
[data]
train = "pairs.tsv"
[tokenizer.source]
kind = "characters"
[train]
batch_tokens = 1024
validate_every = 100
decode = 100
average = "ema"
[train.optimizer]
learning_rate = {rate}
warmup = 50
"""
RECURRENT = """
[model.encoder]
kind = "recurrent"
cell = "{cell}"
embedding = 48
width = 128
dropout = 0.0
[model.decoder]
kind = "{decoder}"
cell = "{cell}"
embedding = 48
width = 128
dropout = 0.0
"""
TRANSFORMER = "".join(
    f'[model.{side}]\nkind = "transformer"\nlayers = 2\nwidth = 64\nheads = 4\nfeedforward = 256\ndropout = 0.0\n'
    for side in ("encoder", "decoder")
)
MODELS = {
    "rnn": RECURRENT.format(cell="rnn", decoder="fixed-context"),
    "lstm": RECURRENT.format(cell="lstm", decoder="fixed-context"),
    "attention": RECURRENT.format(cell="lstm", decoder="recurrent"),
    "transformer": TRANSFORMER,
}
for name, model in MODELS.items():
    rate = 3e-3 if name == "transformer" else 5e-3
    Path(f"{name}.toml").write_text(COMMON.format(rate=rate) + model, encoding="utf-8")

# %% [markdown]
# ## Train and compare
#
# `compare` gives all configurations the same data, tokenizer, batches and number of steps, and tests them on the same
# words. Scores have intervals, differences have p-values. If you stop it, the same command goes on.

# %%
sh(
    "dragoman compare rnn.toml lstm.toml attention.toml transformer.toml --test test.tsv --steps 200"
    " --metric exact_match --metric cer --folder runs/lecture --output lecture.html"
)

# %% [markdown]
# `lecture.html` is a page for the lecture: learning curves, scores by length, the gradients of each network, its
# attention for one word, cost against length. It needs no network and no server.
#
# ## The figure
#
# The figure at the top comes from the same runs: how many words of each length are right as a whole?

# %%
import matplotlib.pyplot as plt

import dragoman

test = words[:400]
figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
for name in MODELS:
    run = dragoman.load(f"runs/lecture/{name}-1")  # of seed 1
    outputs = [prediction.text for prediction in run.predict(test)]
    lengths = range(2, 15, 2)
    parts = [[i for i, word in enumerate(test) if length <= len(word) < length + 2] for length in lengths]
    right = [sum(outputs[i] == test[i][::-1] for i in part) / len(part) for part in parts]
    axes.plot(lengths, right, marker="o", label=name)
axes.set(xlabel="length of the word", ylabel="right as a whole", ylim=(-0.03, 1.03))
axes.legend()
figure.savefig("lengths.png", dpi=110)

# %% [markdown]
# What to see, and to say:
#
# - With attention, length does not matter: each output letter finds its source letter. Without it, a word must fit
#   into one vector, and both networks fail at some length.
# - The plain network learns this task faster than the LSTM. Gates help with long sequences, and these are short.
# - The Transformer has attention, too, but 200 steps are few for it. It must learn from its position vectors what a
#   recurrent network has by its construction: which letter stands beside which.
#
# So a comparison is about a task, an amount of data and a budget. Ask the students what happens with `--steps 600`,
# with words of 30 letters, or with a plain copy of the word in place of the reverse; then try it.
#
# ## Look inside
#
# `inspect` makes a page for one word: gates, gradients, attention and the search of each network. `--view attention`
# draws one figure.

# %%
sh("dragoman attention runs/lecture/attention-1 abcdefghij --output attention.png")

# %% [markdown]
# ![Attention of the LSTM: a line from corner to corner](architectures/attention.png)
#
# ## What could go wrong
#
# - *All curves look the same.* The task is too easy or the training too long: take longer words or fewer steps.
# - *A network does not learn at all.* Compare at its own good learning rate; every configuration keeps its own.
# - *Another seed gives another order.* `--seeds 3` trains each network three times.
#
# ## Where to go on
#
# - `dragoman compare --ladder pairs.tsv --minutes 10 --output ladder.html` trains ten steps of the history of the
#   field on your own pairs, and explains each ([compare](../how-to/compare.md)).
# - [The figures of a lecture, each by one command](../how-to/lectures.md).
# - [Architectures](../reference/architectures.md): every encoder and decoder, with its paper.
