"""Plot the attention of caption tokens over their image (Xu et al. 2015)."""

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


def draw_caption_attention(predictor: Predictor, locations: Sequence[str], path: str) -> list[Path]:
    """One plot per image: the predicted caption and the attention of each of its tokens."""
    codec, model = predictor.source_tokenizer, predictor.config.model
    assert isinstance(codec, FeatureExtractor)
    if not (isinstance(model, CaptionerConfig) and isinstance(model.encoder, ImageEncoderConfig)):
        raise ConfigError(
            f'attention over images needs a run of task = "caption"; {predictor.run.folder} has '
            f'task = "{predictor.config.task}"'
        )
    assert isinstance(codec.config, PictureConfig)
    side, tokenizer, paths = codec.config.size, predictor.target_tokenizer, []
    codec.encode_batch(locations)  # raises DataError for an image that cannot be read
    predictions = predictor.predict(locations)
    for number, (location, prediction) in enumerate(zip(locations, predictions, strict=True), 1):
        rows = codec.encode(location)
        target = tokenizer.encode(prediction.text)
        batch = predictor.collator.collate([rows], [target]).to(predictor.device)
        weights = mean_over_heads(cross_attention_weights(predictor.model, batch), 0)[: len(target)]  # without <eos>
        own_path = numbered_path(path, number, len(locations))
        image = rows.reshape(side, side, COLOURS)
        name = Path(location.rpartition("::")[2]).name
        paths.append(
            draw_attention_over_image(image, tokenizer.pieces(target), weights, own_path, prediction.text, name)
        )
    return paths
