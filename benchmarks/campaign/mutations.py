"""Mutate configurations, data files, run folders, tokenizers, engines and media files.

Each case must end well or in one DragomanError, within 5 seconds and 1 GB. A case is a pure function of its kind and
number, so that `--only KIND:NUMBER` repeats it.

python benchmarks/campaign/mutations.py [COUNT] [--kinds config,data,tokenizer,run,engine,media] [--processes N]
    [--seconds S] [--output FAILURES] [--seed SEED] [--only KIND:NUMBER]
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import json
import mmap
import os
import random
import re
import resource
import shutil
import signal
import struct
import sys
import tarfile
import time
import tomllib
import traceback
import warnings
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Collection
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.campaign.lanes import Lanes, Outcome, add_options, scratch

MAX_SECONDS, MAX_BYTES = 5, 1 << 30
# Kinds, and how many of 49 cases they get: cheap ones have more.
SHARES = {"config": 12, "data": 8, "document": 8, "tokenizer": 8, "run": 4, "engine": 1, "media": 8}
KINDS = tuple(SHARES)
ODD_VALUES: list[Any] = [
    *(-1, 0, 1, 2, 3, 7, 2**31, 2**63, -(2**63), 1e308, -0.0, 0.5, float("nan"), float("inf"), True, False),
    *("", " ", "none", "auto", "transformer", "x" * 5000, "\x1b[31m", "../..", "/dev/null", "ü\u202e", "1", "[", "0x1"),
    *([], [1], ["a", "b"], [[]], {}, {"kind": "transformer"}, {"kind": 3}, {"": ""}, {"run": "missing"}),
]
ODD_BYTES = [
    b"\0",
    b"\xff",
    b"\t",
    b"\n",
    b"\r\n",
    b"\x1b[2J",
    b"{",
    b"}",
    b'"',
    b"\xed\xa0\x80",
    b"\xf0\x9f",
    b"-1",
    b"1e999",
]
MARKS = [
    *b"< > </ /> <b> </b> <!-- --> <![CDATA[ ]]> <?x & &#0; &amp; &b; ** _ ` [ ]( ) ![ # | <script> </script>".split(),
    *b"<pre> <g/> <target> </source> <w:t> <w:p/>".split(),
    *(b"- ", b"> ", b"\n\n", b"```\n", b"\\", b'"', b"<a x='", b"\xef\xbb\xbf", b"<!DOCTYPE a [<!ENTITY b 'c'>]>"),
    *(b"00:00:01,000 --> 00:00:02,000\n", b'msgid "', b'msgstr[9] "a"\n'),
]
SIZES = [0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]


# ---------------------------------------------------------------------- mutations


def mutate_value(value: Any, draw: random.Random) -> Any:
    """A nested table or list with one part replaced, removed, renamed or moved."""
    value = copy.deepcopy(value)
    places: list[tuple[Any, Any]] = []

    def visit(node: Any) -> None:
        for key in list(node) if isinstance(node, dict) else range(len(node)):
            places.append((node, key))
            if isinstance(node[key], dict | list):
                visit(node[key])

    if not isinstance(value, dict | list):
        return draw.choice(ODD_VALUES)
    visit(value)
    if not places:
        return draw.choice(ODD_VALUES)
    owner, key = draw.choice(places)
    how = draw.randrange(6)
    if how <= 2:
        owner[key] = copy.deepcopy(draw.choice(ODD_VALUES))
    elif how == 3:
        del owner[key]
    elif how == 4 and isinstance(owner, dict):
        owner[str(key)[:-1] or "x"] = owner.pop(key)
    else:
        other, place = draw.choice(places)
        owner[key] = copy.deepcopy(
            other.get(place) if isinstance(other, dict) else (other[place : place + 1] or [0])[0]
        )
    return value


def mutate_bytes(data: bytes, draw: random.Random) -> bytes:
    """Some bytes changed, inserted, removed or repeated; lengths in headers replaced."""
    out = bytearray(data)
    for _ in range(draw.choice((1, 1, 1, 2, 5, 20))):
        place = draw.randrange(len(out) + 1) if draw.random() < 0.5 else draw.randrange(min(len(out), 200) + 1)
        how = draw.randrange(7)
        if how == 0 and place < len(out):
            out[place] ^= 1 << draw.randrange(8)
        elif how == 1:
            out[place:place] = draw.choice(ODD_BYTES) * draw.choice((1, 1, 1000))
        elif how == 2:
            del out[place : place + draw.choice((1, 4, 100))]
        elif how == 3:
            del out[place:]
        elif how == 4:
            out[place:place] = out[place : place + draw.randrange(1, 300)]
        elif how == 5:
            form = draw.choice(("<I", ">I", "<H", ">H", "<Q"))
            part = struct.pack(form, draw.choice(SIZES) & ((1 << 8 * struct.calcsize(form)) - 1))
            out[place : place + len(part)] = part
        elif out:
            out[place : place + 1] = bytes([draw.randrange(256)])
    return bytes(out)


def mutate_markup(data: bytes, draw: random.Random) -> bytes:
    """Some marks inserted, or stretches between marks moved, repeated or removed."""
    parts = re.split(rb"(?<=[>\n*`\]])|(?=[<&\[])", data)
    for _ in range(draw.choice((1, 2, 5))):
        place, other = draw.randrange(len(parts) + 1), draw.randrange(len(parts) + 1)
        how = draw.randrange(4)
        if how == 0:
            parts.insert(place, draw.choice(MARKS) * draw.choice((1, 1, 1, 500)))
        elif how == 1:
            parts[place:place] = parts[other : other + draw.randrange(1, 4)]
        elif how == 2:
            del parts[place : place + draw.randrange(1, 4)]
        else:
            parts[place : place + 1] = [mutate_bytes(b"".join(parts[place : place + 1]), draw)]
    return b"".join(parts)


def mutate_member(data: bytes, draw: random.Random) -> bytes:
    """A ZIP archive with one member changed, removed, renamed or doubled."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = [(info.filename, archive.read(info)) for info in archive.infolist()]
    except (zipfile.BadZipFile, NotImplementedError, OSError, ValueError, RuntimeError, EOFError, zlib.error):
        return mutate_bytes(data, draw)  # mutated before
    if not members:
        return data
    place = draw.randrange(len(members))
    name, content = members[place]
    how = draw.randrange(8)
    if how == 0:
        del members[place]
    elif how == 1:
        members[place] = (draw.choice(("../../a.xml", "/a", "", name.upper(), "a" * 300)), content)
    elif how == 2:
        members.append((name, mutate_markup(content, draw)))
    else:
        members[place] = (name, mutate_markup(content, draw) if how < 6 else mutate_bytes(content, draw))
    out = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        warnings.simplefilter("ignore")
        for name, content in members:
            archive.writestr(zipfile.ZipInfo(name or "x"), content)
    return out.getvalue()


