"""Answers that several routes give: errors in the form that the clients of a path expect, refusals, files."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import quote

from starlette.responses import Response

from dragoman.serving.batcher import Busy

OPENAI = ("/v1/completions", "/v1/chat/completions", "/v1/audio/transcriptions", "/v1/models/")
DEEPL = ("/v2/", "/v3/")
LIBRETRANSLATE = ("/translate", "/detect", "/languages", "/translate_file", "/download_file/", "/suggest")
# Paths that ask for computation: refused while the queue is full, before their bodies are parsed.
WORK = frozenset(
    ("/v1/predict", "/v1/predict/file", "/v1/score", "/translate", "/translate_file", "/v2/translate", "/v2/document")
    + OPENAI[:3]
)
_PARAMETER = re.compile(r"([a-z_]+(?:\.\w+)*): ")
CODES = {401: "invalid_api_key", 404: "model_not_found"}


def error_table(path: str, status: int, message: str) -> dict[str, Any]:
    """{"error": "…"}, or as OpenAI and DeepL write it on their paths."""
    if path.startswith(OPENAI):
        kind = "server_error" if status >= 500 else "invalid_request_error"
        place = _PARAMETER.match(message)
        return {
            "error": {
                "message": message,
                "type": kind,
                "param": place[1] if place and status == 400 else None,
                "code": CODES.get(status),
            }
        }
    if path.startswith(DEEPL):
        return {"message": message}
    return {"error": message}


def key_status(path: str) -> int:
    return 401 if path.startswith((*OPENAI, "/v1/models")) else 403


def error_body(path: str, status: int, message: str) -> bytes:
    return json.dumps(error_table(path, status, message), ensure_ascii=False).encode()


def busy_message(busy: Busy) -> str:
    """What a client that cannot be served now reads."""
    return f"the server is busy; try again in {busy.retry_after} s"


def download(data: bytes, name: str) -> Response:
    """A file that a browser saves under a name and never shows."""
    headers = {
        "content-disposition": f"attachment; filename*=UTF-8''{quote(name)}",
        "x-content-type-options": "nosniff",
    }
    return Response(data, media_type="application/octet-stream", headers=headers)
