"""Corrections: LibreTranslate's /suggest, and the review of what it has brought."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

from fastapi import APIRouter, HTTPException, Query, Request
from pydantic import Field

from dragoman.base import ConfigError
from dragoman.data import Correction, CorrectionLog, FullError, State
from dragoman.serving.batcher import Busy
from dragoman.serving.models import ServedModel
from dragoman.serving.routes.libretranslate import Code, LibreTranslateRequest, unserved
from dragoman.serving.schemas import ModelName, Strict, Text, example
from dragoman.serving.state import CurrentCall, NotFound, ServerCall, ServerState, TooLate
from dragoman.serving.text_translation import AUTO, TranslationJob, detected_language, find_route, translate_texts

router = APIRouter(tags=["corrections"])


class SuggestRequest(LibreTranslateRequest):
    """A better translation of a text."""

    model_config = example({"q": "Guten Morgen!", "s": "Good morning!", "source": "de", "target": "en"})
    q: Annotated[Text, Field(min_length=1, description="the text")]
    s: Annotated[Text, Field(min_length=1, description="its translation as it should be")]
    source: Code
    target: Code
    output: Text | None = Field(None, description="an addition: the translation that was shown; else it is made again")
    model: ModelName = Field(None, description="an addition: the run that made it; else that of the languages")


@router.post("/suggest", openapi_extra=SuggestRequest.body())
async def suggest(call: CurrentCall, request: Request) -> dict[str, bool]:
    """Keep a better translation for review; it is on disk when the answer comes."""
    body = await SuggestRequest.read(request)
    log = call.state.corrections
    if log is None:
        raise HTTPException(403, "Suggestions are disabled on this server.")
    for name, text in (("q", body.q), ("s", body.s)):
        if not text.strip():
            raise ConfigError(f"Invalid request: missing {name} parameter")
    call.state.check_texts([body.q, body.s, body.output or ""])
    job = TranslationJob(body.source, body.target, unserved)
    source = detected_language(call.state, body.q, job)[0] if body.source == AUTO else body.source
    model, tag = chosen_model(call.state, body, job, source)
    correction = Correction(
        body.q, body.s, await shown_output(call, body, job), **model.origin,
        source_language=source, target_language=body.target, tag=tag,
    )  # fmt: skip
    try:
        await asyncio.to_thread(log.add, correction)
    except FullError:
        raise HTTPException(503, "this server keeps no further corrections (limits.corrections)") from None
    return {"success": True}


def chosen_model(state: ServerState, body: SuggestRequest, job: TranslationJob, source: str) -> tuple[ServedModel, str]:
    """The run that a correction is for, and its tag."""
    if body.model is None:
        if (route := find_route(state, job, source)) is None:
            raise ConfigError(unserved("pair", source, body.target, ""))
        return route
    model = state.model(body.model)
    if not model.translates or (model.tags and body.target not in model.tags):
        raise ConfigError(f'model: "{model.name}" does not translate into {body.target}')
    return model, body.target if model.tags else ""


async def shown_output(call: ServerCall, body: SuggestRequest, job: TranslationJob) -> str | None:
    """What the client saw; a busy server keeps a correction without it."""
    if body.output is not None or body.model is not None:
        return body.output
    try:
        return (await translate_texts(call, job, [body.q]))[0][0].text
    except (Busy, TooLate):
        return None


class Decision(Strict):
    """What a reviewer decides about some corrections."""

    model_config = example({"ids": ["3f2a90c1d4e5"], "state": "accepted"})
    ids: Annotated[list[Annotated[str, Field(min_length=1, max_length=64)]], Field(min_length=1, max_length=1_000)]
    state: State


def reviewed_log(state: ServerState) -> CorrectionLog:
    """The log, for whoever has the token: without one any client of the server could accept its own corrections."""
    if state.corrections is None:
        raise NotFound("corrections: this server keeps none; start it with --corrections FOLDER")
    if not state.config.token:
        raise HTTPException(
            403, "corrections: this server has no token, so everybody could decide; set DRAGOMAN_TOKEN, or review with "
            "`dragoman corrections` on its machine",
        )  # fmt: skip
    return state.corrections


@router.get("/v1/corrections")
async def corrections(
    call: CurrentCall,
    state: Literal["pending", "accepted", "rejected", "all"] = "pending",
    most: Annotated[int, Query(ge=1, le=1_000)] = 100,
) -> dict[str, Any]:
    """The oldest corrections of a state, with their ids, and how many there are of each."""
    every = await asyncio.to_thread(reviewed_log(call.state).read)
    counts = {name: sum(item.state == name for item in every) for name in ("pending", "accepted", "rejected")}
    chosen = [item for item in every if state in ("all", item.state)]
    return {"counts": counts, "corrections": [item.as_dict() for item in chosen[:most]]}


@router.post("/v1/corrections")
async def decide(call: CurrentCall, body: Decision) -> dict[str, Any]:
    """Accept or reject corrections by their ids, or let them wait again; all of them or, on an error, none."""
    changed = await asyncio.to_thread(reviewed_log(call.state).decide, body.ids, body.state)
    return {"corrections": [item.as_dict() for item in changed]}
