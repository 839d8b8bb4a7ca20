"""The tiny runs of the lectures, each a configuration that a student can read, and the sample files they need."""

from __future__ import annotations

from dataclasses import dataclass

from dragoman.lecture import sample_media, sample_texts
from dragoman.lecture.sample_media import Files


@dataclass(frozen=True)
class TinyRun:
    """A run: what it is, its sample file and its configuration."""

    about: str
    data: str
    config: str


def training(steps: int, rate: float = 0.01, tokens: int = 800, more: str = "") -> str:
    return (
        f"\n[train]\nsteps = {steps}\nvalidate_every = {steps}\nbatch_tokens = {tokens}\n{more}"
        f"optimizer = {{ learning_rate = {rate}, warmup = {max(steps // 10, 1)} }}\n"
        'average.kind = "none"\ndevice = "cpu"\n'
    )


WORDS = '[tokenizer.source]\nkind = "words"\n'
RECURRENT = (
    '[model]\nlabel_smoothing = 0.0\n{forcing}\n[model.encoder]\nkind = "recurrent"\ncell = {{ kind = "gru" }}\n'
    'embedding = 32\nwidth = 48\ndropout = 0.0\n\n[model.decoder]\nkind = "recurrent"\ncell = {{ kind = "gru" }}\n'
    'embedding = 32\nwidth = 48\nattention = {{ kind = "additive", width = 32 }}\ndropout = 0.0\n'
)
STACK = 'kind = "transformer"\nlayers = 2\nwidth = 32\nheads = 2\nfeedforward = 64\ndropout = 0.0\n'
TRANSFORMER = f"[model]\nlabel_smoothing = 0.0\n\n[model.encoder]\n{STACK}\n[model.decoder]\n{STACK}"
AUDIO = 'kind = "audio"\nsample_rate = 4000\nnum_mels = 16\nwindow = 0.02\nnormalise = "corpus"\n'
FRAMES = '[model.encoder]\nkind = "frames"\ndropout = 0.0\nsubsampling = { kind = "frame-stacking", frames = 2 }\n'
DECODER = '\n[model.decoder]\nkind = "recurrent"\nembedding = 16\nwidth = 32\ndropout = 0.0\n'

