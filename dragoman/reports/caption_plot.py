"""Where the words of captions looked in their pictures: from a run and files to drawings (FIELD A4, I1)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dragoman.analysis.attention import cross_attention_weights
from dragoman.data.media.feature_extractor import FeatureExtractor
from dragoman.data.media.images import COLOURS, PictureConfig
from dragoman.errors import ConfigError
from dragoman.inference.predictor import Predictor
from dragoman.models.captioner import CaptionerConfig
from dragoman.models.encoders.images import ImageEncoderConfig
from dragoman.reports.image_plots import draw_attention_over_image, mean_over_heads, numbered_path


def draw_caption_attention(predictor: Predictor, places: Sequence[str], path: str) -> list[Path]:
    """One drawing a picture: the caption that is predicted, and the attention of each of its tokens."""
    codec, model = predictor.source_tokenizer, predictor.config.model
    assert isinstance(codec, FeatureExtractor)
    if not (isinstance(model, CaptionerConfig) and isinstance(model.encoder, ImageEncoderConfig)):
        raise ConfigError(
            f'attention over pictures needs a run of task = "caption"; {predictor.run.folder} has '
            f'task = "{predictor.config.task}"'
        )
    assert isinstance(codec.config, PictureConfig)
    side, tokenizer, out = codec.config.size, predictor.target_tokenizer, []
    codec.encode_batch(places)  # names a picture that cannot be read
    predictions = predictor.predict(places)
    for number, (place, prediction) in enumerate(zip(places, predictions, strict=True), 1):
        rows = codec.encode(place)
        target = tokenizer.encode(prediction.text)
        batch = predictor.collator.collate([rows], [target]).to(predictor.device)
        weights = mean_over_heads(cross_attention_weights(predictor.model, batch), 0)[: len(target)]  # not of <eos>
        own = numbered_path(path, number, len(places))
        image = rows.reshape(side, side, COLOURS)
        name = Path(place.rpartition("::")[2]).name
        out.append(draw_attention_over_image(image, tokenizer.pieces(target), weights, own, prediction.text, name))
    return out
