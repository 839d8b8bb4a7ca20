"""Tokenizers and sentences in JavaScript give what those in Python give, for ten scripts and hostile characters."""

from __future__ import annotations

import io
import random
from collections import Counter
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import sentencepiece

from dragoman.data.sentences import split_sentences
from dragoman.data.tokenizers.base import TextPairTokenizer
from dragoman.data.tokenizers.byte_level_bpe import BYTES, ByteLevelBPEConfig, ByteLevelBPETokenizer
from dragoman.data.tokenizers.characters import BytesConfig, ByteTokenizer, CharactersConfig, CharacterTokenizer
from dragoman.data.tokenizers.language_tags import LanguageTagTokenizer
from dragoman.data.tokenizers.subwords import (
    SentencePieceConfig,
    SentencePieceTokenizer,
    SubwordsConfig,
    SubwordTokenizer,
)
from dragoman.data.tokenizers.word_piece import WordPieceConfig, WordPieceTokenizer
from dragoman.data.tokenizers.words import WordsConfig, WordTokenizer
from dragoman.exchange.web_page import tokenizer_spec
from tests.web.javascript import run_javascript

SCRIPTS = {
    "Latin": "abcdefghijklmnopqrstuvwxyzäöüßéèñçøåABCDEFGHŽŠİıſ",
    "Cyrillic": "абвгдежзийклмнопрстуфхцчшщъыьэюяЁІЇ",
    "Greek": "αβγδεζηθικλμνξοπρσςτυφχψωΆΈΣ",
    "Arabic": "ابتثجحخدذرزسشصضطظعغفقكلمنهويةىءئؤًٌٍَُِّْ\u200c٠١٢",
    "Hebrew": "אבגדהוזחטיכךלמםנןסעפףצץקרשתְֱִֵֶַָֹּ",
    "Devanagari": "अआइईउऊएऐओऔकखगघचछजझटठडढणतथदधनपफबभमयरलवशषसहािीुूेैोौ्ंः\u200d०१",
    "Thai": "กขคงจฉชซญดตถทธนบปผฝพฟภมยรลวศษสหอฮะาิีึืุูเแโใไ่้๊๋",
    "Han": "的一是不了人我在有他这为之大来以个中上们到说国和地也子时道出而要于就下得可你年生自会那后能对着事",
    "Kana": "あいうえおかきくけこさしすせそアイウエオカキクケコガギグパピプー・、。",
    "Hangul": "가나다라마바사아자차카타파하한국어말을는이에서로합니다각간갈",
}
HOSTILE = (
    " \t\u00a0\u3000\u2009\u2028\u0085\x1c\u200b\ufeff\u2581￭_.,!?;:'\"()[]{}<>/\\|@#$%^&*+-=~`"
    "0123456789½²Ⅳ€…–—“”„«»、。！？😀🏽\U00020000\U000e0101\u0301ﬁ㍿①\x7f\ufffd"
)
ODD = [
    "",
    " ",
    "  ",
    "<eos>",
    "<0x41>",
    "<unk> a",
    "a" * 300,
    "Don't! it's  n't .",
    ">>fra<< a",
    "<2de> a",
    "<2xx> a",
    "a\tb",
]


def lines(count: int, seed: int) -> list[str]:
    """Lines of one to three scripts, with marks, digits and odd white space between and inside their words."""
    draw = random.Random(seed)
    out = list(ODD)
    while len(out) < count:
        letters = [draw.choice(list(SCRIPTS.values())) for _ in range(draw.choice([1, 1, 1, 2, 3]))]
        text = ""
        for _ in range(draw.randint(1, 9)):
            text += "".join(draw.choice(draw.choice(letters)) for _ in range(draw.randint(1, 8)))
            text += "".join(draw.choice(HOSTILE) for _ in range(draw.choice([0, 0, 0, 0, 1, 1, 2])))
            text += draw.choice(["", *[" "] * 12, "  ", "\t"])
        out.append(text)
    return out[:count]


