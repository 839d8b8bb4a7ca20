"""Training pairs whose decoder states are nearest to those of an output, against a search over all of them."""

from __future__ import annotations

import torch

from dragoman.inference.load import load_predictor
from dragoman.inference.training_data import training_texts
from dragoman.inspect.options import InspectOptions
from dragoman.inspect.views.state_neighbours import decoder_states, neighbour_lines, state_neighbours
from dragoman.inspect.views.subject import open_subject
from tests.conftest import TrainedFolder, call


def test_the_nearest_states_are_those_of_a_search_over_all_pairs(inside: TrainedFolder) -> None:
    predictor = load_predictor(str(inside.run))
    texts = training_texts(predictor.run)
    assert texts is not None
    subject = open_subject(predictor, texts.sources[7], InspectOptions(texts.targets[7]))
    found = state_neighbours(subject, pairs=60, nearest=5)
    sources, targets = texts.sources[:: len(texts.sources) // 60], texts.targets[:: len(texts.sources) // 60]
    assert found.pairs == len(sources) >= 50
    states, tokens = [], []
    for source, target in zip(sources, targets, strict=True):  # one by one: no padding, no batches
        pair = open_subject(predictor, source, InspectOptions(target))
        states.append(decoder_states(pair.model, pair.batch)[0])
        tokens += [(source, token) for token in pair.target.tokens]
    distances = torch.cdist(decoder_states(subject.model, subject.batch)[0], torch.cat(states))
    assert found.states == len(tokens) == distances.shape[1]
    for row, near in zip(distances, found.neighbours, strict=True):
        nearest = row.topk(5, largest=False)
        torch.testing.assert_close(
            torch.tensor([one.distance for one in near]), nearest.values / row.mean(), atol=1e-4, rtol=1e-3
        )
        assert (near[0].source, near[0].token) == tokens[int(nearest.indices[0])]
    own = open_subject(predictor, sources[3], InspectOptions(targets[3]))
    for place, near in enumerate(state_neighbours(own, pairs=60).neighbours):
        assert near[0].distance < 1e-3  # the pair itself
        assert near[0].source == sources[3]
        assert near[0].before == targets[3][:place]
        assert near[0].after == targets[3][place + 1 :]
    assert targets[3][0] in neighbour_lines(own, state_neighbours(own, pairs=60), "1")[0]
    assert "expected 1 to" in call("inspect", str(inside.run), "abc", "--state", "99").err
    assert "does not go with --state" in call("inspect", str(inside.run), "abc", "--state", "1", "--view", "beam").err
