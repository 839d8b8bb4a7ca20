"""Topics of Transformers: attention heads and positions, pre-training, pictures and sounds."""

from __future__ import annotations

import math

import numpy as np

from dragoman.lecture.table import Answer, Figure, Numbers, Topic, choose, largest

HUND = '"der kleine Hund"'
INSPECT = f"inspect runs/transformer {HUND}"
SCALED = f"{INSPECT} --view inside -o NUMBERS.json"


def scale(numbers: Numbers) -> Answer:
    layer = numbers.view("inside")["layers"][0]
    width = np.shape(layer["query"])[2]
    return Answer(layer["scale"], f"1 / √d with d = {width} numbers in a head.", digits=2)


def head_width(numbers: Numbers) -> Answer:
    heads, _, width = np.shape(numbers.view("inside")["layers"][0]["query"])
    return Answer(width, f"The width {heads * width} is shared by {heads} heads.")


def matrices(numbers: Numbers) -> Answer:
    layers = numbers.view("attention")["layers"]
    heads = [np.shape(layer["weights"])[0] for layer in layers]
    return Answer(sum(heads), f"{len(layers)} attention layers with {heads[0]} heads each: encoder, decoder, cross.")


def decided(numbers: Numbers) -> Answer:
    lens = numbers.view("lens")["lens"]
    second = {layer: rows[1][0] for layer, rows in zip(lens["layers"], lens["tokens"], strict=True)}
    first = next(layer for layer, token in second.items() if token == second[lens["layers"][-1]])
    told = ", ".join(f"{layer}: {token}" for layer, token in second.items())
    return choose(first, lens["layers"], f"The most probable token after each: {told}.")


def neighbour(numbers: Numbers) -> Answer:
    table = numbers.view("embeddings")["tables"][0]
    row = table["tokens"].index("Hund")
    names, values = table["neighbours"][row], np.array(table["cosines"])[row].tolist()
    return largest(dict(zip(names, values, strict=True)), "Cosines with “Hund”:")


def nearest_pair(numbers: Numbers) -> Answer:
    states, pairs = numbers.view("training")["states"], numbers.view("training")["pairs"]
    return Answer(states / pairs, f"{states:,} states of {pairs:,} pairs: one for each token and the end.", digits=1)


def repeated(numbers: Numbers) -> Answer:
    rows = (numbers.folder / "pairs.tsv").read_text(encoding="utf-8").splitlines()
    count = sum(row.startswith("der kleine Hund\t") for row in rows)
    why = "The same input and the same words before it give the same state, so each of these pairs is at distance 0."
    return Answer(count, f"pairs.tsv has {count} lines with this source. {why}")


def bag(numbers: Numbers) -> Answer:
    change = numbers.view("order")["reorderings"][0]["change_off"]
    return Answer(change + 0.0, "Without positions, attention sees a bag of words: no order changes it.", digits=2)


def before_training(numbers: Numbers) -> Answer:
    own, first = numbers.data["target"]["text"], numbers.data["beside"]["target"]["text"] or "nothing"
    words = first.split()
    first = " ".join(words[:3]) + (" …" if len(words) > 3 else "")
    vocabulary = len(numbers.view("embeddings")["tables"][-1]["points"])
    loss = f"A guess among {vocabulary} tokens has the loss {math.log(vocabulary):.1f}"
    why = f"Random weights prefer some words by chance. {loss}."
    return choose(first, (own, "Hund kleine der", "the the the"), why)


def survives(numbers: Numbers) -> Answer:
    own, other = numbers.data["target"]["text"], numbers.data["beside"]["target"]["text"]
    return choose("yes" if own == other else "no", ("yes", "no"), f"With positions: “{own}”. Without: “{other}”.")


def alike(numbers: Numbers) -> Answer:
    own, next_one = np.array(numbers.view("positions")["pictures"][0]["dots"]).ravel()[:2].tolist()
    why = f"Their product is {next_one:.2f}, that of a position with itself {own:.2f}."
    return Answer(next_one / own, why, digits=2)


def sine(numbers: Numbers) -> Answer:
    value = float(np.array(numbers.view("positions")["small"])[1][0])
    return Answer(value, f"sin(1 / 10000^0) = sin 1 = {math.sin(1):.4f}.", digits=2)


