"""What the texts of the training data say about a run."""

from __future__ import annotations

from dragoman.data.tokenizers.characters import CharactersConfig, CharacterTokenizer
from dragoman.data.tokenizers.language_tags import LanguageTagTokenizer
from dragoman.inference.training_data import stems


def test_stems_of_tagged_sources_have_no_features() -> None:
    """Every alignment of a run with tags that reads characters asks for them."""
    texts = ["sehen V;PTCP", "ja X"]
    inner = CharacterTokenizer.train(CharactersConfig(features=" ;"), texts)
    assert stems(texts, LanguageTagTokenizer(inner, ["de"])) == stems(texts, inner) == ["sehen", "ja"]
