# %% [markdown]
# # Read printed lines, or recordings
#
# You have pictures of text lines, or recordings, and a text for each. You train a model that reads new ones, and see
# when it heard each sign. The same commands work for both; this tutorial does both, one after the other.
#
# ![The spectrogram of a call, and when each key was heard](reading/call.png)
#
# **You need** an empty folder and `pip install 'dragoman[media,plots]'`. Everything takes about two minutes on a CPU.

# %% [script]
import subprocess


def sh(command: str) -> None:
    """Run a command in a shell; stop if it fails."""
    print(f"$ {command}", flush=True)
    subprocess.run(command, shell=True, check=True)


# %% [markdown]
# ## Pictures of lines
#
# The training data are a *manifest*: the name of a picture, a tab, and its text, one line for each. This cell prints
# order lines such as "3 milk" in slightly different sizes, places and shades. **With scans of your own, cut them into
# lines, write the manifest, and skip this cell.**

# %%
import random
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

random.seed(1)
WORDS = ["tea", "milk", "soup", "rice", "salt", "cake", "fish", "egg"]
Path("lines").mkdir(exist_ok=True)


def print_line(text: str, path: str) -> None:
    picture = Image.new("L", (10 * len(text) + 12, 28), 255)
    font = ImageFont.load_default(size=random.randint(17, 19))
    place = (random.randint(2, 8), random.randint(2, 4))
    ImageDraw.Draw(picture).text(place, text, fill=random.randint(0, 90), font=font)
    picture.save(path)


for name, count in (("train", 1000), ("test", 100)):
    manifest = []
    for number in range(count):
        text = f"{random.randint(1, 9)} {random.choice(WORDS)}"
        print_line(text, f"lines/{name}{number}.png")
        manifest.append(f"lines/{name}{number}.png\t{text}\n")
    Path(f"{name}.tsv").write_text("".join(manifest), encoding="utf-8")
print(*manifest[:3], sep="")

# %% [markdown]
# ## Train a reader
#
# `dragoman train train.tsv task=transcribe` chooses a model for scans: convolutions, two LSTM layers, and CTC, which
# finds out by itself where each letter is. Our lines are short and clean, so a smaller model will do. It guesses for
# a while; then the letters fall into place.

# %%
sh(
    "dragoman train train.tsv task=transcribe --run runs/lines tokenizer.source.kind=line-image"
    " tokenizer.source.height=32 'model.encoder.subsampling.time_strides=[2,1]' model.encoder.inner.layers=1"
    " model.encoder.inner.width=96 model.encoder.inner.embedding=96 model.augment.kind=none"
    " train.batch_tokens=2000 train.optimizer.learning_rate=4e-3 train.optimizer.schedule=constant"
    " train.steps=450 train.validate_every=150"
)

# %% [markdown]
# ## Read new lines
#
# `predict` takes a manifest, a folder, an archive or one file. *CER*, the character error rate, is the usual measure:
# edits for every letter of the text.

# %%
Path("scans").mkdir(exist_ok=True)
print_line("7 cake", "scans/page1-line1.png")
print_line("2 fish", "scans/page1-line2.png")

# %%
sh("dragoman predict runs/lines scans")
sh("dragoman evaluate runs/lines test.tsv --intervals")

# %% [markdown]
# ## Recordings
#
# Nothing changes for sound but the files. Here are recordings of a telephone keypad: every key sounds as two tones at
# once, and the line has noise.

# %%
import wave

import numpy

RATE = 8000
ROWS, COLUMNS = (697, 770, 852, 941), (1209, 1336, 1477)
noise = numpy.random.default_rng(1)


def dial(keys: str, path: str) -> None:
    parts = []
    for key in keys:
        row, column = divmod("123456789*0#".index(key), 3)
        time = numpy.arange(int(RATE * random.uniform(0.08, 0.16))) / RATE
        parts.append(0.3 * sum(numpy.sin(2 * numpy.pi * hertz * time) for hertz in (ROWS[row], COLUMNS[column])))
        parts.append(numpy.zeros(int(RATE * random.uniform(0.05, 0.1))))
    sound = numpy.concatenate(parts)
    sound += noise.normal(0, 0.05, len(sound))
    with wave.open(path, "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", ""))
        file.writeframes((sound.clip(-1, 1) * 32767).astype("<i2").tobytes())


Path("calls").mkdir(exist_ok=True)
for name, count in (("calls-train", 600), ("calls-test", 100)):
    manifest = []
    for number in range(count):
        keys = "".join(random.choices("0123456789", k=random.randint(3, 6)))
        dial(keys, f"calls/{name}{number}.wav")
        manifest.append(f"calls/{name}{number}.wav\t{keys}\n")
    Path(f"{name}.tsv").write_text("".join(manifest), encoding="utf-8")
print(*manifest[:3], sep="")

# %% [markdown]
# Dragoman sees that these files are sound and chooses features and sample rate.

# %%
sh(
    "dragoman train calls-train.tsv task=transcribe --run runs/calls model.encoder.inner.layers=1"
    " model.encoder.inner.width=96 model.encoder.inner.embedding=96 train.batch_tokens=2000"
    " train.optimizer.learning_rate=4e-3 train.steps=240 train.validate_every=120"
)
sh("dragoman evaluate runs/calls calls-test.tsv --intervals")

# %%
dial("555123", "my-call.wav")

# %%
sh("dragoman predict runs/calls my-call.wav")
sh("dragoman align runs/calls my-call.wav --predict")
sh("dragoman attention runs/calls my-call.wav --output call.png")

# %% [markdown]
# `align` says when the words of a text were heard, in seconds, and how sure the model is of them. `attention` draws
# the spectrogram and every key: the picture at the top. For printed lines both count pixels; CTC may place a letter
# beside the place where it stands.
#
# ## What could go wrong
#
# - *The model writes nothing, or the same for every picture.* CTC starts that way; it needs some hundred steps, and
#   some hundred examples, before it reads.
# - *A file is missing, damaged or has another sample rate.* `dragoman check train.tsv task=transcribe` names each;
#   `tokenizer.source.resample=true` converts rates.
# - *Real scans are skewed and stained.* Leave `model.augment` at its default: training then shifts and blurs the
#   lines. Some thousand lines of one script give an error rate of about one percent
#   ([results](../reference/results.md)).
#
# ## Where to go on
#
# - [Recordings and pictures](../how-to/media.md): captions of pictures, labels of recordings, word times.
# - A published Whisper or wav2vec 2.0 as a start: [exchange](../how-to/exchange.md).
# - [Decoding](../how-to/decoding.md#transcripts): a language model that helps to read.
