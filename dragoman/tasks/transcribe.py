"""Task `transcribe`: recordings of speech, or images of text lines, to text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from dragoman.config.settings import setting
from dragoman.data.formats.base import ExampleFormat
from dragoman.data.formats.media import TRANSCRIPTS
from dragoman.decoding.config import SearchConfig
from dragoman.models.speech_to_text import SpeechToText, SpeechToTextConfig
from dragoman.models.transcriber import JointAttentionConfig, Transcriber, TranscriberConfig
from dragoman.tasks.base import Config, Starter, too_long
from dragoman.tasks.media import MediaConfig, MediaTask


@dataclass(frozen=True)
class TranscribeConfig(MediaConfig):
    """Recordings or line images with their text."""

    task: Literal["transcribe"] = setting("transcribe", help="the kind of problem")
    model: TranscriberConfig | SpeechToTextConfig = setting(TranscriberConfig(), help="the model to train")
    # CTC processes texts by their whole probability, without a length penalty.
    search: SearchConfig = setting(SearchConfig(length_penalty=0.0), help="how to decode its output")

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if isinstance(self.model, SpeechToTextConfig):
            yield from too_long(self, "decoder", self.model.decoder)
        elif isinstance(self.model.attention_decoder, JointAttentionConfig):
            yield from too_long(self, "attention_decoder.decoder", self.model.attention_decoder.decoder)


class Transcribe(MediaTask):
    """Speech and line images to text."""

    config = TranscribeConfig
    model_class: ClassVar = {TranscriberConfig: Transcriber, SpeechToTextConfig: SpeechToText}
    default_metrics = ("wer", "cer", "exact_match")
    counts_edit_types = True
    starter = Starter(
        "recordings or images of text lines with their text: speech recognition and OCR",
        {
            "task": "transcribe",
            "data": {"train": "recordings.tsv", "media": ""},
            "tokenizer": {"source": {"kind": "audio"}, "target": {"kind": "characters"}},
            "model": {
                "kind": TranscriberConfig.kind,
                "augment": {"kind": "specaugment"},
                "encoder": {"kind": "frames", "inner": {"kind": "recurrent", "layers": 2}},
            },
            "train": {"steps": 10_000, "batch_tokens": 20_000, "metric": "wer"},
        },
    )

    def example_format(self, config: Config) -> ExampleFormat:
        return TRANSCRIPTS
