"""Check that a refactoring does not change behaviour: the same weights to the bit, losses, outputs and scores.

    python benchmarks/equivalence.py record before.json        with the code before the change
    python benchmarks/equivalence.py record after.json         with the code after it, on the same machine
    python benchmarks/equivalence.py compare before.json after.json

Each case trains a tiny model on synthetic data through the command line, on one CPU thread, then predicts and
evaluates. If settings, options, run files or JSON keys get new names, edit the tables at the top and keep the names of
the cases. The digests of the weights do not depend on parameter names. The torchvision encoder is not covered: its
package is not a development dependency.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import shlex
import sys
import tempfile
import time
import wave
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from PIL import Image
from safetensors.numpy import load_file

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the code beside this script, whatever is installed

from dragoman.cli import cli

# ------------------------------------------------------------ settings, options, file names and JSON keys: edit here

# Training with explicit settings, and with settings chosen automatically from the data. Spaces separate the settings.
COMMON = """data.cache=cache train.steps=6 train.batch_tokens=200 train.validate_every=3 train.log_every=1
    train.device=cpu train.optimizer={{learning_rate=0.02,warmup=2}} {settings} --run {run} --quiet"""
TRAIN = f"train empty.toml data.train=train/{{data}} {COMMON}"
AUTOMATIC = f"train train/{{data}} {COMMON}"

# Datasets: train reads train/NAME, predict input/NAME and evaluate test/NAME. For each the settings of its automatic
# case, the further settings that are the default of all other cases, and the default commands.
WORDS = "data.max_length=30 tokenizer.source.kind=words"
DATA = {
    "pairs.tsv": ("task=translate", f"{WORDS} tokenizer.target.kind=words train.decode=4 search.max_length=12", "text"),
    "labels.tsv": ("task=classify", WORDS, "direct"),
    "two.tsv": ("task=classify data.columns=['1','2','3']", WORDS, "direct"),
    "lengths.tsv": ("task=regress", WORDS, "direct"),
    "series.tsv": ("task=regress", "data.max_length=8", "direct"),
    "tags.tsv": ("task=tag", WORDS, "direct"),
    "text.txt": ("task=language-model", "tokenizer.source.kind=words model.segment=9", "complete"),
    "masked.txt": ("task=masked-language-model", WORDS, "direct"),
    "sounds.tsv": (
        "task=transcribe",
        "tokenizer={source={kind='audio',sample_rate=4000,num_mels=12},target='words'}",
        "ctc",
    ),
    "lines.tsv": ("task=transcribe", "tokenizer={source={kind='line-image',height=8},target='characters'}", "ctc"),
    "pictures.tsv": ("task=caption", "tokenizer={source={kind='picture',size=16},target='words'}", "text"),
}

# Small encoders and decoders.
TRANSFORMER = "{kind='transformer',layers=2,width=16,heads=2,feedforward=32}"
BERT = "{kind='bert',layers=1,width=16,heads=2,feedforward=32,max_positions=64}"
TWO_WAY = "{kind='elmo',layers=2,width=16}"
RECURRENT = "{kind='recurrent',embedding=16,width=16}"
CONVOLUTIONAL = "{kind='convs2s',layers=2,embedding=16,width=16}"
ENCODERS = {
    "transformer": f"model.encoder={TRANSFORMER}",
    "recurrent": f"model.encoder={RECURRENT}",
    "convolutional": f"model.encoder={CONVOLUTIONAL}",
    "sentence-convolution": "model.encoder={kind='kalchbrenner',width=16,max_positions=32}",
    "multi-kernel": "model.encoder={kind='multi-kernel',kernels=[1,3],embedding=16,width=16,non_local=true}",
    "dense": "model.encoder={kind='dense',max_positions=32,embedding=8,hidden=32,width=16}",
    "character-words": "model.encoder={kind='character-words',embedding=8,kernels=[1,3],filters=[8,8],hashed=20} "
    f"model.encoder.inner={RECURRENT} tokenizer.source.kind=characters data.max_length=60",
    "bert": f"model.encoder={BERT}",
    "two-way": f"model.encoder={TWO_WAY}",
}
DECODERS = {
    "transformer": f"model.decoder={TRANSFORMER}",
    "recurrent": "model.decoder={kind='recurrent',embedding=16,width=16,attention={kind='additive',width=16}}",
    "luong": "model.decoder={kind='luong',embedding=16,width=16}",
    "fixed-context": "model.decoder={kind='fixed-context',embedding=16,width=16}",
    "convolutional": f"model.decoder={CONVOLUTIONAL}",
}
BOTH = f"{ENCODERS['transformer']} {DECODERS['transformer']}"
RNN, LUONG, FIXED = (f"{ENCODERS['recurrent']} {DECODERS[kind]}" for kind in ("recurrent", "luong", "fixed-context"))
SPEECH = f"model.encoder={{subsampling={{kind='frame-stacking',frames=2}},inner={RECURRENT}}}"
PICTURE = f"model.encoder={{kind='resnet',channels=[8,16],blocks=1,width=16}} {DECODERS['recurrent']}"


def both(*settings: str) -> str:
    """The same settings for the encoder and the decoder."""
    return " ".join(f"model.{side}.{setting}" for side in ("encoder", "decoder") for setting in settings)


def each(data: str, shared: str, choices: dict[str, str], commands: str = "") -> dict[str, tuple[str, str, str]]:
    """Cases that share a dataset and some settings, and run the default commands unless others are named."""
    return {name: (data, f"{shared} {choice}", commands or DATA[data][2]) for name, choice in choices.items()}


# Dataset, settings (later ones override earlier ones) and commands of each case, which may use runs of cases above it.
# Keep the names of the cases: where one is built from a value that is renamed, write it out.
CASES = {
    **each("pairs.tsv", f"{BOTH} train.seed=2", {"other-seed": "", "reverse": "data.columns=['2','1']"}),
    **each("text.txt", f"model.stack={TRANSFORMER}", {"target-text": "data.train=train/target.txt"}),
    **each("pairs.tsv", BOTH, {"search": "train.steps=20"}, "search"),
    **each("pairs.tsv", f"{ENCODERS['recurrent']} train.steps=20", {
        f"search-{kind}": decoder for kind, decoder in DECODERS.items()}, "constraints"),
    **each("pairs.tsv", "", {f"{encoder}-to-{decoder}": f"{ENCODERS[encoder]} {DECODERS[decoder]}"
                             for encoder in ENCODERS for decoder in DECODERS}),
    **each("pairs.tsv", BOTH, {
        **{f"positions-{kind}": both(f"positions={kind}") for kind in ("learned", "none", "rotary")},
        "positions-relative": both("positions={kind='relative',distance=2}"),
        "positions-relative-bias": both("positions={kind='relative-bias',buckets=4,distance=6}"),
        "self-attention-local": both("attention={kind='local',window=2}", "score=dot", "positions.layout=halves"),
        "self-attention-segments": both("attention={kind='segments',length=2}", "score=cosine"),
        "self-attention-linear": both("attention=linear", "key_heads=1", "activation=gelu-tanh"),
        "block-rms-gated": both("norm_kind=rms", "gated=true", "activation=silu", "bias=false"),
        "block-post-norm": both("norm=post", "activation=gelu", "attention_dropout=0.1", "feedforward_dropout=0.1"),
        "forcing-inverse-sigmoid": "model.forcing={kind='inverse-sigmoid',k=2,passes=2}",
        "average-moving": "train.average={kind='ema',decay=0.5} train.rates=[{names='decoder',factor=0.5}]",
        "average-best": "train.average={kind='best',count=2} train.validate_every=2",
        "train-cosine": "train.optimizer={schedule='cosine',weight_decay=0.1} train.accumulate=2 model.truncate=2",
        "train-constant": "train.optimizer={schedule='constant',beta1=0.8} train.clip=0 model.word_dropout=0.2",
        "train-sampled-softmax": "model.softmax={kind='sampled',size=8} model.output_bias=true model.label_smoothing=0",
        "start-encoder": "train.start_from={run='runs/search',parts=['encoder']} train.freeze=['encoder']",
        "start-by-token": "train.start_from={run='runs/search',by_token=true} tokenizer.target.min_count=3",
        "tokenizer-characters": "tokenizer={source='characters',target='characters'} data.max_length=60",
        "tokenizer-unigram": "tokenizer.source={kind='subwords',vocab_size=290,algorithm='unigram'}",
        "tokenizer-run": "tokenizer.source={kind='run',run='runs/reverse',side='target'}",
        "phonemes": "tokenizer.target.split=spaces data.units=phonemes train={metric='per',patience=1}",
        "files-jsonl": "data.train=train/pairs.jsonl",
        "files-two": "data.train={source='train/source.txt',target='train/target.txt'} data.valid=test/pairs.tsv"}),
    **each("pairs.tsv", f"{BOTH} train.average=ema", {"resume": ""}, "resume"),
    **each("pairs.tsv", f"{BOTH} tokenizer.target=none", {
        **{f"tie-{tie}": f"model.tie={tie}" for tie in ("none", "inputs", "target", "source", "all")},
        "tokenizer-bpe": "tokenizer.source={kind='subwords',vocab_size=290}"}),
    **each("pairs.tsv", f"{BOTH} tokenizer.target=none model.tie=all", {
        "languages": "data.train=[{file='train/pairs.tsv',tag='one'},{file='train/labels.tsv',tag='two'}]"}, "tagged"),
    **each("pairs.tsv", f"{BOTH} train.start_from=runs/search train.objective.kind=minimum-risk", {
        f"minimum-risk-{metric}": f"train.objective.metric={metric}" for metric in ("bleu", "chrf", "wer")}),
    **each("pairs.tsv", RNN, {
        **{f"cell-{kind}": both(f"cell={kind}") for kind in ("peephole-lstm", "coupled-lstm", "gru")},
        "cell-plain": both("cell=rnn"), "cell-normalised-lstm": both("cell=layer-norm-lstm"),
        "cell-plain-relu": both("cell={kind='rnn',activation='relu',recurrent_init='identity'}"),
        "cell-gru-reset-before": both("cell={kind='gru',reset='before',activation='gelu',recurrent_init='uniform'}"),
        "recurrent-backward": "model.encoder.direction=backward model.decoder={begin='copy',readout='state'}",
        "recurrent-forward": "model.encoder={direction='forward',norm=true} model.decoder.begin=zero",
        "recurrent-two-layers": "model.encoder={merge='projection',layers=2,widths=[12,16],variational=true}",
        "one-hot": "model={tie='none',encoder={embedding=0,merge='mean'},decoder={embedding=0,readout='maxout'}}",
        "attention-dot": "model.decoder.attention={kind='dot',keys=16,values=12}",
        "attention-scaled-dot": "model.decoder.attention={kind='scaled-dot',keys=16,window='monotonic'}",
        "attention-general": "model.decoder.attention={kind='general',gate=true,window={kind='predictive',radius=2}}",
        "attention-cosine": "model.decoder.attention={kind='cosine',keys=16}",
        "attention-multi-head": "model.decoder.attention={kind='multi-head',heads=2,width=16}",
        "forcing-linear": "model.forcing={kind='linear',steps=6}"}),
    **each("pairs.tsv", "", {
        "forcing-exponential": f"{LUONG} model.forcing={{kind='exponential',rate=0.7}}",
        "luong-without-input-feeding": f"{LUONG} model.decoder={{input_feeding=false,attentional=16}}",
        "context-at-every-step": f"{FIXED} model.decoder.context=every-step",
        "shared-cells": f"{FIXED} model.share_cells=true model.encoder.direction=backward model.decoder.begin=copy"}),
    **each("pairs.tsv", f"model.kind=non-autoregressive model.encoder={TRANSFORMER}", {
        "nat-transformer": DECODERS["transformer"], "nat-recurrent": f"model.decoder={RECURRENT}",
        "nat-dense": "model.decoder={kind='feed-forward',width=16,feedforward=32}",
        "nat-length": f"{DECODERS['transformer']} model.alignment={{kind='length',max_length=32}}"}, "nat"),
    **each("pairs.tsv", "tokenizer.target=none train.steps=2", {f"preset-{name}": f"preset={name}" for name in (
        "bahdanau-2015-small", "cho-2014-small", "convs2s-2017-small", "demo-rnn", "demo-transformer",
        "gnmt-2016-small", "kalchbrenner-2013-small", "luong-2015-small", "rnn-attention-small",
        "sutskever-2014-small", "transformer-small", "transformer-tiny")}),
    **each("pairs.tsv", "preset=nat-ctc-small", {"preset-nat-ctc-small": "tokenizer.target=none"}, "nat"),
    **each("pairs.tsv", f"{both('width=16')} tokenizer.target=none", {
        **{f"narrow-{name}": f"preset={name} {both('embedding=16')}"
           for name in ("bahdanau-2015", "cho-2014", "luong-2015", "rnn-attention-base", "sutskever-2014")},
        "narrow-gnmt-2016": f"preset=gnmt-2016 {both('embedding=16', 'layers=3')} model.encoder.widths=[32,16,16]",
        "narrow-convs2s-2017": f"preset=convs2s-2017 {both('layers=2', 'widths=[16,16]', 'kernels=[3,1]')}",
        "narrow-transformer-base": f"preset=transformer-base {both('feedforward=32')}",
        "narrow-transformer-big": f"preset=transformer-big {both('feedforward=32')}"}),
    **each("labels.tsv", "", {f"classify-{kind}": encoder for kind, encoder in ENCODERS.items()}),
    **each("labels.tsv", f"{ENCODERS['recurrent']} model.hidden=8 model.label_smoothing=0.1 train.metric=macro_f1", {
        f"classify-{kind}": f"model.pooling={kind}" for kind in ("last", "max", "attention", "queries")}),
    **each("two.tsv", ENCODERS["recurrent"], {"classify-two": "", "classify-apart": "model.texts=apart"}),
    **each("lengths.tsv", "", {"regress": ENCODERS["transformer"]}),
    **each("series.tsv", f"{ENCODERS['recurrent']} model.encoder.embedding=1 tokenizer.source.kind=numbers", {
        f"series-{scale}": f"tokenizer.source.scale='{scale}'" for scale in ("standard", "range", "none")}),
    **each("tags.tsv", "", {f"tag-{kind}": encoder for kind, encoder in ENCODERS.items() if kind != "dense"}),
    **each("tags.tsv", f"{ENCODERS['recurrent']} tokenizer.source={{kind='subwords',vocab_size=280}}", {
        "tag-crf": "model.crf=true train.metric=span_f1", "tag-mean": "model.read=mean"}),
    **each("text.txt", "", {
        "language-model": f"model.stack={TRANSFORMER} model.softmax={{kind='sampled',size=8}}",
        "language-model-memory": f"model.stack={TRANSFORMER} model.stack.positions=rotary model.memory=8",
        "language-model-recurrent": "model.stack={kind='recurrent',embedding=16,width=24} model.embedding_dropout=0.1 "
                                    "model.activation_penalty=1 model.change_penalty=0.5"}),
    **each("masked.txt", f"model.encoder={BERT}", {
        "masked": "", "masked-pairs": "model.next_sentence=true model.mlm_probability=0.3"}),
    **each("masked.txt", f"model.encoder={TWO_WAY}", {"two-way": "model.kind=bilm"}, "evaluate"),
    **each("labels.tsv", f"model.encoder={BERT} train.start_from={{run='runs/masked',parts=['encoder']}}", {
        "classify-from-masked": "tokenizer.source={kind='run',run='runs/masked'}"}),
    **each("tags.tsv", f"model.encoder={TWO_WAY} train.start_from={{run='runs/two-way',parts=['encoder']}}", {
        "tag-from-two-way": "tokenizer.source={kind='run',run='runs/two-way'}"}),
    **each("sounds.tsv", "", {
        "transcribe": SPEECH,
        "transcribe-masking": f"{SPEECH} model.augment=specaugment tokenizer.source.normalise=corpus",
        "transcribe-convolutions": f"model.encoder.inner={TRANSFORMER} model.encoder.subsampling.channels=[4,4]"}),
    **each("sounds.tsv", f"{SPEECH} model.attention_decoder.kind=joint", {
        f"transcribe-{kind}": decoder.replace("model", "model.attention_decoder")
        for kind, decoder in DECODERS.items()}, "joint"),
    **each("lines.tsv", SPEECH, {"transcribe-lines": "model.augment={kind='line',shift=1} model.upsample=2"}),
    **each("pictures.tsv", "", {
        "caption": f"{PICTURE} model.augment={{kind='picture',shift=1,zoom=0.1,colour=0.1}}",
        "caption-non-local": f"{PICTURE} model.encoder.non_local=true model.doubly_stochastic=1 train.metric=cider",
        "caption-patches": f"model.encoder={{kind='patches',size=4,inner={TRANSFORMER}}} {DECODERS['transformer']}"}),
}  # fmt: skip

# Commands to run after training.
PREDICT = "predict {run} {input} --device cpu --json"
EVALUATE = "evaluate {run} {test} --device cpu --json"
COMPLETE = "complete {run} --file {input} --max-length 12 allow_unknown=true --device cpu --json"
BEAM = f"{PREDICT} engine=torch --beam 4"
DECODING = {"greedy": f"{PREDICT} engine=torch --beam 1", "n-best": f"{BEAM} --n-best 4",
           "evaluate": f"{EVALUATE} engine=torch --beam 2 --metric all"}  # fmt: skip
TEXT = {**DECODING, "sample": f"{PREDICT} engine=torch --sample method.temperature=0.8 --seed 3"}
ALIGN = {"align": "align {run} {test} --device cpu --json"}
CONSTRAINTS = {
    **TEXT, "beam": "predict {run} {input} --device cpu engine=torch --beam 4",
    "require": f"{BEAM} constraints.require=god constraints.require=eert",
    "forbid": f"{BEAM} constraints.forbid=a constraints.forbid=god",
    "prefix": f"{BEAM} constraints.prefix=tac", "pattern": f"{BEAM} 'constraints.pattern=(god|tac|dlo)( (eert|gib))*'",
}  # fmt: skip
NGRAMS = "method=ctc method.language_model.model=train/target.txt method.language_model.order=2"
COMMANDS = {
    "text": TEXT, "nat": DECODING, "constraints": CONSTRAINTS, "evaluate": {"evaluate": EVALUATE},
    "direct": {"predict": PREDICT, "evaluate": EVALUATE},
    "tagged": {name: f"{command} --tag two" for name, command in TEXT.items()},
    "resume": {"resume": "train {run} train.steps=12 --quiet", **TEXT},
    "complete": {"greedy": COMPLETE, "sample": f"{COMPLETE} --one-line --sample method.top_k=5 --samples 2 --seed 3",
                 "evaluate": EVALUATE},
    "ctc": {**DECODING, **ALIGN, "n-grams": f"{BEAM} {NGRAMS}"},
    "joint": {**DECODING, "attention": f"{BEAM} method=ctc method.mode=attention",
              "joint": f"{BEAM} method=ctc method.mode=joint method.ctc_weight=0.4"},
    "search": {
        **CONSTRAINTS, **ALIGN, "engine": f"{PREDICT} engine=ctranslate2 --beam 4", "default-engine": PREDICT,
        "allow": f"{BEAM} constraints.allow=train/target.txt",
        "groups": f"{BEAM} --n-best 4 search.beam_groups=2 search.diversity_penalty=0.8",
        "terminology": f"{BEAM} constraints.terminology=train/terms.tsv constraints.placeholders=true",
        "coverage": f"{BEAM} search.coverage_penalty=0.3 search.normalisation=gnmt search.stop=certain",
        "lengths": f"{BEAM} search.min_length=3 search.max_length=6 search.no_repeat_ngram=2 search.length_penalty=0.5",
        "samples": f"{PREDICT} --sample --n-best 3 method.top_k=4 method.top_p=0.9",
        "exhaustive": f"{PREDICT} method=exhaustive method.length=2",
        "minimum-bayes-risk": f"{PREDICT} method=mbr method.samples=4 method.metric=chrf --seed 2",
        "ensemble": f"{BEAM} ensemble.runs=runs/other-seed ensemble.average=log",
        "draft": f"{PREDICT} method=draft method.run=runs/other-seed",
        "rerank": f"{BEAM} rerank.runs=runs/reverse rerank.weights=0.5 rerank.runs=runs/target-text rerank.weights=0.2",
        "shortlist": "shortlist {run} --likely 3 --frequent 4 --json", "shortlisted": f"{BEAM} method=shortlist",
        "probe": "probe {run} --device cpu --json", "calibrate": "calibrate {run} {test} --device cpu --json",
        "calibrated": BEAM, "intervals": f"{EVALUATE} --output output.txt --intervals evaluation.draws=20",
        "score": "score output.txt test/target.txt --metric all --intervals --draws 20 --by-length --json",
        "compare": "compare test/target.txt output.txt test/target.txt --draws 20 --json",
    },
}  # fmt: skip

# Run files to compare, JSON keys to ignore, and renamed JSON keys (new name: name in the recording before the change).
WEIGHTS = {"weights": "weights.safetensors", "last weights": "checkpoints/*/weights.safetensors"}
METRICS = "metrics.jsonl"
IGNORED = {"about", "seconds", "tokens_per_second", "signature", "signatures"}
RENAMED: dict[str, str] = {"meteor_exact_stem": "meteor"}

# ------------------------------------------------------------------------------------------------------ implementation


def write_data() -> None:
    """Write all datasets to the current folder: 60 training examples, 6 test examples, and inputs for predict."""
    for folder in ("train", "test", "input", "media"):
        Path(folder).mkdir()
    draw, words = random.Random(1), ("the", "a", "dog", "cat", "bird", "tree", "sees", "likes", "small", "big", "old")
    for part, count in (("train", 60), ("test", 6)):
        texts = [" ".join(draw.choices(words, k=draw.randint(2, 6))) for _ in range(count)]
        pairs = [(text, " ".join(word[::-1] for word in text.split())) for text in texts]
        series = [" ".join(str(draw.randint(-9, 9) / 10) for _ in range(draw.randint(2, 6))) for _ in range(count)]
        files = {
            "pairs.tsv": [f"{source}\t{target}" for source, target in pairs],
            "pairs.jsonl": [json.dumps({"source": source, "target": target}) for source, target in pairs],
            **dict.fromkeys(("source.txt", "text.txt", "masked.txt"), texts),
            "target.txt": [target for _, target in pairs],
            "labels.tsv": [f"{text}\t{'long' if len(text) > 15 else 'short'}" for text in texts],
            "two.tsv": [f"{text}\t{target}\t{len(text) % 2}" for text, target in pairs],
            "lengths.tsv": [f"{text}\t{len(text)}" for text in texts],
            "series.tsv": [f"{numbers}\t{numbers.split()[-1]}" for numbers in series],
            "tags.tsv": ["".join(f"{word}\tB-{len(word)}\n" for word in text.split()) for text in texts],
            **{name: [] for name in ("sounds.tsv", "lines.tsv", "pictures.tsv")},
        }
        for name in (f"{part}{number}" for number in range(count // 2)):  # recordings and pictures of noise
            said = draw.choices(("low", "mid", "high"), k=draw.randint(1, 3))
            with wave.open(f"media/{name}.wav", "wb") as sound:
                sound.setparams((1, 2, 4000, 0, "NONE", ""))
                sound.writeframes(draw.randbytes(800 * len(said)))
            Image.frombytes("L", (20 * len(said), 8), draw.randbytes(160 * len(said))).save(f"media/{name}.line.png")
            Image.frombytes("RGB", (16, 16), draw.randbytes(768)).save(f"media/{name}.png")
            files["sounds.tsv"].append(f"../media/{name}.wav\t{' '.join(said)}")
            files["lines.tsv"].append(f"../media/{name}.line.png\t{' '.join(said)}")
            files["pictures.tsv"].append(f"../media/{name}.png\t{' '.join(said)}\tanother caption of {said[0]}")
        for name, lines in files.items():
            write(f"{part}/{name}", lines)
            write(f"input/{name}", [line.rpartition("\t")[0] for line in lines])
    write("input/pairs.tsv", ["the dog sees", "a big tree sees", "", "old zebra", "the dog sees"])
    write("input/tags.tsv", ["the dog sees", "a big zebra"])
    write("input/text.txt", ["the dog", "", "old zebra"])
    write("input/masked.txt", ["the [MASK] sees", "[MASK] big [MASK]"])
    write("train/terms.tsv", ["dog\tgod", "tree\teert"])
    Path("empty.toml").touch()


def write(path: str, lines: Iterable[str]) -> None:
    """Write lines to a file."""
    Path(path).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def call(*words: str) -> list[Any]:
    """Run a command in this process and return the lines it prints, with JSON parsed."""
    result = CliRunner().invoke(cli, words)
    if result.exception is not None:
        raise RuntimeError(f"{shlex.join(words)}: {result.exception!r} {result.stderr}") from result.exception
    return [clean(json.loads(line)) if line.startswith(("{", "[{")) else line for line in result.stdout.splitlines()]


def clean(value: Any) -> Any:
    """Drop ignored keys, undo the renaming of keys and round numbers to six digits."""
    if isinstance(value, dict):
        return {RENAMED.get(key, key): clean(inner) for key, inner in value.items() if key not in IGNORED}
    if isinstance(value, list):
        return [clean(inner) for inner in value]
    return f"{value:.6f}" if isinstance(value, float) else value


def digests(path: Path) -> list[str]:
    """The sorted types, shapes and hashes of the tensors of a file, whatever their names."""
    tensors = load_file(path).values()
    return sorted(f"{one.dtype} {one.shape} {hashlib.sha256(one.tobytes()).hexdigest()[:16]}" for one in tensors)


def run_case(name: str, training: str, data: str, settings: str, commands: str) -> dict[str, Any]:
    """Train a model, run the commands, and return all there is to compare, or the error."""
    run, found = Path("runs") / name, {}
    try:
        call(*training.format(run=run, data=data, settings=settings).split())
        for step, command in COMMANDS[commands].items():
            found[step] = call(*shlex.split(command.format(run=run, input=f"input/{data}", test=f"test/{data}")))
        found["losses"] = [clean(json.loads(line)) for line in (run / METRICS).read_text().splitlines()]
        return found | {file: digests(max(run.glob(pattern))) for file, pattern in WEIGHTS.items()}
    except Exception as error:
        return {"error": str(error)}


def record(path: Path) -> int:
    """Run every case in a temporary folder and write the results to a file."""
    cases = {
        name: (TRAIN, data, f"{DATA[data][0]} {DATA[data][1]} {settings}", commands)
        for name, (data, settings, commands) in CASES.items()
    } | {f"automatic-{data}": (AUTOMATIC, data, task, commands) for data, (task, _, commands) in DATA.items()}
    results, started = {}, time.monotonic()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        write_data()
        for number, (name, case) in enumerate(cases.items(), start=1):
            results[name] = run_case(name, *case)
            error = f"  ERROR: {results[name]['error']}" if "error" in results[name] else ""
            print(f"{time.monotonic() - started:4.0f} s  {number}/{len(cases)}  {name}{error}", flush=True)
    path.write_text(json.dumps(results, indent=0), encoding="utf-8")
    errors = sum("error" in found for found in results.values())
    print(f"{len(results)} cases, {errors} errors")
    return 1 if errors else 0


def differences(old: Any, new: Any, place: str) -> Iterator[str]:
    """Describe every place where two values differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in old | new:
            yield from differences(old.get(key, "nothing"), new.get(key, "nothing"), f"{place}/{key}")
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, (one, other) in enumerate(zip(old, new, strict=True), start=1):
            yield from differences(one, other, f"{place}/{number}")
    elif old != new:
        yield f"{place}: {str(old)[:80]} became {str(new)[:80]}"


def compare(before: Path, after: Path) -> int:
    """Print a line for each output, loss curve or weights file that differs, with the first difference in it."""
    old, new = (json.loads(path.read_text(encoding="utf-8")) for path in (before, after))
    differing = set()
    for name in old | new:
        one, other = (side.get(name, {"error": "not recorded"}) for side in (old, new))
        for part in ["error"] if "error" in one | other else one | other:
            found = [*differences(one.get(part, "nothing"), other.get(part, "nothing"), f"{name}/{part}")]
            if found or part == "error":  # the same error twice proves nothing
                print(f"{found[0]} ({len(found)} differences)" if found else f"{name}/error, both times: {one[part]}")
                differing.add(name)
    print(f"{len(old | new)} cases, {len(differing)} differ")
    return 1 if differing else 0


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["record", path]:
            sys.exit(record(Path(path).absolute()))
        case ["compare", before, after]:
            sys.exit(compare(Path(before), Path(after)))
    sys.exit(__doc__)
