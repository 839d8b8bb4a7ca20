# %% [markdown]
# # Your own language pair, from files to a server
#
# You have two text files, line by line translations of each other. At the end you have a translator that knows your
# texts, a server that clients of LibreTranslate can use, and documents that keep their formatting:
#
# ![Which English word each German word comes from](language_pair/attention.png)
#
# **You need** an empty folder and `pip install 'dragoman[serve,plots]'`. The commands below take about three minutes
# on a CPU.

# %% [script]
import subprocess


def sh(command: str) -> None:
    """Run a command in a shell; stop if it fails."""
    print(f"$ {command}", flush=True)
    subprocess.run(command, shell=True, check=True)


# %% [markdown]
# ## Two parallel files
#
# Line 7 of `train.de` translates line 7 of `train.en`. A few thousand lines from your own field are a start;
# [OPUS](https://opus.nlpl.eu) has millions for many pairs. This cell makes sentences from a small grammar instead, so
# that everything here takes minutes. The German side is real German: articles and adjectives agree with gender and
# case, the verb stands second, an infinitive last. **With files of your own, skip this cell.**

# %%
import random
from pathlib import Path

LIVING = "dog Hund m,cat Katze f,child Kind n,woman Frau f,man Mann m,girl Mädchen n,bird Vogel m,teacher Lehrer m"
THINGS = "house Haus n,tree Baum m,car Auto n,book Buch n,door Tür f,lamp Lampe f,table Tisch m,flower Blume f"
ADJECTIVES = "small klein,big groß,old alt,new neu,red rot,green grün,white weiß,beautiful schön"
VERBS = "sees sieht see sehen,buys kauft buy kaufen,finds findet find finden,paints malt paint malen"
ADVERBS = "today heute,tomorrow morgen,now jetzt,here hier"
MODALS = "can kann,must muss,wants_to will"
FORMS = {  # article and ending of the adjective for masculine, feminine, neuter
    ("the", "subject"): {"m": "der e", "f": "die e", "n": "das e"},
    ("the", "object"): {"m": "den en", "f": "die e", "n": "das e"},
    ("a", "subject"): {"m": "ein er", "f": "eine e", "n": "ein es"},
    ("a", "object"): {"m": "einen en", "f": "eine e", "n": "ein es"},
}


def choose(table: str) -> list[str]:
    return random.choice(table.split(",")).split()


def phrase(case: str) -> tuple[str, str]:
    english, german, gender = choose(LIVING if case == "subject" else f"{LIVING},{THINGS}")
    article = random.choice(["the", "a"])
    german_article, ending = FORMS[article, case][gender].split()
    if random.random() < 0.4:
        return f"{article} {english}", f"{german_article} {german}"
    adjective, stem = choose(ADJECTIVES)
    return f"{article} {adjective} {english}", f"{german_article} {stem}{ending} {german}"


def sentence() -> tuple[str, str]:
    (subject, subjekt), (thing, ding) = phrase("subject"), phrase("object")
    sees, sieht, see, sehen = choose(VERBS)
    last = ""
    if random.random() < 0.4:
        modal, sieht = choose(MODALS)
        sees, last = f"{modal.replace('_', ' ')} {see}", f" {sehen}"
    if random.random() < 0.3:
        today, heute = choose(ADVERBS)
        return f"{today} {subject} {sees} {thing}.", f"{heute} {sieht} {subjekt} {ding}{last}."
    return f"{subject} {sees} {thing}.", f"{subjekt} {sieht} {ding}{last}."


random.seed(1)
pairs = sorted({sentence() if random.random() < 0.95 else phrase("subject") for _ in range(5000)})
random.shuffle(pairs)
for name, part in {"test": pairs[:200], "train": pairs[200:]}.items():
    for side, language in enumerate(("en", "de")):
        lines = [pair[side][0].upper() + pair[side][1:] + "\n" for pair in part]
        Path(f"{name}.{language}").write_text("".join(lines), encoding="utf-8")
for language in ("en", "de"):
    print(Path(f"test.{language}").read_text(encoding="utf-8").splitlines()[:4])

# %% [markdown]
# ## Look at the data, then train
#
# `check` reads the files as training would, and names every line that cannot be used.

