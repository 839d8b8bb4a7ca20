"""Topics before neural networks, and those about measuring: edit distance, n-grams, hidden states, bias."""

from __future__ import annotations

from dragoman.lecture.table import Answer, Figure, Numbers, Topic, choose, largest


def edits(numbers: Numbers) -> Answer:
    one = numbers.data["alignment"][0]
    kinds = [one[kind] for kind in ("substitutions", "insertions", "deletions")]
    why = f"{kinds[0]} substitutions + {kinds[1]} insertions + {kinds[2]} deletions: the last cell of the table."
    return Answer(sum(kinds), why)


def worst_length(numbers: Numbers) -> Answer:
    scores = {f"{one['label']} words": -one["score"] for one in numbers.data["by_length"]["bleu"]}
    lowest = min(scores, key=lambda name: -scores[name])
    why = f"BLEU is {-scores[lowest]:.1f} there. Look at the intervals before you believe a difference."
    return choose(lowest, list(scores), why)


def unigrams(numbers: Numbers) -> Answer:
    terms = numbers.data["terms"]["bleu"]
    right, of = terms["matches"][0], terms["totals"][0]
    why = f"{right} of {of} words of the outputs are in their references: {right} / {of}."
    return Answer(100 * right / of, why, digits=1)


def better_system(numbers: Numbers) -> Answer:
    rows = numbers.view("scores")["rows"]
    return largest({row["name"]: row["scores"]["bleu"]["score"] for row in rows}, "BLEU of each:")


def translation(numbers: Numbers) -> Answer:
    row = next(row for row in numbers.view("lexicon")["words"] if row["word"] == "Hund")
    return largest(dict(zip(row["targets"], row["probabilities"], strict=True)), "t(English word | Hund):")


def phrases(numbers: Numbers) -> Answer:
    used = numbers.view("phrases")["phrases"]
    told = " | ".join(" ".join(phrase["target"]) for phrase in used)
    return Answer(len(used), f"The best derivation is: {told}.")


def surprise(numbers: Numbers) -> Answer:
    view = numbers.view("surprise")
    bits: dict[str, float] = {}
    for token, value in zip(view["target"]["tokens"], view["bits"], strict=True):
        bits[token] = max(value, bits.get(token, 0.0))
    return largest(bits, "−log2 p(word | words before it):", " bits")


def trellis(numbers: Numbers) -> Answer:
    table = numbers.view("tables")["tables"][0]
    tags, words = len(table["rows"]), len(table["columns"])
    why = f"{tags} tags for each of {words} words: {tags}^{words}. Viterbi needs {words - 1} · {tags}² steps for them."
    return Answer(tags**words, why)


def forecast(numbers: Numbers) -> Answer:
    view = numbers.view("series")
    value = view["curves"]["predicted"][0][view["known"]][0]
    return Answer(value, f"The mean of the prediction behind the last value is {value:.2f}; see its band.", digits=1)


def amplified(numbers: Numbers) -> Answer:
    from dragoman.lecture.sample_texts import HE_SHARES

    row = next(row for row in numbers.data[0]["rows"] if row["word"] == "baut")
    why = (
        f"The training pairs have “he” in {HE_SHARES['baut'][1]:.0%} of the translations of “die Person baut”. A "
        "search writes the more probable word every time: it amplifies the bias of the data."
    )
    return Answer(100 * row["share"], why)


