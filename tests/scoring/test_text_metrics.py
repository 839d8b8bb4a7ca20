"""Text metrics equal sacreBLEU, jiwer and plain implementations, and their statistics add up over segments."""

from __future__ import annotations

import itertools
import random
from urllib.error import URLError

import jiwer
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rapidfuzz.distance import Levenshtein
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from dragoman.base.errors import DataError, MissingExtraError
from dragoman.scoring.edit import align_edits
from dragoman.scoring.error_rates import edit_alignments
from dragoman.scoring.meteor import match, stem, stemmed_words
from dragoman.scoring.ngram_overlap import subsequence_overlap
from dragoman.scoring.registry import SCORE_DEFAULTS, metrics_for, select_metrics, text_statistics
from tests.scoring.test_metrics import corpus

METRICS, PHONEME_METRICS = metrics_for("words"), metrics_for("phonemes")
ORACLES = {
    "bleu": lambda: BLEU(force=True),
    "chrf": CHRF,
    "chrf++": lambda: CHRF(word_order=2),
    "ter": TER,
}
LETTERS = st.text("ab c", max_size=9)


def test_bleu_taken_apart_is_sacrebleu() -> None:
    """The flags of single n-grams add up to sacreBLEU's counts, with clipping over several references."""
    outputs, references = corpus(3, 30, 2)
    outputs += ["the the the the", "", "a, b!"]
    references += [["the cat", "the the dog"], ["a"], ["a, b!"]]
    for name, metric in (("bleu", BLEU()), ("bleu-char", BLEU(tokenize="char"))):
        apart = METRICS[name].apart
        assert apart is not None
        found = apart(outputs, references)
        oracle = metric.corpus_score(outputs, list(itertools.zip_longest(*references)))
        assert [found["score"], found["brevity_penalty"]] == pytest.approx([oracle.score, oracle.bp])
        assert [100 * precision for precision in found["precisions"]] == pytest.approx(oracle.precisions)
        assert [found["output_length"], found["reference_length"]] == [oracle.sys_len, oracle.ref_len]
        for texts, output, segment in zip(references, outputs, found["segments"], strict=True):
            single = metric.corpus_score([output], [[text] for text in texts])
            assert [sum(flags) for flags in segment["matched"]] == single.counts
            assert [len(flags) for flags in segment["matched"]] == single.totals
        clipped = found["segments"][30]["matched"]
        assert clipped[0].count(True) == (2 if name == "bleu" else 6)


@pytest.mark.parametrize(
    ("outputs", "references"),
    [
        (["a b c d e f", "the cat sat"], [["a b c d e g h"], ["the cat sat", "a cat"]]),
        (["a b c", "d"], [["a b d"], ["e"]]),  # no match of three or four words
        (["a", "b"], [["a b c d e"], ["b"]]),  # no n-grams of two words
        (["x y z w v"], [["a b c d e"]]),  # no match at all
        (["", ""], [["a b"], ["c"]]),
        ([""], [[""]]),
    ],
)
def test_terms_of_bleu_are_those_of_sacrebleu(outputs: list[str], references: list[list[str]]) -> None:
    metric, oracle = METRICS["bleu"], BLEU(force=True).corpus_score(outputs, list(itertools.zip_longest(*references)))
    assert metric.terms is not None
    terms = metric.terms(metric.statistics(outputs, references).rows.sum(axis=0))
    assert [100 * precision for precision in terms["precisions"]] == pytest.approx(oracle.precisions)
    assert (terms["matches"], terms["totals"]) == (oracle.counts, oracle.totals)
    assert terms["brevity_penalty"] == pytest.approx(oracle.bp)
    assert (terms["output_length"], terms["reference_length"]) == (oracle.sys_len, oracle.ref_len)