RUNS = {
    "rnn": TinyRun(
        "GRUs with additive attention (Bahdanau et al. 2015)", "pairs.tsv",
        WORDS + "\n" + RECURRENT.format(forcing="") + training(160),
    ),
    "sampled": TinyRun(
        "the same, trained with scheduled sampling (Bengio et al. 2015)", "pairs.tsv",
        WORDS + "\n" + RECURRENT.format(forcing='forcing = { kind = "linear" }\n') + training(160),
    ),
    "transformer": TinyRun(
        "a Transformer of 2 + 2 layers (Vaswani et al. 2017)", "pairs.tsv",
        WORDS + "\n" + TRANSFORMER + training(160),
    ),
    "phrases": TinyRun(
        "phrase-based translation (Koehn et al. 2003)", "pairs.tsv",
        WORDS + '\n[model]\nkind = "phrase-based"\ntune = 0\n' + training(1),
    ),
    "aligner": TinyRun(
        "IBM model 3 (Brown et al. 1993)", "pairs.tsv",
        WORDS + '\n[model]\nkind = "word-aligner"\nmethod = "ibm3"\n' + training(1),
    ),
    "hmm": TinyRun(
        "a hidden Markov model that tags words", "words.tsv",
        'task = "tag"\n\n' + WORDS + '\n[model]\nkind = "hmm"\n' + training(1),
    ),
    "kalman": TinyRun(
        "a Kalman filter whose matrices EM has learnt", "numbers.tsv",
        'task = "regress"\n\n[tokenizer.source]\nkind = "numbers"\n\n[model]\nkind = "kalman"\niterations = 10\n'
        + training(1),
    ),
    "ngrams": TinyRun(
        "an n-gram model with Kneser-Ney smoothing", "text.txt",
        'task = "language-model"\n\n' + WORDS + '\n[model]\nkind = "ngram"\n' + training(1),
    ),
    "masked": TinyRun(
        "a masked language model (Devlin et al. 2019)", "text.txt",
        'task = "masked-language-model"\n\n[data]\nmax_length = 20\n\n' + WORDS
        + '\n[model.encoder]\nkind = "bert"\nlayers = 2\nwidth = 32\nheads = 2\nfeedforward = 64\nmax_positions = 22\n'
        "dropout = 0.0\nattention_dropout = 0.0\n" + training(200, 0.005),
    ),
    "speech": TinyRun(
        "a recogniser with CTC (Graves et al. 2006) for words whose letters are tones", "recordings.tsv",
        'task = "transcribe"\n\n[data]\nmedia = "recordings"\n\n[tokenizer.source]\n' + AUDIO
        + '\n[tokenizer.target]\nkind = "characters"\n\n[model]\naugment = { kind = "none" }\n\n' + FRAMES
        + 'inner = { kind = "recurrent", cell = { kind = "lstm" }, width = 48, dropout = 0.0 }\n'
        + training(80, 0.01, 1500, "decode = 8\n"),
    ),
    "sounds": TinyRun(
        "a tagger of sounds: silence, low, mid or high", "sounds.tsv",
        'task = "tag"\n\n[data]\nmedia = "sounds"\n\n[tokenizer.source]\n' + AUDIO + "\n"
        + FRAMES.replace("frames = 2", "frames = 3")
        + 'inner = { kind = "recurrent", width = 24, dropout = 0.0 }\n' + training(40, 0.02, 1500),
    ),
    "captions": TinyRun(
        "captions of pictures with attention (Xu et al. 2015)", "pictures.tsv",
        'task = "caption"\n\n[data]\nmedia = "pictures"\n\n[tokenizer.source]\nkind = "picture"\nsize = 32\n\n'
        '[tokenizer.target]\nkind = "words"\n\n[model]\nlabel_smoothing = 0.0\naugment = { kind = "none" }\n\n'
        '[model.encoder]\nkind = "resnet"\nchannels = [16, 32]\nblocks = 1\nwidth = 32\ndropout = 0.0\n' + DECODER
        + training(90, 0.01, 600, "decode = 8\n"),
    ),
    "video": TinyRun(
        "captions of clips", "clips.tsv",
        'task = "caption"\n\n[tokenizer.source]\nkind = "video"\nsize = 32\n\n[tokenizer.target]\nkind = "words"\n\n'
        '[model]\nlabel_smoothing = 0.0\naugment = { kind = "none" }\n\n[model.encoder]\nkind = "frames"\n'
        'subsampling = { kind = "pictures", network = { channels = [16, 32], blocks = 1, width = 32 } }\n'
        'inner = { kind = "recurrent", embedding = 16, width = 32, dropout = 0.0 }\n' + DECODER
        + training(60, 0.01, 600, "decode = 8\n"),
    ),
}  # fmt: skip


def config_text(name: str) -> str:
    """The configuration of a run, with its data."""
    run = RUNS[name]
    data = f'train = "{run.data}"\nholdout = {min(60, 12 if run.data in sample_media.MEDIA else 60)}\n'
    text = run.config
    if "[data]\n" in text:
        text = text.replace("[data]\n", f"[data]\n{data}")
    else:
        task, table, rest = text.partition("[")
        text = f"{task}[data]\n{data}\n{table}{rest}"
    return f"# {run.about[0].upper()}{run.about[1:]}, tiny.\n{text}"


def unit_configs() -> dict[str, str]:
    """Two configurations that differ in their units alone."""
    body = config_text("transformer").partition("\n")[2]
    return {
        f"{units}.toml": f"# A Transformer of {units}.\n" + body.replace('kind = "words"', f'kind = "{units}"')
        for units in ("words", "characters")
    }


def sample(name: str) -> Files:
    """The files that come with a sample file, by their names."""
    if name in sample_media.MEDIA:
        return sample_media.MEDIA[name]()
    if name in ("words.toml", "characters.toml"):
        made = unit_configs()
    else:
        made = next(texts for make in TEXTS if name in (texts := make()))
    return {file: text.encode() for file, text in made.items()}


TEXTS = (
    sample_texts.pairs, sample_texts.tagged, sample_texts.series, sample_texts.texts, sample_texts.templates,
)  # fmt: skip