def mutate_structure(suffix: str, data: bytes, draw: random.Random) -> bytes:
    """A file with one value changed; ValueError for a file without a structure."""
    if suffix == ".json":
        return json.dumps(mutate_value(json.loads(data), draw)).encode()
    if suffix == ".jsonl":
        rows = data.decode().splitlines()
        place = draw.randrange(len(rows))
        rows[place] = json.dumps(mutate_value(json.loads(rows[place]), draw))
        return ("\n".join(rows) + "\n").encode()
    if suffix == ".toml":
        return toml(mutate_value(tomllib.loads(data.decode()), draw))
    if suffix == ".safetensors":
        size = int.from_bytes(data[:8], "little")  # also of a file that was cut short before
        header = json.dumps(mutate_value(json.loads(data[8 : 8 + size]), draw)).encode()
        return struct.pack("<Q", len(header)) + header + data[8 + size :]
    raise ValueError(suffix)


def toml(table: Any) -> bytes:
    """A table as TOML."""
    from dragoman.base.config import inline

    content = table if isinstance(table, dict) else {"data": table}
    return "".join(f"{json.dumps(key)} = {inline(part)}\n" for key, part in content.items()).encode()


def mutate_file(path: Path, draw: random.Random) -> None:
    """Change a file, by its structure where it has one."""
    data = path.read_bytes()
    path.unlink()  # it may be a hard link to the sound file
    if draw.random() < 0.05:
        return
    if draw.random() < 0.6:
        with contextlib.suppress(ValueError):  # mutated before
            path.write_bytes(mutate_structure(path.suffix, data, draw))
            return
    path.write_bytes(mutate_bytes(data, draw))


