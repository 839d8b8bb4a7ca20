"""Apply rules to all pairs of a corpus, in constant memory but for eight bytes a pair."""

from __future__ import annotations

import hashlib
import re
import tempfile
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.base import ConfigError, DataError, Progress, atomic_write, check_output
from dragoman.data.cleaning.rules import CleanOptions, Profile, Rule, Settings, chosen_rules
from dragoman.data.examples import Example, Fault, Pairs
from dragoman.data.readers.base import ReadOptions
from dragoman.data.readers.pairs import pair_line, read_pairs

PROFILED = 50_000  # pairs that say what is usual
EXAMPLES = 3  # shown of each rule
MISTAKEN = 0.01  # a rule that rejects more of the usual pairs says nothing about others
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

    @property
    def counts(self) -> dict[str, int]:
        """The number of pairs that each rule has rejected, in the order of the rules."""
        return {rule: self.rejected[rule] for rule in ("faulty", *(rule.name for rule in self.rules))}

    def as_dict(self) -> dict[str, Any]:
        return {"read": self.total, "kept": self.kept, "rejected": self.counts, "examples": self.examples}


def clean(data: str | Path | Pairs, options: CleanOptions, progress: Progress = lambda what, done: None) -> Report:
    """Write the pairs of a corpus that pass all rules to one file, and the others with their reasons to another."""
    names, columns = (
        tuple(name.strip() for name in (text or "").split(",") if name.strip())
        for text in (options.languages, options.columns)
    )
    rules = chosen_rules((*options.with_, *(["language"] if names else ())), options.without)
    if Path(options.rejected).absolute() == Path(options.output).absolute():
        raise ConfigError(f"--rejects {options.rejected}: expected another file than --output")
    inputs = data.paths if isinstance(data, Pairs) else (data,)
    check_output(options.output, inputs, "--output")
    check_output(options.rejected, inputs, "--rejects")
    report = Report(rules)
    read = partial(read_pairs, data, ReadOptions(columns, options.header))  # again at each call
    settings = Settings(options.max_ratio, names, options.near)
    _write(judge(read, rules, settings, progress), options, report)
    return report


def _write(verdicts: Iterable[Verdict], options: CleanOptions, report: Report) -> None:
    as_objects = Path(options.output).suffix in (".jsonl", ".ndjson")
    with ExitStack() as stack:
        kept, others = (
            stack.enter_context(stack.enter_context(atomic_write(path)).open("w", encoding="utf-8", newline="\n"))
            for path in (options.output, options.rejected)
        )
        for verdict in verdicts:
            report.add(verdict)
            item = verdict.item
            if isinstance(item, Fault):
                others.write(f"{verdict.rule}\t{item.location}\t{verdict.reason}\t\t\n")
            elif verdict.rule:
                row = (verdict.rule, item.location, verdict.reason, item.source, item.references[0])
                others.write("\t".join(cell.replace("\t", " ") for cell in row) + "\n")
            else:
                kept.write(pair_line(item.source, item.references[0], as_objects))
        if not report.total:
            raise DataError("nothing to clean: no line was read")


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


def filter_pairs(items: Sequence[Example | Fault], usual: Sequence[Example]) -> tuple[list[Example], Report]:
    """The pairs that pass the rules and that no later pair contradicts, and a report of the others.

    What is usual are other pairs than these, which may be few, or sent by strangers. A rule that rejects usual pairs
    says nothing: pairs that correct spelling, say, have sources as targets.
    """
    profile, settings = Profile(), Settings()
    for example in usual:
        profile.add(example.source, example.references[0])

    def accepts_usual(rule: Rule) -> bool:
        check = rule.build(profile, settings)
        rejected = sum(bool(check(example.source, example.references[0])) for example in usual) if check else 0
        return rejected <= MISTAKEN * len(usual)

    rules = [rule for rule in chosen_rules(("contradiction",), ()) if accepts_usual(rule)]
    report, kept = Report(rules), []
    for verdict in judge(lambda: iter(items), rules, settings, lambda doing, count: None, profile):
        report.add(verdict)
        if not verdict.rule and isinstance(verdict.item, Example):
            kept.append(verdict.item)
    return kept, report


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


# --- near duplicates by MinHash and locality-sensitive hashing (Broder 1997), with texts and hashes on disk
#
# Two texts are near duplicates if the Jaccard similarity of their character 5-grams is at least a threshold. Hashing
# only finds candidates; each is then checked exactly.

