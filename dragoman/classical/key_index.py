"""Places of keys in a sorted array by hashing: a few random reads per key, where a binary search needs twenty."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dragoman.classical.rows import Ints

ROUNDS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93)  # odd multipliers


class KeyIndex:
    """A hash table over different keys, built and read by whole arrays.

    Round r tries to put every key that has no slot yet into slot (key · multiplier r) >> shift. Of several keys one
    wins; the others go on to the next round, and those that never win are sought by binary search. A key whose slot is
    empty is not there: it would have won the slot.
    """

    def __init__(self, keys: Ints) -> None:
        self.keys = keys
        bits = max(4, int(2 * len(keys)).bit_length())
        self.shift = np.uint64(64 - bits)
        self.slots = np.full(1 << bits, -1, np.int32)
        left = np.arange(len(keys), dtype=np.int32)
        for number in range(len(ROUNDS)):
            slots = self._slots(keys[left], number)
            free = self.slots[slots] < 0
            self.slots[slots[free]] = left[free]
            left = left[self.slots[slots] != left]
        self.rest = left  # sorted, as the keys are

    def _slots(self, keys: Ints, number: int) -> Ints:
        return (keys.view(np.uint64) * np.uint64(ROUNDS[number]) >> self.shift).view(np.int64)

    def find(self, wanted: Ints) -> NDArray[np.int32]:
        """The places of wanted keys; the number of all keys for those that are not there."""
        flat = np.ascontiguousarray(wanted).ravel()
        if not len(self.keys):
            return np.zeros(wanted.shape, np.int32)
        places = self.slots.take(self._slots(flat, 0))
        same_key = self.keys.take(places, mode="clip") == flat  # the slot of the first key is not empty
        out = np.where(same_key, places, np.int32(len(self.keys)))
        pending = np.flatnonzero((places >= 0) & ~same_key)
        for number in range(1, len(ROUNDS)):
            keys_left = flat[pending]
            places = self.slots.take(self._slots(keys_left, number))
            same_key = self.keys.take(places, mode="clip") == keys_left
            out[pending[same_key]] = places[same_key]
            pending = pending[(places >= 0) & ~same_key]
        if len(self.rest) and len(pending):
            keys = self.keys[self.rest]
            places = np.minimum(np.searchsorted(keys, flat[pending]), len(keys) - 1)
            same = keys[places] == flat[pending]
            out[pending[same]] = self.rest[places[same]]
        return out.reshape(wanted.shape)


def distinct(values: Ints) -> Ints:
    """The different values, sorted; faster than np.unique, which hashes them first."""
    ordered = np.sort(values, axis=None)
    return ordered[np.concatenate([[True], ordered[1:] != ordered[:-1]])] if len(ordered) else ordered