# ---------------------------------------------------------------------- what is mutated


class Subjects:
    """Sound files of every kind in a folder, and for each kind what a user would do with a mutated copy."""

    def __init__(self, folder: Path, kinds: Collection[str]) -> None:
        self.folder = folder
        self.scratch = folder / "scratch"
        (folder / "data").mkdir()
        (folder / "media").mkdir()
        write_data(folder / "data")
        if "media" in kinds:
            write_media(folder / "media")
        self.tables = config_tables()
        import torch

        with torch.device("meta"):
            torch.nn.Linear(2, 2)  # imports what a case would import in its time
        if not {"tokenizer", "run", "engine"} & set(kinds):
            return
        child = os.fork()  # a process that has computed gradients must not be forked
        if not child:
            code = 1
            try:
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
                train_runs(folder)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0, "training failed"
        self.runs = sorted((folder / "runs").iterdir())

    def config(self, draw: random.Random) -> None:
        """Build a configuration, write it, read it back, and build its model without memory."""
        import torch

        from dragoman.base import config as settings
        from dragoman.models.config import EncoderDecoderConfig
        from dragoman.runs.tasks import config
        from dragoman.runs.tasks.table import task_of
        from dragoman.training.capacity import is_unusual

        table = draw.choice(self.tables)
        for _ in range(draw.choice((1, 1, 2, 4))):
            table = mutate_value(table, draw)
        path = self.scratch / "a.toml"
        text = toml(table)
        path.write_bytes(mutate_bytes(text, draw) if draw.random() < 0.2 else text)
        built = config.load(path)
        path.write_text(settings.dump(built))
        assert settings.as_table(config.load(path)) == settings.as_table(built) or "nan" in settings.dump(built)
        if isinstance(built.model, EncoderDecoderConfig) and not is_unusual(settings.as_table(built.model)):
            from dragoman.runs.tasks.translate import build_model

            with torch.device("meta"):
                build_model(built, 12, 12)
        assert task_of(built)

    def data(self, draw: random.Random) -> None:
        """Read a file of pairs, sentences or texts to its end."""
        from dragoman.data.readers.base import ReadOptions
        from dragoman.data.readers.conll import read_conll
        from dragoman.data.readers.pairs import read_pairs

        source = draw.choice(sorted((self.folder / "data").iterdir()))
        path = self.scratch / source.name
        shutil.copy(source, path)
        mutate_file(path, draw)
        if ".conll" in source.name:
            for _ in read_conll(str(path), ReadOptions(columns=(), max_characters=10_000)):
                pass
        else:
            columns = draw.choice(((), ("2", "1"), ("source", "target"), ("1", "9")))
            for _ in read_pairs(
                path, ReadOptions(columns=columns, header=draw.random() < 0.2, numbers=draw.random() < 0.2)
            ):
                pass

    def document(self, draw: random.Random) -> None:
        """Open a document, and write it as it is and with other texts."""
        from dragoman.documents.base import Reading
        from dragoman.documents.registry import open_document
        from tests.documents.samples import SAMPLES, outputs

        name = draw.choice(sorted(SAMPLES))
        data = SAMPLES[name]
        for _ in range(draw.choice((1, 1, 3))):
            if name.endswith(".docx") and draw.random() < 0.8:
                data = mutate_member(data, draw)
            else:
                data = mutate_markup(data, draw) if draw.random() < 0.6 else mutate_bytes(data, draw)
        document = open_document(name, data, Reading(target="de"))
        assert document.render([None] * len(document.units)) == data, "written otherwise than it was read"
        document.render(outputs(document, str.upper))
        open_document(name, document.render(outputs(document, lambda text: f"{text} ]]> --> <b>\n\n{text}")))

    def copied(self, draw: random.Random) -> tuple[Path, list[str]]:
        """A copy of a run, and inputs for it."""
        run = draw.choice(self.runs)
        target = self.scratch / "run"
        shutil.copytree(run, target, copy_function=os.link)
        files = sorted(str(path) for path in (self.folder / run.name).glob("0.*"))  # of a task that reads files
        return target, files or ["abc", "one [MASK]"]

    def tokenizer(self, draw: random.Random) -> None:
        """Load a tokenizer; encode and decode with it."""
        from dragoman.data.tokenizers.load import load_tokenizer

        folder = self.scratch / "tokenizer"
        shutil.copytree(draw.choice(self.runs) / "tokenizer", folder)
        mutate_file(draw.choice(sorted(folder.iterdir())), draw)
        for side in ("source", "target"):
            tokenizer = load_tokenizer(folder, side)
            if tokenizer.is_text:
                tokenizer.decode(tokenizer.encode("abc ü 語 12"))

    def run(self, draw: random.Random) -> None:
        """Open a run, predict with it, show its information, read its checkpoints."""
        from dragoman.base.errors import DragomanError
        from dragoman.inference.load import load_run
        from dragoman.inspect.measure.run_summary import run_information
        from dragoman.runs import Run
        from dragoman.training.checkpoints import Checkpoints

        run, inputs = self.copied(draw)
        files = sorted(path for path in run.rglob("*") if path.is_file() and "ctranslate2" not in str(path))
        for _ in range(draw.choice((1, 1, 3))):
            mutate_file(draw.choice(files), draw)
            files = [path for path in files if path.exists()]
        uses: list[Callable[[], Any]] = [
            lambda: apply(load_run(run, engine="torch"), inputs),
            lambda: run_information(str(run)),
            lambda: Run(run).metrics(),
            lambda: [Checkpoints(run).load(step) for step in Checkpoints(run).steps()],
        ]
        refused = None
        for use in uses:
            try:
                use()
            except DragomanError as error:
                refused = error
        if refused is not None:
            raise refused

    def engine(self, draw: random.Random) -> None:
        """Predict by CTranslate2 after its files were damaged."""
        import dragoman

        run = self.scratch / "run"
        shutil.copytree(self.folder / "runs" / "translate", run)
        mutate_file(draw.choice(sorted((run / "ctranslate2-float32").iterdir())), draw)
        dragoman.load(run, engine="ctranslate2").predict(["abc"])

    def media(self, draw: random.Random) -> None:
        """Decode a recording or a picture, or read an archive."""
        from dragoman.data.media.audio import AudioConfig
        from dragoman.data.media.files import members, read_many
        from dragoman.data.media.images import LineImageConfig, PictureConfig

        source = draw.choice(sorted((self.folder / "media").iterdir()))
        data = source.read_bytes()
        for _ in range(draw.choice((1, 1, 3))):
            data = mutate_bytes(data, draw)
        if ".tar" in source.name:
            path = self.scratch / source.name
            path.write_bytes(data)
            for _ in read_many([f"{path}::{name}" for name in list(members(str(path)))[:50]]):
                pass
        elif source.suffix in (".wav", ".flac", ".ogg", ".aiff"):
            AudioConfig(resample=True).decode(data, source.name)
        else:
            draw.choice((LineImageConfig(), PictureConfig())).decode(data, source.name)


