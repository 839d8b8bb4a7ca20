"""The public interface: typed, without Any, and what a user's own script sees of it."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
import typing
from pathlib import Path

import pytest

import dragoman
from dragoman.base.errors import DataError, RunError
from tests.conftest import made_once

SCRIPT = '''\
"""A user's script, as `mypy --strict` reads it."""

import sys
from pathlib import Path

import dragoman


def train(pairs: Path, folder: Path) -> dragoman.Predictor:
    rows = [("one", "1"), ("two", "2")]
    run = dragoman.train(rows, folder, "train.steps=100", quiet=True)
    reveal_type(run)
    return dragoman.train(pairs, folder)


def main(folder: str) -> int:
    run = dragoman.load(folder, beam=8)
    reveal_type(run)
    for prediction in run.predict(["three", "four"], n_best=2):
        reveal_type(prediction)
        print(prediction.text, prediction.score, prediction.confidence)
    result = run.evaluate([("three", "3")], metrics="wer")
    reveal_type(result.predictions)
    tagger = dragoman.load("runs/tagger", task="tag")
    reveal_type(tagger)
    writer = dragoman.load("runs/lm", task="language-model")
    reveal_type(writer)
    scores = dragoman.score(["a b"], ["a c"], metrics=["wer"])
    reveal_type(scores["wer"])
    options = dragoman.DecodingOptions(beam=4)
    try:
        run.predict(["x"], options)
    except dragoman.DragomanError as error:
        print(error, file=sys.stderr)
        return 2
    return 0
'''


MISTAKES = ["import dragoman", "dragoman.load('x', beem=8)", "run = dragoman.load('x')", "run.predict([], beam='8')"]


def run_mypy(folder: Path) -> None:
    """Check both scripts in one run, and note what mypy says of them."""
    (folder / "script.py").write_text(SCRIPT, encoding="utf-8")
    (folder / "mistakes.py").write_text("\n".join(MISTAKES), encoding="utf-8")
    root = Path(dragoman.__file__).parent.parent
    # With the settings (strict, too) and the cache of `make types`: seconds in place of a minute.
    shared = ["--config-file", str(root / "pyproject.toml"), "--cache-dir", str(root / ".mypy_cache")]
    command = [sys.executable, "-m", "mypy", "--strict", *shared, "script.py", "mistakes.py"]
    environment = os.environ | {"PYTHONPATH": str(root)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    (folder / "said.txt").write_text(done.stdout + done.stderr, encoding="utf-8")


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return (made_once(tmp_path_factory, "mypy", run_mypy) / "said.txt").read_text(encoding="utf-8").splitlines()


def test_a_users_script_is_clean_under_strict_mypy(said: list[str]) -> None:
    output = "\n".join(line for line in said if not line.startswith(("mistakes.py:", "Found ")))
    assert "error" not in output, output
    revealed = re.findall(r'Revealed type is "([^"]+)"', output)
    assert [name.rpartition(".")[2] if "[" not in name else name for name in revealed] == [
        "Predictor", "Predictor", "Prediction", "list[dragoman.inference.prediction.Prediction]",
        "Labeler", "Completer", "float",
    ]  # fmt: skip


def test_mypy_finds_a_users_mistakes(said: list[str]) -> None:
    output = "\n".join(said)
    assert 'Unexpected keyword argument "beem"' in output
    assert 'mistakes.py:4: error: Argument "beam"' in output


INSIDE = ("scorer", "single_model")  # what the package itself calls: models have no common type


def public_callables() -> list[typing.Any]:
    found = []
    for name in dragoman.__all__:
        value = getattr(dragoman, name)
        if inspect.isfunction(value):
            found.append(pytest.param(value, id=name))
        elif inspect.isclass(value) and not issubclass(value, BaseException):
            for method, member in inspect.getmembers(value):
                member = member.fget if isinstance(member, property) else member
                ours = inspect.isfunction(member) and member.__module__.startswith("dragoman")
                if ours and method not in INSIDE and (not method.startswith("_") or method == "__init__"):
                    found.append(pytest.param(member, id=f"{name}.{method}"))
    return found


@pytest.mark.parametrize("function", public_callables())
def test_public_signatures_have_types_and_no_any(function: typing.Any) -> None:
    signature = inspect.signature(function)
    annotations = {name: str(part.annotation) for name, part in signature.parameters.items() if name != "self"}
    for name, annotation in (annotations | {"return": str(signature.return_annotation)}).items():
        assert annotation != str(inspect.Signature.empty), f"{name} has no type"
        assert not re.search(r"\bAny\b", annotation), f"{name}: {annotation}"


def test_all_names_exist() -> None:
    assert all(hasattr(dragoman, name) for name in dragoman.__all__)
    assert sorted(dragoman.__all__) == dragoman.__all__
    with pytest.raises(AttributeError, match="no attribute 'lode'"):
        getattr(dragoman, "lode")  # noqa: B009


def test_importing_dragoman_does_not_import_torch() -> None:
    script = "import sys, dragoman; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


# ---------------------------------------------------------------------- score and compare


def test_score_takes_texts() -> None:
    scores = dragoman.score(["the cat", "a dog"], ["the cat", ["a dog", "the dog"]], ["chrf", "exact_match"])
    assert dict(scores) == {"chrf": pytest.approx(100.0), "exact_match": 1.0}
    assert scores.signatures["chrf"].startswith("nrefs:var")
    assert repr(scores) == "<Scores of 2 segments: chrf 100, exact_match 1>"
    assert not scores.intervals
    low, high = dragoman.score(["a b c d"] * 9 + ["x"], ["a b c d"] * 10, "wer", draws=100).intervals["wer"]
    assert 0 <= low < 0.1 < high


def test_compare_tests_each_system_against_the_first() -> None:
    references = [f"{number} {number + 1} {number + 2}" for number in range(40)]
    systems = {"base": ["0 0 0"] * 40, "same": references}
    base, same = dragoman.compare(systems, references, "wer", draws=200)
    assert (base.system, base.versus, same.system, same.score) == ("base", None, "same", 0.0)
    assert same.versus is not None
    assert same.versus.better
    assert same.versus.bootstrap < 0.05


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: dragoman.score("text", ["text"]), TypeError, "outputs: found one text, expected a list of texts"),
        (lambda: dragoman.score(["a"], ["a", "b"]), DataError, "outputs: found 1 texts, expected 2"),
        (lambda: dragoman.score([], []), DataError, "nothing to score"),
        (lambda: dragoman.score(["a"], ["a"], "bleeu"), DataError, "Did you mean 'bleu'"),
        (lambda: dragoman.compare({"one": ["a"]}, ["a"]), DataError, "found 1 system, expected a baseline and another"),
    ],
)
def test_wrong_texts_are_one_line(call: typing.Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_a_named_task_is_checked(inside: typing.Any) -> None:
    assert isinstance(dragoman.load(inside.run, task="translate"), dragoman.Predictor)
    with pytest.raises(RunError, match='found task = "translate", expected "tag"'):
        dragoman.load(inside.run, task="tag")
