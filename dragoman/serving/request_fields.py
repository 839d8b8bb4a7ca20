"""The fields of a request of another program's API: from its address, a form or JSON, checked against a model."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.datastructures import UploadFile
from starlette.requests import Request

from dragoman.errors import ConfigError
from dragoman.serving.gate import is_token
from dragoman.serving.state import state_of

Fields = dict[str, Any]
Describe = Callable[[str, Any, Fields], str]  # (name of a field, pydantic's error, all fields) → the message of the API
M = TypeVar("M", bound=BaseModel)
FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")


class WrongKey(Exception):  # noqa: N818
    """A request without the token of the server."""


def body_schema(model: type[BaseModel], *kinds: str) -> dict[str, Any]:
    """The OpenAPI description of a body that may be JSON or a form."""
    schema = model.model_json_schema()
    content = {kind: {"schema": schema} for kind in kinds or ("application/json", FORMS[0])}
    return {"requestBody": {"required": True, "content": content}}


async def fields_of(request: Request) -> Fields:
    """The fields of a request, from its address, a form or JSON: clients send all three. A file is (name, bytes)."""
    fields: Fields = {}
    for name, value in request.query_params.multi_items():
        fields[name] = [*_listed(fields[name]), value] if name in fields else value
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind in FORMS:
        async with request.form(max_files=2, max_fields=2_000) as form:
            for name, entry in form.multi_items():
                if isinstance(entry, UploadFile):
                    fields[name] = (entry.filename or "", await entry.read())
                else:
                    fields[name] = [*_listed(fields[name]), entry] if name in fields else entry
    elif body := await request.body():
        try:
            table = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"body: found no JSON ({str(error)[:80]}), expected JSON or a form") from None
        if not isinstance(table, dict):
            raise ConfigError("body: expected a JSON object")
        fields |= table
    return fields


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


async def read_fields(request: Request, model: type[M], describe: Describe) -> M:
    """The fields of a request, checked; a mistake becomes the message that clients of the API know."""
    fields = await fields_of(request)
    check_key(request, fields)
    return checked(fields, model, describe)


def checked(fields: Fields, model: type[M], describe: Describe) -> M:
    """Fields as a model; raises ConfigError for the first mistake."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise ConfigError(describe(str(first["loc"][0]) if first["loc"] else "body", first, fields)) from None


def check_key(request: Request, fields: Mapping[str, Any]) -> None:
    """The token in the field api_key or in the header."""
    token = state_of(request).config.token
    if not token:
        return
    header = request.headers.get("authorization", "").split(" ", 1)[-1].strip()
    for sent in (str(fields.get("api_key", "")).encode("utf-8", "replace"), header.encode("latin-1")):
        if is_token(sent, token):
            return
    raise WrongKey
