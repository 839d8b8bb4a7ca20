"""The package as users get it: its extras, what the wheel holds, and a fresh environment that runs commands."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
import tomllib
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from dragoman.base.version import __version__
from dragoman.commands import installation
from dragoman.commands.installation import CORE, EXTRAS, installation_lines
from tests.conftest import call
from tests.processes import free_port

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
OPTIONAL: dict[str, list[str]] = PROJECT["optional-dependencies"]
WHEEL_MEGABYTES = 2.0


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[<>=;\[ ]", requirement)[0] for requirement in requirements}


def test_every_extra_is_described_and_every_named_one_exists() -> None:
    described = {extra.name: set(extra.packages) for extra in EXTRAS}
    zstandard = {"backports.zstd"} if sys.version_info >= (3, 14) else set()
    assert {
        name: names(needs) - zstandard for name, needs in OPTIONAL.items() if name not in ("all", "dev", "docs")
    } == described
    assert OPTIONAL["all"] == [f"dragoman[{','.join(name for name in described if name != 'demo')}]"]
    assert names(PROJECT["dependencies"]) == set(CORE)
    named = {}
    files = [*(ROOT / "dragoman").rglob("*.py"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy").iterdir()]
    for path in [*files, ROOT / "README.md", ROOT / "Makefile", ROOT / "CONTRIBUTING.md"]:
        text = path.read_text(encoding="utf-8")
        lists = re.findall(r"(?:dragoman|\.)\[([a-z][a-z,-]*)\]", text) + re.findall(r"extra [`'](\w+)[`']", text)
        lists += (
            re.findall(r'MissingExtraError\((?:[^()]|\([^()]*\))*, "([a-z-]+)"\)', text) if path.suffix == ".py" else []
        )
        named |= {extra: path for extras in lists for extra in extras.split(",")}
    alone = {"tensorboard", "torchvision"}  # packages that an error names itself
    assert {name: path for name, path in named.items() if name not in OPTIONAL and name not in alone} == {}
    assert {"serve", "media", "export", "fast", "plots", "cluster", "documents", "demo"} <= set(named)


def test_the_report_on_the_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = call("check", "--installation").out
    assert whole.startswith(f"dragoman {__version__}, Python ")
    assert re.search(r"^device cpu: \d+ cores", whole, re.MULTILINE)
    assert "(writable)" in whole
    monkeypatch.setattr(installation, "is_there", lambda module: module not in ("soundfile", "fastapi"))
    report = list(installation_lines())
    assert any(line.startswith("media      missing soundfile: would give recordings") for line in report)
    assert any(line.startswith("export     onnx ") for line in report)
    assert report[-1] == "to add what is missing: pip install 'dragoman[serve,media]'"
    refused = call("check", "--installation", "pairs.tsv")
    assert (refused.code, refused.err.count("\n")) == (2, 1)


def test_without_torch(tmp_path: Path) -> None:
    """The report says what is missing, and commands that need it refuse in one line."""
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}

    def dragoman(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "dragoman", *words]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    report = dragoman("check", "--installation")
    assert report.returncode == 0
    assert "torch cannot be imported (No module named 'torch')" in report.stdout
    refused = dragoman("new", "translate")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "the package torch is missing: pip install torch" in refused.stderr


def test_the_workflows_are_sound() -> None:
    """zizmor reads them and finds nothing, and every target of make that they name exists."""
    zizmor = Path(sys.executable).with_name("zizmor")
    if not zizmor.exists():
        pytest.skip("zizmor is not installed (pip install zizmor)")
    workflows = ROOT / ".github" / "workflows"
    found = subprocess.run(
        [zizmor, "--offline", "--no-progress", "--color", "never", workflows],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    text = "".join(path.read_text(encoding="utf-8") for path in workflows.iterdir())
    named = {target for line in re.findall(r"run: make ([a-z -]+)$", text, re.MULTILINE) for target in line.split()}
    assert named <= targets
    assert {"docs", "release-check"} <= named


def test_the_issue_forms_are_sound() -> None:
    """GitHub shows no form whose YAML is wrong, such as a question in braces without quotes."""
    forms = {path for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml"}
    assert forms
    for path in forms:
        form = yaml.safe_load(path.read_text(encoding="utf-8"))
        assert {"name", "description", "body"} <= form.keys()
        for item in form["body"]:
            assert item["attributes"].keys() <= {"label", "description", "placeholder", "value", "render"}
            assert all(isinstance(text, str) for text in item["attributes"].values())


def test_the_owner_is_written_by_one_command(tmp_path: Path) -> None:
    placeholder = "O" + "WNER"  # else the command would change this file too
    shutil.copyfile(ROOT / "Makefile", tmp_path / "Makefile")
    before = f"https://github.com/{placeholder}/dragoman https://{placeholder}.github.io/dragoman/ {placeholder}\n"
    (tmp_path / "a.md").write_text(before)
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "check.py").write_text(before)
    for words in (["git", "init", "-q"], ["git", "add", "-A"], ["make", "owner", "O" + "WNER=some-body"]):
        subprocess.run(words, cwd=tmp_path, check=True, capture_output=True)
    after = f"https://github.com/some-body/dragoman https://some-body.github.io/dragoman/ {placeholder}\n"
    assert ((tmp_path / "a.md").read_text(), (tmp_path / "tools" / "check.py").read_text()) == (after, before)
    assert (tmp_path / "Makefile").read_text() == (ROOT / "Makefile").read_text()
    assert not list(tmp_path.glob("*.bak"))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with sdist and wheel, built from a clean copy of what git has."""
    place = tmp_path_factory.mktemp("build")
    archive = subprocess.run(["git", "-C", str(ROOT), "archive", "HEAD"], capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x", "-C", str(place)], input=archive, check=True)
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", "dist"], cwd=place, capture_output=True, check=True
    )
    return place / "dist"


