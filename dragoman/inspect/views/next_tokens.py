"""The probabilities of the next token at every step, or of every [MASK]."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dragoman.data.tokenizers import SOS
from dragoman.inference import MaskFiller
from dragoman.inspect.views.figures import BLUE, GREEN, INK, draw_bars, new_figure
from dragoman.inspect.views.subject import Subject, mask_distributions
from dragoman.inspect.views.view import View


@dataclass(frozen=True)
class NextTokenTable:
    """The most probable tokens at every step of a target."""

    tokens: Tensor  # (T, K) ids, most probable first
    logits: Tensor  # (T, K) log-probabilities, which are logits up to a constant
    temperatures: tuple[float, ...]
    rest: Tensor  # (T, temperatures) log Σ exp(logit / temperature) of all other tokens
    chosen: Tensor  # (T,) the target's token ids


TEMPERATURES = tuple(round(0.1 + 0.05 * index, 2) for index in range(59))  # 0.1 … 3.0


@torch.no_grad()
def next_tokens(subject: Subject, count: int = 40) -> NextTokenTable | None:
    """The distribution of every step, teacher-forced with the target, or of every [MASK]; None: there are none.

    `rest` makes every probability after a change of temperature exact although only the top tokens are kept.
    """
    model, batch = subject.model, subject.batch
    if isinstance(subject.loaded, MaskFiller):
        log_probabilities = mask_distributions(model, batch)[0].float().cpu()  # (masks, V)
    elif not hasattr(model, "read") or not hasattr(model, "start") or batch.target.dim() != 2:
        return None
    else:
        inputs = torch.cat([batch.target.new_full((1, 1), SOS), batch.target[:, :-1]], 1)
        try:
            log_probabilities = model.read(inputs, model.start(batch))[0][0].float().cpu()  # (T, V)
        except AssertionError:  # CTC alone has no steps
            return None
    possible = int((log_probabilities > -torch.inf).sum(1).min())
    top, tokens = log_probabilities.topk(min(count, possible), 1)
    others = log_probabilities.scatter(1, tokens, -torch.inf)
    rest = torch.stack([(others / temperature).logsumexp(1) for temperature in TEMPERATURES], 1)
    return NextTokenTable(tokens, top, TEMPERATURES, rest, batch.target[0].cpu())


def next_view(subject: Subject) -> View | None:
    table = next_tokens(subject)
    if table is None:
        return None
    masks = isinstance(subject.loaded, MaskFiller)
    about = (
        "For every [MASK] the model gives each token of its vocabulary a probability, as if the other masks stayed."
        if masks
        else "At every step the model gives each token of its vocabulary a probability."
    )
    return View(
        "next",
        "Candidates" if masks else "Next token",
        f"{about} Temperature divides the logits before the softmax, top-k and top-p cut off the improbable tail; "
        "greedy search takes the longest bar.",
        {
            **vars(table),
            "pieces": [subject.pieces(row) for row in table.tokens.tolist()],
            "tokens": table.tokens.tolist(),
            "chosen": table.chosen.tolist(),
            "target": subject.target.as_dict(),
            "masks": masks,
        },
    )


def draw_next(view: View, layer: str | None) -> Any:
    data = view.data
    steps = min(len(data["pieces"]), 12)
    drawing = new_figure(11, 2.3 * -(-steps // 4) + 0.5)
    for step in range(steps):
        axes = drawing.add_subplot(-(-steps // 4), 4, step + 1)
        shares = data["logits"][step][:6].exp().tolist()
        colours = [GREEN if token == data["chosen"][step] else BLUE for token in data["tokens"][step][:6]]
        draw_bars(axes, data["pieces"][step][:6], shares, colours)
        axes.tick_params(axis="y", labelsize=8)
        axes.set_xlim(0, 1)
        axes.set_title(f"step {step + 1}", fontsize=9, color=INK)
    drawing.supxlabel("probability of the next token (green: the output's token)", fontsize=10)
    return drawing
