"""Apply rules to all pairs of a corpus, in constant memory but for eight bytes a pair."""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np
from numpy.typing import NDArray

from dragoman.data.cleaning.minhash import NearDuplicates
from dragoman.data.cleaning.rules import Profile, Rule, Settings
from dragoman.data.examples import Example, Fault
from dragoman.progress import Progress

PROFILED = 50_000  # pairs that say what is usual
EXAMPLES = 3  # shown of each rule
Read = Callable[[], Iterator[Example | Fault]]  # starts again at each call


@dataclass
class Verdict:
    """What became of one line: an example that is kept, or a rule with its reason."""

    item: Example | Fault
    rule: str = ""
    reason: str = ""


@dataclass
class Report:
    """How many pairs each rule has rejected, with the first examples."""

    rules: Sequence[Rule]
    kept: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[tuple[str, str]]] = field(default_factory=dict)  # reason and pair

    def add(self, verdict: Verdict) -> None:
        if not verdict.rule:
            self.kept += 1
            return
        self.rejected[verdict.rule] += 1
        shown = self.examples.setdefault(verdict.rule, [])
        if len(shown) < EXAMPLES:
            item = verdict.item
            pair = item.location if isinstance(item, Fault) else f"{item.source} ||| {item.references[0]}"
            shown.append((verdict.reason, pair))

    @property
    def total(self) -> int:
        return self.kept + self.rejected.total()


def judge(
    read: Read, rules: Sequence[Rule], settings: Settings, progress: Progress, usual: Profile | None = None
) -> Iterator[Verdict]:
    """A verdict on every line, in order; the first rule that rejects a pair counts.

    The corpus is read twice: first for what is usual in it and which pairs are alike, then pair by pair. `usual` is the
    profile of another corpus, for pairs that are too few to say what is usual.
    """
    names = {rule.name for rule in rules}
    profile, hashes, sources = Profile(), array("Q"), array("Q")
    near = NearDuplicates(settings.near) if "near-duplicate" in names else None
    for number, item in enumerate(read()):
        if number % 10_000 == 0:
            progress("reading", number)
        if isinstance(item, Fault):
            continue
        if usual is None and len(profile.ratios) < PROFILED:
            profile.add(item.source, item.references[0])
        hashes.append(text_hash(item.source, item.references[0]))
        if "contradiction" in names:
            sources.append(text_hash(item.source))
        if near is not None:
            near.add(f"{item.source}\t{item.references[0]}")
    alike = near.earlier() if near is not None else {}
    checks = [(rule.name, check) for rule in rules if (check := rule.build(usual or profile, settings)) is not None]
    repeated = _repeated(hashes) if "duplicate" in names else np.zeros(len(hashes), bool)
    outdated = _outdated(hashes, sources) if sources else np.zeros(len(hashes), bool)
    numbers = count()
    for number, item in enumerate(read()):
        if number % 10_000 == 0:
            progress("judging", number)
        if isinstance(item, Fault):
            yield Verdict(item, "faulty", f"{item.kind}: {item.detail}")
            continue
        index = next(numbers)
        if repeated[index]:
            yield Verdict(item, "duplicate", "the same pair occurs earlier")
            continue
        if outdated[index]:
            yield Verdict(item, "contradiction", "a later pair has another target for this source")
            continue
        reasons = ((name, check(item.source, item.references[0])) for name, check in checks)
        rule, reason = next((pair for pair in reasons if pair[1]), ("", ""))
        if not rule and index in alike:
            rule, reason = "near-duplicate", f"like pair {alike[index] + 1}"
        yield Verdict(item, rule, reason)


def text_hash(*sides: str) -> int:
    """A 64-bit hash of some texts, white space apart."""
    text = "\t".join(" ".join(side.split()) for side in sides)
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


def _repeated(hashes: array[int]) -> NDArray[np.bool_]:
    values = np.frombuffer(hashes, np.uint64) if len(hashes) else np.zeros(0, np.uint64)
    repeated = np.ones(len(values), bool)
    repeated[np.unique(values, return_index=True)[1]] = False
    return repeated


def _outdated(hashes: array[int], sources: array[int]) -> NDArray[np.bool_]:
    pairs, texts = (np.frombuffer(values, np.uint64)[::-1] for values in (hashes, sources))
    _, last, which = np.unique(texts, return_index=True, return_inverse=True)
    return np.asarray(pairs != pairs[last][which], bool)[::-1]
