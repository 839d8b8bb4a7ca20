"""Probes of toy systems whose faults are known."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from scipy.stats import binomtest

from dragoman.base.errors import DataError
from dragoman.inspect.measure.probes import (
    PROBES,
    REJECTED,
    SENTENCES,
    ProbeResult,
    ProbeTexts,
    max_repetitions,
    own_texts,
    run_probes,
)
from dragoman.inspect.measure.template_probes import read_template_probes, run_template_probes
from tests.conftest import QUICK, SMALL, TrainedFolder, call, quiet_machine


def one(predict, name: str, **options) -> ProbeResult:
    return run_probes(predict, [name], **options)[0]


def copying(texts: Sequence[str]) -> list[str]:
    return list(texts)


def silent(texts: Sequence[str]) -> list[str]:
    return ["" for _ in texts]


def only(outcome: ProbeResult) -> str:
    """The one kind that all cases are of."""
    assert sum(outcome.counts.values()) == outcome.cases > 10
    (kind,) = [kind for kind, count in outcome.counts.items() if count]
    return kind


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", 0), ("a", 1), ("a b c", 1), ("a a a b", 3), ("x a b a b a b y", 3), ("a b c a b c", 2), ("哈哈哈哈", 4)],
)
def test_max_repetitions(text: str, expected: int) -> None:
    assert max_repetitions(text) == expected


def test_a_system_that_copies_has_no_faults() -> None:
    kinds = {outcome.probe: only(outcome) for outcome in run_probes(copying)}
    assert kinds == {
        "repetition": "repeats",
        "copying": "copied",
        "length": "in proportion",
        "gender": "pronoun alone",
        "stereotype": "unmarked",
    }


def test_a_system_with_empty_outputs() -> None:
    assert only(one(silent, "repetition")) == "empty"
    assert only(one(silent, "copying")) == "lost"
    assert only(one(silent, "length")) == "empty"
    assert only(one(silent, "gender")) == "the same"


def test_repetition_detects_invented_and_runaway_outputs() -> None:
    tale = "once upon a time there was a king who had seven sons"
    assert only(one(lambda texts: [tale for _ in texts], "repetition")) == "invented"
    found = one(lambda texts: [f"{text} " * 3 + "x" for text in texts], "repetition")
    assert found.counts["runaway"] == found.cases
    assert only(one(lambda texts: ["yes ." for _ in texts], "repetition")) == "once"
    # Six different words repeat nothing; one word twice among many does not make a repetition.
    assert only(one(lambda texts: ["a man walks to the park" for _ in texts], "repetition")) == "invented"
    assert only(one(lambda texts: ["a man walks and and sees a dog" for _ in texts], "repetition")) == "invented"
    assert only(one(lambda texts: ["yes , yes , yes ." for _ in texts], "repetition")) == "repeats"


def test_copying_ignores_case_and_separators_but_not_digits() -> None:
    assert only(one(lambda texts: [text.upper().replace("20517", "20.517") for text in texts], "copying")) == "copied"
    shifted = str.maketrans("0123456789", "1234567890")
    found = one(lambda texts: [text.translate(shifted) for text in texts], "copying")
    assert found.counts == {"copied": 12, "in part": 0, "lost": 12}
    surnames = ("Kowalski", "Haddad", "Tanaka", "Obi", "Silva", "Nilsson")
    cut = one(lambda texts: [" ".join(w for w in text.split() if w not in surnames) for text in texts], "copying")
    assert cut.counts == {"copied": 12, "in part": 12, "lost": 0}


def test_length_detects_short_looping_and_long_outputs() -> None:
    assert (
        only(one(lambda texts: ["la " * 5 + "." for _ in texts], "length", texts=ProbeTexts(SENTENCES[:1] * 9)))
        == "loops"
    )
    found = one(lambda texts: [text[:20] for text in texts], "length")
    assert found.counts["cut short"] == 3  # the three long inputs
    assert all(len(example.sources[0]) > 200 for example in found.examples["cut short"])
    many = " ".join(f"word{number}" for number in range(400))
    flood = one(lambda texts: [many for _ in texts], "length")
    assert flood.counts["too long"] == flood.cases - 1  # the longest input is nearly as long itself


def test_gender_detects_further_changes() -> None:
    def biased(texts: Sequence[str]) -> list[str]:
        return [text.replace("doctor", "nurse of the house") if " she " in f" {text} " else text for text in texts]

    found = one(biased, "gender")
    assert found.counts == {"pronoun alone": 24, "inflection": 0, "the same": 0, "other words": 2}
    assert found.examples["other words"][0].sources == ("he is a doctor .", "she is a doctor .")
    neutral = one(lambda texts: [text.replace("she", "he") for text in texts], "gender")
    assert only(neutral) == "the same"


def test_rejected_inputs_are_counted_and_the_others_still_run() -> None:
    def short_only(texts: Sequence[str]) -> list[str]:
        if any(len(text) > 250 for text in texts):
            raise DataError("too long")
        return list(texts)

    found = one(short_only, "length")
    assert found.counts[REJECTED] == 3
    assert found.counts["in proportion"] == found.cases - 3
    assert any("the run raised an error for the input" in line for line in found.lines())

    def broken(texts: Sequence[str]) -> list[str]:
        raise DataError("no weights")

    with pytest.raises(DataError, match="no weights"):
        run_probes(broken)


def test_the_number_of_examples_is_that_requested() -> None:
    assert [len(cases) for cases in one(copying, "gender", examples=3).examples.values()] == [3]
    assert one(copying, "gender", examples=0).examples == {}
    with pytest.raises(DataError, match=r"probe: found 'genders', which is no probe. Did you mean 'gender'\?"):
        run_probes(copying, ["genders"])


# "the doctor" and so on in a language with two genders for some of them.
GERMAN = {"doctor": ("der arzt", "die ärztin"), "nurse": ("der pfleger", "die krankenschwester")}


def german(texts: Sequence[str]) -> list[str]:
    """A toy translator that thinks all nurses women and all doctors men, unless a pronoun says otherwise."""
    outputs = []
    for text in texts:
        for job, (man, woman) in GERMAN.items():
            feminine = re.search(r"\b(she|her)\b", text) or (job == "nurse" and not re.search(r"\b(he|his)\b", text))
            text = re.sub(rf"(the|a) {job}", woman if feminine else man, text)
        for english, word in (("she", "sie"), ("he", "er"), ("his", "seine"), ("her", "ihre")):
            text = re.sub(rf"\b{english}\b", word, text)
        outputs.append(text)
    return outputs


def test_gender_tells_inflection_from_other_words() -> None:
    found = one(german, "gender", examples=9)
    assert found.counts == {"pronoun alone": 22, "inflection": 0, "the same": 0, "other words": 4}
    teachers = one(lambda texts: [text.replace("she is a", "sie ist eine") for text in texts], "gender", examples=1)
    assert teachers.counts["other words"] == 13  # is → ist is no inflection of one word with the gender
    french = one(
        lambda texts: [
            text.replace("he is a ", "il est un ").replace("sil est un ", "elle est une ") for text in texts
        ],
        "gender",
    )
    assert (french.counts["inflection"], french.counts["pronoun alone"]) == (13, 13)


def test_stereotype_tells_the_gender_that_an_output_chooses() -> None:
    found = one(german, "stereotype", examples=9)
    assert found.counts == {"masculine": 2, "feminine": 2, "unmarked": 22}
    assert {example.sources[0].split()[1] for example in found.examples["masculine"]} == {"doctor"}
    assert {example.sources[0].split()[1] for example in found.examples["feminine"]} == {"nurse"}
    # A run that ignores his and her shows no gender, whatever it says of the nurse.
    assert only(one(lambda texts: ["die krankenschwester liest" for _ in texts], "stereotype")) == "unmarked"


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a run that reads English sentences, trained for two steps."""
    folder = tmp_path_factory.mktemp("probes")
    with quiet_machine(folder / "cache"), contextlib.chdir(folder):
        lines = [f"The {job} is reading {number} books.\t{job} {number}\n" for job in PEOPLE for number in range(30)]
        Path("pairs.tsv").write_text("".join(lines), encoding="utf-8")
        short = ("train.steps=2", "search.max_length=6")
        trained = call("train", "pairs.tsv", "--run", "run", "preset=transformer-tiny", *SMALL, *QUICK, *short)
        assert trained.code == 0, trained.err
        yield folder


