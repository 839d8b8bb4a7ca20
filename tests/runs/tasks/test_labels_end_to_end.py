"""From a file to scores for every task that needs no search, by the command line, in seconds."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import dragoman
from dragoman.base import config as settings
from dragoman.base.errors import ConfigError, DataError, Interrupted
from dragoman.data.batching import BatchPlan, read_batch
from dragoman.decoding.options import RerankModel
from dragoman.inference.labeler import Labeler
from dragoman.inference.load import load_run
from dragoman.inference.rerank import Reranker
from dragoman.runs import train
from dragoman.runs.tasks.config import build, load
from dragoman.runs.tasks.table import TASKS
from dragoman.scoring.label_metrics import accuracy, mean_squared_error
from dragoman.training.display import Display
from tests.conftest import call, quiet_machine

GOOD, BAD, OTHER = ("good", "great", "fine"), ("bad", "awful", "poor"), ("the", "a", "film", "is", "plot")
LEXICON = {"dog": "NOUN", "cat": "NOUN", "runs": "VERB", "sees": "VERB", "the": "DET", "big": "ADJ"}


def sentences(count: int, seed: int) -> list[tuple[str, str]]:
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        label = draw.choice(("pos", "neg"))
        words = [draw.choice(OTHER) for _ in range(draw.randint(1, 5))]
        words.insert(draw.randint(0, len(words)), draw.choice(GOOD if label == "pos" else BAD))
        rows.append((" ".join(words), label))
    return rows


def write_data(folder: Path) -> None:
    for part, count in (("train", 240), ("test", 40)):
        draw = random.Random(count)
        rows = sentences(count, count)
        (folder / f"classify.{part}.tsv").write_text("".join(f"{text}\t{label}\n" for text, label in rows))
        pairs = [(one, other) for one, other in zip(rows, rows[1:] + rows[:1], strict=True)]
        texts = (f"{'same' if a[1] == b[1] else 'other'}\t{a[0]}\t{b[0]}\n" for a, b in pairs)
        (folder / f"apart.{part}.tsv").write_text("label\tfirst\tsecond\n" + "".join(texts))
        shutil.copy(folder / f"apart.{part}.tsv", folder / f"joined.{part}.tsv")
        words = (draw.choices(list(LEXICON), k=draw.randint(1, 6)) for _ in range(count))
        tagged = ("".join(f"{word}\t{LEXICON[word]}\n" for word in row) + "\n" for row in words)
        (folder / f"tag.{part}.tsv").write_text("".join(tagged))
        shutil.copy(folder / f"tag.{part}.tsv", folder / f"chain.{part}.tsv")
        numbers = ([round(draw.uniform(-1, 1), 3) for _ in range(draw.randint(2, 6))] for _ in range(count))
        series = (f"{' '.join(map(str, row))}\t{row[-1] - row[0]:.3f}\n" for row in numbers)
        (folder / f"series.{part}.tsv").write_text("".join(series))
        lengths = (f"{text}\t{len(text.split())}\n" for text, _ in rows)
        (folder / f"regress.{part}.tsv").write_text("".join(lengths))


SMALL = {"embedding": 12, "width": 16, "dropout": 0.0}
QUICK: dict[str, Any] = {
    "steps": 50, "validate_every": 25, "save_every": 10, "log_every": 10, "batch_tokens": 256,
    "optimizer": {"learning_rate": 2e-2, "warmup": 5},
}  # fmt: skip
WORDS = {"source": {"kind": "words"}}
CASES: dict[str, dict[str, Any]] = {
    "classify": {
        "task": "classify",
        "tokenizer": WORDS,
        "model": {"encoder": SMALL, "pooling": "max", "word_dropout": 0.1},
    },
    "apart": {
        "task": "classify",
        "data": {"header": True, "columns": ["first", "second", "label"]},
        "tokenizer": WORDS,
        "model": {"texts": "apart", "encoder": SMALL, "pooling": "attention", "hidden": 8},
    },
    "joined": {
        "task": "classify",
        "data": {"columns": ["2", "3", "1"], "header": True},
        "tokenizer": {"source": {"kind": "subwords", "vocab_size": 300}},
        "model": {"encoder": {"kind": "transformer", "layers": 1, "width": 16, "heads": 2, "feedforward": 32}},
    },
    "regress": {"task": "regress", "tokenizer": WORDS, "model": {"encoder": SMALL}},
    "series": {
        "task": "regress",
        "data": {"max_length": 8},
        "tokenizer": {"source": {"kind": "numbers"}},
        "model": {
            "encoder": {**SMALL, "embedding": 1, "direction": "forward"},
            "pooling": {"kind": "attention", "steps": 8},
        },
    },
    "tag": {
        "task": "tag",
        "tokenizer": {"source": {"kind": "characters"}},
        "model": {
            "encoder": {
                "kind": "character-words", "embedding": 8, "kernels": [2], "filters": [12], "hashed": 50,
                "inner": SMALL,
            },
        },
    },
    "chain": {
        "task": "tag",
        "tokenizer": {"source": {"kind": "subwords", "vocab_size": 300}},
        "model": {"encoder": SMALL, "crf": True, "read": "mean"},
    },
}  # fmt: skip
METRIC = {"classify": "accuracy", "regress": "mse", "tag": "accuracy"}
INPUTS = {
    "classify": ["the film is good", "", "bad plot", "fine", "a a a a a a awful"],
    "apart": ["good film\tbad plot", "", "fine\tgreat a film"],
    "joined": ["good film\tbad plot", "", "fine\tgreat a film"],
    "regress": ["the film is good", "", "bad"],
    "series": ["0.5 0.25 1", "", "1 2", "-1 0 0 0 0 2e-1"],
    "tag": ["the big dog runs", "", "cat sees  the zebra", "dog"],
    "chain": ["the big dog runs", "", "cat sees  the zebra", "dog"],
}


def table(name: str, folder: Path) -> dict[str, Any]:
    case = settings.merge({"data": {"train": str(folder / f"{name}.train.tsv")}}, CASES[name])
    return settings.merge(case, {"train": {**QUICK, "metric": METRIC[str(case["task"])]}})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Every case trained once."""
    place = tmp_path_factory.mktemp("tasks")
    write_data(place)
    with quiet_machine(place / "cache"):
        for name in CASES:
            config = build(table(name, place))
            (place / f"{name}.toml").write_text(settings.dump(config), encoding="utf-8")
            result = call("train", place / f"{name}.toml", "--run", place / name)
            assert result.code == 0, result.err
        yield place