def needed(numbers: Numbers) -> Answer:
    changes = numbers.view("whatif")["changes"]
    heads = {one["name"]: -one["difference"] for one in changes if one["kind"] == "head"}
    return largest(heads, "Loss of log-probability:")


def quadratic(numbers: Numbers) -> Answer:
    return Answer(4, "Every token reads every token: n² products, and (2n)² = 4n².")


def longer(numbers: Numbers) -> Answer:
    text = (numbers.folder / "ref.txt").read_text(encoding="utf-8")
    words, characters = len(text.split()), len(text) - text.count("\n")
    return Answer(characters / words, f"ref.txt has {words} words and {characters} characters.", digits=1)


def best_step(numbers: Numbers) -> Answer:
    rows = numbers.view("scores")["rows"]
    metric = numbers.view("scores")["metrics"][0]
    values = {row["name"]: row["scores"][metric["name"]]["score"] for row in rows}
    return largest(values, f"{metric['label']} of each on the same test pairs:")


def candidates(numbers: Numbers) -> Answer:
    view = numbers.view("next")
    values = np.exp(np.array(view["logits"][0], float) - np.max(view["logits"][0]))
    return largest(dict(zip(view["pieces"][0], (values / values.sum()).tolist(), strict=True)), "Probabilities:")


def added_vectors(numbers: Numbers) -> Answer:
    parts = [name for name in numbers.view("positions")["added"] if name != "total"]
    return Answer(len(parts), f"They are: {', '.join(parts)}.")


def uniform(numbers: Numbers) -> Answer:
    regions = len(numbers.view("attention")["layers"][0]["columns"]["tokens"])
    return Answer(100 / regions, f"The encoder leaves {regions} regions: 100 % / {regions}.", digits=1)


def third(numbers: Numbers) -> Answer:
    layer = numbers.view("attention")["layers"][0]
    words = layer["rows"]["tokens"]
    word = next((word for word in ("ball", "boat") if word in words), words[0])
    weights = np.array(layer["weights"])[0][words.index(word)]
    side = math.isqrt(len(weights))
    rows = weights[: side * side].reshape(side, side).sum(1)
    thirds = dict(zip(("top", "middle", "bottom"), (part.sum() for part in np.array_split(rows, 3)), strict=True))
    return largest(thirds, f"Weights for “{word}”:")


def frames(numbers: Numbers) -> Answer:
    count = numbers.view("media")["video"]["count"]
    return Answer(count, f"clip0 has {count} pictures, and the encoder makes one vector of each.")


def tones(numbers: Numbers) -> Answer:
    bands = [band["label"] for band in numbers.view("media")["bands"]]
    return Answer(sum(label != "silence" for label in bands), f"The tags are: {', '.join(bands)}.")


