"""What other code asks about CTranslate2: its package, the models that it runs, and the model folder of a run.

Nothing here imports torch: a run whose model folder is written predicts without it. `ctranslate2_export` writes one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dragoman.base import ConfigError, MissingExtraError, digest, digests
from dragoman.data import SourceReader
from dragoman.decoding import SUPPRESSED_TOKENS
from dragoman.inference.engine.exporter import PLAIN, transformer_blockers
from dragoman.models import TransformerConfig
from dragoman.models.layers import LearnedConfig

FORMAT = 1  # of the folder; one of another format is written again
MADE_FROM = "made-from.json"
COPIES = 64  # that share the probability of a token that is never output
POSITIONS = 2048  # rows of the position table, if positions are not learned
IMPOSSIBLE = -1e9  # the logit of a token that is never chosen
PRECISIONS = ("float32", "int8")


def installed() -> bool:
    """Whether the package is installed; it is not imported."""
    return find_spec("ctranslate2") is not None


def package() -> Any:
    if not installed():
        raise MissingExtraError("the engine 'ctranslate2'", "ctranslate2", "fast")
    import ctranslate2

    return ctranslate2


def translator(folder: Path, **options: Any) -> Any:
    """CTranslate2's `Translator` on the CPU.

    Its constructor sets the number of OpenMP threads of the thread that calls it to `intra_threads`. Torch reads the
    same number: it would compute with one thread from then on, and its search take one core. So a thread that then
    ends calls it.
    """
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(package().Translator, str(folder), device="cpu", **options).result()


# ---------------------------------------------------------------------- models that can be exported


def blockers(config: Any) -> list[str]:
    """Every setting of a model that CTranslate2 has no layer for; empty: the model can be exported."""
    return transformer_blockers(config, PLAIN | {"score": ("scaled-dot", "dot")})


def check_exportable(config: Any) -> None:
    if reasons := blockers(config):
        raise ConfigError("CTranslate2 cannot run this model: " + "; ".join(reasons))


def positions_of(config: TransformerConfig) -> int | None:
    """The number of positions of the exported stack; None: any number."""
    if isinstance(config.positions, LearnedConfig):
        return config.positions.max_positions
    return POSITIONS if config.positions.kind in ("sinusoidal", "none") else None


# ---------------------------------------------------------------------- tokens


def copies() -> list[str]:
    return [f"<never written {token}/{number}>" for token in SUPPRESSED_TOKENS for number in range(COPIES)]


def names(tokenizer: SourceReader) -> list[str]:
    """A name for every token id: its piece, or its number where the piece is not a text of its own."""
    known: set[str] = set()
    out = []
    for number, piece in enumerate(tokenizer.pieces(range(len(tokenizer)))):
        try:
            piece.encode("utf-8")
        except UnicodeEncodeError:  # half of a surrogate pair
            piece = ""
        if not piece or piece in known:  # a text may spell "<eos>"
            piece = f"<{number}>"
            while piece in known:
                piece = f"<{piece}>"
        known.add(piece)
        out.append(piece)
    return out


# ---------------------------------------------------------------------- folders


def folder_of(run: Path, precision: str) -> Path:
    return run / f"ctranslate2-{precision}"


def files_of(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.iterdir()) if path.name != MADE_FROM]


def stats_of(paths: Sequence[Path]) -> list[list[int]]:
    """Size and time of change of each file, as JSON has them."""
    return [[stat.st_size, stat.st_mtime_ns] for stat in (path.stat() for path in paths)]


def origin(weights: Path) -> dict[str, Any]:
    """What a model folder says about the weights, as they are before its export begins."""
    return {
        "format": FORMAT,
        "ctranslate2": package().__version__,
        "stats": stats_of([weights]),
        "weights": digest(weights),
    }


def made_from(origin: dict[str, Any], folder: Path) -> dict[str, Any]:
    """What a written model folder says about itself, with hashes of its files: CTranslate2 trusts what it reads."""
    files = files_of(folder)
    hashes = dict(zip((path.name for path in files), digests(files), strict=True))
    return origin | {"files": hashes, "stats": origin["stats"] + stats_of(files)}


def written_folder(run: Path, weights: Path, precision: str) -> Path | None:
    """The model folder of a run; None: it was never written, from other weights, or its files have changed.

    Hashes decide, unless all sizes and times are those of the moment when the folder was written: to hash a large model
    takes longer than to load it.
    """
    folder = folder_of(run, precision)
    try:
        table = json.loads((folder / MADE_FROM).read_text(encoding="utf-8"))
        files = files_of(folder)
        if (table["format"], table["ctranslate2"]) != (FORMAT, package().__version__):
            return None
        same = list(table["files"]) == [path.name for path in files]
        if same and table.get("stats") != stats_of([weights, *files]):
            same = [table["weights"], *table["files"].values()] == digests([weights, *files])
        return folder if same else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
