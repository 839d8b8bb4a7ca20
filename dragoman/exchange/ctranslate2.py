"""What other code asks about CTranslate2: its package, the models that it runs, and the model folder of a run.

Nothing here imports torch: a run whose model folder is written predicts without it. `ctranslate2_export` writes one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dragoman.data.source_reader import SourceReader
from dragoman.decoding.hypothesis import SUPPRESSED_TOKENS
from dragoman.errors import ConfigError, MissingExtraError
from dragoman.exchange.exporter import PLAIN, transformer_blockers
from dragoman.files import digests
from dragoman.layers.config import LearnedConfig
from dragoman.models.config import TransformerConfig

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


def made_from(folder: Path, weights: str, files: Sequence[str]) -> dict[str, Any]:
    """What a model folder says about itself: hashes of the weights and of its files, which CTranslate2 trusts."""
    hashes = dict(zip((path.name for path in files_of(folder)), files, strict=True))
    return {"weights": weights, "format": FORMAT, "ctranslate2": package().__version__, "files": hashes}


def written_folder(run: Path, weights: Path, precision: str) -> Path | None:
    """The model folder of a run; None: it was never written, from other weights, or its files have changed."""
    folder = folder_of(run, precision)
    try:
        table = json.loads((folder / MADE_FROM).read_text(encoding="utf-8"))
        own, *others = digests([weights, *files_of(folder)])
        return folder if table == made_from(folder, own, others) else None
    except (OSError, ValueError):
        return None
