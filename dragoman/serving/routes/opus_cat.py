"""The HTTP API of OPUS-CAT's MT engine, which its plug-ins for Trados, memoQ, OmegaT and Wordfast speak.

Clients write the path in two ways, /MTRestService and /MtRestService, and send all fields in the address. Trados and
memoQ put tags back into a translation by the alignment of its pieces.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Annotated, Any, ClassVar

from fastapi import APIRouter, HTTPException, Request, Response
from pydantic import Field

from dragoman.data import UNKNOWN, Sentence, short_code
from dragoman.decoding import DecodingOptions
from dragoman.inference.align import WordAlignment
from dragoman.serving.models import ServedModel
from dragoman.serving.request_fields import ForeignRequest
from dragoman.serving.schemas import Text, example
from dragoman.serving.state import ServerState, call_of
from dragoman.serving.text_translation import TranslationJob, find_route, translator_of
from dragoman.serving.translator import Translated

router = APIRouter(tags=["OPUS-CAT"])
# What Trados writes in the place of tags; it reads the alignment where the translation has none of them.
TAGS = re.compile(r" (?:PLACEHOLDER|TAGPAIRSTART|TAGPAIREND) ")
PIECE = re.compile(r"\w+|[^\w\s]")
SENTENCEPIECE = 1  # how the pieces are written: "▁" stands for a space before
Links = set[tuple[int, int]]


class OpusCatRequest(ForeignRequest):
    """Fields that no client has to send; unknown ones are ignored, as OPUS-CAT does."""

    model_config = example({"tokenCode": "0", "input": "Guten Morgen!", "srcLangCode": "de", "trgLangCode": "en"})
    unknown_field = ""
    key_field: ClassVar[str] = "tokenCode"
    token_code: Annotated[str, Field(alias="tokenCode", max_length=1_000)] = ""
    input: Text = ""
    source: Annotated[str, Field(alias="srcLangCode", max_length=35)] = ""
    target: Annotated[str, Field(alias="trgLangCode", max_length=35)] = ""
    tag: Annotated[str, Field(alias="modelTag", max_length=200, description="the name of a run; else the first")] = ""
    single: bool | None = Field(
        None, alias="inputIsSingleSentence", description="true: the text is not split into sentences"
    )


def action(name: str, *methods: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a route under both spellings of the service."""

    fields = OpusCatRequest.model_json_schema()["properties"].items()
    described = {"parameters": [{"name": field, "in": "query", "schema": schema} for field, schema in fields]}

    def register(endpoint: Callable[..., Any]) -> Callable[..., Any]:
        for method in methods:  # one route each, or their names in the description would be equal
            for service, shown in (("MTRestService", True), ("MtRestService", False)):
                router.add_api_route(
                    f"/{service}/{name}", endpoint, methods=[method], include_in_schema=shown, openapi_extra=described
                )
        return endpoint

    return register


def unserved(place: str, source: str, target: str, served: str) -> str:
    return f"No model available for {source}-{target}. This server translates: {served}"


def models_of(state: ServerState, body: OpusCatRequest) -> list[tuple[ServedModel, str]]:
    """The runs for the languages of a request, each with its tag; the one that the request names comes first."""
    if not body.source and not body.target:  # the extensions for browsers send no languages
        found = [(model, model.tags[0] if model.tags else "") for model in state.models.translators]
    else:
        found = state.models.routes(body.source, body.target)
    return sorted(found, key=lambda route: route[0].name != body.tag)


async def translated(request: Request) -> dict[str, Any]:
    """The translation of the input with its pieces and their alignment."""
    call, body = call_of(request), await OpusCatRequest.read(request)
    call.state.check_texts([body.input])
    text = TAGS.sub("", body.input)
    if not (found := models_of(call.state, body)):
        find_route(call.state, TranslationJob(body.source, body.target, unserved), body.source)
        return answer(Translated(text), text)  # one language: nothing to translate
    model, tag = found[0]
    translator = translator_of(call, model, DecodingOptions(tag=tag or None, placeholders=True), [text], "text")
    (output,) = await translator.translate([text], split=not body.single, align=True)
    return answer(output, text)


@action("TranslateJson", "GET", "POST")
async def translate_json(request: Request) -> dict[str, Any]:
    """Translate a text: Trados, memoQ, OmegaT, Wordfast Classic and Server."""
    return await translated(request)


@action("TranslatePost", "POST")
async def translate_post(request: Request) -> dict[str, Any]:
    """Translate a text: Wordfast Pro."""
    return await translated(request)


@action("Translate", "GET")
async def translate(request: Request) -> str:
    """Translate a text; the answer is a JSON string."""
    return str((await translated(request))["translation"])


@action("TranslateStream", "GET")
async def translate_stream(request: Request) -> Response:
    """Translate a text; the answer is the plain text."""
    return Response((await translated(request))["translation"], media_type="text/plain; charset=utf-8")