def apply(loaded: Any, inputs: list[str]) -> None:
    """Predict or complete, as the run's task says."""
    if hasattr(loaded, "complete"):
        loaded.complete(["one", "ü"], max_length=3)
        loaded.rate(["one"])
    else:
        loaded.predict(inputs)


def config_tables() -> list[dict[str, Any]]:
    """The starter of every task, all presets, and settings that starters leave out."""
    from dragoman.base.errors import ConfigError
    from dragoman.runs.tasks.config import build, preset_names, preset_table
    from dragoman.runs.tasks.table import TASKS
    from tests.training.kill_driver import CASES, table

    presets = [preset_table(name) | {"data": {"train": "a.tsv"}} for name in preset_names()]
    starters = [{"task": name} | json.loads(json.dumps(task.starter[1])) for name, task in TASKS.items()]
    tables = [*starters, *presets, *(table(Path("pairs.tsv"), case) for case in CASES)]
    sound = []
    for one in tables:
        with contextlib.suppress(ConfigError):  # some presets need settings that fit the data
            build(one)
            sound.append(one)
    return sound


def write_data(folder: Path) -> None:
    """One file of every format."""
    import gzip

    rows = [(f"word{number} a", f"WORD{number} Ä") for number in range(30)]
    tsv = "".join("\t".join(row) + "\n" for row in rows).encode()
    (folder / "a.tsv").write_bytes(tsv)
    (folder / "a.tsv.gz").write_bytes(gzip.compress(tsv, mtime=0))
    (folder / "a.jsonl").write_text("".join(json.dumps({"source": a, "target": b}) + "\n" for a, b in rows))
    (folder / "a.csv").write_text("".join(f'"{a}","{b}, ""x"""\n' for a, b in rows))
    units = "".join(
        f'<tu><tuv xml:lang="1"><seg>{a}</seg></tuv><tuv xml:lang="2"><seg>{b}<ph/></seg></tuv></tu>' for a, b in rows
    )
    (folder / "a.tmx").write_text(f'<?xml version="1.0"?><tmx version="1.4"><header/><body>{units}</body></tmx>')
    (folder / "a.conllu").write_text("".join(f"1\tw{n}\t_\tNOUN\t_\t_\t0\t_\t_\t_\n\n" for n in range(20)))
    try:
        import pyarrow
        import pyarrow.parquet

        table = pyarrow.table({"source": [a for a, _ in rows], "target": [b for _, b in rows]})
        pyarrow.parquet.write_table(table, folder / "a.parquet")
    except ImportError:
        pass
    try:
        from backports import zstd

        (folder / "a.tsv.zst").write_bytes(zstd.compress(tsv))
    except ImportError:
        pass