def test_bleu_splits_text_without_spaces_into_characters() -> None:
    references = [["今天天气很好。"], ["我喜欢读书。"]]
    outputs = ["今天天气好。", "我喜欢看书。"]
    for name, tokenizer in (("bleu", "char"), ("bleu-char", "char"), ("bleu-zh", "zh"), ("bleu-intl", "intl")):
        counted, oracle = METRICS[name].statistics(outputs, references), BLEU(tokenize=tokenizer, force=True)
        expected = oracle.corpus_score(outputs, streams(references)).score
        assert METRICS[name].score(counted) == pytest.approx(expected, abs=1e-9)
        assert f"tok:{tokenizer}|" in counted.signature
    assert "tok:13a|" in METRICS["bleu"].statistics(["a b"], [["a b"]]).signature


JAPANESE = ["今日は天気がいい"], [["今日は天気が良い"]]


def test_bleu_over_japanese_words() -> None:
    pytest.importorskip("MeCab", reason="needs mecab-python3 and ipadic")
    outputs, references = JAPANESE
    japanese = select_metrics(["bleu-ja-mecab"])["bleu-ja-mecab"]
    counted, oracle = japanese.statistics(outputs, references), BLEU(tokenize="ja-mecab", force=True)
    assert japanese.score(counted) == pytest.approx(oracle.corpus_score(outputs, streams(references)).score, abs=1e-9)
    assert "tok:ja-mecab-" in counted.signature
    assert "bleu-ja-mecab" not in select_metrics(["all"])


def test_bleu_with_tokenizers_that_need_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """They were not there at all; sacreBLEU itself says in several lines what is missing."""
    outputs, references = JAPANESE
    japanese = select_metrics(["bleu-ja-mecab"])["bleu-ja-mecab"]

    def missing(**options: object) -> None:
        raise RuntimeError("\nJapanese tokenization requires extra dependencies\n")

    def offline(**options: object) -> None:
        raise URLError("Name or service not known")

    monkeypatch.setattr("sacrebleu.metrics.bleu.BLEU", missing)
    with pytest.raises(
        MissingExtraError, match=r"bleu-ja-mecab needs the package 'sacrebleu\[ja\]'.*pip install sacrebleu\[ja\]$"
    ):
        japanese.statistics(outputs, references)
    with pytest.raises(MissingExtraError, match=r"pip install sacrebleu\[ko\]$"):
        select_metrics(["bleu-ko-mecab"])["bleu-ko-mecab"].statistics(outputs, references)
    monkeypatch.setattr("sacrebleu.metrics.bleu.BLEU", offline)
    with pytest.raises(DataError, match=r"bleu-flores200: sacreBLEU downloads .* failed \(Name or service not known\)"):
        select_metrics(["bleu-flores200"])["bleu-flores200"].statistics(outputs, references)


def streams(references: list[list[str]]) -> list[list[str]]:
    return [list(stream) for stream in zip(*references, strict=True)]


@pytest.mark.parametrize("name", ORACLES)
@pytest.mark.parametrize("references", [1, 3])
def test_scores_equal_sacrebleu(name: str, references: int) -> None:
    hypotheses, texts = corpus(references, segments=300, references=references)
    hypotheses[7] = ""
    oracle, metric = ORACLES[name](), METRICS[name]
    counted = metric.statistics(hypotheses, texts)
    assert metric.score(counted) == pytest.approx(oracle.corpus_score(hypotheses, streams(texts)).score, abs=1e-9)
    assert counted.signature == str(oracle.get_signature())


@pytest.mark.parametrize("name", ORACLES)
def test_two_thousand_pairs_alone_and_together_equal_sacrebleu(name: str) -> None:
    """Single pairs reach corner cases: missing orders, no matches, empty outputs. A third has several references."""
    draw = random.Random(7)

    def text() -> str:
        return " ".join(draw.choices(["a", "b", "c", ",", ".", "dog", "cat"], k=draw.randint(0, 6)))

    outputs = [text() for _ in range(2_000)]
    references = [[text() for _ in range(draw.choice([1, 1, 1, 1, 2, 3]))] for _ in outputs]
    oracle, metric = ORACLES[name](), METRICS[name]
    counted = metric.statistics(outputs, references)
    found = metric.combine(counted.rows)  # (pairs,)
    expected = [
        oracle.corpus_score([one], [[other] for other in others]).score
        for one, others in zip(outputs, references, strict=True)
    ]
    assert np.abs(found - np.array(expected)).max() <= 1e-9
    assert len(set(np.round(found, 6))) > 20
    single = metric.statistics(outputs, [others[:1] for others in references])
    whole = oracle.corpus_score(outputs, [[others[0] for others in references]]).score
    assert metric.score(single) == pytest.approx(whole, abs=1e-9)
    streams = [[others[rank] if rank < len(others) else None for others in references] for rank in range(3)]
    assert metric.score(counted) == pytest.approx(oracle.corpus_score(outputs, streams).score, abs=1e-9)