@action("ListSupportedLanguagePairs", "GET")
async def list_supported_language_pairs(request: Request) -> list[str]:
    """Pairs such as "en-fi". Trados compares them with two-letter codes, so regions are left out."""
    await OpusCatRequest.read(request)
    codes = [(model.source, target) for model in call_of(request).state.models.translators for target in model.targets]
    pairs = ("-".join(short_code(code.split("-")[0]) for code in pair) for pair in codes if UNKNOWN not in pair)
    return list(dict.fromkeys(pairs))


@action("GetLanguagePairModelTags", "GET")
async def get_language_pair_model_tags(request: Request) -> list[str]:
    """The names of the runs for two languages, which a client may ask for by `modelTag`."""
    body = await OpusCatRequest.read(request)
    return [model.name for model, _ in models_of(call_of(request).state, body)]


@action("CheckModelStatus", "GET")
async def check_model_status(request: Request) -> str:
    """A sentence for people about the run that will be used."""
    body = await OpusCatRequest.read(request)
    pair = f"{body.source}-{body.target}"
    if not (found := models_of(call_of(request).state, body)):
        return f"No model available for {pair}."
    missing = (
        f"No model with tag {body.tag} available. " if body.tag.strip('"') and found[0][0].name != body.tag else ""
    )
    return f"{missing}Model {found[0][0].name} for {pair} will be used."


@action("PreOrderBatch", "POST")
async def pre_order_batch(request: Request) -> Response:
    """Trados announces segments that it will ask for; each is translated when it does."""
    await OpusCatRequest.read_address(request)
    return Response()


@action("Customize", "POST")
async def customize(request: Request) -> None:
    """Fine-tuning from Trados."""
    await OpusCatRequest.read_address(request)
    raise HTTPException(501, "this server does not fine-tune; export a TMX and run: dragoman adapt RUN FILE.tmx")


# --- pieces and their alignment


def answer(output: Translated, source: str) -> dict[str, Any]:
    """A translation in the form that the plug-ins read."""
    sources: list[str] = []
    targets: list[str] = []
    links = Links()
    before = " "  # white space in front of a sentence
    for sentence, part in output.sentences or [(Sentence(source, ""), output)]:
        found = piece_links(sentence.text, part.text, part.alignment)
        links |= {(i + len(sources), j + len(targets)) for i, j in found}
        sources += pieces(sentence.text, before)
        targets += pieces(part.text, before)
        before = sentence.space
    ordered = sorted(links)
    forward, backward = (as_table(pairs) for pairs in (ordered, sorted((j, i) for i, j in links)))
    return {
        "translation": output.text, "Translation": output.text, "RawTranslation": " ".join(targets),
        "SegmentedSourceSentence": sources, "SegmentedTranslation": targets,
        "SegmentedAlignmentSourceToTarget": forward, "SegmentedAlignmentTargetToSource": backward,
        "AlignmentString": " ".join(f"{i}-{j}" for i, j in ordered), "Segmentation": SENTENCEPIECE,
    }  # fmt: skip


def as_table(links: Sequence[tuple[int, int]]) -> dict[str, list[int]]:
    table: dict[str, list[int]] = {}
    for first, second in links:
        table.setdefault(str(first), []).append(second)
    return table


def piece_spans(text: str) -> list[tuple[int, int]]:
    """Words and single punctuation marks: a tag may stand between a word and the full stop after it."""
    return [match.span() for match in PIECE.finditer(text)]


def pieces(text: str, before: str) -> list[str]:
    """The pieces of a text that follows the white space `before`; "▁" stands for white space."""
    spans = [(0, -1 if before else 0), *piece_spans(text)]
    return [("▁" if first > end else "") + text[first:last] for (_, end), (first, last) in pairwise(spans)]


def piece_links(source: str, target: str, alignment: WordAlignment | None) -> Links:
    """Links between pieces, from those between words; a model without alignment links them by their order.

    Without any links the plug-ins would lose a translation that has tags.
    """
    links, spans = Links(), (piece_spans(source), piece_spans(target))
    if alignment is not None:
        words = word_pieces(source, alignment.source, spans[0]), word_pieces(target, alignment.target, spans[1])
        for i, j in alignment.links:
            links |= in_order(words[0][i], words[1][j])
    return links or in_order(range(len(spans[0])), range(len(spans[1])))


def word_pieces(text: str, words: Sequence[str], spans: Sequence[tuple[int, int]]) -> list[list[int]]:
    """The pieces that each word has a part in."""
    found, end = [], 0
    for word in words:
        first = text.index(word, end)
        end = first + len(word)
        found.append([number for number, (start, stop) in enumerate(spans) if start < end and stop > first])
    return found


def in_order(first: Sequence[int], second: Sequence[int]) -> Links:
    """Links that cover both sides and do not cross."""
    if not first or not second:
        return set()
    forward = {(item, second[number * len(second) // len(first)]) for number, item in enumerate(first)}
    return forward | {(first[number * len(first) // len(second)], item) for number, item in enumerate(second)}
