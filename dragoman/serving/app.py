"""The web application: all routes, and one form for all errors."""

from __future__ import annotations

import logging
from importlib import resources

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from dragoman.errors import DragomanError
from dragoman.serving.answers import busy_message, error_table, key_status, validation_status
from dragoman.serving.batcher import Busy
from dragoman.serving.gate import Gate
from dragoman.serving.request_fields import WrongKey
from dragoman.serving.routes import (
    deepl,
    deepl_documents,
    deepl_glossaries,
    inspection,
    libretranslate,
    openai,
    openai_audio,
    openai_chat,
    operations,
    predict,
)
from dragoman.serving.state import ClientLeft, NotFound, ServerState, TooLate
from dragoman.version import __version__

LOG = logging.getLogger("dragoman.serving")
ABOUT = """
Translate, label, tag, complete, transcribe and caption with trained models.

- `/v1/predict`, `/v1/score`, `/v1/inspect`: Dragoman's own API, for every task.
- `/translate`, `/detect`, `/languages`, `/translate_file`: as LibreTranslate.
- `/v1/chat/completions`, `/v1/completions`, `/v1/audio/transcriptions`: as OpenAI.
- `/v2/translate`, `/v2/document`, `/v2/languages`, `/v3/glossaries`: as DeepL.
"""


def create_app(state: ServerState) -> ASGIApp:
    """The application of one worker."""
    app = FastAPI(
        title="Dragoman", version=__version__, description=ABOUT, docs_url=None, redoc_url=None,
        separate_input_output_schemas=False,
    )  # fmt: skip
    app.state.server = state
    for routes in (
        predict, inspection, operations, libretranslate, openai, openai_chat, openai_audio,
        deepl, deepl_glossaries, deepl_documents,
    ):  # fmt: skip
        app.include_router(routes.router)
    add_error_handlers(app)
    if state.config.page:
        add_page(app)
    if state.config.cors:
        app.add_middleware(
            CORSMiddleware, allow_origins=list(state.config.cors), allow_methods=["*"], allow_headers=["*"]
        )
    return Gate(app, state)


def add_page(app: FastAPI) -> None:
    """The page for people at /, with its modules and styles."""
    static = resources.files("dragoman.serving") / "static"
    web = resources.files("dragoman.web")
    app.mount("/static", StaticFiles(directory=str(static)), name="static")
    app.mount("/web/modules", StaticFiles(directory=str(web / "modules")), name="modules")

    @app.get("/web/style.css", include_in_schema=False)
    async def style() -> Response:
        return FileResponse(str(web / "style.css"), media_type="text/css")

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return FileResponse(str(static / "index.html"), headers=PAGE_HEADERS)

    @app.get("/inspect", include_in_schema=False)
    async def inspect_page() -> Response:
        return FileResponse(str(static / "inspect.html"), headers=PAGE_HEADERS)


# The page loads nothing from elsewhere and cannot be framed.
PAGE_HEADERS = {
    "content-security-policy": "default-src 'self'; img-src 'self' data: blob:; media-src 'self' blob:; "
    "style-src 'self' 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


def answer(request: Request, status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    """An error in the form that the clients of the path expect."""
    return JSONResponse(error_table(request.url.path, status, message), status, headers=headers)


def add_error_handlers(app: FastAPI) -> None:
    """Turn exceptions into answers: one line that says what was found, what was expected and what to do."""

    @app.exception_handler(DragomanError)
    async def mistake(request: Request, error: DragomanError) -> Response:
        return answer(request, 400, str(error))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return answer(request, validation_status(request.url.path), validation_message(error))

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        headers = dict(error.headers) if error.headers else None
        return answer(request, error.status_code, str(error.detail), headers)

    @app.exception_handler(NotFound)
    async def missing(request: Request, error: NotFound) -> Response:
        return answer(request, 404, str(error))

    @app.exception_handler(WrongKey)
    async def forbidden(request: Request, error: WrongKey) -> Response:
        return answer(
            request,
            key_status(request.url.path),
            "api_key: found none or a wrong one, expected the token of this server",
        )

    @app.exception_handler(Busy)
    async def busy(request: Request, error: Busy) -> Response:
        return answer(request, 503, busy_message(error), {"retry-after": str(error.retry_after)})

    @app.exception_handler(TooLate)
    async def late(request: Request, error: TooLate) -> Response:
        return answer(request, 503, "the request took too long; send less text or try again", {"retry-after": "5"})

    @app.exception_handler(ClientDisconnect)
    @app.exception_handler(ClientLeft)
    async def left(request: Request, error: Exception) -> Response:
        return Response(status_code=499)

    @app.exception_handler(Exception)
    async def broken(request: Request, error: Exception) -> Response:
        LOG.exception("internal error", exc_info=error)
        return answer(request, 500, f"internal error: {type(error).__name__}; the log of the server says where")


def validation_message(error: RequestValidationError) -> str:
    """What is wrong with the fields of a request; values that a client sent are not repeated."""
    parts = []
    for one in list(error.errors())[:5]:
        place = ".".join(str(part) for part in one["loc"] if part != "body")
        parts.append(f"{place}: {one['msg']}" if place else str(one["msg"]))
    return "; ".join(parts).encode("utf-8", "replace").decode()
