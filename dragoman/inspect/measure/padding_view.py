"""What padding does: batches as pictures with their masks, and an accuracy that counts padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.inference import Predictor
from dragoman.inspect.views.view import View

ROWS = 16  # of a batch in the picture
LABEL = 4  # words of a text that name its row


def padding_view(
    predictor: Predictor, sources: Sequence[str], targets: Sequence[str], systems: Sequence[dict[str, Any]]
) -> View:
    """Batches of ROWS pairs as they come and sorted by length; `systems` have `name`, `tokens` and `right_forced`."""
    lengths = np.array([[len(row) + 1 for row in side] for side in predictor.codec.encode_pairs(sources, targets)])
    by_length = np.lexsort((lengths[0], lengths[1]))  # by the target, then by the source, as in training
    orders = {"as they come": np.arange(len(sources)), "sorted by length": by_length}
    middle = len(sources) // 2 // ROWS * ROWS  # a batch of usual lengths
    shown = [
        {
            "name": name,
            "rows": [" ".join(sources[row].split()[:LABEL]) for row in order[middle : middle + ROWS]],
            "source": lengths[0][order[middle : middle + ROWS]].tolist(),
            "target": lengths[1][order[middle : middle + ROWS]].tolist(),
            "positions": padded_positions(lengths[1][order]),
        }
        for name, order in orders.items()
    ]
    return View(
        "padding",
        "Padding",
        f"The rows of a batch end in padding, up to the longest. A mask keeps it out of attention, loss and scores. "
        f"Accuracy is that of the {int(lengths[1].sum()):,} real tokens, with the reference as input. Whoever counts "
        f"padding as right tokens gets the other columns: the same model looks better the more padding there is.",
        {"batches": shown, "size": ROWS, "tokens": int(lengths[1].sum()),
         "systems": [{key: one[key] for key in ("name", "tokens", "right_forced")} for one in systems]},
    )  # fmt: skip


def padded_positions(lengths: NDArray[np.int64], size: int = ROWS) -> int:
    """The positions of all batches of `size` rows in this order, each row padded to the longest of its batch."""
    return sum(int(part.max()) * len(part) for part in np.split(lengths, range(size, len(lengths), size)))
