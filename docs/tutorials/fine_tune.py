# %% [markdown]
# # Fine-tune a published model with LoRA on two hundred corrections
#
# Somebody has published a good general translator. It says *du* to your customers, who expect the formal *Sie*. You
# correct two hundred of its outputs, and teach it your style in a minute, without forgetting the rest:
#
# | text | published model | after 200 corrections |
# |---|---|---|
# | sentences with "you": right as a whole | 0 % | 100 % |
# | other sentences: right as a whole | 100 % | 100 % |
#
# **You need** an empty folder and `pip install dragoman`. The table has the figures of the small model below; a large
# model on real text gains less, and takes longer.

# %% [script]
import subprocess


def sh(command: str) -> None:
    """Run a command in a shell; stop if it fails."""
    print(f"$ {command}", flush=True)
    subprocess.run(command, shell=True, check=True)


# %% [markdown]
# ## The published model
#
# A published model is a folder with `config.json`, `model.safetensors` and tokenizer files. For English to German
# that would be [OPUS-MT](https://huggingface.co/Helsinki-NLP/opus-mt-en-de):
#
#     git clone https://huggingface.co/Helsinki-NLP/opus-mt-en-de
#     dragoman import opus-mt-en-de --run runs/opus
#
# It has 300 MB. So that this page runs anywhere in two minutes, we make a small one instead, in the same format: a
# Transformer with the layers of Marian that knows how software speaks. **With a model of your own, skip the next two
# cells.**

# %%
import random
from pathlib import Path

OBJECTS = "file Datei f,folder Ordner m,window Fenster n,picture Bild n,page Seite f,table Tabelle f,program Programm n"
ADJECTIVES = "new neu,old alt,empty leer,large groß,small klein,first erst,last letzt"
VERBS = "open öffnen,close schließen,save speichern,delete löschen,print drucken,find finden,copy kopieren"
MODALS = "can kann kannst können,must muss musst müssen,may darf darfst dürfen"
PEOPLE = "user Benutzer,administrator Administrator,teacher Lehrer,guest Gast"
ADVERBS = "now jetzt,here hier,later später,today heute"
ARTICLES = {"m": "den en", "f": "die e", "n": "das e"}


def choose(table: str) -> list[str]:
    return random.choice(table.split(",")).split()


def sentence(style: str) -> tuple[str, str]:
    """A sentence about somebody ("other"), or one that says "you" ("informal", "formal"), and its translation."""
    thing, german_thing, gender = choose(OBJECTS)
    adjective, stem = choose(ADJECTIVES)
    article, ending = ARTICLES[gender].split()
    verb, german_verb = choose(VERBS)
    modal, *forms = choose(MODALS)
    person, german_person = choose(PEOPLE)
    who = f"the {person}" if style == "other" else "you"
    roles = {"other": f"der {german_person}", "informal": "du", "formal": "Sie"}
    german_who, form = roles[style], forms[list(roles).index(style)]
    end, german_end = f"{verb} the {adjective} {thing}.", f"{article} {stem}{ending} {german_thing} {german_verb}."
    if random.random() < 0.4:
        now, german_now = choose(ADVERBS)
        return (
            f"{now} {who} {modal} {end}".capitalize(),
            f"{german_now[0].upper()}{german_now[1:]} {form} {german_who} {german_end}",
        )
    return f"{who} {modal} {end}".capitalize(), f"{german_who[0].upper()}{german_who[1:]} {form} {german_end}"


def write(name: str, pairs: list[tuple[str, str]]) -> None:
    Path(name).write_text("".join(f"{source}\t{target}\n" for source, target in pairs), encoding="utf-8")


random.seed(1)
other = sorted({sentence("other") for _ in range(2500)})
you = [sentence(random.choice(["informal"] * 3 + ["formal"])) for _ in range(1500)]
write("published.tsv", random.sample(other[300:] + you, len(other) - 300 + len(you)))
print(you[:3])

# %%
sh(
    "dragoman train published.tsv --run runs/marian preset=transformer-tiny model.encoder.norm=post"
    " model.decoder.norm=post model.encoder.layers=2 model.decoder.layers=2 model.encoder.width=64"
    " model.decoder.width=64 train.steps=200 train.validate_every=100 train.optimizer.warmup=50"
)
sh("dragoman export runs/marian --to huggingface --output opus-mt-en-de")