# The scores of CIDEr depend on all references; it has tests of its own.
INDEPENDENT = [name for name in METRICS if name != "cider"]


@pytest.mark.parametrize("name", INDEPENDENT)
def test_statistics_add_up(name: str) -> None:
    """The score of a subset follows from its rows; buckets, intervals and significance tests rely on it."""
    hypotheses, texts = corpus(3, segments=60, references=2)
    metric = METRICS[name]
    rows = metric.statistics(hypotheses, texts).rows
    part = list(range(0, 60, 7))
    alone = metric.statistics([hypotheses[place] for place in part], [texts[place] for place in part])
    assert float(metric.combine(rows[part].sum(axis=0))) == pytest.approx(metric.score(alone), abs=1e-12)
    both = metric.combine(np.stack([rows[part].sum(axis=0), rows.sum(axis=0)]))
    assert both == pytest.approx([metric.score(alone), metric.score(metric.statistics(hypotheses, texts))])


@pytest.mark.parametrize("name", INDEPENDENT)
def test_a_perfect_output_has_the_best_score(name: str) -> None:
    _, drawn = corpus(5, segments=40, references=2)
    texts = [[f"{text} of all" for text in choices] for choices in drawn]  # ROUGE-2 of one word is 0
    perfect = METRICS[name].statistics([choices[1] for choices in texts], texts)
    best = 0.0 if not METRICS[name].higher_is_better else 1.0 if METRICS[name].percent else 100.0
    tolerance = 0.02 if name == "meteor_exact_stem" else 1e-9  # one chunk still costs METEOR ½ (1 / matches)³
    assert METRICS[name].score(perfect) == pytest.approx(best, abs=tolerance)


@pytest.mark.parametrize("name", [name for name in INDEPENDENT if name != "ter" and not name.startswith("bleu")])
def test_another_reference_never_harms_a_segment(name: str) -> None:
    # BLEU's brevity penalty and TER's mean length may change for the worse.
    hypotheses, texts = corpus(6, segments=80, references=3)
    hypotheses[0] = next(text for text in texts[0] if text != texts[0][0])
    metric = METRICS[name]
    fewer = metric.combine(metric.statistics(hypotheses, [choices[:1] for choices in texts]).rows)
    more = metric.combine(metric.statistics(hypotheses, texts).rows)
    if name in ("wer", "cer", "per"):  # the closest reference has the fewest edits, if not the least rate
        fewer = metric.statistics(hypotheses, [choices[:1] for choices in texts]).rows[:, 0]
        more = metric.statistics(hypotheses, texts).rows[:, 0]
    assert ((more >= fewer - 1e-12) if metric.higher_is_better else (more <= fewer + 1e-12)).all()
    assert (more != fewer).any()


def test_phonemes_have_their_own_wer() -> None:
    hypotheses, references = ["K AE T", "D AA G"], [["K AE T"], ["D AO G"]]
    assert PHONEME_METRICS["wer"].score(PHONEME_METRICS["wer"].statistics(hypotheses, references)) == 0.5
    assert PHONEME_METRICS["per"].score(PHONEME_METRICS["per"].statistics(hypotheses, references)) == 1 / 6


