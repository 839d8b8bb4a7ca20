"""onnxruntime-web, the runtime inside exported pages: from a folder of the user, from our cache, or from npm."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

from dragoman.base import DragomanError, cache_home

VERSION = "1.30.0"  # of onnxruntime-web, which pages were tested with
PACKAGE = f"onnxruntime-web@{VERSION}"
MODULE = "ort.wasm.bundle.min.mjs"
BINARY = "ort-wasm-simd-threaded.wasm"
FILES = (MODULE, BINARY)
ADVICE = f"npm pack {PACKAGE} && tar xf onnxruntime-web-{VERSION}.tgz, then: dragoman export … --runtime package"


def find_runtime(folder: str | None) -> Path:
    """The folder with FILES: that of the unpacked npm package, or else our cache, which npm fills once."""
    if folder is not None:
        for place in (Path(folder), Path(folder) / "dist", Path(folder) / "node_modules" / "onnxruntime-web" / "dist"):
            if has_files(place):
                return place
        raise DragomanError(
            f"--runtime: found no dist/{MODULE} and dist/{BINARY} in {folder}, expected the unpacked npm package "
            f"onnxruntime-web; get it with: {ADVICE}"
        )
    cached = cache_home() / f"onnxruntime-web-{VERSION}"
    return cached if has_files(cached) else download(cached)


def has_files(folder: Path) -> bool:
    return all((folder / name).is_file() for name in FILES)


def download(target: Path) -> Path:
    """Fetch the package by npm, which checks it against the hash of the registry, and keep the two files."""
    npm = shutil.which("npm")
    if npm is None:
        raise DragomanError(
            "export --to web needs onnxruntime-web, and found neither --runtime nor the program npm. Install Node.js "
            f"with npm (https://nodejs.org), or on any machine that has it: {ADVICE}"
        )
    with tempfile.TemporaryDirectory() as scratch:
        command = [npm, "pack", PACKAGE, "--ignore-scripts", "--silent", "--pack-destination", scratch]
        done = subprocess.run(command, cwd=scratch, capture_output=True, text=True, check=False)
        archives = list(Path(scratch).glob("*.tgz"))
        if done.returncode or not archives:
            reason = " ".join((done.stderr or done.stdout).split())[-300:] or f"exit code {done.returncode}"
            raise DragomanError(f"npm could not fetch {PACKAGE} ({reason}). Where there is a network: {ADVICE}")
        part = Path(scratch) / "files"
        part.mkdir()
        with tarfile.open(archives[0]) as archive:
            for name in FILES:
                member = archive.extractfile(f"package/dist/{name}")
                assert member is not None, f"{PACKAGE} has {name}"
                (part / name).write_bytes(member.read())
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(part, target, dirs_exist_ok=True)
    return target