# %% [markdown]
# ## Import it
#
# From here on every step is the same for a real model. `import` reads the weights without unpickling anything, and
# takes over tokenizer and search settings.

# %%
sh("dragoman import opus-mt-en-de --run runs/opus")

# %% [markdown]
# ## Two hundred corrections
#
# A correction is a line with three columns: source, what the model said, and what it should have said. (Two columns,
# without the output, are enough.) Reviewed XLIFF and PO files, or the suggestions that users of a server sent, work
# as well. Here a program plays the translator; it also keeps some sentences back for a test of our own.

# %%
import dragoman

formal = sorted({sentence("formal") for _ in range(400)})
random.shuffle(formal)
write("formal-test.tsv", formal[200:])
write("other-test.tsv", other[:150])
write("other.tsv", other[300:])

run = dragoman.load("runs/opus")
sources = [source for source, _ in formal[:200]]
rows = [
    f"{source}\t{output.text}\t{correction}\n"
    for (source, correction), output in zip(formal[:200], run.predict(sources), strict=True)
]
Path("corrections.tsv").write_text("".join(rows), encoding="utf-8")
print(*Path("corrections.tsv").read_text(encoding="utf-8").splitlines()[:4], sep="\n")

# %%
sh("dragoman evaluate runs/opus formal-test.tsv --metric exact_match --metric chrf")
sh("dragoman evaluate runs/opus other-test.tsv --metric exact_match --metric chrf")

# %% [markdown]
# ## Adapt
#
# `adapt` freezes the model and trains low-rank adapters beside its matrices (LoRA). General text, in `other.tsv`, is
# mixed in, so that the model does not forget; for OPUS-MT some thousand pairs of any good corpus will do. A fifth of
# the corrections judges the result: the new version is kept only if it is better there and not worse on general text.
# A model of 30 million parameters or more gets adapters by itself; ours is small, so we ask for them.

# %%
sh("dragoman adapt runs/opus corrections.tsv --general other.tsv --method adapters")

# %% [markdown]
# Score both tests again, now with the new version:

# %%
sh("dragoman evaluate runs/opus formal-test.tsv --metric exact_match --metric chrf")
sh("dragoman evaluate runs/opus other-test.tsv --metric exact_match --metric chrf")

# %%
for prediction in dragoman.load("runs/opus").predict(
    ["You must save the empty table.", "Later you can print the page."]
):
    print(prediction.text)

# %% [markdown]
# The second output says *letzte*, which nobody asked for: every sentence that this small model has ever read had an
# adjective. A published model knows more.
#
# The run keeps all its versions. `dragoman adapt runs/opus --rollback` goes back, and `dragoman info` lists them.
#
# ## What differs with a real model
#
# - The folder may have `pytorch_model.bin` alone, which is pickled. `import` refuses it and says how to convert it
#   once.
# - OPUS-MT has 75 million parameters, 150 times as many as ours: use a GPU if you have one.
# - `import` prints the licence of the model. It stays with the run and with what you export from it.
# - Expect some points of BLEU or chrF rather than 0 to 100 %: here one simple habit was wrong, always in the same
#   way.
#
# ## What could go wrong
#
# - *"The new version was not kept."* It was not better on the corrections set aside, or general text suffered. More
#   corrections help most; then a higher `train.optimizer.learning_rate=2e-3` or more general text (`--mix 3`).
# - *Fewer than 20 usable corrections* are refused. `adapt` says how many it set aside, and why.
# - *Contradicting corrections* of one source: the last one counts.
#
# ## Where to go on
#
# - [Models that get better](../how-to/adapt.md): corrections from a server, translation memories, tests of a model.
# - [Published models in, your models out](../how-to/exchange.md): all families that can be imported, LoRA with all
#   its settings (`dragoman train mine.tsv train.start_from=runs/opus train.lora.rank=8`), and export.
# - `dragoman serve runs/opus --languages en:de` serves it, as in [your own language pair](language_pair.md).
