"""The rules of `data/sentences.py` as an ONNX model for MiniSBD, which splits texts for Argos Translate.

Without a model in the package, Argos Translate downloads one. MiniSBD reads characters and gives each one of three
labels: inside a token, end of a token, end of a sentence. Rules are units of one convolution: a unit is 1 where all its
characters are there and none of those that exclude it, else 0. A sentence ends where an ending rule holds and no veto.
"""

from __future__ import annotations

import json
import sys
import unicodedata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman.base import MissingExtraError
from dragoman.data import ABBREVIATIONS

PAD, UNK = "<PAD>", "<UNK>"
CLASSES = {
    "end": ".!?…",
    "period": ".",
    "closer": "\"'”’»)]",
    "opener": "\"'“‘«([¿¡„",
    "far-eastern end": "。！？",
    "far-eastern closer": "」』”’）",
    "space": " ",
}
LETTERS = "".join(sorted({char for word in ABBREVIATIONS for char in word if char.isalpha()}))
CHANNELS = [*CLASSES, "lower", "digit", "word", *LETTERS, "upper"]  # the last one is a feature of MiniSBD
AHEAD = 3  # characters after a mark that a rule sees
BEHIND = max(map(len, ABBREVIATIONS)) + 1
VETO = -10.0


class BoundaryRule(NamedTuple):
    """Channels that must be set at places relative to a character, and one that must not; a sum of all."""

    present: tuple[tuple[str, int], ...]
    absent: tuple[tuple[str, int], ...] = ()
    veto: bool = False


def boundary_rules() -> list[BoundaryRule]:
    """Where a sentence ends, and where it does not although a mark is there."""
    after = ("space", 1)
    rules = [
        BoundaryRule((("end", 0), after)),
        BoundaryRule((("closer", 0), ("end", -1), after)),
        BoundaryRule((("closer", 0), ("closer", -1), ("end", -2), after)),
        BoundaryRule((("far-eastern end", 0),), (("far-eastern end", 1), ("far-eastern closer", 1))),
        BoundaryRule((("far-eastern closer", 0), ("far-eastern end", -1)), (("far-eastern closer", 1),)),
        BoundaryRule((after, ("lower", 2)), veto=True),
        BoundaryRule((after, ("opener", 2), ("lower", 3)), veto=True),
        BoundaryRule((("period", 0), ("digit", -1)), (("word", -2),), veto=True),  # "am 3. Oktober"
        BoundaryRule((("period", 0), ("digit", -1), ("digit", -2)), (("word", -3),), veto=True),
    ]
    for case in ("upper", "lower"):  # initials
        rules.append(BoundaryRule((("period", 0), (case, -1)), (("word", -2),), veto=True))
    for word in sorted(ABBREVIATIONS):
        letters = [("period" if char == "." else char, index - len(word)) for index, char in enumerate(word)]
        rules.append(BoundaryRule((("period", 0), *letters), (("word", -len(word) - 1),), veto=True))
    return rules


def characters() -> tuple[list[str], NDArray[np.float32]]:
    """The characters that rules know, and the channels of each: (V, K − 1)."""
    known = {*"".join(CLASSES.values()), *LETTERS.upper()}
    every = map(chr, range(sys.maxunicode + 1))
    known |= {char for char in every if char.islower() or unicodedata.category(char) == "Nd"}
    units = [PAD, UNK, *sorted(known)]
    table = np.zeros((len(units), len(CHANNELS) - 1), np.float32)
    for index, char in enumerate(units[1:], 1):
        names = [name for name, chars in CLASSES.items() if char in chars]
        names += ["lower"] if char.islower() else []
        names += ["digit"] if char.isdigit() else []
        names += ["word"] if not {"space", "opener"} & set(names) else []
        names += [char.lower()] if len(char) == 1 and char.lower() in LETTERS else []
        table[index, [CHANNELS.index(name) for name in names]] = 1.0
    return units, table


def write_splitter(path: Path, language: str) -> None:
    try:
        import onnx.parser
        from onnx import helper, numpy_helper
    except ImportError:
        raise MissingExtraError("the sentence splitter of an Argos package", "onnx", "export") from None
    units, table = characters()
    rules = boundary_rules()
    kernel = np.zeros((len(rules), len(CHANNELS), BEHIND + 1 + AHEAD), np.float32)
    for row, rule in enumerate(rules):
        for sign, places in ((1.0, rule.present), (-1.0, rule.absent)):
            for name, place in places:
                kernel[row, CHANNELS.index(name), BEHIND + place] += sign
    output = np.zeros((3, len(rules), 1), np.float32)  # inside, end of a token, end of a sentence
    output[2, :, 0] = [VETO if rule.veto else 1.0 for rule in rules]
    constants: dict[str, Any] = {
        "table": table,
        "kernel": kernel,
        "least": np.array([1.0 - len(rule.present) for rule in rules], np.float32),
        "output": output,
        "bias": np.array([0.5, 0.0, 0.0], np.float32),
    }
    model = onnx.parser.parse_model(
        """
        <ir_version: 8, opset_import: ["" : 17]>
        sentences (int64[B, T] units, float[B, T, 1] features) => (float[B, T, 3] labels) {
            known = Gather(table, units)
            channels = Concat<axis = 2>(known, features)
            columns = Transpose<perm = [0, 2, 1]>(channels)
            sums = Conv<pads = [BEHIND, AHEAD]>(columns, kernel, least)
            rules = Relu(sums)
            scores = Conv(rules, output, bias)
            labels = Transpose<perm = [0, 2, 1]>(scores)
        }
    """.replace("BEHIND", str(BEHIND)).replace("AHEAD", str(AHEAD))
    )
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in constants.items())
    config = {"feat_funcs": ["capitalized"], "max_seqlen": 1000, "batch_size": 32}
    ids = {unit: index for index, unit in enumerate(units)}
    vocabulary = {"lang": language, "idx": 0, "cutoff": 0, "lower": False, "_unit2id": ids, "_id2unit": units}
    about = {"lang_code": language, "config": json.dumps(config), "vocab": json.dumps(vocabulary)}
    helper.set_model_props(model, about)
    onnx.checker.check_model(model)
    onnx.save(model, str(path))