GRAM = 5  # characters
BANDS, ROWS = 16, 4  # texts of similarity s share a band with probability 1 − (1 − s⁴)¹⁶: 0.8 → 0.9998
_RANDOM = np.random.default_rng(20_240_601)
_FACTORS = _RANDOM.integers(1, 1 << 63, BANDS * ROWS, dtype=np.uint64) | np.uint64(1)
_OFFSETS = _RANDOM.integers(0, 1 << 63, BANDS * ROWS, dtype=np.uint64)
_MIX = _RANDOM.integers(1, 1 << 63, (BANDS, ROWS), dtype=np.uint64) | np.uint64(1)
_POWERS = np.array([np.uint64(0x100000001B3) ** np.uint64(power) for power in range(GRAM)], np.uint64)


def normal_form(text: str) -> str:
    """The text without differences that do not matter: case, digits, punctuation, white space."""
    return re.sub(r"\d", "0", re.sub(r"[^\w\t]+", " ", text.lower())).strip()


def gram_hashes(text: str) -> NDArray[np.uint64]:
    """A hash of every run of five characters; shorter texts are one run."""
    codes = np.frombuffer(text.ljust(GRAM).encode("utf-32-le", "surrogatepass"), np.uint32).astype(np.uint64)
    windows = np.lib.stride_tricks.sliding_window_view(codes, GRAM)
    hashes: NDArray[np.uint64] = (windows * _POWERS).sum(1, dtype=np.uint64)
    return np.unique(hashes)


def band_hashes(grams: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """One hash per band of the MinHash signature: (BANDS,)."""
    mixed = grams[:, None] * _FACTORS + _OFFSETS
    mixed ^= mixed >> np.uint64(31)
    mixed *= np.uint64(0x9E3779B97F4A7C15)
    smallest = mixed.min(0).reshape(BANDS, ROWS)
    hashes: NDArray[np.uint64] = (smallest * _MIX).sum(1, dtype=np.uint64)
    return hashes


def similarity(first: NDArray[np.uint64], second: NDArray[np.uint64]) -> float:
    """The Jaccard similarity of two sets of grams."""
    shared = len(np.intersect1d(first, second, assume_unique=True))
    return shared / max(1, len(first) + len(second) - shared)


class NearDuplicates:
    """Texts are added one by one; then `earlier` says which have an earlier near duplicate. Memory: 8 bytes a text."""

    def __init__(self, threshold: float) -> None:
        self.threshold, self.count = threshold, 0
        self._texts, self._bands = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115  (until collected)
        self._ends = array("Q", [0])

    def add(self, text: str) -> None:
        data = normal_form(text).encode("utf-8", "surrogatepass")
        self._texts.write(data)
        self._ends.append(self._ends[-1] + len(data))
        self._bands.write(band_hashes(gram_hashes(data.decode("utf-8", "surrogatepass"))).tobytes())
        self.count += 1

    def earlier(self) -> dict[int, int]:
        """For every text with an earlier near duplicate that is kept: the number of that one. To be asked once."""
        kept: dict[int, int] = {}
        with self._texts, self._bands:
            self._bands.flush()
            for index, earlier in self._candidates():
                first = kept.get(earlier, earlier)
                if index in kept or index == first:
                    continue
                if similarity(self._grams(index), self._grams(first)) >= self.threshold:
                    kept[index] = first
        return kept

    def _candidates(self) -> Iterator[tuple[int, int]]:
        """(text, earlier text) with a band in common, in the order of the texts."""
        if self.count < 2:
            return
        bands = np.memmap(self._bands, np.uint64, "r", shape=(self.count, BANDS))
        pairs: list[NDArray[np.int64]] = []
        for band in range(BANDS):
            column = np.array(bands[:, band])
            order = np.argsort(column, kind="stable")
            values = column[order]
            same = values[1:] == values[:-1]
            starts = np.flatnonzero(np.concatenate([[True], ~same]))
            first = order[np.repeat(starts, np.diff(np.append(starts, len(order))))]
            for earlier in (order[:-1][same], first[1:][same]):  # the one before, and the first of all
                pairs.append(np.stack([order[1:][same], earlier], 1))
        joined = np.unique(np.concatenate(pairs), axis=0)
        yield from map(tuple, joined.tolist())

    def _grams(self, index: int) -> NDArray[np.uint64]:
        self._texts.seek(self._ends[index])
        data = self._texts.read(self._ends[index + 1] - self._ends[index])
        return gram_hashes(data.decode("utf-8", "surrogatepass"))
