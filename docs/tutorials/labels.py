# %% [markdown]
# # Label texts and tag words
#
# A voice assistant hears "play something by Queen tomorrow". It must know *what is wanted* (a label for the text:
# play music) and *which words matter* (a tag for each word: *Queen* is an artist, *tomorrow* a time). You train both
# models from examples and measure them on names that training never had.
#
# ![Tags of the words of a request, with their probabilities](labels/tags.png)
#
# **You need** an empty folder and `pip install 'dragoman[plots]'`. Everything takes about two minutes on a CPU.

# %% [script]
import subprocess


def sh(command: str) -> None:
    """Run a command in a shell; stop if it fails."""
    print(f"$ {command}", flush=True)
    subprocess.run(command, shell=True, check=True)


# %% [markdown]
# ## Examples
#
# A labelled text is a line: text, tab, label. Tagged words are two columns, word and tag, with an empty line between
# sentences; *B-* begins a name, *I-* continues it, *O* is no name. The cell below makes both files from patterns. The
# names of the test, and a quarter of its phrases, are not in the training part: learning by heart does not help.
# **With files of your own, skip this cell.**

# %%
import random
from pathlib import Path

PATTERNS = {  # the last of each label is in the test alone
    "weather": [
        "what is the weather in CITY TIME",
        "will it rain in CITY TIME",
        "is it cold in CITY",
        "rain in CITY TIME",
    ],
    "music": [
        "play something by ARTIST",
        "put on a song of ARTIST",
        "i want to hear ARTIST TIME",
        "a song by ARTIST TIME",
    ],
    "flight": [
        "book a flight to CITY TIME",
        "i must fly from CITY to CITY",
        "find me a plane to CITY",
        "fly me to CITY",
    ],
    "table": [
        "reserve a table in CITY TIME",
        "we want to eat in CITY TIME",
        "find a dinner in CITY",
        "a table in CITY TIME",
    ],
}
SYLLABLES = ["ber", "lon", "mar", "ka", "vi", "ros", "tan", "del", "mo", "sel", "dor", "fa", "nu", "hem", "gri", "za"]
TIMES = [
    "today",
    "tomorrow",
    "tonight",
    "on monday",
    "on friday",
    "next week",
    "at noon",
    "in two hours",
    "this evening",
]


def invented(words: int, ends: list[str]) -> list[str]:
    """Names that no dictionary has; what kind of name it is shows in its ending and in the words around it."""
    return ["".join(random.choices(SYLLABLES, k=random.randint(1, 2))) + random.choice(ends) for _ in range(words)]


def request(patterns: int, cities: list[str], artists: list[str]) -> tuple[str, list[str], list[str]]:
    label = random.choice(list(PATTERNS))
    words, tags = [], []
    for word in random.choice(PATTERNS[label][:patterns]).split():
        name = {"CITY": cities, "ARTIST": artists, "TIME": TIMES}.get(word)
        parts = random.choice(name).split() if name else [word]
        words += parts
        tags += [f"{'I' if number else 'B'}-{word.lower()}" if name else "O" for number in range(len(parts))]
    return label, words, tags


random.seed(1)
for part, count, patterns in (("train", 1000, 3), ("test", 200, 4)):
    cities = invented(60, ["burg", "ton", "stad", "ville"])
    artists = [
        f"{first} {last}"
        for first, last in zip(invented(60, ["a", "o", ""]), invented(60, ["son", "ski", "ez"]), strict=True)
    ]
    requests = [request(patterns, cities, artists) for _ in range(count)]
    labels = [f"{' '.join(words)}\t{label}\n" for label, words, _ in requests]
    tagged = [
        "".join(f"{word}\t{tag}\n" for word, tag in zip(words, tags, strict=True)) + "\n" for _, words, tags in requests
    ]
    Path(f"{part}-labels.tsv").write_text("".join(labels), encoding="utf-8")
    Path(f"{part}-tags.tsv").write_text("".join(tagged), encoding="utf-8")
print(*labels[:3], tagged[0], sep="")

# %% [markdown]
# ## Label texts
#
# `task=classify` says that the second column is a label. Dragoman looks at the texts and chooses units and a model.

# %%
sh("dragoman train train-labels.tsv task=classify --run runs/intents train.steps=60 train.validate_every=20")
sh("dragoman evaluate runs/intents test-labels.tsv")

# %% [markdown]
# The second block has precision, recall and F₁ of every label: look there first when labels are of different size.
# Here *music* is missed now and then: a quarter of the test asks in words that training never had.
#
# Use the model from the command line or from Python; a prediction has the probabilities of all labels. Both requests
# below are new to the model, and it is less sure of them.

# %%
import dragoman

run = dragoman.load("runs/intents")
for prediction in run.predict(["please play the old song of mora dorez", "we fly to vizaburg today"]):
    print(prediction.text, prediction.details["probabilities"])

# %% [markdown]
# ## Tag words
#
# `task=tag` reads word and tag. Names that training never had cannot be looked up, so Dragoman chooses a model that
# reads the letters of each word. `model.crf=true` adds a conditional random field, which learns which tags follow
# each other.

# %%
sh(
    "dragoman train train-tags.tsv task=tag --run runs/slots model.crf=true"
    " train.optimizer.learning_rate=5e-3 train.batch_tokens=1024 train.steps=120 train.validate_every=60"
)
sh("dragoman evaluate runs/slots test-tags.tsv")

# %% [markdown]
# *span F1* counts whole names: *mora dorez* is right only if both words have the right tag.

# %%
Path("requests.txt").write_text("play mora dorez tonight\nbook a flight from kahemton to rosburg\n", encoding="utf-8")

# %%
sh("dragoman predict runs/slots requests.txt")
sh('dragoman inspect runs/slots "i want to hear mora dorez tomorrow" --view labels --output tags.png')

# %% [markdown]
# A line has one tag for each word. The first request shows a mistake: *mora* should be *B-artist*. In training a name
# never came right after *play*. More patterns in the training data are the cure.
#
# ## What could go wrong
#
# - *A label of the test was never in training.* `evaluate` stops and names it; `evaluation.skip_unknown=true` leaves
#   such examples out and counts them.
# - *Accuracy is high and useless*, because nine texts of ten have the same label. `evaluate` prints the score of
#   always saying the most frequent one beside it; look at macro F₁.
# - *A sentence has more words than tags.* `dragoman check train-tags.tsv task=tag` names the line.
#
# ## Where to go on
#
# - [Labels, numbers and tags](../how-to/labels.md): two texts, several numbers as a target, series and recordings as
#   sources, hidden Markov models.
# - Start from a published BERT: `dragoman import bert-base-uncased --run runs/bert`, then
#   `train.start_from=runs/bert` ([exchange](../how-to/exchange.md)).
# - `dragoman serve runs/intents runs/slots` answers both over HTTP ([serving](../how-to/serving.md)).
