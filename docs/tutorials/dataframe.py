# %% [markdown]
# # From Python with a DataFrame
#
# A column of your table has dates as people write them: *3 May 1998*, *05/03/98*, *Sunday, May 3rd*. You want
# *1998-05-03*. You train a model on rows that somebody has cleaned, fill in the others, and find the doubtful ones by
# their probability, all without leaving Python.
#
# **You need** an empty folder and `pip install dragoman pandas`. polars, pyarrow and Hugging Face datasets work in
# the same way. This takes about a minute on a CPU.
#
# ## A table
#
# This cell makes 1,500 messy dates, some with a letter missing, and the right answers. With a table of your own, skip
# it.

# %%
import datetime
import random

import pandas

random.seed(1)
FORMS = [
    "{d} {month} {y}",
    "{month} {d}, {y}",
    "{d}.{m}.{y}",
    "{d} {mon} {y}",
    "{mon} {d} {yy}",
    "{m}/{d}/{yy}",
    "{y} {mon} {d}",
]


def messy(day: datetime.date) -> str:
    text = random.choice(FORMS).format(
        d=day.day, m=day.month, y=day.year, yy=f"{day:%y}", month=f"{day:%B}", mon=f"{day:%b}".lower()
    )
    letters = [place for place, letter in enumerate(text) if letter.isalpha()]
    lost = random.choice(letters) if letters and random.random() < 0.2 else len(text)
    return text[:lost] + text[lost + 1 :]


days = [datetime.date(1970, 1, 1) + datetime.timedelta(days=random.randrange(19_000)) for _ in range(1500)]
table = pandas.DataFrame({"written": [messy(day) for day in days], "date": [day.isoformat() for day in days]})
table = table.drop_duplicates("written")
cleaned, rest = table[:-300], table[-300:]
print(cleaned.head())

# %% [markdown]
# ## Train on the rows that are clean
#
# `dragoman.train` takes the DataFrame as it is: of two columns the first is the source. The model reads and writes
# characters; this one, with attention, learns dates in less than a minute. Leave `preset` and `train.steps` out, and
# Dragoman chooses both.

# %%
import dragoman

run = dragoman.train(
    cleaned,
    "runs/dates",
    "preset=demo-rnn",
    "data.units=words",
    "tokenizer.target.kind=characters",
    "model.label_smoothing=0",
    "train.steps=200",
    quiet=True,
)

# %% [markdown]
# ## Fill in the others
#
# `predict` takes any sequence of texts and keeps its order. A prediction has a text, a score (the log-probability)
# and one for every token.

# %%
predictions = run.predict(list(rest["written"]))
filled = rest.assign(
    guess=[prediction.text for prediction in predictions],
    probability=[prediction.probability for prediction in predictions],
)
print(filled.head(8).to_string())

# %% [markdown]
# ## How good is it?
#
# Here the right dates are known. `score` computes any metric of texts. With draws, `scores.intervals` has confidence
# intervals.

# %%
scores = dragoman.score(list(filled["guess"]), list(filled["date"]), ["exact_match", "cer"], draws=1000)
print(scores)

# %% [markdown]
# Where they are not known, probabilities tell where to look. Sort by them: doubtful rows come first. (`dragoman
# calibrate` makes better probabilities of them, for a run that you will use for long.)

# %%
doubtful = filled.sort_values("probability")
print(doubtful.assign(right=doubtful["guess"] == doubtful["date"]).head(10).to_string())
print(f"right among the surest half: {(doubtful['guess'] == doubtful['date'])[len(doubtful) // 2 :].mean():.1%}")

# %% [markdown]
# ## Only valid dates
#
# A constraint makes sure that every output has the form of a date, whatever the input is.

# %%
(prediction,) = run.predict(["sometime in may 2001"], pattern=r"\d\d\d\d-[01]\d-[0-3]\d")
print(prediction.text, round(prediction.probability, 3))

# %% [markdown]
# ## What could go wrong
#
# - *The table has more columns.* Name two: `dragoman.train(table, "runs/x", "data.columns=written,date")`.
# - *Missing values.* A row without text is a fault with its number; drop such rows first (`table.dropna()`).
# - *The folder `runs/dates` exists.* The same call goes on with that run. For new data choose a new folder.
# - *05/03/98 is May or March?* No model can know what your people meant: look at what the training rows say.
#
# ## Where to go on
#
# - [Dragoman as a library](../how-to/library.md): our data with your training loop, our search with your model.
# - [Data](../how-to/data.md#data-in-memory): everything that may stand in for a file.
# - `run.evaluate(table)`, `run.inspect(text)` and `run.attention(text)` show more inside a notebook.
