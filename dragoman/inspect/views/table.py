"""The views of `dragoman inspect`: a new one is a file with its numbers, words and figure, and a line in VIEWS."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from dragoman.inspect.views.subject import Subject
    from dragoman.inspect.views.view import View

    Compute = Callable[[Subject], View | None]
    Draw = Callable[[View, str | None], Any]


class ViewEntry(NamedTuple):
    """A view, whose module is imported when a run is inspected."""

    about: str  # for --help
    # "module:function,figure": `function` computes the view, `figure` draws it. Our modules stand beside this file.
    address: str
    fitted: bool = False  # whether models without gradients may have it
    on_request: bool = False  # whether it is computed only if somebody asks for it: it takes long
    draws_from: tuple[str, ...] = ()  # further views whose data its page reads

    @property
    def has_figure(self) -> bool:
        return "," in self.address

    @property
    def compute(self) -> Compute:
        return self._function(0)  # type: ignore[no-any-return]

    @property
    def draw(self) -> Draw:
        return self._function(1)  # type: ignore[no-any-return]

    def _function(self, number: int) -> Any:
        module, _, names = self.address.partition(":")
        return getattr(import_module(module if "." in module else f"{__package__}.{module}"), names.split(",")[number])


# In the order of the page.
VIEWS = {
    "overview": ViewEntry(
        "input, output, alignment, and the parts of the model",
        "overview:overview_view", fitted=True, draws_from=("attention",),
    ),
    "phrases": ViewEntry(
        "the phrases of a translation, the terms of their scores, and the search for them",
        "phrase_search:phrases_view", fitted=True,
    ),
    "series": ViewEntry(
        "what a Kalman filter knows at every step", "series:series_view", fitted=True,
    ),
    "attention": ViewEntry(
        "every layer and head over words, with input x gradient beside it",
        "attention_layers:attention_view,draw_attention", fitted=True,
    ),
    "lexicon": ViewEntry(
        "the translation table of a word aligner", "lexicon:lexicon_view", fitted=True,
    ),
    "inside": ViewEntry(
        "one attention step by step: q, k, q·k, scale, mask, softmax, values, W^O",
        "inside_attention:inside_view,draw_inside", draws_from=("attention",),
    ),
    "equations": ViewEntry(
        "cells, attention and decoders as formulas, plain PyTorch and numbers",
        "equations:equations_view,draw_equations", draws_from=("layers",),
    ),
    "lens": ViewEntry(
        "what the model would say after each layer; lengths of the vectors", "logit_lens:lens_view",
    ),
    "labels": ViewEntry(
        "probabilities of labels and tags", "labels:labels_view,draw_labels", fitted=True,
    ),
    "surprise": ViewEntry(
        "bits per token of a language model", "surprise:surprise_view,draw_surprise", fitted=True,
    ),
    "media": ViewEntry(
        "what the model reads of a recording, a picture or a video",
        "media:media_view", draws_from=("attention",),
    ),
    "ctc": ViewEntry("the raw path of CTC, and how it collapses", "ctc:ctc_view,draw_ctc"),
    "next": ViewEntry(
        "probabilities of the next token, with temperature, top-k and top-p",
        "next_tokens:next_view,draw_next",
    ),
    "beam": ViewEntry(
        "beam search as a tree; what would have followed a pruned branch",
        "beam_tree:beam_view,draw_beam",
    ),
    "forcing": ViewEntry(
        "with --target: the output after right tokens and after its own", "free_running:forcing_view",
    ),
    "states": ViewEntry(
        "gates, hidden and cell states of recurrent layers over time",
        "states:states_view,draw_states",
    ),
    "gradients": ViewEntry(
        "how far gradients reach back in time", "gradients:gradients_view,draw_gradients",
    ),
    "whatif": ViewEntry(
        "the output without a head, a gate or a word",
        "what_if:what_if_view,draw_what_if", fitted=True,
    ),
    "order": ViewEntry("words swapped and shuffled, with and without positions", "order:order_view"),
    "tables": ViewEntry(
        "tables of dynamic programming: Viterbi, CTC, edit distance",
        "tables:tables_view,draw_tables", fitted=True,
    ),
    "embeddings": ViewEntry(
        "nearest tokens, and a projection onto two dimensions", "neighbours:embeddings_view",
    ),
    "positions": ViewEntry(
        "position vectors, and how alike they are", "position_pictures:positions_view,draw_positions",
    ),
    "receptive": ViewEntry(
        "which inputs each layer can read: the receptive field", "receptive_field:receptive_view,draw_receptive",
    ),
    "layers": ViewEntry(
        "shapes and numbers of parameters of every part", "layer_table:layers_view", fitted=True,
    ),
    "training": ViewEntry(
        "training pairs with the nearest decoder states: where did it learn this?",
        "state_neighbours:training_view", on_request=True,
    ),
}  # fmt: skip
