"""`dragoman qa` and `dragoman.qa` on every bilingual format: places, exit codes, report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import dragoman
from dragoman import DataError, QAOptions
from dragoman.base import ConfigError
from dragoman.web import page_data
from tests.conftest import call

PAIRS = [("12 dogs run.", "Drei Hunde rennen."), ("A dog runs.", "Ein Hund rennt.")]
XLIFF_UNITS = "".join(
    f"<trans-unit id='{place}'><source>{source}</source><target>{target}</target></trans-unit>"
    for place, (source, target) in enumerate([*PAIRS, ("A dog runs.", "Ein Hund läuft."), ("Not yet.", "")], 1)
)
TMX_UNITS = "".join(
    f"<tu><tuv xml:lang='en'><seg>{source}</seg></tuv>\n<tuv xml:lang='de'><seg>{target}</seg></tuv></tu>\n"
    for source, target in PAIRS
)
ROWS = ("\n".join(sep.join(pair) for pair in PAIRS) + "\n" for sep in "\t,")
FILES = {
    "a.tsv": next(ROWS),
    "a.csv": next(ROWS),
    "a.jsonl": "".join(json.dumps({"source": source, "target": target}) + "\n" for source, target in PAIRS),
    "a.po": "".join(f'msgid "{source}"\nmsgstr "{target}"\n\n' for source, target in PAIRS),
    "a.xlf": f"<xliff version='1.2'><file source-language='en' target-language='de'><body>{XLIFF_UNITS}"
    "</body></file></xliff>",
    "a.tmx": f"<tmx version='1.4'><header srclang='en'/><body>{TMX_UNITS}</body></tmx>",
}


@pytest.mark.parametrize("name", FILES)
def test_every_format(name: str, tmp_path: Path) -> None:
    file, report = tmp_path / name, tmp_path / "report.html"
    file.write_text(FILES[name], encoding="utf-8")
    options = ("--from", "en", "--to", "de")
    done = call("qa", file, *options, "-o", report)
    assert done.code == 1, done.err
    assert done.lines[0].startswith(f"{file}:")
    assert done.lines[0].endswith("number: '12' of the source is missing")
    table = json.loads(call("qa", file, *options, "--json").out)
    assert (table["found"] - (name == "a.xlf"), table["hard"]) == (1, 1)
    assert table["pairs"][0]["source"] == "12 dogs run."
    assert page_data(report.read_text(encoding="utf-8"))["pairs"] == table["pairs"]
    [checked] = dragoman.qa([str(file)], QAOptions(source="en", target="de"))
    assert checked.found[0].findings[0].as_table() == table["pairs"][0]["findings"][0]
    # What is left out has no exit code.
    assert call("qa", file, *options, "--without", "number").code == 0


def test_the_same_source_with_another_translation(tmp_path: Path) -> None:
    file = tmp_path / "a.xlf"
    file.write_text(FILES["a.xlf"], encoding="utf-8")
    [checked] = dragoman.qa([str(file)])
    assert checked.segments == 3
    assert [finding.kind for pair in checked.found for finding in pair.findings] == ["number", "inconsistent"]
    assert dragoman.qa([str(file)], QAOptions(hard=True))[0].line == "1 of 3 segments has findings: number 1"


def test_languages_terms_and_the_languages_that_a_file_names(tmp_path: Path) -> None:
    file, terms = tmp_path / "b.en-de.tsv", tmp_path / "terms"
    file.write_text("It weighs 2.5 kg.\tEs wiegt 2.5 kg.\nThe bank.\tDie Bank.\n", encoding="utf-8")
    terms.write_text("bank\tUfer\n", encoding="utf-8")
    [checked] = dragoman.qa([str(file)], QAOptions(terms=str(terms)))
    assert [pair.findings[0].kind for pair in checked.found] == ["notation", "term"]
    assert call("qa", file).code == 0
    po = tmp_path / "a.po"
    po.write_text('msgid ""\nmsgstr "Language: de_AT\\n"\n\nmsgid "_File"\nmsgstr "Datei"\n', encoding="utf-8")
    [checked] = dragoman.qa([str(po)])
    assert [pair.findings[0].kind for pair in checked.found] == ["accelerator"]


def test_user_errors(tmp_path: Path) -> None:
    file = tmp_path / "a.tsv"
    file.write_text(FILES["a.tsv"], encoding="utf-8")
    for arguments in (
        ("qa", tmp_path / "none.tsv"),
        ("qa", file, "--without", "numbr"),
        ("qa", file, "-o", file),
        ("qa", file, "--terms", tmp_path / "none"),
    ):
        done = call(*arguments)
        assert (done.code, done.err.count("\n")) == (2, 1), done.err
    with pytest.raises(ConfigError, match="'number'"):
        dragoman.qa([str(file)], QAOptions(without=("numbr",)))
    (tmp_path / "b.po").write_text('msgid "a"\nmsgstr ""\n', encoding="utf-8")
    with pytest.raises(DataError, match="found no translation"):
        dragoman.qa([str(tmp_path / "b.po")])