def test_metrics_are_selected_by_name() -> None:
    assert tuple(select_metrics()) == SCORE_DEFAULTS["words"]
    assert tuple(select_metrics(["ter", "bleu"])) == ("ter", "bleu")
    assert select_metrics(["all"], "phonemes") == PHONEME_METRICS
    with pytest.raises(DataError, match=r"metric: found 'chrf\+', which is no metric. Did you mean 'chrf\+\+'\?"):
        select_metrics(["chrf+"])
    with pytest.raises(DataError, match=r"found 'per', which needs units \"phonemes\""):
        select_metrics(["per"])
    counts = text_statistics(["a"], [["a"]], select_metrics(["wer", "rouge-1"]))
    assert {name: len(counted.rows) for name, counted in counts.items()} == {"wer": 1, "rouge-1": 1}


@pytest.mark.parametrize("name", ["wer", "cer"])
def test_errors_equal_jiwer_on_two_thousand_pairs(name: str) -> None:
    """The rates, each pair's edits, and the kinds of edits where all cheapest alignments agree in them."""
    draw, characters = random.Random(8), name == "cer"
    pool = ["a", "b", "cc", "d", "ef", "g"]
    texts = [[" ".join(draw.choices(pool, k=draw.randint(1, 8))) for _ in range(2_000)] for _ in range(2)]
    rows = METRICS[name].statistics(texts[0], [[text] for text in texts[1]]).rows
    process = jiwer.process_characters if characters else jiwer.process_words
    measured = process(texts[1], texts[0])
    assert rows[:, 0].sum() / rows[:, 1].sum() == pytest.approx(getattr(measured, name), abs=1e-12)
    aligned = edit_alignments(texts[0], [[text] for text in texts[1]], units="characters" if characters else "words")
    sure = 0
    for row, mine, chunks, left, right in zip(rows, aligned, measured.alignments, texts[1], texts[0], strict=True):
        kinds = dict.fromkeys(("substitute", "insert", "delete"), 0)
        for chunk in chunks:
            if chunk.type != "equal":
                size = max(chunk.ref_end_idx - chunk.ref_start_idx, chunk.hyp_end_idx - chunk.hyp_start_idx)
                kinds[chunk.type] += size
        edits = len(mine.operations) - mine.matches
        assert row[0] == edits == sum(kinds.values())
        assert mine.insertions - mine.deletions == kinds["insert"] - kinds["delete"]
        one, other = (left, right) if characters else (left.split(), right.split())
        # Of equally cheap ways one may have two substitutions where another inserts and deletes: fewest = most?
        fewest = Levenshtein.distance(one, other, weights=(1000, 1000, 1001)) - 1000 * edits
        most = 1000 * edits - Levenshtein.distance(one, other, weights=(1000, 1000, 999))
        assert fewest <= mine.substitutions <= most
        if fewest == most:
            sure += 1
            assert (mine.substitutions, mine.insertions, mine.deletions) == tuple(kinds.values())
    assert sure > 1000


# --- METEOR


def slow_match(hypothesis: list[str], reference: list[str]) -> tuple[int, int]:
    """The best of all injective matchings: most matches, then fewest chunks."""
    best = (0, 0)
    options = [[None, *(j for j, other in enumerate(reference) if other == word)] for word in hypothesis]
    for choice in itertools.product(*options):
        taken = [place for place in choice if place is not None]
        if len(set(taken)) == len(taken):
            chunks = sum(
                place is not None and (i == 0 or choice[i - 1] is None or place != choice[i - 1] + 1)
                for i, place in enumerate(choice)
            )
            best = min(best, (-len(taken), chunks))
    return -best[0], best[1]


@given(st.lists(st.sampled_from("abcd"), max_size=6), st.lists(st.sampled_from("abcd"), max_size=6))
@settings(deadline=None, max_examples=400)
def test_matching_equals_exhaustive_search(hypothesis: list[str], reference: list[str]) -> None:
    assert match(hypothesis, reference) == slow_match(hypothesis, reference)