# %%
sh("dragoman check --source train.en --target train.de")

# %% [markdown]
# `dragoman train --source train.en --target train.de --run runs/en-de` is all you need for files of your own: it
# chooses model, vocabulary and length of the training, and says why. Here we ask for a smaller Transformer, which
# learns these sentences in half a minute. Call the run folder `en-de`: the server and the document formats take the
# languages from its name.

# %%
sh(
    "dragoman train --source train.en --target train.de --run runs/en-de preset=transformer-tiny"
    " model.encoder.layers=2 model.encoder.width=64 model.decoder.layers=2 model.decoder.width=64"
    " train.steps=300 train.validate_every=100 train.optimizer.warmup=50"
)

# %% [markdown]
# ## Measure
#
# Score the 200 sentences that were kept for the test. BLEU and chrF are those of sacreBLEU; the text after each score
# says how it was computed, so that you can compare it with others.

# %%
sh("dragoman evaluate runs/en-de --source test.en --target test.de --metric bleu --metric chrf --intervals")
sh('dragoman attention runs/en-de "Today the old woman wants to buy a red house." --output attention.png')

# %% [markdown]
# Real text is harder than this grammar: expect 20 to 40 BLEU from some ten thousand pairs, and read outputs before
# you believe a score.
#
# The picture at the top shows what the model learned about order: *kaufen* is written last, and looks at *buy*.
#
# ## Translate a document
#
# `translate` reads Word, PowerPoint, OpenDocument, EPUB, HTML, Markdown, subtitles, XLIFF, TMX and PO files. Only the
# text changes; markup follows its words.

# %%
Path("story.md").write_text(
    """# The old teacher

Today the **old** teacher buys a [red book](https://example.org/book). The small dog sees the teacher.

- Tomorrow the teacher wants to paint *a green tree*.
- The girl must find the lamp.
""",
    encoding="utf-8",
)

# %%
sh("dragoman translate runs/en-de story.md")

# %%
print(Path("story.de.md").read_text(encoding="utf-8"))

# %% [markdown]
# ## Serve it
#
# In a terminal you type `dragoman serve runs/en-de` and open http://127.0.0.1:5000, a page that translates while you
# type. This cell does the same from Python, on a free port.

# %%
import re
import subprocess

server = subprocess.Popen(
    ["dragoman", "serve", "runs/en-de", "--port", "0"], stderr=subprocess.PIPE, text=True, encoding="utf-8"
)
url = next(found[0] for line in server.stderr if (found := re.search(r"http://[\d.:]+", line)))

# %% [markdown]
# ![The page of a server](../images/page.png)
#
# The server speaks the protocol of LibreTranslate. So Mastodon, Weblate, Subtitle Edit and all other clients of
# LibreTranslate work with your model: give them the address of the server.

# %%
import json
import urllib.request


def post(path: str, **fields: str) -> dict:
    request = urllib.request.Request(url + path, json.dumps(fields).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


print(post("/translate", q="Now a small bird sees the big house.", source="en", target="de"))
print(post("/translate", q="<p>The cat finds a <b>white</b> door.</p>", source="en", target="de", format="html"))
server.terminate()
server.wait()
server.stderr.close()

# %% [markdown]
# ## What could go wrong
#
# - *The two files have different numbers of lines.* `check` and `train` refuse them. A line that is missing in the
#   middle shifts all others: `dragoman clean` sets doubtful pairs aside and says why.
# - *Words that training never had.* The model writes something else for them; `translate` and the server name such
#   words. More data, or a published model as a start ([fine-tune a published model](fine_tune.md)), is the cure.
# - *The server listens on this machine alone.* `--host 0.0.0.0` opens it to the network; then set a `--token`.
# - *The page says "und" for the languages.* The run folder is not called `en-de`: add `--languages en:de`.
#
# ## Where to go on
#
# - [Serving](../how-to/serving.md): DeepL's and OpenAI's protocols, limits, workers, containers.
# - [Documents](../how-to/documents.md): what stays and what changes in each format, review marks, terminology.
# - [Scarce data](../how-to/scarce.md): back-translation, mixing files, clean pairs.
# - [Models that get better](../how-to/adapt.md): corrections of your users make the next version.