def imported(prefix: str = "", **settings: Any) -> SentencePieceTokenizer:
    """The tokenizer of an imported model, whose vocabulary lacks some pieces of its SentencePiece file."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines(800, 1)), model_writer=model, vocab_size=900, hard_vocab_limit=False,
        minloglevel=3, **settings,
    )  # fmt: skip
    pieces = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    tokens = [pieces.id_to_piece(index) for index in range(3, pieces.get_piece_size())][:700]
    return SentencePieceTokenizer(SentencePieceConfig(prefix), model.getvalue(), [*tokens, ">>fra<<", "fr_XX"])


def byte_level(prefix: bool) -> ByteLevelBPETokenizer:
    """With the hundred most frequent merges, and without the tokens of five bytes."""
    words: Counter[tuple[str, ...]] = Counter()
    plain = ByteLevelBPETokenizer(ByteLevelBPEConfig(prefix), BYTES, [])
    for text in lines(200, 1):
        words.update(tuple(BYTES[byte] for byte in word.encode()) for word in plain._words(text))
    merges: list[tuple[str, str]] = []
    for _ in range(100):
        pairs: Counter[tuple[str, str]] = Counter()
        for word, count in words.items():
            for pair in pairwise(word):
                pairs[pair] += count
        left, right = max(pairs, key=lambda pair: (pairs[pair], pair))
        merges.append((left, right))
        merged: Counter[tuple[str, ...]] = Counter()
        for word, count in words.items():
            merged[tuple("\0".join(word).replace(f"{left}\0{right}", left + right).split("\0"))] += count
        words = merged
    return ByteLevelBPETokenizer(
        ByteLevelBPEConfig(prefix), [*BYTES, *(left + right for left, right in merges)][5:], merges
    )


@cache
def trained(kind: str) -> Any:
    return MAKERS[kind]()


MAKERS: dict[str, Callable[[], Any]] = {
    "bpe": lambda: SubwordTokenizer.train(SubwordsConfig(1500, character_coverage=0.99), lines(800, 1)),
    "unigram": lambda: SubwordTokenizer.train(SubwordsConfig(1500, "unigram"), lines(800, 1)),
    "words": lambda: WordTokenizer.train(WordsConfig(3000), lines(800, 1)),
    "spaces": lambda: WordTokenizer.train(WordsConfig(3000, split="spaces"), lines(800, 1)),
    "characters": lambda: CharacterTokenizer.train(CharactersConfig(min_count=5), lines(800, 1)),
    "features": lambda: CharacterTokenizer.train(CharactersConfig(features=" ;"), lines(800, 1)),
    "bytes": lambda: ByteTokenizer(BytesConfig()),
    "wordpiece": lambda: WordPieceTokenizer.train(WordPieceConfig(vocab_size=1500), lines(800, 1)),
    "wordpiece, as it is": lambda: WordPieceTokenizer.train(WordPieceConfig(False, False, False, 1500), lines(800, 1)),
    "NFKC": lambda: imported(model_type="unigram", normalization_rule_name="nmt_nfkc"),
    "case folding": lambda: imported("fr_XX", model_type="bpe", normalization_rule_name="nfkc_cf", byte_fallback=True),
    "own symbols": lambda: imported(model_type="unigram", user_defined_symbols=["ab", "的一"]),
    "byte-level": lambda: byte_level(False),
    "byte-level, space first": lambda: byte_level(True),
    "tags": lambda: LanguageTagTokenizer(trained("bpe"), ("de", "fr")),
    "pairs": lambda: TextPairTokenizer(trained("words")),
}
# Places count characters in Python and units of UTF-16 in JavaScript.
CHECK = """async (cases) => cases.map(({ spec, texts, rows }) => {
  const tokenizer = module_tokenizers.makeTokenizer(spec);
  return {
    encoded: texts.map((text) => {
      const places = [];
      let count = 0;
      for (const character of text) { places.push(...Array(character.length).fill(count)); count += 1; }
      places.push(count);
      return tokenizer.encode(text).map(([id, start, end]) => [id, places[start], places[end]]);
    }),
    decoded: rows.map((ids) => tokenizer.decode?.(ids)),
  };
})"""


def check(count: int, folder: Path) -> None:
    texts, draw = lines(count, 2), random.Random(3)
    assert all(any(set(text) & set(letters) for text in texts) for letters in SCRIPTS.values())
    cases = []
    for kind in MAKERS:
        size = len(trained(kind).innermost)
        rows = [[draw.randrange(size) for _ in range(draw.randint(0, 12))] for _ in range(count)]
        cases.append({"spec": tokenizer_spec(trained(kind)), "texts": texts, "rows": rows})
    found = run_javascript("tokenizers", CHECK, cases, folder)
    for kind, case, result in zip(MAKERS, cases, found, strict=True):
        tokenizer = trained(kind)
        for text, tokens in zip(texts, result["encoded"], strict=True):
            expected = [
                [index, *span] for index, span in zip(tokenizer.encode(text), tokenizer.spans(text), strict=True)
            ]
            assert tokens == expected, (kind, text)
        if kind not in ("tags", "pairs"):  # of sources alone
            assert result["decoded"] == [tokenizer.decode(row) for row in case["rows"]], kind


def test_tokenizers_equal_those_of_python(tmp_path: Path) -> None:
    check(120, tmp_path)


@pytest.mark.slow
def test_tokenizers_equal_those_of_python_on_ten_thousand_lines(tmp_path: Path) -> None:
    check(10_000, tmp_path)


SENTENCES = [
    "One. Two! Three? Four… five.", "Dr. No met Mr. X. on 3. Oktober. Ja.", "  a\n\n b. C\n",
    "他来了。她走了！「好。」完",
    "", " \n",
    'He said "Go." Then left.', "z.B. so. Und (ja.) Nein", "e.g. this. ¿Qué? ¡No! 12. Ende. 123. Ende", "...A. b. C",
    "a.\u00a0B", "«Oui.» Non.",
]  # fmt: skip


def test_sentences_equal_those_of_python(tmp_path: Path) -> None:
    texts = [*SENTENCES, *lines(200, 4)]
    texts += [". ".join(group) for group in zip(texts, texts[3:], texts[7:], strict=False)]
    found = run_javascript("sentences", "async (texts) => texts.map(module_sentences.splitSentences)", texts, tmp_path)
    assert [[tuple(sentence) for sentence in row] for row in found] == [
        [tuple(sentence) for sentence in split_sentences(text)] for text in texts
    ]


FILES = {
    "a.txt": ("Hi there. Go!\n\nYes.\n", ["Hi there.", "Go!", "Yes."]),
    "a.md": (
        "---\ntitle: x\n---\n# Head\n\n- [x] item one. Two.\n> quote\n\n```py\ncode\n```\n---\n| - | - |\nEnd\n",
        ["Head", "item one.", "Two.", "quote", "End"],
    ),
    "a.srt": (
        "1\n00:00:01,000 --> 00:00:02,000\nHi\nthere\n\n2\n00:00:03,000 --> 00:00:04,000\nYes\n",
        ["Hi there", "Yes"],
    ),
    "a.VTT": ("WEBVTT\n\nNOTE a\n\n00:01.000 --> 00:02.000 align:start\nHi\n", ["Hi"]),
}  # fmt: skip


def test_files_keep_their_layout(tmp_path: Path) -> None:
    files = [[name, content] for name, (content, _) in FILES.items()]
    function = "async (files) => files.map(([name, content]) => module_documents.unitsOf(name, content))"
    found = run_javascript("documents", function, files, tmp_path)
    for (name, (content, texts)), units in zip(FILES.items(), found, strict=True):
        assert [text for text, read in units if read] == texts
        assert "".join(text for text, _ in units) == content.replace("Hi\nthere", "Hi there"), name
