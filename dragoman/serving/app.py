"""The web application: all routes, and one form for all errors."""

from __future__ import annotations

import logging
import secrets
from importlib import resources

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dragoman.errors import DragomanError
from dragoman.progress import Interrupted
from dragoman.serving.answers import busy_message, error_table, key_status, validation_status
from dragoman.serving.batcher import Busy
from dragoman.serving.gate import BodyProblem, Gate
from dragoman.serving.mistakes import UNREADABLE_BODY, shown, unknown_path, validation_problem
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
    app.add_middleware(InternalErrors)
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
        status, message = validation_problem(request, error)
        return answer(request, validation_status(request.url.path) if status == 422 else status, message)

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        headers = dict(error.headers) if error.headers else None
        message = str(error.detail)
        if error.status_code == 404 and message == "Not Found":
            message = unknown_path(request.url.path, app.openapi()["paths"])
        elif error.status_code == 405:
            allowed = (error.headers or {}).get("Allow", "another")
            message = f"method: found {shown(request.method, 20)}, expected {allowed} for this path"
        elif message == UNREADABLE_BODY:
            message = "body: found no text in UTF-8 or JSON that is nested too deeply, expected a JSON object"
        return answer(request, error.status_code, message, headers)

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
        limit = request.app.state.server.limits.request_time
        message = (
            f"the request took longer than {limit:g} seconds (limits.request_time of this server) and was given up"
        )
        return answer(request, 503, f"{message}; send less text, or a smaller beam or max_length", {"retry-after": "5"})

    @app.exception_handler(Interrupted)
    async def interrupted(request: Request, error: Interrupted) -> Response:
        return answer(request, 503, "the server is stopping; try again", {"retry-after": "5"})

    @app.exception_handler(ClientDisconnect)
    @app.exception_handler(ClientLeft)
    async def left(request: Request, error: Exception) -> Response:
        return Response(status_code=499)


class InternalErrors:
    """Middleware that answers 500 where our own code fails; the connection goes on, and the log has the same number.

    A handler of FastAPI for all exceptions would raise the error again after its answer, and the connection be reset.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def noting_send(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self.app(scope, receive, noting_send)
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
