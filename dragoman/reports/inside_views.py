"""Views of the inside of Transformers: the sums of attention, and the residual stream layer by layer."""

from __future__ import annotations

from collections.abc import Iterator

from dragoman.analysis.inside_attention import MAX_NUMBERS, attention_sums
from dragoman.analysis.logit_lens import block_norms, logit_lens, recorded_blocks
from dragoman.analysis.subject import Subject
from dragoman.inference.completer import Completer
from dragoman.inference.predictor import Predictor
from dragoman.reports.view import View


def inside_view(subject: Subject, beam: int | None) -> Iterator[View]:
    sums, left = attention_sums(subject), MAX_NUMBERS
    layers = []
    for one in sums:
        left -= one.size
        if left < 0:  # the pages of long texts would be too large
            break
        layers.append(
            {
                "name": one.layer.name, "rows": one.layer.rows.as_dict(), "columns": one.layer.columns.as_dict(),
                "query": one.query, "key": one.key, "value": one.value, "scale": one.scale, "bias": one.bias,
                "causal": one.causal, "visible": None if one.causal or one.visible is None else one.visible.float(),
                "shares": one.shares, "output": one.output, "score": one.score,
            }
        )  # fmt: skip
    if not layers:
        return
    yield View(
        "inside",
        "Inside attention",
        "One position asks with its query q, every position answers with its key k. "
        + (
            "Additive attention scores them by v·tanh(q + k), with q = W s of the decoder's state and k = U h of "
            "the encoder's (Bahdanau et al. 2015). Softmax makes weights of the scores, which add up the values."
            if all(one.score is not None for one in sums)
            else "The products q·k are scaled, hidden columns are masked, softmax makes weights of them, and the "
            "values v are added up by these weights. W^O mixes the heads."
        ),
        {"layers": layers, "left_out": len(sums) - len(layers)},
    )


def lens_view(subject: Subject, beam: int | None) -> Iterator[View]:
    blocks = recorded_blocks(subject)
    norms, lens = block_norms(subject, blocks), logit_lens(subject, blocks)
    if not norms and lens is None:
        return
    loaded, pieces = subject.loaded, None
    if lens is not None:
        tokenizer = loaded.tokenizer if isinstance(loaded, Completer) else loaded.target_tokenizer
        if isinstance(loaded, Predictor) and subject.source is not None:
            tokenizer = loaded.codec.target_of(subject.source.text)
        pieces = [[tokenizer.pieces(row) for row in layer] for layer in lens.tokens.tolist()]
    yield View(
        "lens",
        "Layer by layer",
        "Every layer adds to the vector of a position. The logit lens reads the vector after each layer with the "
        "output layer, as if the layers above were left out: it shows where the answer appears.",
        {
            "lens": None if lens is None else {**vars(lens), "tokens": pieces},
            "norms": [{"name": one.name, "axis": one.axis.as_dict(), "parts": one.parts} for one in norms],
            "target": subject.target.as_dict(),
        },
    )