def test_what_the_wheel_and_the_sdist_hold(built: Path) -> None:
    wheel = built / f"dragoman-{__version__}-py3-none-any.whl"
    assert wheel.stat().st_size < WHEEL_MEGABYTES * 1e6
    with zipfile.ZipFile(wheel) as archive:
        files = {info.filename: info.file_size for info in archive.infolist()}
        described = archive.read(f"dragoman-{__version__}.dist-info/METADATA").decode()
    tracked = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "dragoman"], capture_output=True, text=True, check=True
    )
    own = {name for name in files if not name.startswith(f"dragoman-{__version__}.dist-info/")}
    assert own == set(tracked.stdout.split())  # nothing else, such as data, tests or compiled files
    assert {name.rpartition("/")[2] for name in set(files) - own} == {
        "METADATA",
        "WHEEL",
        "RECORD",
        "LICENSE",
        "entry_points.txt",
    }
    assert max(files.values()) < 200_000
    assert "Requires-Python: >=3.11" in described
    assert "License-Expression: Apache-2.0" in described
    home = PROJECT["urls"]["Homepage"]
    assert f"]({home.replace('github.com', 'raw.githubusercontent.com')}/main/docs/images/page.png)" in described
    links = re.findall(r"\]\((\S+?)\)", described.partition("\n\n")[2])
    assert len(links) > 20
    assert [link for link in links if not link.startswith("https://")] == []  # PyPI has no other files
    with tarfile.open(built / f"dragoman-{__version__}.tar.gz") as sources:
        inside = {member.name.partition("/")[2] for member in sources.getmembers()}
    assert {"pyproject.toml", "LICENSE", "dragoman/__init__.py", "tests/conftest.py"} <= inside
    assert not [name for name in inside if name.startswith(("benchmarks/", "recipes/", ".")) and name != ".gitignore"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("extras", ["demo", "all,demo"])
def test_a_fresh_environment_runs_everything(built: Path, tmp_path: Path, extras: str) -> None:
    """Outside the checkout, with the core alone and with all extras."""
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    binaries = tmp_path / "venv" / "bin"
    wheel = next(built.glob("*.whl"))
    needs = [f"dragoman[{extras}] @ {wheel.as_uri()}", "-c", str(ROOT / "constraints.txt")]
    subprocess.run([binaries / "python", "-m", "pip", "install", "--quiet", "--no-compile", *needs], check=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment |= {"DRAGOMAN_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}

    def dragoman(*arguments: str, code: int = 0) -> str:
        done = subprocess.run(
            [binaries / "dragoman", *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stderr[-2000:]
        return done.stdout + done.stderr

    report = dragoman("check", "--installation")
    assert ("all extras are there" in report) == ("all" in extras)
    dragoman(
        "demo", "--preset", "demo-rnn", "--run", "demo", "train.steps=4", "train.validate_every=4", "train.decode=4"
    )
    pairs = [f"{number}\t{' '.join('abcdefghij'[int(digit)] for digit in str(number))}" for number in range(100, 400)]
    (tmp_path / "pairs.tsv").write_text("\n".join(pairs) + "\n")
    dragoman(
        "train", "pairs.tsv", "preset=transformer-tiny", "train.steps=4", "train.validate_every=4", "train.decode=4"
    )
    (tmp_path / "input.txt").write_text("123\n321\n")
    assert len(dragoman("predict", "runs/pairs", "input.txt").splitlines()) >= 2
    dragoman("inspect", "runs/pairs", "123", "--output", "page.html")
    assert (tmp_path / "page.html").stat().st_size > 10_000
    if "all" not in extras:
        assert "pip install 'dragoman[serve]'" in dragoman("serve", "runs/pairs", code=2)
        return
    for page in served(binaries, tmp_path, environment):
        assert "<title" in page


def served(binaries: Path, folder: Path, environment: dict[str, str]) -> Iterator[str]:
    """The page of a server that runs meanwhile."""
    port = free_port()
    with subprocess.Popen(
        [binaries / "dragoman", "serve", "runs/pairs", "--port", str(port)], cwd=folder, env=environment
    ) as server:
        try:
            for _ in range(600):
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5) as answer:
                        yield answer.read().decode()
                    return
                except OSError:
                    time.sleep(0.1)
            raise AssertionError("the server did not start in a minute")
        finally:
            server.terminate()
            server.wait(timeout=60)
