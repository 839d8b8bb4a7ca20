"""Forbidden texts, and texts that may occur only a number of times."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from dragoman.decoding.constraints.aho_corasick import AhoCorasick
from dragoman.decoding.constraints.constraint import AutomatonState, Constraint
from dragoman.decoding.constraints.token_bytes import INSIDE, START, TokenBytes


class ForbiddenTexts(Constraint):
    """No text occurs more often than its maximum (0 by default), however the output is split into tokens.

    A state is (context of the next token, node of the Aho-Corasick automaton over bytes, count of each text).
    """

    def __init__(self, token_bytes: TokenBytes, texts: Sequence[str], max_counts: Sequence[int] | None = None) -> None:
        self.token_bytes = token_bytes
        self.sequences = [text.encode("utf-8", "replace") for text in texts]
        assert all(self.sequences), "the empty text occurs everywhere and cannot be forbidden"
        self.matcher = AhoCorasick(self.sequences)
        self.max_counts = tuple(max_counts or [0] * len(texts))
        self.start = (START, 0, (0,) * len(texts))
        # The context that most tokens leave.
        self.usual_context = INSIDE if sum(token_bytes.next_context) * 2 > len(token_bytes) else START
        self._containing: dict[int, list[tuple[int, tuple[int, ...]]]] = {}
        self._forbidden: dict[AutomatonState, list[int]] = {}

    def next_state(self, state: AutomatonState, token: int) -> AutomatonState:
        context, node, counts = state
        for byte in self.token_bytes.texts[token][context]:
            node = self.matcher.next_node(node, byte)
            if matches := self.matcher.matches[node]:
                counts = tuple(count + matches.count(index) for index, count in enumerate(counts))
                if any(count > maximum for count, maximum in zip(counts, self.max_counts, strict=True)):
                    return None
        return self.token_bytes.next_context[token], node, counts

    def default_state(self, state: AutomatonState) -> AutomatonState:
        return (self.usual_context, 0, state[2])

    def forbidden_tokens(self, state: AutomatonState) -> Collection[int]:
        """Tokens that contain a whole text too often, whatever comes before them."""
        context, _, counts = state
        if (context, counts) not in self._forbidden:
            self._forbidden[context, counts] = [
                token
                for token, times in self._tokens_containing(context)
                if any(
                    count + more > maximum for count, more, maximum in zip(counts, times, self.max_counts, strict=True)
                )
            ]
        return self._forbidden[context, counts]

    def _tokens_containing(self, context: int) -> list[tuple[int, tuple[int, ...]]]:
        """Tokens that contain a whole text, and how often they contain each text."""
        if context not in self._containing:
            tokens_with, texts = self.token_bytes.tokens_with_byte[context], self.token_bytes.texts
            tokens: dict[int, None] = {}
            for sequence in self.sequences:
                rarest = min((tokens_with.get(byte, []) for byte in sequence), key=len)
                tokens |= dict.fromkeys(token for token in rarest if sequence in texts[token][context])
            self._containing[context] = [
                (token, tuple(texts[token][context].count(sequence) for sequence in self.sequences)) for token in tokens
            ]
        return self._containing[context]