def write_media(folder: Path) -> None:
    """Recordings, pictures and archives of every format."""
    import numpy as np

    try:
        import soundfile

        noise = (0.1 * np.random.default_rng(0).standard_normal((4000, 2))).astype(np.float32)
        for suffix in ("wav", "flac", "ogg", "aiff"):
            soundfile.write(folder / f"a.{suffix}", noise, 8000)
    except ImportError:
        print("media: recordings are left out, since soundfile is not installed")
    try:
        from PIL import Image

        pixels = np.random.default_rng(0).integers(0, 255, (40, 60, 3), dtype=np.uint8)
        for suffix in ("png", "jpg", "tif", "gif", "bmp", "ppm", "webp"):
            Image.fromarray(pixels).save(folder / f"a.{suffix}")
    except ImportError:
        print("media: pictures are left out, since pillow is not installed")
    for name, mode in (("a.tar", "w"), ("a.tar.gz", "w:gz")):
        with tarfile.open(folder / name, mode, format=tarfile.GNU_FORMAT) as tar:  # type: ignore[call-overload]
            for number in range(6):
                member = tarfile.TarInfo(f"folder/{'long' * 40 * (number == 3)}{number}.wav")
                member.size = 700
                tar.addfile(member, io.BytesIO(bytes(700)))


def train_runs(folder: Path) -> None:
    """Tiny runs of all tasks; the first one with the files of CTranslate2, a calibration and a shortlist."""
    import dragoman
    from dragoman.cli import guarded
    from tests.training.kill_driver import NEEDS, TASKS, task_table, write_task_data

    ticks = count()
    time.perf_counter = lambda: next(ticks) / 1000  # files with times have the same bytes every time
    small = {"kind": "transformer", "layers": 1, "width": 16, "heads": 2, "feedforward": 32}
    train = {"steps": 4, "validate_every": 2, "save_every": 2, "log_every": 1, "device": "cpu"}
    train |= {"optimizer": {"learning_rate": 1e-2, "warmup": 1}}
    (folder / "pairs.tsv").write_text("".join(f"{'abcdefgh'[n % 8 :]}{n}\t{n}x\n" for n in range(60)))
    (folder / "labels.tsv").write_text("".join(f"some text {n}\t{'ab'[n % 2]}\n" for n in range(60)))
    tables: dict[str, dict[str, Any]] = {
        "translate": {
            "data": {"train": str(folder / "pairs.tsv")}, "tokenizer": {"source": {"kind": "characters"}},
            "model": {"encoder": small, "decoder": small},
        },
        "subwords": {
            "data": {"train": str(folder / "pairs.tsv")},
            "tokenizer": {"source": {"kind": "subwords", "vocab_size": 290}},
            "model": {"encoder": small, "decoder": small},
        },
        "classify": {
            "task": "classify", "data": {"train": str(folder / "labels.tsv")},
            "tokenizer": {"source": {"kind": "words"}},
            "model": {"encoder": small},
        },
    }  # fmt: skip
    tasks = [task for task in TASKS if task not in tables and (task not in NEEDS or find_spec(NEEDS[task]))]
    tables |= {task: task_table(write_task_data(folder, task), task) for task in tasks}
    for name, table in tables.items():
        search = {} if "task" in table else {"search": {"beam": 2, "max_length": 6}}
        dragoman.train(table | search | {"train": train}, folder / "runs" / name, quiet=True)
    run = str(folder / "runs" / "translate")
    assert guarded(["calibrate", run, str(folder / "pairs.tsv")]) == 0
    if find_spec("ctranslate2") is not None:
        assert dragoman.load(run, engine="ctranslate2").predict(["abc"])


