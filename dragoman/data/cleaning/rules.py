"""Rules that judge one sentence pair; each gives a reason to reject it, or nothing.

A rule is on by default only if it rejects next to nothing of clean human translations (figures: docs/how-to/scarce.md).
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Annotated, NamedTuple

from dragoman.base import ConfigError, hint
from dragoman.base.config import Limited, Range, setting
from dragoman.data.languages import load_identifier, same_language

SMOOTHING = 15  # characters added to both lengths, so that short pairs may differ more
COPIED_WORDS = 4  # equal names and numbers are translations of each other
MIN_LETTERS = 3  # of a text whose script is judged
MIN_LANGUAGE_LETTERS = 25  # of a text whose language is judged
_MARKUP = re.compile(
    r"</?[A-Za-z][\w:-]*(?:\s[^<>]{0,500})?/?>|&(?:[a-z]{2,8}|#\d{1,6});|\{\{.{0,200}?\}\}|\[/?[a-z]{1,8}\]"
)
# A letter five times in a row, or letters or a word four times: "aaaaaa", "asdasdasdasd", "no no no no".
_REPEATED = re.compile(r"([^\W\d_])\1{4}|([^\W\d_]{2,8}?)\2{3}|\b(\w+)(?:\W+\3\b){3}", re.IGNORECASE)
_CJK = {"HIRAGANA": "CJK", "KATAKANA": "CJK", "KATAKANA-HIRAGANA": "CJK", "IDEOGRAPHIC": "CJK"}


@lru_cache(maxsize=100_000)
def script_of(character: str) -> str:
    """The script of a letter by its Unicode name, such as LATIN; empty for anything else. Japanese scripts are CJK."""
    if not character.isalpha():
        return ""
    name = unicodedata.name(character, "").split(" ")[0]
    return _CJK.get(name, name)


def scripts_of(text: str) -> Counter[str]:
    """How many letters of each script a text has."""
    if text.isascii():
        return Counter({"LATIN": sum(map(str.isalpha, text))})
    counts: Counter[str] = Counter()
    for character, count in Counter(text).items():
        if script := script_of(character):
            counts[script] += count
    return counts


@dataclass
class Profile:
    """What is usual in a corpus: the script of each side, and the ratio of lengths."""

    scripts: tuple[Counter[str], Counter[str]] = field(default_factory=lambda: (Counter(), Counter()))
    ratios: list[float] = field(default_factory=list)

    def add(self, source: str, target: str) -> None:
        for counts, text in zip(self.scripts, (source, target), strict=True):
            counts.update(scripts_of(text))
        self.ratios.append(log_ratio(source, target))

    def usual_scripts(self) -> tuple[str, str]:
        """The script of at least four fifths of the letters of each side; empty: there is none."""
        usual = []
        for counts in self.scripts:
            script, count = max(counts.items(), key=lambda pair: pair[1], default=("", 0))
            usual.append(script if count >= 0.8 * counts.total() else "")
        return usual[0], usual[1]

    def usual_ratio(self) -> float:
        """The median of the logarithms of length ratios."""
        return sorted(self.ratios)[len(self.ratios) // 2] if self.ratios else 0.0


def log_ratio(source: str, target: str) -> float:
    """The logarithm of target characters per source character, smoothed."""
    return math.log((len(target) + SMOOTHING) / (len(source) + SMOOTHING))


Check = Callable[[str, str], str]  # the reason to reject a pair, or ""


class Settings(NamedTuple):
    """The numbers that rules use."""

    max_ratio: float = 3.0  # times the usual one
    languages: tuple[str, ...] = ()  # of source and target
    near: float = 0.8  # Jaccard similarity


class Rule(NamedTuple):
    """A rule: `build` gives its check for a corpus, None where the rule does not apply."""

    name: str
    about: str
    default: bool
    build: Callable[[Profile, Settings], Check | None]


def _always(check: Check) -> Callable[[Profile, Settings], Check]:
    """For a rule that needs nothing of the corpus."""
    return lambda profile, settings: check


def _copy(source: str, target: str) -> str:
    same = " ".join(source.lower().split()) == " ".join(target.lower().split())
    words = len(re.findall(r"[^\W\d_]{2,}", source)) if same else 0
    return "target equals source" if same and words >= COPIED_WORDS else ""


def _ratio(profile: Profile, settings: Settings) -> Check:
    usual, most = profile.usual_ratio(), math.log(settings.max_ratio)

    def check(source: str, target: str) -> str:
        if abs(log_ratio(source, target) - usual) <= most:
            return ""
        return f"lengths {len(source)} and {len(target)}"

    return check


def _script(profile: Profile, settings: Settings) -> Check | None:
    wanted = profile.usual_scripts()
    if not any(wanted):
        return None

    def check(source: str, target: str) -> str:
        for side, text, script in zip(("source", "target"), (source, target), wanted, strict=True):
            if script == "LATIN" and text.isascii():
                continue
            counts = scripts_of(text)
            total = counts.total()
            if script and total >= MIN_LETTERS and counts[script] < total / 2:
                return f"{side} in {max(counts, key=counts.__getitem__)}, not {script}"
        return ""

    return check


def _markup(source: str, target: str) -> str:
    if not any(mark in text for mark in "<&{[" for text in (source, target)):
        return ""
    left, right = (Counter(_MARKUP.findall(text)) for text in (source, target))
    return f"markup differs: {next(iter((left - right) + (right - left)))[:40]}" if left != right else ""


def _repetition(source: str, target: str) -> str:
    """Laughter and cries are repeated on both sides; what only one side repeats is no translation."""
    left, right = (_REPEATED.search(text) for text in (source, target))
    return f"only one side repeats '{(left or right)[0][:30]}'" if (left is None) != (right is None) else ""  # type: ignore[index]


def _numbers(source: str, target: str) -> str:
    left, right = (sorted(re.findall(r"\d+", text)) for text in (source, target))
    return f"numbers differ: {' '.join(left)[:30]} / {' '.join(right)[:30]}" if left != right else ""


def _language(profile: Profile, settings: Settings) -> Check:
    if len(settings.languages) != 2:
        raise ConfigError("the rule 'language' needs the languages of source and target, as in --languages en,de")
    identifier = load_identifier("the rule 'language'", "documents")
    for code in settings.languages:
        if not any(same_language(code, known) for known in identifier.labels):
            raise ConfigError(f"--languages: found '{code}', which the detector does not know")

    def check(source: str, target: str) -> str:
        for side, text, wanted in zip(("source", "target"), (source, target), settings.languages, strict=True):
            if sum(map(str.isalpha, text)) >= MIN_LANGUAGE_LETTERS:
                code, share = identifier.classify(text)
                if not same_language(code, wanted) and share > 0.9:
                    return f"{side} looks like {code}"
        return ""

    return check


def _of_corpus(profile: Profile, settings: Settings) -> None:
    """The check needs all pairs: clean.py makes it."""


RULES: dict[str, Rule] = {
    rule.name: rule
    for rule in (
        Rule("duplicate", "the same pair occurs earlier", True, _of_corpus),
        Rule("copy", f"target equals source, {COPIED_WORDS} words or more", True, _always(_copy)),
        Rule("ratio", "lengths differ far more than usual in this corpus", True, _ratio),
        Rule("script", "most letters of a side are of another script than usual on that side", True, _script),
        Rule("markup", "tags, entities or variables differ", True, _always(_markup)),
        Rule("repetition", "one side repeats a letter or a word many times, as aaaaaa", True, _always(_repetition)),
        Rule("contradiction", "a later pair has the same source and another target", False, _of_corpus),
        Rule("near-duplicate", "a very similar pair occurs earlier (MinHash)", False, _of_corpus),
        Rule("language", "a side is in another language (py3langid)", False, _language),
        Rule("numbers", "digits differ", False, _always(_numbers)),
    )
}


def chosen_rules(with_: Iterable[str], without: Sequence[str]) -> list[Rule]:
    added = tuple(with_)
    for name in (*added, *without):
        if name not in RULES:
            raise ConfigError(f"found the rule '{name}'. {hint(name, RULES)}")
    return [rule for rule in RULES.values() if (rule.default or rule.name in added) and rule.name not in without]


def rules_text(default: bool) -> str:
    """The rules that are on by default, or off, with what they are about."""
    return "; ".join(f"{rule.name}: {rule.about}" for rule in RULES.values() if rule.default is default)


@dataclass(frozen=True)
class CleanOptions(Limited):
    """Which rules `clean` applies, and where it writes."""

    output: str = setting(help="the pairs that are kept: .tsv or .jsonl", flag="-o --output")
    rejects: str | None = setting(
        None, help="the others with rule and reason. [default: OUTPUT.rejected.tsv]", flag="--rejects", metavar="FILE"
    )
    with_: tuple[str, ...] = setting(
        (),
        help="use also a rule that is off. LISTING",
        flag="--with",
        metavar="RULE",
        listing=lambda: rules_text(False),
    )
    without: tuple[str, ...] = setting(
        (), help="do not use a rule that is on. LISTING", flag="--without", metavar="RULE",
        listing=lambda: rules_text(True),
    )  # fmt: skip
    languages: str | None = setting(
        None, help="languages of source and target, for --with language", flag="--languages", metavar="A,B"
    )
    max_ratio: Annotated[float, Range(1.0, exclusive_minimum=True)] = setting(
        3.0, help="a pair whose lengths differ so many times more than usual is rejected (rule ratio).",
        flag="--max-ratio",
    )  # fmt: skip
    near: Annotated[float, Range(0.5, 1.0)] = setting(
        0.8, help="shared part of the character 5-grams of near duplicates (rule near-duplicate).", flag="--near"
    )
    columns: str | None = setting(
        None, help="columns of FILE, by number or name, or languages of a .tmx", flag="--columns", metavar="A,B"
    )
    header: bool = setting(False, help="the first line of FILE names its columns", flag="--header")

    @property
    def rejected(self) -> str:
        """The file of the rejected pairs."""
        return self.rejects or f"{Path(self.output).with_suffix('')}.rejected.tsv"
