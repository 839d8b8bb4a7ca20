"""Topics from recurrent cells to search: gates and gradients, attention, beams, CTC."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dragoman.lecture.table import Answer, Figure, Numbers, Topic, choose, largest

HUND = '"der kleine Hund"'
ATTENTION = f"inspect runs/rnn {HUND} --view attention -o NUMBERS.json"


def open_gate(numbers: Numbers) -> Answer:
    cell = numbers.view("states")["cells"][0]
    gate = np.array(cell["values"]["update gate"]).mean(0)
    words = dict(zip(cell["axis"]["tokens"], gate.tolist(), strict=True))
    return largest(words, f"Means of the update gate of {cell['name']} over its {cell['width']} units:")


def shrinkage(numbers: Numbers) -> Answer:
    flow = numbers.view("gradients")["flows"][0]
    why = f"The line through the logarithms has the slope {flow['slope']:.3f}: 10^({flow['slope']:.3f}) for each step."
    return Answer(10 ** flow["slope"], why, digits=2)


def best_before_training(numbers: Numbers) -> Answer:
    flows = numbers.view("flows")["flows"]
    return largest({flow["name"]: 10 ** flow["slope"] for flow in flows}, "What a step leaves of a gradient:")


def parameters_of(numbers: Numbers, name: str) -> int:
    return int(next(row["parameters"] for row in numbers.view("layers")["rows"] if row["name"] == name))


def cell_parameters(numbers: Numbers) -> Answer:
    cell = numbers.view("layers")["cells"][0]
    inputs, width = cell["inputs"], cell["width"]
    count = parameters_of(numbers, cell["name"])
    rest = count - 3 * width * (inputs + width)
    why = f"Three products of {width} × ({inputs} + {width}): {count - rest:,}; biases: {rest}."
    return Answer(count, why)


def lines_of_code(numbers: Numbers) -> Answer:
    part = numbers.view("equations")["parts"][0]
    return Answer(len(part["code"]), f"{part['title']}, {part['name']}: {'; '.join(part['text'])}.")


def embedding_share(numbers: Numbers) -> Answer:
    count, total = parameters_of(numbers, "encoder.embedding"), numbers.view("layers")["total"]
    return Answer(100 * count / total, f"{count:,} of {total:,} parameters.", digits=1)


def perplexity(numbers: Numbers) -> Answer:
    from dragoman.runs import Run

    rows = Run(numbers.folder / "runs/rnn").metrics()
    loss = next(row["valid"]["loss"] for row in reversed(rows) if "valid" in row)
    return Answer(math.exp(loss), f"The loss is {loss:.3f} nats per token; the perplexity is e^{loss:.3f}.", digits=2)


def cross_weights(numbers: Numbers) -> tuple[Any, list[str], list[str]]:
    layer = next(one for one in numbers.view("attention")["layers"] if one["kind"] == "cross")
    return np.array(layer["weights"])[0], layer["rows"]["tokens"], layer["columns"]["tokens"]


def first_weight(numbers: Numbers) -> Answer:
    weights, _, columns = cross_weights(numbers)
    why = f"exp of the score of “{columns[0]}” over the sum of that column, as the softmax says."
    return Answer(float(weights[0][0]), why, digits=2)


def looked_at(numbers: Numbers) -> Answer:
    weights, rows, columns = cross_weights(numbers)
    row = rows.index("dog") if "dog" in rows else len(rows) - 2
    return largest(dict(zip(columns, weights[row].tolist(), strict=True)), f"Weights for “{rows[row]}”:")


def largest_weight(numbers: Numbers) -> Answer:
    weights, rows, columns = cross_weights(numbers)
    row, column = divmod(int(weights.argmax()), len(columns))
    return Answer(float(weights[row, column]), f"“{rows[row]}” looks at “{columns[column]}”.", digits=2)


def diagonal(numbers: Numbers) -> Answer:
    weights, rows, columns = cross_weights(numbers)
    places = weights.argmax(1).tolist()
    told = ", ".join(f"{row} → {columns[place]}" for row, place in zip(rows, places, strict=True))
    return Answer(sum(place == row for row, place in enumerate(places)), f"Largest weights: {told}.")


def least_probable(numbers: Numbers) -> Answer:
    view = numbers.view("forcing")
    tokens, logs = view["target"]["tokens"], np.array(view["log_probabilities"])
    worst = int(logs.argmin())
    told = ", ".join(f"{token}: {math.exp(log):.2f}" for token, log in zip(tokens, logs.tolist(), strict=True))
    return choose(tokens[worst], tokens, f"Probabilities of the right tokens: {told}.")


def padding_share(numbers: Numbers) -> Answer:
    view = numbers.view("padding")
    tokens, positions = view["tokens"], view["batches"][0]["positions"]
    return Answer(100 * (1 - tokens / positions), f"1 − {tokens} tokens / {positions} positions.", digits=1)


def forced_accuracy(numbers: Numbers) -> Answer:
    one = next(one for one in numbers.view("exposure")["systems"] if one["name"] == "rnn")
    why = f"{one['right_forced']} of {one['tokens']} tokens, each after the right words before it."
    return Answer(100 * one["right_forced"] / one["tokens"], why, digits=1)


def surer(numbers: Numbers) -> Answer:
    sums = {
        name: math.exp(float(np.sum(numbers.view("overview", beside)["log_probabilities"])))
        for name, beside in (("rnn", False), ("transformer", True))
    }
    return largest(sums, "Probability that each gives to its whole output:")


def nucleus(numbers: Numbers) -> Answer:
    view = numbers.view("next")
    probabilities = np.exp(np.array(view["logits"][1], float) - np.max(view["logits"][1]))
    order = np.sort(probabilities / (probabilities.sum()))[::-1]
    kept = int((np.cumsum(order) < 0.9).sum()) + 1
    why = f"The largest probabilities are {', '.join(f'{one:.3f}' for one in order[:3])}; {kept} of them reach 0.9."
    return Answer(kept, why)


def path_score(numbers: Numbers) -> Answer:
    nodes = {node["number"]: node for node in numbers.view("beam")["nodes"]}
    child = next(node for node in nodes.values() if node["step"] == 2 and node["fate"] == "kept")
    parent = nodes[child["parent"]]
    why = (
        f"“{parent['piece']}”: {parent['score']:.2f}, then “{child['piece']}”: {child['log_probability']:.2f}. "
        f"Log-probabilities add; over its length the branch has {child['normalised']:.2f}."
    )
    return Answer(child["score"], why, digits=2)


def best_sum(numbers: Numbers) -> Answer:
    found = [node for node in numbers.view("beam")["nodes"] if node["fate"] == "complete"]
    by_sum, by_mean = (max(found, key=lambda node: node[key]) for key in ("score", "normalised"))
    lengths = ", ".join(f"{node['step']} steps: {node['score']:.2f}" for node in found[:4])
    same = "the same" if by_sum["number"] == by_mean["number"] else f"one of {by_mean['step']} steps"
    return Answer(by_sum["step"], f"Sums of finished branches: {lengths}. Normalised scores prefer {same}.")


def sharper(numbers: Numbers) -> Answer:
    value = numbers.data["temperature"]
    ways = ("It was too sure, so temperature scaling softens it", "It was not sure enough, so scaling sharpens it")
    return choose(ways[value < 1], ways, f"The temperature is {value:.2f}; below 1 the softmax becomes sharper.")


def best_path_share(numbers: Numbers) -> Answer:
    sums = numbers.view("ctc")["sums"]
    why = (
        f"e^({sums['best_path']:.2f} − ({sums['log_probability']:.2f})): {int(sums['paths']):,} paths collapse to the "
        "word, and the best alone is a part of their sum."
    )
    return Answer(100 * math.exp(sums["best_path"] - sums["log_probability"]), why, digits=1)


def lattice_rows(numbers: Numbers) -> Answer:
    rows = len(numbers.view("tables")["tables"][0]["rows"])
    return Answer(rows, f"A blank before, between and after {rows // 2} letters: 2 · {rows // 2} + 1.")


RECURRENT = Topic(
    "recurrent", "Recurrent cells and gradients",
    "What a cell keeps of a sentence, and how far back a gradient reaches.",
    (
        "What would the GRU do if its update gate were always open?",
        "Why does a spectral radius below 1 bound the gradient, while one above 1 does not make it explode?",
    ),
    (
        "Vanishing gradients do not stop learning: they hide what lies far back.",
        "A GRU has three products, an LSTM four; a gate is a vector, not one number.",
    ),
    (
        Figure(
            "gates and states over time", f"inspect runs/rnn {HUND} --view states -o states.svg",
            "At which token is the update gate of the forward encoder most open, on average?", open_gate,
        ),
        Figure(
            "vanishing gradients: norms by distance, spectral bound",
            f"inspect runs/rnn {HUND} --view gradients -o gradients.svg",
            "By which factor does a step back change the norm in the forward encoder?", shrinkage,
        ),
        Figure(
            "gradients before training: plain, LSTM, GRU, residual", "compare --untrained -o untrained.html",
            "Which cell keeps most of a gradient before training?", best_before_training,
        ),
        Figure(
            "the cell and the whole model as diagrams, with the run's own sizes",
            f"inspect runs/rnn {HUND} --view layers -o diagram.html",
            "How many parameters has the first cell of the encoder?", cell_parameters,
        ),
        Figure(
            "each part as formulas, as plain PyTorch and in numbers",
            f"inspect runs/rnn {HUND} --view equations -o equations.html",
            "How many lines of plain PyTorch compute a step of the first cell?", lines_of_code,
        ),
        Figure(
            "parameters of every layer, with the product that gives them",
            f"inspect runs/rnn {HUND} --view layers -o layers.html",
            "How many percent of all parameters are in the embedding of the source?", embedding_share,
        ),
        Figure(
            "learning curves", "info runs/rnn --plot curve.svg",
            "What is the perplexity on the validation data at the end?", perplexity, numbers="info runs/rnn --json",
        ),
    ),
)  # fmt: skip

ATTENTION_TOPIC = Topic(
    "attention", "Encoder, decoder and attention",
    "One sentence becomes another: what the decoder reads, and what training shows it.",
    (
        "Where would the attention of a translation not follow the diagonal? Try “der Hund hat den Vogel gesehen”.",
        "Why does training with right words not prepare for free running?",
    ),
    (
        "Attention weights say what was read, not what decided the output.",
        "Padding must be masked in the loss too, or its accuracy is counted.",
    ),
    (
        Figure(
            "the score v·tanh(W s + U h), softmax and context, as a worked sum",
            f"inspect runs/rnn {HUND} --cell 1,1,1",
            "Divide the first exp by the sum of its column: what is the weight of the first token?", first_weight,
            numbers=ATTENTION,
        ),
        Figure(
            "the same as pictures, for every position", f"inspect runs/rnn {HUND} --view inside -o score.html",
            "Which token has the largest weight when the decoder writes “dog”?", looked_at, numbers=ATTENTION,
        ),
        Figure(
            "α, h and c = Σ α·h of every step, in full", f"inspect runs/rnn {HUND} --view inside -o context.svg",
            "What is the largest α?", largest_weight, numbers=ATTENTION,
        ),
        Figure(
            "alignment by attention (Bahdanau et al. 2015, figure 3)",
            f"attention runs/rnn {HUND} --output alignment.svg",
            "How many output tokens look most at the input token of their own place?", diagonal, numbers=ATTENTION,
        ),
        Figure(
            "teacher forcing and free running of one sentence",
            f'inspect runs/rnn {HUND} --target "the small dog" --view forcing -o forcing.html',
            "Which token of the given target is least probable?", least_probable,
        ),
        Figure(
            "a batch with its padding and mask; accuracy if padding counted",
            "compare runs/rnn runs/sampled --test test.tsv --view padding -o padding.html",
            "How many percent of the target positions are padding, in batches of rows as they come?", padding_share,
        ),
        Figure(
            "exposure bias by position; scheduled sampling beside",
            "compare runs/rnn runs/sampled --test test.tsv --view exposure -o exposure.html",
            "How many percent of the tokens does rnn get right after right words?", forced_accuracy,
        ),
        Figure(
            "two runs on one text, side by side",
            f"inspect runs/rnn {HUND} --beside runs/transformer -o beside.html",
            "Which run is surer of its own output?", surer,
        ),
    ),
)  # fmt: skip

SEARCH = Topic(
    "search", "Search: greedy, beam, sampling",
    "A model gives probabilities; a search makes a text of them.",
    (
        "When does a wider beam give a worse translation?",
        "What do temperature and top-p change that the beam does not?",
    ),
    (
        "The most probable text need not begin with the most probable word.",
        "Temperature changes no order of tokens, so greedy search does not see it.",
    ),
    (
        Figure(
            "softmax with temperature, top-k, top-p", f"inspect runs/rnn {HUND} --view next -o next.html",
            "How many tokens does top-p = 0.9 keep for the second word?", nucleus,
        ),
        Figure(
            "beam search as a tree, with pruned branches", f"inspect runs/rnn {HUND} --view beam -o beam.svg",
            "What is the sum of log-probabilities of the first branch that the beam keeps at step 2?", path_score,
        ),
        Figure(
            "the same with plain sums of log-probabilities",
            f"inspect runs/rnn {HUND} --view beam --layer sums -o sums.svg",
            "How many steps has the finished branch with the largest sum?", best_sum,
            numbers=f"inspect runs/rnn {HUND} --view beam -o NUMBERS.json",
        ),
        Figure(
            "reliability diagram", "calibrate runs/rnn --plot reliability.svg",
            "What does temperature scaling say of this model?", sharper, numbers="calibrate runs/rnn --json",
        ),
    ),
)  # fmt: skip

CTC = Topic(
    "ctc", "CTC and speech",
    "A label for each frame, then repeats and blanks collapse; training sums over all paths.",
    (
        "Why can CTC not write two equal letters without a blank between them?",
        "Which sentences break the assumption that frames are independent?",
    ),
    (
        "The best path need not be the best text: many paths may share the text of a worse one.",
        "Repeats collapse first, then blanks go; the other order would lose double letters.",
    ),
    (
        Figure(
            "CTC: path, collapse, sum over all paths", "inspect runs/speech hello.wav --view ctc -o ctc.html",
            "How many percent of the probability of the text has its best path alone?", best_path_share,
        ),
        Figure(
            "CTC: forward variables and best path", "inspect runs/speech hello.wav --view tables -o lattice.html",
            "How many rows has the lattice of the text, with its blanks?", lattice_rows,
        ),
    ),
)  # fmt: skip