def test_meteor_equals_values_made_by_hand() -> None:
    metric = METRICS["meteor_exact_stem"]
    # Six of six words in two chunks (the cat sat | on the mat): F = 1, penalty ½ (2/6)³.
    counted = metric.statistics(["on the mat sat the cat"], [["the cat sat on the mat"]])
    matches, chunks, written, expected = counted.rows[0]
    assert (matches, written, expected) == (6, 6, 6)
    assert chunks == 3  # on the mat | sat | the cat
    assert metric.score(counted) == pytest.approx(1 - 0.5 * (3 / 6) ** 3)
    # Two of three words match one of four: P = 2/3, R = 2/4, one chunk.
    half = metric.statistics(["The cats RUNNING"], [["a cat runs home"]])
    assert half.rows[0].tolist() == [2, 1, 3, 4]
    precision, recall = 2 / 3, 2 / 4
    mean = 10 * precision * recall / (recall + 9 * precision)
    assert metric.score(half) == pytest.approx(mean * (1 - 0.5 * (1 / 2) ** 3))
    assert metric.score(metric.statistics(["x"], [["y"]])) == 0.0
    assert metric.score(metric.statistics([""], [[""]])) == 0.0
    assert stemmed_words("Don't stop.") == ["don", "'", "t", "stop", "."]


# Each from the rules as the paper gives them, carried through all five steps by hand.
STEMS = """caresses caress|ponies poni|ties ti|cats cat|feed feed|agreed agre|plastered plaster|bled bled|motoring motor
sing sing|conflated conflat|troubled troubl|sized size|hopping hop|tanned tan|falling fall|hissing hiss|fizzed fizz
failing fail|filing file|happy happi|sky sky|relational relat|conditional condit|rational ration|valenci valenc
digitizer digit|radicalli radic|vileli vile|analogousli analog|vietnamization vietnam|predication predic|operator oper
feudalism feudal|decisiveness decis|hopefulness hope|callousness callous|formaliti formal|sensitiviti sensit
sensibiliti sensibl|triplicate triplic|formative form|formalize formal|electriciti electr|electrical electr
goodness good|revival reviv|allowance allow|inference infer|airliner airlin|gyroscopic gyroscop|adjustable adjust
defensible defens|irritant irrit|replacement replac|adjustment adjust|dependent depend|adoption adopt|communism commun
activate activ|angulariti angular|homologous homolog|effective effect|bowdlerize bowdler|probate probat|rate rate
cease ceas|controll control|roll roll|generalizations gener|oscillators oscil"""


@pytest.mark.parametrize("pair", [pair for line in STEMS.split("\n") for pair in line.split("|")])
def test_stems_of_the_paper(pair: str) -> None:
    word, expected = pair.split()
    assert stem(word) == expected


def test_stemming_leaves_other_words_unchanged() -> None:
    for word in ("is", "a", "größe", "3rds", "語る", ""):
        assert stem(word) == word


# --- ROUGE


@given(LETTERS, LETTERS)
def test_common_subsequence_equals_dynamic_programming(left: str, right: str) -> None:
    # Without substitutions the cheapest way keeps the longest common subsequence: cost = m + n − 2·LCS.
    cost = align_edits(left, right, substitution=2).cost
    assert subsequence_overlap(list(left), list(right))[0] == (len(left) + len(right) - cost) // 2


def test_rouge_equals_values_made_by_hand() -> None:
    hypothesis, reference = ["The cat, the dog!"], [["the dog saw the cat"]]
    found = {name: METRICS[name].score(METRICS[name].statistics(hypothesis, reference)) for name in METRICS}
    assert found["rouge-1"] == pytest.approx(2 * 4 / (4 + 5))
    assert found["rouge-2"] == pytest.approx(2 * 2 / (3 + 4))
    assert found["rouge-l"] == pytest.approx(2 * 2 / (4 + 5))  # the dog, or the cat, or the … the
    several = METRICS["rouge-1"].statistics(["a b", "c"], [["x", "a"], ["c"]])
    assert several.rows[:, 0].tolist() == pytest.approx([2 / 3, 1.0])
    assert METRICS["rouge-1"].score(several) == pytest.approx((2 / 3 + 1) / 2)  # the mean, not the sum of matches