# ---------------------------------------------------------------------- running


class TooSlow(BaseException):
    """A case took longer than it may."""


def run_case(subjects: Subjects, kind: str, number: int, seed: int) -> str:
    """How a case ends: "well", "refused", or what went wrong."""
    from dragoman.base.errors import DragomanError

    signal.alarm(MAX_SECONDS * 4)  # of a busy machine; CPU time is what counts
    start = time.process_time()
    try:
        getattr(subjects, kind)(random.Random(f"{seed}/{kind}/{number}"))
        outcome = "well"
    except DragomanError:
        outcome = "refused"
    except TooSlow:
        return f"hangs\n{''.join(traceback.format_exc().splitlines(keepends=True)[-12:])}"
    except BaseException as error:
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if "/dragoman/" in frame.filename][-1:] or frames[-1:]
        return f"{type(error).__name__}: {str(error)[:200]} at {own[0].filename}:{own[0].lineno}"
    finally:
        signal.alarm(0)
    if time.process_time() - start > MAX_SECONDS:
        return f"slow: {time.process_time() - start:.1f} s"
    return outcome


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class Process:
    """Limits of time and memory in the process of a lane, which are set before its first case."""

    def __init__(self, subjects: Subjects, kinds: list[str], seed: int) -> None:
        self.subjects, self.seed = subjects, seed
        self.pattern = [kind for kind in kinds for _ in range(SHARES[kind])]
        self.owner = self.base = 0

    def limit(self) -> None:
        """Set the limits, once in a process."""

        def late(*given: Any) -> None:
            raise TooSlow

        if self.owner == os.getpid():
            return
        self.owner, self.base = os.getpid(), peak()
        signal.signal(signal.SIGALRM, late)
        limit = int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE + 4 * MAX_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))  # a bomb ends the case, not the machine
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)

    def __call__(self, number: int, folder: Path) -> Outcome:
        self.limit()
        size = len(self.pattern)
        kind = self.pattern[(number + number // size) % size]  # so that lanes do not keep to some kinds
        self.subjects.scratch = folder
        outcome = run_case(self.subjects, kind, number, self.seed)
        grown = peak() - self.base
        good = outcome in ("well", "refused")
        if grown > MAX_BYTES and good:
            outcome, good = f"memory: {grown / 1e9:.1f} GB", False
        counts = Counter({f"{kind} {outcome if good else 'FAILED'}": 1})
        failure = "" if good else f"--seed {self.seed} --only {kind}:{number} {outcome}"
        return Outcome(counts, failure, renew=grown > MAX_BYTES // 2)  # the peak never falls


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", nargs="?", type=int, default=10_000)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--only", default="", help="repeat one case, with its traceback")
    add_options(parser)
    arguments = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    with scratch("mutations") as name:
        os.environ["DRAGOMAN_CACHE"] = str(Path(name) / "cache")
        if arguments.only:
            kind, _, number = arguments.only.partition(":")
            subjects = Subjects(Path(name), [kind])
            subjects.scratch.mkdir()
            getattr(subjects, kind)(random.Random(f"{arguments.seed}/{kind}/{number}"))
            return 0
        kinds = present(arguments.kinds.split(","))
        process = Process(Subjects(Path(name), kinds), kinds, arguments.seed)
        lanes = Lanes("mutations", Path(name), arguments, 8 * MAX_SECONDS)
        return lanes.run(arguments.count, process).show()


def present(kinds: list[str]) -> list[str]:
    """The kinds whose packages are installed; says which are left out."""
    if "engine" in kinds and find_spec("ctranslate2") is None:
        print("engine: left out, since ctranslate2 is not installed")
        kinds = [kind for kind in kinds if kind != "engine"]
    return kinds


if __name__ == "__main__":
    sys.exit(main())
