"""The expert of imitation learning: which edits lead from a source to a target with the fewest actions.

Makarov and Clematide 2018, section 3: at any source position, with any part of the target written, an action is optimal
if some cheapest completion begins with it. Copying costs nothing; deletion, insertion and substitution cost one.
"""

from __future__ import annotations

import torch
from torch import Tensor

INSERT, SUBSTITUTE, DELETE, COPY = range(4)
NEVER = 1e6


def edit_costs(same: Tensor, source_end: Tensor, target_end: Tensor) -> Tensor:
    """The fewest actions that turn the source from position i into the target from token t: (B, T, S).

    same (B, T, S): copying position i writes token t; source_end, target_end (B,): the positions of <eos>. A cost is
    NEVER outside of both texts. For each i the cheapest number of insertions is a running minimum over t.
    """
    rows, length, size = same.shape
    steps = torch.arange(length, device=same.device, dtype=torch.float32)
    left = target_end[:, None] - steps
    at_end = left.masked_fill(left < 0, NEVER)  # (B, T): insert what is left
    columns = [at_end.new_full((rows, length), NEVER)]
    for i in reversed(range(size)):
        right = columns[-1]
        diagonal = torch.cat([right[:, 1:], right.new_full((rows, 1), NEVER)], 1)
        move_on = torch.minimum(right + 1, diagonal + (~same[:, :, i]).float())
        insert = (move_on + steps).flip(1).cummin(1).values.flip(1) - steps  # move on at some t' ≥ t
        columns.append(torch.where((source_end == i)[:, None], at_end, insert))
    return torch.stack(columns[:0:-1], 2).clamp_(max=NEVER)


def optimal_edits(same: Tensor, source_end: Tensor, target_end: Tensor) -> Tensor:
    """Which edits are optimal at position i with t tokens written: (B, T, S, 4); insertion at the end is the end.

    Insertion, substitution and copy write token t.
    """
    costs = edit_costs(same, source_end, target_end)
    rows, length, size = costs.shape
    written = torch.cat([costs[:, 1:], costs.new_full((rows, 1, size), NEVER)], 1)
    positions, steps = torch.arange(size, device=same.device), torch.arange(length, device=same.device)
    at_end = positions == source_end[:, None]  # (B, S)
    done = steps == target_end[:, None]  # (B, T)

    def next_position(table: Tensor) -> Tensor:
        return torch.cat([table[:, :, 1:], table.new_full((rows, length, 1), NEVER)], 2)

    move_on = next_position(written).masked_fill(done[:, :, None], NEVER)
    end = (at_end[:, None] & done[:, :, None]).float()  # it costs nothing
    every = torch.stack(
        [
            torch.where(end > 0, 0.0, (written + 1).masked_fill(done[:, :, None], NEVER)),
            move_on + 1,
            next_position(costs) + 1,
            move_on.masked_fill(~same, NEVER),
        ],
        -1,
    )
    every[..., SUBSTITUTE:].masked_fill_(at_end[:, None, :, None], NEVER)
    best = every.amin(-1, keepdim=True)
    return (every == best) & (best < NEVER)
