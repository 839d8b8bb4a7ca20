"""The web application: all routes, and one form for all errors."""

from __future__ import annotations

import logging
import secrets
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dragoman.base import Abandoned, DragomanError, __version__
from dragoman.serving.answers import DEEPL, LIBRETRANSLATE, OPENAI, busy_message, error_table, key_status
from dragoman.serving.batcher import Busy
from dragoman.serving.gate import BodyProblem, Gate
from dragoman.serving.mistakes import UNREADABLE_BODY, shown, unknown_path, validation_problem
from dragoman.serving.request_fields import WrongKey
from dragoman.serving.routes import (
    corrections,
    deepl,
    deepl_documents,
    deepl_glossaries,
    deepl_styles,
    libretranslate,
    openai,
    openai_audio,
    openai_chat,
    operations,
    opus_cat,
    predict,
)
from dragoman.serving.schemas import Problem
from dragoman.serving.state import ClientLeft, NotFound, ServerState, TooLate

LOG = logging.getLogger("dragoman.serving")
ABOUT = """
Translate, label, tag, complete, transcribe and caption with trained models.

- `/v1/predict`, `/v1/score`, `/v1/inspect`: Dragoman's own API, for every task.
- `/translate`, `/detect`, `/languages`, `/translate_file`, `/suggest`: as LibreTranslate.
- `/v1/chat/completions`, `/v1/completions`, `/v1/audio/transcriptions`: as OpenAI.
- `/v2/translate`, `/v2/document`, `/v2/languages`, `/v3/glossaries`: as DeepL.
- `/MTRestService/TranslateJson` and others: as OPUS-CAT, for plug-ins of Trados, memoQ, OmegaT and Wordfast.
"""


PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "description": description}
    for status, description in (
        (400, "the request cannot be answered: the error says why"),
        (403, "the token is missing or wrong"),
        (404, "no such model"),
        (408, "the request arrived too slowly"),
        (413, "the body is too large"),
        (415, "the body is neither JSON nor a form"),
        (422, "a field has the wrong type or lies out of range"),
        (503, "too busy or stopping: see the header Retry-After"),
    )
}
# The page loads nothing from elsewhere and cannot be framed.
PAGE_HEADERS = {
    "content-security-policy": "default-src 'self'; img-src 'self' data: blob:; media-src 'self' blob:; "
    "style-src 'self' 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


def create_app(state: ServerState) -> ASGIApp:
    app = FastAPI(
        title="Dragoman", version=__version__, description=ABOUT, docs_url=None, redoc_url=None,
        separate_input_output_schemas=False,
    )  # fmt: skip
    app.state.server = state
    for routes in (
        predict, operations, libretranslate, openai, openai_chat, openai_audio,
        deepl, deepl_glossaries, deepl_styles, deepl_documents, corrections, opus_cat,
    ):  # fmt: skip
        app.include_router(routes.router, responses={} if routes is operations else PROBLEMS)
    for kind in ERRORS:
        app.add_exception_handler(kind, answer_error)
    if state.config.page:
        add_page(app)
    app.add_middleware(internal_errors)
    if state.config.cors:
        app.add_middleware(
            CORSMiddleware, allow_origins=list(state.config.cors), allow_methods=["*"], allow_headers=["*"]
        )
    return Gate(app, state)


def add_page(app: FastAPI) -> None:
    """The page for people at /, with its modules and styles."""
    static = Path(str(resources.files("dragoman.serving") / "static"))
    web = Path(str(resources.files("dragoman.web")))
    app.mount("/static", StaticFiles(directory=static), name="static")
    app.mount("/web/modules", StaticFiles(directory=web / "modules"), name="modules")
    pages = {f"/{name}": static / f"{name or 'index'}.html" for name in ("", "inspect", "corrections")}
    pages |= {f"/web/{name}": web / name for name in ("style.css", "panels.css", "icon.svg")}
    for path, file in pages.items():
        app.add_route(path, partial(send_file, file), include_in_schema=False)


async def send_file(file: Path, request: Request) -> Response:
    return FileResponse(file, headers=PAGE_HEADERS)


# Exceptions that are answers: one line that says what was found, what was expected and what to do.
ERRORS = (
    DragomanError, RequestValidationError, HTTPException, NotFound, WrongKey, Busy, TooLate, Abandoned,
    ClientDisconnect, ClientLeft,
)  # fmt: skip


async def answer_error(request: Request, error: Exception) -> Response:
    """The answer to a request that cannot be served, in the form that the clients of the path expect."""
    status, headers, path = 503, {"retry-after": "5"}, request.url.path
    match error:
        case ClientDisconnect() | ClientLeft():
            return Response(status_code=499)
        case DragomanError() | NotFound():
            status, headers, message = 404 if isinstance(error, NotFound) else 400, {}, str(error)
        case RequestValidationError():
            status, message = validation_problem(request, error)
            foreign = path.startswith((*OPENAI, *DEEPL, *LIBRETRANSLATE))  # whose clients expect 400
            status, headers = 400 if foreign and status == 422 else status, {}
        case HTTPException():
            status, headers, message = error.status_code, dict(error.headers or {}), str(error.detail)
            if status == 404 and message == "Not Found":
                message = unknown_path(path, request.app.openapi()["paths"])
            elif status == 405:
                allowed = headers.get("Allow", "another")
                message = f"method: found {shown(request.method, 20)}, expected {allowed} for this path"
            elif message == UNREADABLE_BODY:
                message = "body: found no text in UTF-8 or JSON that is nested too deeply, expected a JSON object"
        case WrongKey():
            status, headers = key_status(path), {}
            message = "api_key: found none or a wrong one, expected the token of this server"
        case Busy():
            headers, message = {"retry-after": str(error.retry_after)}, busy_message(error)
        case TooLate():
            limit = request.app.state.server.limits.request_time
            message = (
                f"the request took longer than {limit:g} seconds (limits.request_time of this server) and was given up"
                "; send less text, or a smaller beam or max_length"
            )
        case _:
            message = "the server is stopping; try again"
    return JSONResponse(error_table(path, status, message), status, headers=headers)


def internal_errors(app: ASGIApp) -> ASGIApp:
    """Answer 500 where our own code fails; the connection goes on, and the log has the same number.

    A handler of FastAPI for all exceptions would raise the error again after its answer, and the connection be reset.
    """

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def noting_send(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await app(scope, receive, noting_send)
        except BodyProblem:
            raise
        except Exception as error:
            number = secrets.token_hex(4)
            LOG.exception("internal error %s at %s", number, scope.get("path"), exc_info=error)
            if started:  # too late for another answer
                raise
            message = (
                f"internal error {number}: {type(error).__name__}; the log of the server has more under this number"
            )
            response = JSONResponse(error_table(scope["path"], 500, message), 500)
            await response(scope, receive, send)

    return guarded