PEOPLE = ("man", "woman", "teacher", "child", "girl")


def test_the_command(reader: Path) -> None:
    result = call("probe", "run", "--beam", "1", "--json")
    assert result.code == 0, result.err
    assert "skipped" not in result.err
    found = json.loads(result.out)
    assert [outcome["probe"] for outcome in found] == list(PROBES)
    for outcome in found:
        assert sum(outcome["counts"].values()) == outcome["cases"]
        assert set(outcome["examples"]) == {kind for kind, count in outcome["counts"].items() if count}
    # Inputs look like the training data: capital letter, full stop without a space.
    (source,) = next(iter(found[1]["examples"].values()))[0]["sources"]
    assert source == "My name is Anna Kowalski."
    result = call("probe", "run", "--probe", "length", "--sentences", "pairs.tsv", "--beam", "1", "--examples", "1")
    assert result.code == 0, result.err
    assert result.lines[0].startswith("length: one word, one sentence, many sentences at once (")
    assert call("probe", "run", "--probe", "x").err.startswith("dragoman: probe: found 'x', which is no probe.")


def test_probes_that_do_not_suit_the_run_are_skipped_or_refused(reader: Path, inside: TrainedFolder) -> None:
    """English probes of a German source counted nonsense."""
    with contextlib.chdir(reader):
        before = Path("pairs.tsv").read_text(encoding="utf-8")
        lines = [f"Der {word} liest heute abend nicht {word}\tx\n" for word in ("Mann", "Junge", "Lehrer", "Koch")]
        Path("pairs.tsv").write_text("".join(lines), encoding="utf-8")
        result = call("probe", "run", "--beam", "1", "--json")
        assert [outcome["probe"] for outcome in json.loads(result.out)] == ["repetition", "length"]
        assert "skipped: copying, gender, stereotype; their inputs are English, which this run does not" in result.err
        sources = [case["sources"][0] for kind in json.loads(result.out)[0]["examples"].values() for case in kind]
        assert all(set(source.split()) < set("".join(lines).split()) for source in sources)
        refused = call("probe", "run", "--probe", "gender")
        assert refused.code == 2
        assert refused.err.startswith("dragoman: probe gender: its inputs are English, but the run does not read Engl")
        Path("pairs.tsv").rename("gone.tsv")
        assert "warning: the training data of run cannot be read, so probe cannot tell" in call("probe", "run").err
        Path("pairs.tsv").write_text(before, encoding="utf-8")
    refused = call("probe", inside.run)
    assert refused.code == 2
    assert "probe needs a run that reads sentences; this one reads single words or symbols, such as" in refused.err


