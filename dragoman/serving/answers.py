"""Answers that need no route: errors in the form that the clients of a path expect, and refusals."""

from __future__ import annotations

import json
from typing import Any

from dragoman.serving.batcher import Busy

OPENAI_PATHS = ("/v1/completions", "/v1/audio/transcriptions")
# Paths that ask for computation: refused while the queue is full, before their bodies are parsed.
WORK = frozenset(
    ("/v1/predict", "/v1/predict/file", "/v1/score", "/translate", "/translate_file", "/v2/translate", *OPENAI_PATHS)
)


def error_table(path: str, status: int, message: str) -> dict[str, Any]:
    """{"error": "…"}, or as OpenAI and DeepL write it on their paths."""
    if path in OPENAI_PATHS:
        kind = "server_error" if status >= 500 else "invalid_request_error"
        return {"error": {"message": message, "type": kind, "param": None, "code": None}}
    if path.startswith("/v2/"):
        return {"message": message}
    return {"error": message}


def error_body(path: str, status: int, message: str) -> bytes:
    """The table as JSON."""
    return json.dumps(error_table(path, status, message), ensure_ascii=False).encode()


def busy_message(busy: Busy) -> str:
    """What a client that cannot be served now reads."""
    return f"the server is busy; try again in {busy.retry_after} s"
