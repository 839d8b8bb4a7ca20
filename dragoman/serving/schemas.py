"""Requests and answers of the server's own API, from which its OpenAPI description is made."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import or_
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from dragoman.base import ConfigError, hint
from dragoman.base.config import Range, any_table_schema, build, fields_of, type_hints, union_members
from dragoman.decoding import METHODS, DecodingOptions, Method, SearchConfig

Text = Annotated[str, Field(max_length=1_000_000)]
Phrase = Annotated[str, Field(min_length=1, max_length=1_000)]
Alternatives = Annotated[list[Phrase], Field(description="the output contains one of these")]
ModelName = Annotated[str, Field(max_length=200)] | None
Tag = Annotated[str, Field(max_length=35)] | None


class Strict(BaseModel):
    """A body with no other fields than these."""

    model_config = ConfigDict(extra="forbid")


def example(*bodies: dict[str, Any]) -> ConfigDict:
    """Bodies that the OpenAPI description shows."""
    return ConfigDict(json_schema_extra={"examples": list(bodies)})


class MethodField:
    """The field `method`: any method of the table that clients may ask for, read and described as its settings are."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(read_method)

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        return any_table_schema(remote_methods().values())


def remote_methods() -> dict[str, type[Method]]:
    """The methods that clients may ask for: those that name no files, in the table at this moment."""
    return {kind: entry.config for kind, entry in METHODS.items() if entry.config.remote}


def read_method(value: object) -> Method | None:
    """The method of a request, read by the strict loader."""
    methods = remote_methods()
    try:
        if value is None:
            return None
        if not isinstance(value, Mapping) or not isinstance(kind := value.get("kind"), str) or kind not in methods:
            found = value.get("kind") if isinstance(value, Mapping) else value
            raise ConfigError(f"kind: found {str(found)[:40]!r}. {hint(str(found)[:40], methods)}")
        return build(methods[kind], value)  # type: ignore[type-var]
    except ConfigError as error:
        raise PydanticCustomError("setting", "{message}", {"message": str(error).replace("\n", "; ")}) from None


# The fields that JSON writes in another way than Python, or that the server keeps short.
JSON_TYPES: dict[str, Any] = {
    "method": Annotated[Method | None, MethodField()],
    "prefix": Annotated[str, Field(max_length=1_000)] | None,
    "forbid": Annotated[list[Phrase], Field(max_length=100)] | None,
    "require": Annotated[list[Phrase | Alternatives], Field(max_length=100)] | None,
    "allow": Annotated[list[Phrase], Field(max_length=1_000)] | None,
    "pattern": Annotated[str, Field(max_length=200)] | None,
    "terminology": dict[str, Phrase | list[Phrase]] | None,
    "tag": Tag,
}


def request_field(name: str) -> Any:
    """An option of decoding as a field of a request, with the limits that the loader checks."""
    field, searches = fields_of(DecodingOptions)[name], name in fields_of(SearchConfig)
    description = field.metadata["help"] + (" [the run's own]" if searches else "")
    if name in JSON_TYPES:
        return JSON_TYPES[name], Field(field.default, description=description)
    types: list[Any] = [None] * searches
    for part, limits in union_members(type_hints(SearchConfig if searches else DecodingOptions)[name], Range()):
        low, high = ("gt" if limits.exclusive_minimum else "ge"), ("lt" if limits.exclusive_maximum else "le")
        bounds: dict[str, Any] = {low: limits.minimum, high: limits.maximum}
        if part is float:
            bounds["allow_inf_nan"] = False
        types.append(Annotated[part, Field(**bounds)])
    return reduce(or_, types), Field(field.default, description=description)


# What clients may say about decoding, and the limit of the server that caps each, or "".
REMOTE: dict[str, str] = {
    name: field.metadata["remote"]
    for name, field in fields_of(DecodingOptions).items()
    if field.metadata.get("remote") is not None
}
DecodingFields: Any = create_model("DecodingFields", __base__=Strict, **{name: request_field(name) for name in REMOTE})


class Options(DecodingFields):
    """How to decode: the fields of `dragoman.DecodingOptions`. A field left out has the run's own value."""


class PredictRequest(Options):
    """Inputs of one model, and how to decode them."""

    model_config = example(
        {"input": "Ein Hund läuft über die Wiese."},
        {"input": ["Guten Morgen!", "Wie geht es dir?"], "beam": 4, "n_best": 2, "alignment": True},
        {"input": "Guten Morgen!", "method": {"kind": "sampling", "temperature": 0.7, "seed": 3}},
    )
    model: ModelName = Field(None, description="a name of /v1/models; else the first")
    input: Text | list[Text] = Field(description="one text or several")
    split: bool = Field(False, description="split texts into sentences and join the outputs; long texts need it")
    format: Literal["text", "html"] = Field("text", description="html keeps the markup and implies split")
    alignment: bool = Field(False, description="which source words (or letters) each output word comes from")
    checks: bool = Field(False, description="say in findings what is doubtful about each translation")
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
    findings: list[dict[str, Any]] | None = Field(
        None, description="with checks: kind, message and whether it is a mistake (hard)"
    )
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


class ScorePair(Strict):
    """A source and an output to score; a language model scores the target alone."""

    source: Text = ""
    target: Text


class ScoreRequest(Strict):
    """Outputs whose probability is asked for."""

    model_config = example({"pairs": [{"source": "Guten Morgen!", "target": "Good morning!"}]})
    model: ModelName = None
    pairs: list[ScorePair]
    tag: Tag = None


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

    model_config = example({"input": "Guten Morgen!"})
    model: ModelName = None
    input: Text
    output: Text | None = Field(None, description="look at this output instead of the predicted one")
    beam: Annotated[int, Field(ge=1, le=64)] | None = None
    tag: Tag = None
    views: list[Annotated[str, Field(max_length=20)]] = Field(
        [], max_length=40, description="compute these views alone; none: all that the model has"
    )
    untrained: bool = Field(False, description="with the random weights that training began with")
    positions: bool = Field(True, description="false: without position vectors and biases")
    numbers: Literal["lists", "packed"] = Field("lists", description="packed: tensors as base64 of 32-bit floats")


class ContinueRequest(Strict):
    """A text, and the first tokens of an output."""

    model_config = example({"input": "Guten Morgen!", "tokens": []})
    model: ModelName = None
    input: Text
    tokens: Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(max_length=1_000)] = Field(
        description="token ids, such as those of a branch of the beam tree"
    )
    tag: Tag = None


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
