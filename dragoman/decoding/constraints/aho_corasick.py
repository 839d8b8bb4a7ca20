"""The Aho-Corasick automaton: finds any of several sequences in a stream of symbols (Aho and Corasick 1975)."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence


class AhoCorasick:
    """Nodes are the prefixes of the sequences; node 0 is the empty one."""

    def __init__(self, sequences: Sequence[Sequence[int]]) -> None:
        self.children: list[dict[int, int]] = [{}]
        matches: list[list[int]] = [[]]
        for index, sequence in enumerate(sequences):
            node = 0
            for symbol in sequence:
                if symbol not in self.children[node]:
                    self.children[node][symbol] = len(self.children)
                    self.children.append({})
                    matches.append([])
                node = self.children[node][symbol]
            matches[node].append(index)
        self.fallback = [0] * len(self.children)  # the longest proper suffix of a node that is a node too
        queue = deque(self.children[0].values())
        while queue:
            node = queue.popleft()
            matches[node] += matches[self.fallback[node]]
            for symbol, child in self.children[node].items():
                self.fallback[child] = self.next_node(self.fallback[node], symbol)
                queue.append(child)
        self.matches = [tuple(indices) for indices in matches]  # which sequences end at each node

    def next_node(self, node: int, symbol: int) -> int:
        """The node after one more symbol."""
        while symbol not in self.children[node]:
            if node == 0:
                return 0
            node = self.fallback[node]
        return self.children[node][symbol]

    def continuations(self, node: int) -> set[int]:
        """Symbols that continue any non-empty suffix of a node."""
        symbols = set[int]()
        while node:
            symbols |= self.children[node].keys()
            node = self.fallback[node]
        return symbols