@pytest.fixture(params=CASES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_every_task_without_a_search_is_tried() -> None:
    tried = {case["task"] for case in CASES.values()} | {"masked-language-model"}  # has a file of its own
    assert tried == {task.name for task in TASKS.values() if task.head_decoder}


TOLD = {
    "classify": (r"; vocabulary \d+ → 2 labels", "target: 2 labels"),
    "series": ("; numbers → numbers", r"longest 6 numbers\ntarget: numbers"),
}


@pytest.mark.parametrize("name", TOLD)
def test_no_vocabulary_is_told_of_labels_and_numbers(folder: Path, tmp_path: Path, name: str) -> None:
    trained = call("train", folder / f"{name}.toml", "train.steps=1", "--run", tmp_path / "run")
    assert trained.code == 0, trained.err
    checked = call("check", folder / f"{name}.toml")
    assert checked.code == 0, checked.err
    for expected, found in zip(TOLD[name], (trained.err, checked.out), strict=True):
        assert re.search(rf"{expected}\n", found), found


CURVES = {
    "classify": ("loss per example (nats)", "training (with dropout)"),
    "series": ("loss per number (squared error)", "training"),
    "tag": ("loss per word (nats)", "training (with dropout)"),
}


@pytest.mark.parametrize("name", CURVES)
def test_curves_say_what_they_show(folder: Path, tmp_path: Path, name: str) -> None:
    result = call("info", folder / name, "--plot", tmp_path / "curve.svg")
    assert result.code == 0, result.err
    drawn = re.findall("<!-- (.*?) -->", (tmp_path / "curve.svg").read_text())  # every text, before its outlines
    unit, training = CURVES[name]
    assert {unit, training, "validation", name} <= set(drawn)
    assert str(folder) not in " ".join(drawn)


def test_learns_and_scores(folder: Path, name: str) -> None:
    result = call("evaluate", folder / name, folder / f"{name}.test.tsv", "--json", "--output", folder / "out.txt")
    assert result.code == 0, result.err
    scores = json.loads(result.out)
    assert scores["segments"] == 40
    lines = (folder / "out.txt").read_text().split("\n")[:-1]
    labeler = load_run(folder / name)
    assert isinstance(labeler, Labeler)
    predicted = [output.text for output in labeler.predict(folder / f"{name}.test.tsv")]
    assert call("predict", folder / name, folder / f"{name}.test.tsv").lines == predicted
    examples = list(labeler.example_format.read(labeler.config.data, str(folder / f"{name}.test.tsv"), False))
    truths = [example.references[0] for example in examples]  # type: ignore[union-attr]
    if "mse" in scores:
        assert scores["mse"] == pytest.approx(mean_squared_error([*map(float, lines)], [*map(float, truths)]), rel=1e-4)
        spread = mean_squared_error([*map(float, truths)], [sum(map(float, truths)) / 40] * 40)
        assert scores["mse"] < 0.7 * spread
    else:
        found, expected = ([word for line in some for word in line.split()] for some in (lines, truths))
        assert scores["accuracy"] == accuracy(found, expected)
        assert scores["accuracy"] > {"apart": 0.45, "joined": 0.45}.get(name, 0.9)
        assert sum(row["count"] for row in scores["labels"].values()) == len(expected)
        shown = call("evaluate", folder / name, folder / f"{name}.test.tsv").out
        assert all(word in shown for word in ("precision", "recall", "F1", "count", *scores["labels"]))


def test_answers_depend_neither_on_batch_nor_on_order(folder: Path, name: str) -> None:
    run = dragoman.load(folder / name)
    inputs = INPUTS[name]

    def answers(inputs: list[str], **options: int) -> list[str]:
        texts = [answer.text for answer in run.predict(inputs, **options)]
        # torch 2.6 adds the products of a single row in another order
        return [f"{float(text):.5g}" if text else "" for text in texts] if name in ("regress", "series") else texts

    expected = answers(inputs)
    assert expected[1] == ""
    assert all(expected[:1] + expected[2:])
    for size in (1, 2):
        assert answers(inputs, batch_size=size) == expected
    assert answers(inputs[::-1]) == expected[::-1]
    result = call("predict", folder / name, stdin="".join(f"{line}\n" for line in inputs).encode())
    assert result.lines == [answer.text for answer in run.predict(inputs)]


def test_json_tells_probabilities_or_values(folder: Path, name: str) -> None:
    result = call("predict", folder / name, "--json", stdin=f"{INPUTS[name][0]}\n".encode())
    found = json.loads(result.out)
    if "value" in found:
        assert float(found["text"]) == pytest.approx(found["value"], rel=1e-6)
    elif "tags" in found:
        assert found["text"].split(" ") == found["tags"]
        assert len(found["probabilities"]) == len(found["tags"]) == len(INPUTS[name][0].split())
        assert all(0 < one <= 1 for one in found["probabilities"])
    else:
        assert sum(found["probabilities"].values()) == pytest.approx(1.0, abs=1e-5)
        assert max(found["probabilities"], key=found["probabilities"].get) == found["text"]


def test_info_and_check(folder: Path, name: str) -> None:
    found = json.loads(call("info", folder / name, "--json").out)
    assert found["task"] == CASES[name]["task"]
    assert sum(layer["parameters"] for layer in found["layers"] if "." not in layer["name"]) == found["parameters"]
    result = call("info", folder / name)
    assert result.code == 0, result.err
    numbers = {"regress": ["target"], "series": ["source", "target"]}.get(name, [])
    for side in ("source", "target"):  # numbers are no vocabulary
        assert (f'\n{side}: numbers (scale = "standard")\n' in result.out) == (side in numbers)
        assert (f"\n{side} vocabulary: " in result.out) == (side not in numbers)
    result = call("check", folder / f"{name}.toml")
    assert result.code == 0, result.err
    assert "cycle: trained 2 steps" in result.out


def test_a_stopped_run_goes_on_to_the_same_bits(folder: Path, name: str, tmp_path: Path) -> None:
    config = load(folder / f"{name}.toml")

    class Stop(Display):
        def advance(self, step: int) -> None:
            if step == 23:
                raise Interrupted(130, step)

    with quiet_machine(folder / "cache"):
        with pytest.raises(Interrupted):
            train(config, tmp_path / "run", Stop(quiet=True))
        train(config, tmp_path / "run", Display(quiet=True))
    assert (tmp_path / "run/weights.safetensors").read_bytes() == (folder / name / "weights.safetensors").read_bytes()


def test_the_loss_counts_labels_numbers_or_words(folder: Path, name: str) -> None:
    config = build(table(name, folder))
    with quiet_machine(folder / "cache"):
        corpus = TASKS[config.task].prepare(config)
    plan = BatchPlan(corpus.train, 256, 1, collator=corpus.collator)
    model: Any = load_run(folder / name).model
    epoch = plan.epoch(0)
    for place in range(min(5, len(epoch))):
        with torch.no_grad():
            assert int(model(read_batch(corpus.train, epoch[place], plan)).count) == plan.tokens(epoch[place])


def test_objects_of_a_file_are_the_texts_they_hold(folder: Path) -> None:
    (folder / "plain.txt").write_text("good\n\nbad\n")
    (folder / "objects.jsonl").write_text('{"source": "good"}\n\n"bad"\n')
    plain, objects = (
        call("predict", folder / "classify", folder / name, "--json") for name in ("plain.txt", "objects.jsonl")
    )
    assert plain.code == 0
    assert (objects.out, objects.code) == (plain.out, 0)


def test_a_classifier_reranks_nothing(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r'needs a reverse run or a language model; .* has task = "classify"$'):
        Reranker(RerankModel(folder / "classify"))


REFUSED = [
    (["predict", "tag", "--beam", "3"], "--beam is for runs that search for an output text"),
    (["predict", "classify", "--n-best", "2", "--json"], "--n-best is for runs that search for an output text"),
    (["predict", "classify", "--tag", "de"], "--tag is for runs that search for an output text"),
    (["predict", "tag", "ensemble.runs=chain"], "ensemble.runs is for runs that search for an output text"),
    (["predict", "tag", "precision=bfloat16"], "precision is for runs that search for an output text"),
    (["evaluate", "tag", "tag.test.tsv", "search.length_penalty=1"], "length_penalty is for runs that output"),
    (["evaluate", "tag", "tag.test.tsv", "--metric", "bleu"], "no metric of this task"),
    (["evaluate", "series", "series.test.tsv", "--metric", "ms"], "Did you mean 'mse'?"),
    (["evaluate", "tag", "tag.test.tsv", "--metric", "span_f1"], "expected O, B-LABEL"),
    (["attention", "classify", "good"], 'found task = "classify", which needs no search; expected '
     'task = "translate", "transcribe" or "caption"'),
    (["probe", "classify"], 'probe needs task = "translate"'),
    (["calibrate", "tag"], 'calibrate needs task = "translate"'),
    (["bench", "tag"], 'bench needs task = "translate"'),
    (["shortlist", "tag"], 'found task = "tag", which needs no search'),
    (["align", "tag", "one.txt"], 'found task = "tag", which needs no search'),
    (["evaluate", "tag", "tag.test.tsv", "--intervals"], "--intervals is for runs that output texts"),
    (["predict", "tag", "tag.test.tsv", "--shards", "x"], "tag.test.tsv has a word on each line, expected a sentence"),
    (["predict", "apart", "one.txt"], "one.txt:1: found 1 text, expected two texts with a tab"),
    (["predict", "classify", "two.txt"], "two.txt:1: found 2 texts with tabs between them, expected one"),
    (["predict", "classify", "data.media=x"], "data.media is for recordings and pictures"),
    (["evaluate", "tag", "tag.test.tsv", "data.skip_unreadable=true"], "skip_unreadable is for recordings and"),
    (["evaluate", "series", "series.test.tsv", "evaluation.skip_unknown=true"], "skip_unknown) is for labels"),
    (["predict", "classify", "fields.jsonl"], "fields.jsonl:1: found constraints on the output, which need a search"),
    (["predict", "series", "one.txt"], "one.txt:1: found 'one', expected a number"),
    (["predict", "series", "long.txt"], "long.txt:1: found a length of 9, expected at most the 8 of model.pooling"),
    (["evaluate", "series", "long.tsv"], "long.tsv:2: found a length of 9, expected at most the 8 of model.pooling"),
    (["evaluate", "classify", "unknown.tsv"], "unknown.tsv:2: found the label 'neutral'"),
    (["evaluate", "tag", "unknown-tag.tsv"], "unknown-tag.tsv:5: found the label 'NOUNS', expected one of"),
    (["evaluate", "chain", "unknown-tag.conllu"], "unknown-tag.conllu:6: found the label 'NOUNS', expected one of"),
    (["evaluate", "tag", "unknown-tag.jsonl"], "unknown-tag.jsonl:2: found the label 'NOUNS', expected one of"),
    (["train", "tag.toml", "data.valid=unknown-tag.tsv", "--run", "x"], "unknown-tag.tsv:5: found the label 'NOUNS'"),
    (["evaluate", "classify", "two-labels.tsv"], "two-labels.tsv:2: found the label 'pos neg', expected one of"),
    (["evaluate", "classify", "one.txt"], "one.txt:1: found 1 column"),
    (["evaluate", "classify", "empty.tsv"], "nothing to evaluate"),
    (["evaluate", "tag", "empty.tsv"], "nothing to evaluate"),
    (["train", "empty.toml"], "empty.tsv: no usable pair found"),
    (["train", "classify.toml", "data.valid=unknown.tsv", "--run", "x"], "unknown.tsv:2: found the label 'neutral'"),
    (["train", "classify.toml", "train.metric=bleu", "--run", "x"], 'found "bleu", but task = "classify" has loss'),
    (["train", "classify.toml", "train.decode=5", "--run", "x"], "train.decode: configures a search"),
    (["train", "classify.toml", "search.beam=2", "--run", "x"], "search: configures a search"),
    (["train", "classify.toml", "task=tag", "--run", "x"],
     'model.kind: found "classifier", expected one of tagger, hmm'),
    (["train", "classify.toml", "task=clasify", "--run", "x"], "Did you mean 'classify'?"),
    (["train", "classify.toml", "model.texts=apart", "--run", "x"], "expected two texts"),
    (["train", "classify.toml", "tokenizer.source.kind=numbers", "model.word_dropout=0"], "in the series"),
    (["train", "classify.toml", "tokenizer.target.kind=words", "--run", "x"], "its targets are not text"),
    (["train", "series.toml", "data.max_length=9", "--run", "x"], "model.pooling.steps = 8 tokens; expected at most 8"),
    (["train", "tag.toml", "model.read=mean", "--run", "x"], "one vector per word"),
    (["train", "one-label.tsv", "task=classify"], "one-label.tsv: found 1 label (x), expected at least two"),
    (["train", "regress.train.tsv", "task=tag"], "regress.train.tsv"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "expected"), REFUSED, ids=lambda value: " ".join(value)[:60])
def test_what_makes_no_sense_is_refused_in_one_line(
    folder: Path, arguments: list[str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    (folder / "one.txt").write_text("one\n")
    (folder / "two.txt").write_text("good\tpos\n")
    (folder / "long.txt").write_text("1 " * 9 + "\n")
    (folder / "long.tsv").write_text("1 2\t3\n" + "1 " * 9 + "\t2\n")
    (folder / "empty.tsv").write_text("")
    (folder / "fields.jsonl").write_text('{"source": "good", "prefix": "p"}\n')
    (folder / "one-label.tsv").write_text("a\tx\nb\tx\nc\tx\n")
    (folder / "unknown.tsv").write_text("good Zounds\tpos\nso so\tneutral\nbad\tneg\n")
    (folder / "two-labels.tsv").write_text("good\tpos\nso so\tpos neg\n")
    (folder / "unknown-tag.tsv").write_text("cat\tNOUN\n\nthe\tDET\nbig\tADJ\ndog\tNOUNS\nruns\tVERBS\n")
    (folder / "unknown-tag.jsonl").write_text(
        '{"source": "cat", "target": "NOUN"}\n{"source": "the dog", "target": "DET NOUNS"}\n'
    )
    rows = [("1-2", "thedog", "_"), ("1", "the", "DET"), ("1.1", "big", "ADJ"), ("2", "dog", "NOUNS")]
    words = "".join(f"{number}\t{word}\t_\t{tag}{6 * chr(9)}\n" for number, word, tag in rows)
    (folder / "unknown-tag.conllu").write_text(f"# two\n# comments\n{words}\n")
    empty = (folder / "classify.toml").read_text().replace("classify.train.tsv", "empty.tsv")
    (folder / "empty.toml").write_text(empty)
    with quiet_machine(folder / "cache"):
        result = call(*arguments)
    assert result.code == 2
    assert [line.startswith("dragoman: ") for line in result.err.splitlines()].count(True) == 1
    assert expected in result.err.splitlines()[-1]
    assert not (folder / "x").exists()


@pytest.mark.parametrize(("name", "wrong"), [("apart", ("a", "b")), ("series", [1, 2]), ("tag", ["a", "b"])])
def test_python_callers_give_texts(folder: Path, name: str, wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"found [(\[].* among the texts, expected strings"):
        load_run(folder / name).predict([wrong])
    with pytest.raises(DataError, match=r"nowhere\.tsv: no such file"):
        load_run(folder / name).evaluate("nowhere.tsv")


def test_a_line_that_looks_like_a_header_is_asked_about(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    rows = "".join(f"text {number}\t{number % 2}\n" for number in range(40))
    question = "is head.tsv:1 a header? No other line has its label 'label'. If so, set data.header=true"
    for text, options, asked in (
        (f"sentence\tlabel\n{rows}", (), True),
        (f"sentence\tlabel\n{rows}", ("data.header=true",), False),
        (rows, (), False),
    ):
        (folder / "head.tsv").write_text(text)
        with quiet_machine(folder / "cache"):
            result = call("check", "head.tsv", "task=classify", "model.encoder.width=8", *options)
        assert result.code == 0, result.err
        assert (question in result.lines) is asked


def test_a_file_that_is_laid_out_otherwise_can_be_evaluated(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    _, *rows = (line.split("\t") for line in (folder / "joined.test.tsv").read_text().splitlines())
    (folder / "named.jsonl").write_text("".join(f"{json.dumps(dict(zip('lab', row, strict=True)))}\n" for row in rows))
    (folder / "bare.tsv").write_text("".join(f"{a}\t{b}\t{label}\n" for label, a, b in rows))
    shutil.copy("joined.test.tsv", "named.conll.tsv")
    usual = call("evaluate", "joined", "joined.test.tsv", "--json")
    assert usual.code == 0, usual.err
    for options in (
        ("named.conll.tsv",),
        ("named.jsonl", "data.columns=a, b,l"),
        ("bare.tsv", "data.columns=1,2,3", "data.header=false"),
    ):
        other = call("evaluate", "joined", *options, "--json")
        assert (other.out, other.code) == (usual.out, 0), other.err
    for options, expected in {
        ("named.jsonl", "data.columns=a,,l"): "data.columns: found 'a,,l', expected numbers or names separated by",
        (
            "named.jsonl",
            "data.columns=a,b,l",
            "data.header=true",
        ): "data.header: found true for named.jsonl, expected false",
        ("--source", "bare.tsv", "--target", "bare.tsv", "data.columns=1"): "data.columns goes with FILE, not with two",
        (
            "--source",
            "bare.tsv",
            "--target",
            "bare.tsv",
            "data.header=false",
        ): "data.header goes with FILE, not with two file",
    }.items():
        wrong = call("evaluate", "joined", *options)
        assert wrong.code == 2
        assert expected in wrong.err


def test_unknown_labels_are_left_out_and_counted_when_asked_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    (folder / "unknown.tsv").write_text("good Zounds\tpos\nso so\tneutral\nbad\tneg\n")
    asked = ["evaluation.skip_unknown=true", "--json", "--output", "unknown.out"]
    scores = json.loads(call("evaluate", "classify", "unknown.tsv", *asked).out)
    assert (scores["segments"], scores["unknown"]) == (2, 1)
    outputs = (folder / "unknown.out").read_text().split("\n")
    assert [line == "" for line in outputs] == [False, True, False, True]  # one line for every line of the data
    with quiet_machine(folder / "cache"):
        result = call(
            "train", "classify.toml", "data.valid=unknown.tsv", "data.faults=skip", "train.steps=2", "--run", "y"
        )
    assert result.code == 0, result.err
    assert "  e.g. good Zounds  →  " in result.err  # as it was written, not as its tokens: nobody knows "Zounds"
    assert "left out: 1 unknown-label" in result.err


@pytest.mark.parametrize("name", ["classify", "series", "tag"])
def test_nothing_but_a_file_and_a_task(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    task = CASES[name]["task"]
    with quiet_machine(folder / "cache"):
        result = call("train", f"{name}.train.tsv", f"task={task}", "train.steps=2", "--run", f"auto-{name}")
    assert result.code == 0, result.err
    assert "model: " in result.err
    assert "budget: " in result.err
    assert (folder / f"auto-{name}" / "weights.safetensors").exists()


def test_inspect_shows_what_the_model_has(folder: Path, name: str, tmp_path: Path) -> None:
    text = (folder / f"{name}.test.tsv").read_text(encoding="utf-8").splitlines()[1]
    text = {"tag": "the dog runs", "chain": "the dog runs"}.get(name, text.rpartition("\t")[0])
    if name in ("apart", "joined"):
        text = "the film is good\ta bad plot"
    result = call("inspect", "--output", tmp_path / "numbers.json", "--device", "cpu", "--", folder / name, text)
    assert result.code == 0, result.err
    views = {view["kind"]: view["data"] for view in json.loads((tmp_path / "numbers.json").read_text())["views"]}
    assert {"overview", "layers"} <= set(views)
    if name in ("tag", "chain", "classify"):
        assert sum(views["labels"]["probabilities"][0]) == pytest.approx(1, abs=1e-4)
    if name == "chain":
        assert len(views["tables"]["tables"][0]["path"]) == 3
