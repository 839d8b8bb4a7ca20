"""Read a model folder in the format of Hugging Face: settings, generation settings, weights, licence. No pickles."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from dragoman.base import DataError

Choice = TypeVar("Choice")
MAX_JSON = 64 << 20  # bytes
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "tf_model.h5", "flax_model.msgpack")


class Checkpoint:
    """An opened model folder; use it in a `with` block."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise DataError(f"{self.folder}: expected a model folder with config.json and model.safetensors")
        self.config = self.json("config.json")
        # Older folders keep the generation settings in config.json.
        self.generation = self.config | (self.json("generation_config.json", optional=True) or {})
        self._files = ExitStack()
        self._tensors: dict[str, tuple[Any, str]] = {}  # name → the opened file that holds it, and its name there

    def __enter__(self) -> Checkpoint:
        try:
            for path in self._weight_files():
                opened = self._files.enter_context(safe_open(path, "pt"))
                # Folders converted from TensorFlow have gamma and beta for the weight and bias of a norm.
                names = {name: name.replace(".gamma", ".weight").replace(".beta", ".bias") for name in opened.keys()}  # noqa: SIM118
                self._tensors |= {new: (opened, name) for name, new in names.items()}
        except (SafetensorError, OSError) as error:
            raise DataError(f"{path}: damaged weights ({error})") from None
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()

    @property
    def family(self) -> str:
        return str(self.config.get("model_type", ""))

    def setting(self, name: str, kind: type | tuple[type, ...], default: Any = None) -> Any:
        """A value of config.json; an error if it is missing without a default or has another type."""
        value = self.config.get(name, default)
        wrong_bool = isinstance(value, bool) and kind not in (bool, (bool, int))
        if value is None or not isinstance(value, kind) or wrong_bool:
            expected = kind.__name__ if isinstance(kind, type) else " or ".join(each.__name__ for each in kind)
            raise self.wrong(name, "nothing" if value is None else repr(value), expected)
        return value

    def wrong(self, name: str, found: object, expected: str) -> DataError:
        return DataError(f"{self.folder / 'config.json'}: {name}: found {found}, expected {expected}")

    def number(self, name: str, default: float) -> float:
        return float(self.setting(name, (float, int), default))

    def choice(self, name: str, table: Mapping[str, Choice], default: str | None = None) -> Choice:
        """The entry of a table that a text of config.json names."""
        value: str = self.setting(name, str, default)
        if value not in table:
            raise self.wrong(name, repr(value), f"one of {', '.join(sorted(table))}")
        return table[value]

    def size(self, name: str, default: int | None = None, most: int = 1_000_000) -> int:
        value: int = self.setting(name, int, default)
        if not 1 <= value <= most:
            raise self.wrong(name, value, f"from 1 to {most}")
        return value

    def vocabulary(self, *tables: str) -> int:
        """The number of tokens: that of config.json, which must be that of the first of these tables that is there."""
        size = self.size("vocab_size", most=10_000_000)
        name = next((name for name in tables if name in self._tensors), tables[0])
        shape = self.shape(name)
        if len(shape) != 2 or shape[0] != size:
            raise DataError(f"{self.folder}: {name}: found the shape {list(shape)}, expected {size} rows (vocab_size)")
        return size

    def json(self, name: str, optional: bool = False) -> Any:
        """The object in a JSON file of the folder; None if it is optional and missing."""
        path = self.folder / name
        try:
            if path.stat().st_size > MAX_JSON:
                raise DataError(f"{path}: found {path.stat().st_size:,} bytes, expected at most {MAX_JSON:,}")
            table = json.loads(path.read_bytes())
        except FileNotFoundError:
            if optional:
                return None
            raise DataError(f"{path}: no such file; expected a model folder of Hugging Face") from None
        except (OSError, ValueError, RecursionError) as error:
            raise DataError(f"{path}: cannot be read as JSON ({error})") from None
        if not isinstance(table, dict):
            raise DataError(f"{path}: found {type(table).__name__}, expected a JSON object")
        return table

    def file(self, name: str) -> bytes:
        try:
            return (self.folder / name).read_bytes()
        except OSError as error:
            raise DataError(f"{self.folder / name}: cannot be read ({error.strerror})") from None

    def _weight_files(self) -> Iterator[Path]:
        single, index = self.folder / "model.safetensors", self.folder / "model.safetensors.index.json"
        if single.is_file():
            yield single
        elif index.is_file():
            shards = self.json(index.name).get("weight_map", {})
            names = set(shards.values()) if isinstance(shards, dict) else set()
            for name in sorted(map(str, names)):
                if Path(name).name != name or not name.endswith(".safetensors"):
                    raise DataError(f"{index}: found the shard {name!r}, expected a .safetensors file of this folder")
                yield self.folder / name
        else:
            pickled = next((name for name in PICKLES if (self.folder / name).exists()), None)
            advice = (
                f"; it has only {pickled}, which may hold code and is not opened. Convert it where you trust it: "
                f"AutoModel.from_pretrained(FOLDER).save_pretrained(NEW, safe_serialization=True)"
                if pickled
                else ""
            )
            raise DataError(f"{self.folder}: found no model.safetensors{advice}")

    def names(self) -> set[str]:
        return set(self._tensors)

    def shape(self, name: str) -> Sequence[int]:
        if name not in self._tensors:
            raise DataError(f"{self.folder}: the weights have no {name}")
        opened, stored = self._tensors[name]
        shape: Sequence[int] = opened.get_slice(stored).get_shape()
        return shape

    def tensor(self, name: str, shape: Sequence[int] | None = None) -> Tensor:
        """A weight in float32; an error if it is missing or has another shape."""
        actual = self.shape(name)
        if shape is not None and list(shape) != list(actual):
            raise DataError(f"{self.folder}: {name}: found the shape {list(actual)}, expected {list(shape)}")
        opened, stored = self._tensors[name]
        tensor: Tensor = opened.get_tensor(stored).to(torch.float32)
        if not torch.isfinite(tensor).all():
            raise DataError(f"{self.folder}: {name}: found NaN or infinite values")
        return tensor

    def licence(self) -> str:
        """What the folder says about its licence: the model card's entry, or the first line of LICENSE; or empty."""
        card = self.folder / "README.md"
        if card.is_file():
            head = card.read_text(encoding="utf-8", errors="replace")[:20_000].split("---")
            for line in head[1].splitlines() if len(head) > 2 else []:
                name, _, value = line.partition(":")
                if name.strip() in ("license", "licence"):
                    return value.strip().strip("'\"")
        for name in ("LICENSE", "LICENSE.txt", "LICENCE", "COPYING"):
            if (self.folder / name).is_file():
                lines = (self.folder / name).read_text(encoding="utf-8", errors="replace")[:2000].split("\n")
                return next((line.strip() for line in lines if line.strip()), "")
        return ""