TRANSFORMER = Topic(
    "transformer", "Transformer",
    "Every token reads every token: heads, positions, what each layer adds, and what it costs.",
    (
        "What would change if the scores were not divided by √d?",
        "Which heads could you take away, and how would you find out?",
    ),
    (
        "Without positions a Transformer reads a bag of words; the decoder's mask still tells it an order.",
        "Cost grows with the square of the length, but for short texts the feed-forward layers cost more.",
    ),
    (
        Figure(
            "q·k, scale, softmax, Σ weights · v as a worked sum", f"{INSPECT} --cell 1,1,1",
            "By which number is q·k multiplied before the softmax?", scale, numbers=SCALED,
        ),
        Figure(
            "the same as pictures, for every layer, head and position", f"{INSPECT} --view inside -o inside.html",
            "How many numbers has the query of one token in one head?", head_width,
        ),
        Figure(
            "all heads of all layers", f"{INSPECT} --view attention -o heads.html",
            "How many matrices of weights does the model compute for this pair?", matrices,
        ),
        Figure(
            "logit lens", f"{INSPECT} --view lens -o lens.html",
            "After which layer does the lens first show the second word of the output?", decided,
        ),
        Figure(
            "nearest neighbours of embeddings, in two dimensions",
            f"{INSPECT} --view embeddings -o embeddings.html",
            "Which token is nearest to “Hund” in the source embeddings?", neighbour,
        ),
        Figure(
            "where did it learn this? training pairs by decoder state", f"{INSPECT} --view training -o learnt.html",
            "How many decoder states does a training pair have, on average?", nearest_pair,
        ),
        Figure(
            "the same for one output token, as text", f"{INSPECT} --state 1",
            "How many training pairs have this source, at distance 0 or so?", repeated, numbers=SCALED,
        ),
        Figure(
            "does order matter? words swapped, positions on and off", f"{INSPECT} --view order -o order.html",
            "Without positions, by how much does a swap of two words change log p?", bag,
        ),
        Figure(
            "before and after training, side by side", f"{INSPECT} --beside untrained -o before.html",
            "What does the model write before training?", before_training,
        ),
        Figure(
            "with and without positions, side by side", f"{INSPECT} --beside no-positions -o bag.html",
            "Is the output the same without positions?", survives,
        ),
        Figure(
            "position curves, similarity, embedding + position", f"{INSPECT} --view positions -o curves.html",
            "How large is the product of two neighbouring position vectors, with that of equal ones as 1?", alike,
        ),
        Figure(
            "sinusoidal positions", f"{INSPECT} --view positions -o positions.svg",
            "What is the first number of the vector of position 1?", sine,
        ),
        Figure(
            "what a head or a word contributes", f"{INSPECT} --view whatif -o whatif.svg",
            "Without which head does the output lose most log-probability?", needed,
        ),
        Figure(
            "operations, sequential steps, path length; measured cost",
            "bench --lengths --max-length 512 --plot cost.svg",
            "How many times as many products does self-attention need for twice the length?", quadratic,
            numbers="score out.txt ref.txt --metric bleu --json", slow=True,
        ),
        Figure(
            "characters against words, each with its own tokenizer",
            "compare words.toml characters.toml --own-tokenizers --test test.tsv --steps 60 -o units.html",
            "How many times as long is a sequence of characters as one of words, in ref.txt?", longer, slow=True,
        ),
        Figure(
            "the history of the field on your own pairs", "compare --ladder pairs.tsv --steps 60 -o ladder.html",
            "Which step has the best score?", best_step, slow=True,
        ),
    ),
)  # fmt: skip

PRE_TRAINING = Topic(
    "pre-training", "Pre-training: BERT",
    "Guess the hidden words of a text, and so learn what words mean together.",
    (
        "Why may BERT read to the right of a word, while a decoder may not?",
        "Which tasks does a model for hidden words help, and which not?",
    ),
    (
        "A masked language model gives no probability of a whole text; a pseudo-perplexity is something else.",
        "Only the masked places have a loss.",
    ),
    (
        Figure(
            "BERT: candidates for [MASK]", 'inspect runs/masked "the [MASK] dog" --view next -o masks.html',
            "Which token does the model write for [MASK]?", candidates,
        ),
        Figure(
            "token + segment + position, as BERT's first layer reads them",
            'inspect runs/masked "the [MASK] dog" --view positions --layer sum -o sum.svg',
            "How many vectors are added for every token?", added_vectors,
            numbers='inspect runs/masked "the [MASK] dog" --view positions -o NUMBERS.json',
        ),
    ),
)  # fmt: skip

MEDIA = Topic(
    "media", "Pictures, video and sound",
    "The same decoder over other inputs: regions of a picture, frames of a clip, windows of a sound.",
    (
        "What does the position of a region tell, and who tells it to the decoder?",
        "How does a tag for each frame become a band of time?",
    ),
    (
        "Attention over regions follows the receptive fields: a weight is not about single pixels.",
        "More frames give longer sequences, not finer pictures.",
    ),
    (
        Figure(
            "attention over a picture (Xu et al. 2015)", "attention runs/captions beach.png --output caption.svg",
            "How many percent would each region get if the attention were uniform?", uniform,
            numbers="inspect runs/captions beach.png --view attention -o NUMBERS.json",
        ),
        Figure(
            "the same in a page, for every token; patches",
            "inspect runs/captions beach.png --view media -o caption.html",
            "Which third of the picture has most of the weight when the model names the thing?", third,
        ),
        Figure(
            "frames of a video, and where each word looks",
            "inspect runs/video clip0 --view media -o video.html",
            "How many frames does the model read?", frames,
        ),
        Figure(
            "spectrogram with a band for every tag", "inspect runs/sounds hello.wav --view media -o bands.html",
            "How many bands of the sound are not silence?", tones,
        ),
    ),
)  # fmt: skip
