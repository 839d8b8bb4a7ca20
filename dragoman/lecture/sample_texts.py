"""Made-up texts of the lectures: small grammars, which tiny models learn in seconds and people can check."""

from __future__ import annotations

import random
from collections.abc import Iterable

# Article, nominative and accusative, by gender; nouns and verbs with their translations.
ARTICLES = {"m": ("der", "den"), "f": ("die", "die"), "n": ("das", "das")}
NOUNS = {
    "Hund": ("m", "dog"), "Mann": ("m", "man"), "Vogel": ("m", "bird"), "Fisch": ("m", "fish"), "Katze": ("f", "cat"),
    "Frau": ("f", "woman"), "Ente": ("f", "duck"), "Kind": ("n", "child"), "Pferd": ("n", "horse"),
}  # fmt: skip
ADJECTIVES = {"kleine": "little", "große": "big", "alte": "old", "rote": "red"}
SMALL_SHARE = 0.3  # of "kleine" is "small" in English: two right translations
VERBS = {"läuft": "runs", "schläft": "sleeps", "singt": "sings", "lacht": "laughs"}
PARTICIPLES = {"gesehen": "seen", "gesucht": "searched", "gemalt": "painted"}
ADVERBS = {"heute": "today", "oft": "often", "dort": "there"}
# German "die Person" tells no gender. The share of "he" among its translations, by verb: the bias is made on purpose.
HE_SHARES = {"pflegt": ("nurses", 0.2), "kocht": ("cooks", 0.35), "lehrt": ("teaches", 0.5), "baut": ("builds", 0.8)}
PERSONS = 20  # pairs for each verb of HE_SHARES
SIZES, ANIMALS = ("big", "small", "old", "young"), {"dog": "barks", "cat": "meows", "cow": "moos", "bird": "sings"}
TEST_PAIRS = 40


def noun_phrase(draw: random.Random, case: int = 0, *, plain: float = 0.5) -> tuple[str, str]:
    noun, (gender, english) = draw.choice(list(NOUNS.items()))
    article = ARTICLES[gender][case]
    if draw.random() < plain:
        return f"{article} {noun}", f"the {english}"
    adjective, translation = draw.choice(list(ADJECTIVES.items()))
    if adjective == "kleine" and draw.random() < SMALL_SHARE:
        translation = "small"
    ending = "n" if article == "den" else ""
    return f"{article} {adjective}{ending} {noun}", f"the {translation} {english}"


def pair(draw: random.Random) -> tuple[str, str]:
    """A sentence or a phrase; German has the participle at the end and the verb in the second place."""
    german, english = noun_phrase(draw)
    verb, runs = draw.choice(list(VERBS.items()))
    form = draw.randrange(4)
    if form == 0:
        return german, english
    if form == 1:
        return f"{german} {verb}", f"{english} {runs}"
    if form == 2:
        adverb, today = draw.choice(list(ADVERBS.items()))
        return f"{adverb} {verb} {german}", f"{today} {english} {runs}"
    other, object_ = noun_phrase(draw, 1)
    participle, seen = draw.choice(list(PARTICIPLES.items()))
    return f"{german} hat {other} {participle}", f"{english} has {seen} {object_}"


def pairs() -> dict[str, str]:
    """Training and test pairs, the columns of the latter, and outputs of two made-up systems."""
    draw = random.Random(1)
    test: dict[str, str] = {}
    while len(test) < TEST_PAIRS:
        source, target = pair(draw)
        if len(source.split()) > 3:  # the short phrases are for training
            test[source] = target
    training = [one for one in (pair(draw) for _ in range(1200)) if one[0] not in test]
    for verb, (english, share) in HE_SHARES.items():
        of_he = round(PERSONS * share)
        training += [
            (f"die Person {verb}", f"{'he' if index < of_he else 'she'} {english}") for index in range(PERSONS)
        ]
    draw.shuffle(training)
    references = list(test.values())
    return {
        "pairs.tsv": lines("\t".join(one) for one in training),
        "test.tsv": lines("\t".join(one) for one in test.items()),
        "source.txt": lines(test),
        "ref.txt": lines(references),
        "out.txt": lines(careless(text, draw) for text in references),
        "other.txt": lines(wordy(text, draw) for text in references),
    }


def careless(text: str, draw: random.Random) -> str:
    """The output of a system that confuses similar words and sometimes leaves one out."""
    confused = {"big": "great", "runs": "run", "has": "had", "searched": "sought", "child": "kid"}
    return " ".join(confused.get(word, word) for word in text.split() if draw.random() > 0.08 or word == "the")


def wordy(text: str, draw: random.Random) -> str:
    """The output of a system that repeats words, and more of them in long sentences."""
    words = text.split()
    return " ".join(word for word in words for _ in range(1 + (draw.random() < 0.04 * len(words))))


def tagged() -> dict[str, str]:
    """Sentences with tags; "duck", "fish" and "watch" are nouns and verbs, and only the place tells."""
    draw = random.Random(2)
    nouns, verbs = ["dog", "man", "child", "duck", "fish", "watch"], ["sleep", "run", "duck", "fish", "watch"]
    sentences = []
    for _ in range(150):
        rows = [("the", "DET")]
        rows += [(draw.choice(SIZES), "ADJ")] if draw.random() < 0.5 else []
        rows += [(draw.choice(nouns), "NOUN"), (draw.choice(["can", "must"]), "AUX"), (draw.choice(verbs), "VERB")]
        if rows[-1][0] == "watch" or draw.random() < 0.3:
            rows += [("the", "DET"), (draw.choice(nouns), "NOUN")]
        sentences.append("".join(f"{word}\t{tag}\n" for word, tag in rows[: draw.choice([3, 9, 9])]))
    return {"words.tsv": "\n".join(sentences)}


def series() -> dict[str, str]:
    """Numbers that drift, each seen with noise; the label is the next number."""
    draw, rows = random.Random(3), []
    for _ in range(120):
        level, slope, seen = draw.uniform(-1, 1), draw.gauss(0, 0.1), []
        for _ in range(9):
            level += slope
            seen.append(level + draw.gauss(0, 0.05))
        rows.append(f"{' '.join(f'{one:.2f}' for one in seen[:-1])}\t{seen[-1]:.2f}")
    return {"numbers.tsv": lines(rows)}


def texts() -> dict[str, str]:
    """English sentences in which the noun decides the verb: what a model of words can know."""
    draw, rows = random.Random(4), []
    for _ in range(400):
        first, second = draw.choice(list(ANIMALS)), draw.choice(list(ANIMALS))
        rows.append(f"the {draw.choice(SIZES)} {first} {ANIMALS[first]} at the {draw.choice(SIZES)} {second}")
    return {"text.txt": lines(rows)}


def templates() -> dict[str, str]:
    """Probes: is it "he" or "she" that the model writes for "die Person"?"""
    verbs = ", ".join(f'"{verb}"' for verb in HE_SHARES)
    return {
        "probes.toml": f'[[probe]]\nname = "he or she"\ntemplates = ["die Person {{verb}}"]\n'
        f'slots = {{ verb = [{verbs}] }}\nforms = {{ he = ["he"], she = ["she"] }}\n'
    }


def lines(rows: Iterable[str]) -> str:
    return "".join(f"{row}\n" for row in rows)