EDIT_DISTANCE = Topic(
    "edit-distance", "Edit distance and evaluation",
    "How far is an output from its reference, and is one system really better than another?",
    (
        "Which two outputs with the same BLEU would a reader not judge alike?",
        "What would make the interval of a score half as wide?",
    ),
    (
        "The cheapest path through an edit table is not unique; the distance is.",
        "BLEU of a corpus is not the mean of the BLEU of its sentences.",
        "Overlapping intervals do not mean that a paired test finds no difference.",
    ),
    (
        Figure(
            "edit distance: the table and its path (Levenshtein)",
            "score out.txt ref.txt --alignment --characters --table --plot table.svg",
            "How many edits of single characters turn the first output into its reference?", edits,
            numbers="score out.txt ref.txt --alignment --characters --table --json",
        ),
        Figure(
            "score against sentence length (Bahdanau et al. 2015, figure 2)",
            "score out.txt ref.txt --source source.txt --by-length --metric bleu --plot lengths.svg",
            "For which length is BLEU lowest?", worst_length,
            numbers="score out.txt ref.txt --source source.txt --by-length --metric bleu --json",
        ),
        Figure(
            "BLEU taken apart", "score out.txt ref.txt --metric bleu --ngrams",
            "What is the precision of single words, in percent?", unigrams,
            numbers="score out.txt ref.txt --metric bleu --ngrams --json",
        ),
        Figure(
            "two systems with intervals and significance", "compare ref.txt out.txt other.txt -o systems.html",
            "Which system has the higher BLEU?", better_system,
        ),
    ),
)  # fmt: skip

N_GRAMS = Topic(
    "n-grams", "N-grams and the noisy channel",
    "Counting words: what follows what, which word translates which, and how both make a translation.",
    (
        "What does a bigram model know about a sentence that a unigram model does not?",
        "Why does IBM model 1 find the same alignments whatever the order of the words?",
    ),
    (
        "A zero count is not a zero probability: smoothing keeps a share for what was never seen.",
        "The noisy channel multiplies p(source | target) by p(target), not p(target | source) by p(target).",
    ),
    (
        Figure(
            "n-grams: bits of every word", 'inspect runs/ngrams "the big dog" --view surprise -o surprise.svg',
            "Which token surprises the model most?", surprise,
        ),
        Figure(
            "IBM models: translation and fertility tables",
            'inspect runs/aligner "der kleine Hund" --view lexicon -o lexicon.html',
            "Which English word is the most probable translation of “Hund”?", translation,
        ),
        Figure(
            "phrases: segmentation, noisy-channel terms, stacks, lattice",
            'inspect runs/phrases "der kleine Hund" --view phrases -o phrases.html',
            "Of how many phrases is the best translation made, the end of the sentence included?", phrases,
        ),
    ),
)  # fmt: skip

HIDDEN_STATES = Topic(
    "hmm", "Hidden Markov models and the Kalman filter",
    "A state that nobody sees, and what the observations tell about it: discrete tags, then numbers.",
    (
        "What would Viterbi do if all transitions were equally probable?",
        "When does the smoother know more than the filter, and when the same?",
    ),
    (
        "The best path is not the sequence of the best tags at each place.",
        "The gain of a Kalman filter does not depend on the values that it sees.",
    ),
    (
        Figure(
            "HMM: the trellis with its Viterbi path", 'inspect runs/hmm "the big dog" --view tables -o viterbi.svg',
            "How many paths of tags are there for the three words?", trellis,
        ),
        Figure(
            "Kalman filter: estimates with bands, smoother, forecast",
            'inspect runs/kalman "0.1 0.2 0.3" --view series -o kalman.html',
            "Which number does the filter predict after 0.3?", forecast,
        ),
    ),
)  # fmt: skip

BIAS = Topic(
    "bias", "Bias and probes",
    "What did the model learn besides the task? Templates count it; the bias of these data was made on purpose.",
    (
        "Who chooses the templates of a probe, and what does that choice hide?",
        "Would sampling in place of search remove the bias, or only show that of the data?",
    ),
    (
        "A model can be more biased than its data: the most probable word wins every time.",
        "Two outputs are no statistics; look at the interval of the share.",
    ),
    (
        Figure(
            "he or she? own templates, counts with intervals", "probe runs/transformer --templates probes.toml",
            "German “die Person” tells no gender. In how many percent of its outputs for “die Person baut” does the "
            "model write “he”?", amplified,
            numbers="probe runs/transformer --templates probes.toml --json",
        ),
    ),
)  # fmt: skip