def test_chinese_is_probed_by_characters() -> None:
    texts = own_texts(["我们下个星期再见面", "他在公园里看书", "这只狗很大", "天在下雨"], english=False)
    assert texts.joiner == ""
    found = run_probes(copying, texts=texts)
    assert [only(outcome) for outcome in found] == ["repeats", "in proportion"]
    assert found[0].examples["repeats"][0].sources == (texts.words[0] * 4,)


def test_own_templates_count_forms_by_the_words_of_a_slot(tmp_path: Path) -> None:
    for path in sorted((Path(__file__).parents[2] / "examples" / "probes").glob("*.toml")):
        assert all(len(probe.cases()) >= 36 for probe in read_template_probes(str(path)))
    path = tmp_path / "own.toml"
    file = """
    [[probe]]
    name = "dia"
    by = "job"
    templates = ["{when} dia ialah {job} .", "dia {job} ."]
    slots = { job = ["doktor", "guru"], when = ["kini", "dulu", "esok"] }
    forms = { he = ["he", "il*", "他"], she = ["she", "qu'elle", "她"] }
    """
    path.write_text(file, encoding="utf-8")
    (probe,) = read_template_probes(str(path))
    for output, group in {
        "He's here.": "he", "the she-wolf": "she", "he and she": "several", "the heart": "none", "ils sont": "he",
        "je crois qu'elle dort": "she", "她是医生": "she", "她说他": "several",
    }.items():  # fmt: skip
        assert probe.group_of(output) == group, output

    def system(texts: Sequence[str]) -> list[str]:
        return ["he" if "doktor" in text or "kini" in text else "she" for text in texts]

    (result,) = run_template_probes(system, [probe])
    assert [(row.word, row.counts["he"], row.counts["she"]) for row in result.rows] == [
        ("doktor", 4, 0), ("guru", 1, 3), ("all", 5, 3)
    ]  # fmt: skip
    expected = binomtest(5, 8).proportion_ci(method="wilson")
    assert result.rows[-1].interval == pytest.approx((expected.low, expected.high), abs=1e-6)
    assert "guru" in "\n".join(result.lines())
    assert json.loads(json.dumps(result.as_dict()))["rows"][0]["share"] == 1.0
    for old, new, message in (
        ('name = "dia"', 'nmae = "dia"', "Did you mean 'name'"),
        ("{when} dia", "{wenn} dia", "found the slot 'wenn'. Did you mean 'when'"),
        ('by = "job"', 'by = "jop"', "by: found 'jop'"),
        ("dia {job} .", "dia .", "expected the slot {job}"),
        ("dia {job} .", "dia {job .", "write a slot as {name}"),
        ('["doktor", "guru"]', "[]", "slots.job: found []"),
        ("she =", "none =", "name it otherwise"),
        ("[[probe]]", "[[prob]]", "expected one or more tables [[probe]]"),
        ("[[probe]]", "[[probe", "no TOML file"),
    ):
        path.write_text(file.replace(old, new), encoding="utf-8")
        with pytest.raises(DataError, match=re.escape(message)):
            read_template_probes(str(path))
