"""Texts that an output begins with, contains, is, or must not contain."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence

from dragoman.data.tokenizers import EOS
from dragoman.decoding.constraints.constraint import AutomatonState, Constraint, ListedConstraint
from dragoman.decoding.constraints.token_bytes import INSIDE, START, TokenBytes

MAX_EXACT = 1024  # states up to which the shortest path through all phrases is planned


class Trie:
    """Nodes are the prefixes of several sequences; node 0 is the empty one."""

    def __init__(self, sequences: Iterable[Sequence[int]]) -> None:
        self.children: list[dict[int, int]] = [{}]
        self.ends: list[tuple[int, ...]] = [()]  # which sequences end at each node
        for index, sequence in enumerate(sequences):
            node = 0
            for symbol in sequence:
                if symbol not in self.children[node]:
                    self.children[node][symbol] = len(self.children)
                    self.children.append({})
                    self.ends.append(())
                node = self.children[node][symbol]
            self.ends[node] += (index,)


class AhoCorasick(Trie):
    """Finds any of several sequences in a stream of symbols (Aho and Corasick 1975)."""

    def __init__(self, sequences: Iterable[Sequence[int]]) -> None:
        super().__init__(sequences)
        self.fallback = [0] * len(self.children)  # the longest proper suffix of a node that is a node too
        queue = deque(self.children[0].values())
        while queue:
            node = queue.popleft()
            self.ends[node] += self.ends[self.fallback[node]]
            for symbol, child in self.children[node].items():
                self.fallback[child] = self.next_node(self.fallback[node], symbol)
                queue.append(child)

    def next_node(self, node: int, symbol: int) -> int:
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


class PrefixConstraint(ListedConstraint):
    """The output begins with a text; the last token of the prefix may extend beyond it.

    A state is (context of the next token, bytes of the prefix written so far), or () when the prefix is written.
    """

    def __init__(self, token_bytes: TokenBytes, text: str) -> None:
        super().__init__()
        self.token_bytes = token_bytes
        self.prefix = text.encode("utf-8", "replace")
        self.start: AutomatonState = (START, 0) if self.prefix else ()

    def list_tokens(self, state: AutomatonState) -> Mapping[int, AutomatonState]:
        context, written = state
        tokens = self.token_bytes.matching_tokens(context, self.prefix[written:])
        return {
            token: (self.token_bytes.next_context[token], written + size) if written + size < len(self.prefix) else ()
            for token, size in tokens.items()
        }


class AllowedOutputs(ListedConstraint):
    """The output is one of several token rows; a state is a node of their trie."""

    start = 0

    def __init__(self, rows: Iterable[Sequence[int]]) -> None:
        super().__init__()
        self.trie = Trie(rows)

    def list_tokens(self, state: AutomatonState) -> Mapping[int, AutomatonState]:
        return self.trie.children[state]

    def may_end(self, state: AutomatonState) -> bool:
        return bool(self.trie.ends[state])


class ForbiddenTexts(Constraint):
    """No text occurs, however the output is split into tokens.

    A state is (context of the next token, node of the Aho-Corasick automaton over bytes).
    """

    def __init__(self, token_bytes: TokenBytes, texts: Sequence[str]) -> None:
        self.token_bytes = token_bytes
        self.sequences = [text.encode("utf-8", "replace") for text in texts]
        assert all(self.sequences), "the empty text occurs everywhere and cannot be forbidden"
        self.matcher = AhoCorasick(self.sequences)
        self.start = (START, 0)
        # The context that most tokens leave.
        self.usual_context = INSIDE if sum(token_bytes.next_context) * 2 > len(token_bytes) else START
        self._containing: dict[int, list[int]] = {}  # by context

    def next_state(self, state: AutomatonState, token: int) -> AutomatonState:
        context, node = state
        for byte in self.token_bytes.texts[token][context]:
            node = self.matcher.next_node(node, byte)
            if self.matcher.ends[node]:
                return None
        return self.token_bytes.next_context[token], node

    def default_state(self, state: AutomatonState) -> AutomatonState:
        return (self.usual_context, 0)

    def forbidden_tokens(self, state: AutomatonState) -> Collection[int]:
        """Tokens that contain a whole text, whatever comes before them."""
        context = state[0]
        if context not in self._containing:
            tokens_with, texts = self.token_bytes.tokens_with_byte[context], self.token_bytes.texts
            tokens: dict[int, None] = {}
            for sequence in self.sequences:
                rarest = min((tokens_with.get(byte, []) for byte in sequence), key=len)
                tokens |= dict.fromkeys(token for token in rarest if sequence in texts[token][context])
            self._containing[context] = list(tokens)
        return self._containing[context]


class RequiredPhrases(Constraint):
    """Every phrase occurs, in one of its tokenizations.

    A state is (node of the Aho-Corasick automaton over tokens, phrases that are written), or () when all are.
    """

    may_block_end = True

    def __init__(self, phrases: Sequence[Sequence[tuple[int, ...]]]) -> None:
        """Each phrase is given by its tokenizations."""
        assert all(row and EOS not in row for rows in phrases for row in rows)
        self.phrases = phrases
        pairs = [(index, row) for index, rows in enumerate(phrases) for row in rows]
        self.phrase_of = [index for index, _ in pairs]
        self.matcher = AhoCorasick([row for _, row in pairs])
        self.tokens = sorted({token for _, row in pairs for token in row})
        self.start: AutomatonState = (0, frozenset()) if phrases else ()
        self.exact = len(self.matcher.children) * 2 ** len(phrases) <= MAX_EXACT
        self._next_states: dict[AutomatonState, dict[int, AutomatonState]] = {(): {}}

    def next_state(self, state: AutomatonState, token: int) -> AutomatonState:
        return self._known_next_states(state).get(token, self.default_state(state))

    def _known_next_states(self, state: AutomatonState) -> Mapping[int, AutomatonState]:
        if state not in self._next_states:
            self._next_states[state] = {token: self._advance(state, token) for token in self.tokens}
        return self._next_states[state]

    def _advance(self, state: AutomatonState, token: int) -> AutomatonState:
        node, written = state
        node = self.matcher.next_node(node, token)
        written = written.union(self.phrase_of[index] for index in self.matcher.ends[node])
        return () if len(written) == len(self.phrases) else (node, written)

    def default_state(self, state: AutomatonState) -> AutomatonState:
        return () if state == () else (0, state[1])

    def may_end(self, state: AutomatonState) -> bool:
        return bool(state == ())

    def tokens_towards_end(self, state: AutomatonState) -> Iterable[int]:
        """Tokens that begin or continue a phrase; of very many phrases only the next token of the first missing one."""
        if state == ():
            return ()
        node, written = state
        missing = (rows for index, rows in enumerate(self.phrases) if index not in written)
        if self.exact:
            return self.matcher.continuations(node).union(row[0] for rows in missing for row in rows)
        return {self._next_token(node, row) for row in next(missing)}

    def _next_token(self, node: int, row: tuple[int, ...]) -> int:
        """The token of a row after the longest prefix of it that the output ends in."""
        prefixes = [0]
        for token in row[:-1]:
            prefixes.append(self.matcher.children[prefixes[-1]][token])
        while node not in prefixes:
            node = self.matcher.fallback[node]
        return row[prefixes.index(node)]
