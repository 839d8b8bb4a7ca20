"""Apply rules to all pairs of a corpus, in constant memory but for eight bytes a pair."""

from __future__ import annotations

import hashlib
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

from dragoman.data.cleaning.minhash import NearDuplicates
from dragoman.data.cleaning.rules import CleanOptions, Profile, Rule, Settings, chosen_rules
from dragoman.data.examples import Example, Fault, Pairs
from dragoman.data.readers.base import ReadOptions
from dragoman.data.readers.pairs import pair_line, read_pairs
from dragoman.errors import ConfigError, DataError
from dragoman.files import atomic_write, check_output

PROFILED = 50_000  # pairs that say what is usual
EXAMPLES = 3  # shown of each rule
Read = Callable[[], Iterator[Example | Fault]]  # starts again at each call
Progress = Callable[[str, int], None]


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
