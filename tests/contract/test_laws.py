"""The laws of encoders and decoders, for every encoder with every decoder, in float64."""

from __future__ import annotations

import pytest

from dragoman.models.encoder_decoder import EncoderDecoder
from dragoman.testing import laws
from tests.contract.conftest import DECODER_CASES, ENCODER_CASES, build


@pytest.mark.parametrize("sizes", laws.SPLITS)
def test_law_1_any_split_gives_the_same_outputs_and_gradients(model: EncoderDecoder, sizes: list[int]) -> None:
    laws.any_split_agrees(model, sizes)


@pytest.mark.parametrize("sizes", laws.CACHE_SPLITS)
def test_law_1_static_and_growing_caches_agree(model: EncoderDecoder, sizes: list[int]) -> None:
    laws.caches_agree(model, sizes)


def test_law_2_select_and_reorder_commute_with_stepping(model: EncoderDecoder) -> None:
    laws.select_and_reorder_commute(model)


def test_law_3_source_padding_changes_nothing(model: EncoderDecoder) -> None:
    laws.source_padding_changes_nothing(model)


def test_law_3_target_padding_changes_neither_loss_nor_gradient(model: EncoderDecoder) -> None:
    laws.target_padding_changes_nothing(model)


def test_law_4_rows_do_not_see_each_other(model: EncoderDecoder) -> None:
    laws.rows_are_independent(model)


def test_law_5_no_token_sees_the_future(model: EncoderDecoder) -> None:
    laws.no_token_sees_the_future(model)


@pytest.mark.parametrize("width", laws.BEAMS)
def test_law_6_a_search_score_is_the_teacher_forced_score(model: EncoderDecoder, width: int) -> None:
    laws.search_scores_are_teacher_forced(model, width)


def test_law_7_beam_of_one_is_greedy(model: EncoderDecoder) -> None:
    laws.beam_of_one_is_greedy(model)


@pytest.mark.parametrize("name", ENCODER_CASES)
def test_law_8_encoders_ignore_padding_and_neighbours(name: str) -> None:
    laws.encoder_ignores_padding_and_neighbours(build(name, "gru").eval())


def test_law_9_accumulated_gradients_are_those_of_one_batch(model: EncoderDecoder) -> None:
    laws.accumulated_gradients_agree(model)


@pytest.mark.parametrize("scorer", laws.SCORERS)
def test_law_12_a_default_beam_never_ranks_its_output_below_greedy(model: EncoderDecoder, scorer: str) -> None:
    laws.beam_is_no_worse_than_greedy(model, laws.SCORERS[scorer])


@pytest.mark.parametrize("decoder", DECODER_CASES)
def test_one_model_serves_two_requests_at_once(decoder: str) -> None:
    laws.requests_do_not_interfere(build("recurrent", decoder).eval())


def test_longer_rows_move_no_memory_of_the_model(model: EncoderDecoder) -> None:
    laws.longer_rows_move_no_memory(model)
