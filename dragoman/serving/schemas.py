"""Requests and answers of the server's own API, from which its OpenAPI description is made."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Text = Annotated[str, Field(max_length=1_000_000)]
Phrase = Annotated[str, Field(min_length=1, max_length=1_000)]
Whole = Annotated[int, Field(ge=0, le=1_000_000)]
Positive = Annotated[int, Field(ge=1, le=1_000_000)]
Number = Annotated[float, Field(allow_inf_nan=False, ge=0, le=1e6)]


class Strict(BaseModel):
    """A body with no other fields than these."""

    model_config = ConfigDict(extra="forbid")


class SamplingMethod(Strict):
    """Draw every token from the model's distribution."""

    kind: Literal["sampling"]
    temperature: Annotated[float, Field(gt=0, le=1_000, allow_inf_nan=False)] = 1.0
    top_k: Whole = 0
    top_p: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = 1.0
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] = 0


class RiskMethod(Strict):
    """Minimum Bayes risk: draw samples and return the one most like the others."""

    kind: Literal["mbr"]
    samples: Annotated[int, Field(ge=2, le=64)] = 16
    metric: Literal["chrf", "bleu", "ter", "wer", "cer"] = "chrf"
    temperature: Annotated[float, Field(gt=0, le=1_000, allow_inf_nan=False)] = 1.0
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] = 0


class Options(Strict):
    """How to decode: the fields of `dragoman.DecodingOptions`. A field left out has the run's own value."""

    beam: Positive | None = Field(None, description="beam width; 1 is greedy search")
    n_best: Positive = Field(1, description="outputs per input")
    length_penalty: Number | None = None
    normalisation: Literal["power", "gnmt", "none"] | None = None
    coverage_penalty: Number | None = None
    stop: Literal["complete", "ahead", "certain"] | None = None
    num_complete: Whole | None = None
    min_length: Whole | None = None
    max_length: Whole | None = None
    no_repeat_ngram: Whole | None = None
    beam_groups: Positive | None = None
    diversity_penalty: Number | None = None
    method: Annotated[SamplingMethod | RiskMethod, Field(discriminator="kind")] | None = Field(
        None, description="another method than beam search"
    )
    prefix: Annotated[str, Field(max_length=1_000)] | None = Field(None, description="the output begins with this text")
    forbid: Annotated[list[Phrase], Field(max_length=100)] | None = None
    require: Annotated[list[Phrase | list[Phrase]], Field(max_length=100)] | None = Field(
        None, description="the output contains all of these phrases; a list of phrases: one of them"
    )
    allow: Annotated[list[Phrase], Field(max_length=1_000)] | None = Field(
        None, description="the output is one of these"
    )
    pattern: Annotated[str, Field(max_length=200)] | None = Field(
        None, description="a regular expression that the whole output matches"
    )
    terminology: dict[str, Phrase | list[Phrase]] | None = Field(
        None, description="target terms required where the source has a term"
    )
    placeholders: bool = Field(False, description="copy tags, {variables} and addresses of the source")
    tag: Annotated[str, Field(max_length=35)] | None = Field(
        None, description="target language of a run trained with language tags"
    )


class PredictRequest(Options):
    """Inputs of one model, and how to decode them."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {"input": "Ein Hund läuft über die Wiese."},
                {"input": ["Guten Morgen!", "Wie geht es dir?"], "beam": 4, "n_best": 2, "alignment": True},
                {"input": "Guten Morgen!", "method": {"kind": "sampling", "temperature": 0.7, "seed": 3}},
            ]
        },
    )
    model: Annotated[str, Field(max_length=200)] | None = Field(
        None, description="a name of /v1/models; else the first"
    )
    input: Text | list[Text] = Field(description="one text or several")
    split: bool = Field(False, description="split texts into sentences and join the outputs; long texts need it")
    format: Literal["text", "html"] = Field("text", description="html keeps the markup and implies split")
    alignment: bool = Field(False, description="which source words (or letters) each output word comes from")
    stream: bool = Field(False, description="send tokens as server-sent events: one text, greedy or sampling")


class Output(BaseModel):
    """One output; fields that do not apply are left out."""

    model_config = ConfigDict(extra="allow")
    text: str
    score: float | None = Field(None, description="outputs are ranked by it: mean log-probability per token")
    tokens: list[str] | None = None
    token_scores: list[float] | None = None
    confidence: float | None = Field(None, description="of a calibrated run: probability that the output is right")
    token_confidences: list[float] | None = None
    alternatives: list[dict[str, Any]] | None = None
    alignment: list[tuple[int, int]] | None = Field(None, description="(source word, output word), from 0")
    source_words: list[str] | None = Field(None, description="letters, of a run that reads single words by letter")
    target_words: list[str] | None = Field(None, description="words, or letters as in source_words")
    word_confidences: list[float] | None = Field(None, description="probability of each of target_words")
    unknown: list[str] | None = Field(
        None, description="characters or words of the input that training did not have, read as <unk>"
    )
    sentences: list[dict[str, Any]] | None = Field(None, description="with split: each sentence with these fields")


class PredictResponse(BaseModel):
    """The outputs in the order of the inputs."""

    model: str
    outputs: list[Output]
    warnings: list[str] | None = Field(None, description="what to check, such as characters that training did not have")


class Pair(Strict):
    """A source and an output to score; a language model scores the target alone."""

    source: Text = ""
    target: Text


class ScoreRequest(Strict):
    """Outputs whose probability is asked for."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"pairs": [{"source": "Guten Morgen!", "target": "Good morning!"}]}]},
    )
    model: Annotated[str, Field(max_length=200)] | None = None
    pairs: list[Pair]
    tag: Annotated[str, Field(max_length=35)] | None = None


class Score(BaseModel):
    """How probable a target is."""

    log_probability: float | None = Field(description="null: the model cannot output the target")
    score: float | None = Field(description="mean log-probability per token, <eos> included")
    tokens: list[str]
    token_scores: list[float | None]


class ScoreResponse(BaseModel):
    """The scores in the order of the pairs."""

    model: str
    scores: list[Score]


class InspectRequest(Strict):
    """A text, and what to look at."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"input": "Guten Morgen!"}]})
    model: Annotated[str, Field(max_length=200)] | None = None
    input: Text
    output: Text | None = Field(None, description="look at this output instead of the predicted one")
    beam: Annotated[int, Field(ge=1, le=64)] | None = None
    tag: Annotated[str, Field(max_length=35)] | None = None
    numbers: Literal["lists", "packed"] = Field("lists", description="packed: tensors as base64 of 32-bit floats")


class ContinueRequest(Strict):
    """A text, and the first tokens of an output."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"input": "Guten Morgen!", "tokens": []}]}
    )
    model: Annotated[str, Field(max_length=200)] | None = None
    input: Text
    tokens: Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(max_length=1_000)] = Field(
        description="token ids, such as those of a branch of the beam tree"
    )
    tag: Annotated[str, Field(max_length=35)] | None = None


class Continuation(BaseModel):
    """The output that follows some first tokens."""

    text: str
    score: float = Field(description="as the search ranks outputs: normalised by length")
    log_probability: float
    tokens: list[str] = Field(description="the tokens that follow")
    token_scores: list[float]


class Problem(BaseModel):
    """What is wrong with a request: found, expected, what to do."""

    error: str
