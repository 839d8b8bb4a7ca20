"""Requests of other APIs: fields from the address, a form or JSON, which this server has, lacks or ignores."""

from __future__ import annotations

import json
from typing import Any, ClassVar, Self

from pydantic import BaseModel, Field, ValidationError, model_validator
from starlette.datastructures import UploadFile
from starlette.requests import Request

from dragoman.base import ConfigError, hint, nearest
from dragoman.serving.gate import is_token

Fields = dict[str, Any]
FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")


class WrongKey(Exception):  # noqa: N818
    """A request without the token of the server."""


def unsupported(reason: str, *neutral: Any) -> Any:
    """A field that asks for what this server does not have: any value but null and the `neutral` ones is refused."""
    return Field(None, description=f"refused: {reason}", json_schema_extra={"neutral": list(neutral)})


def ignored(reason: str) -> Any:
    """A field that changes no answer."""
    return Field(None, description=f"no effect: {reason}")


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def content_type_of(request: Request) -> str:
    """The media type of a body, without its parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


class ForeignRequest(BaseModel):
    """A body whose unknown and unsupported fields are refused in the words of its API."""

    unknown_field: ClassVar[str] = "{name}: no such field. {hint}"  # "": unknown fields are ignored
    only_misspelt: ClassVar[bool] = False  # unknown fields are ignored unless they look like a known one
    key_field: ClassVar[str] = "api_key"  # that may have the token of the server
    refused_field: ClassVar[str] = "{name}: this server does not support it; leave it out"

    @model_validator(mode="before")
    @classmethod
    def _refuse(cls, fields: Any) -> Any:
        known = {field.alias or name: field for name, field in cls.model_fields.items()}
        for name, value in fields.items() if isinstance(fields, dict) and cls.unknown_field else ():
            if name not in known:
                if cls.only_misspelt and nearest(name, known) is None:
                    continue
                raise ConfigError(cls.unknown_field.format(name=name[:80], hint=hint(name, known)))
            extra = known[name].json_schema_extra
            neutral = extra.get("neutral") if isinstance(extra, dict) else None
            if isinstance(neutral, list) and value is not None and value not in neutral:
                raise ConfigError(cls.refused_field.format(name=name, reason=known[name].description))
        return fields

    @classmethod
    def describe(cls, name: str, error: Any, fields: Fields) -> str:
        """What clients of the API read about one of pydantic's errors, given all fields of the request."""
        return f"{name}: {error['msg']}"

    @classmethod
    async def read(cls, request: Request) -> Self:
        """The fields of a request, checked; raises ConfigError for the first mistake, WrongKey without the token."""
        return cls.checked(request, await fields_of(request))

    @classmethod
    async def read_address(cls, request: Request) -> Self:
        """As `read`, but the body is no table and is left unread."""
        return cls.checked(request, dict(request.query_params))

    @classmethod
    def checked(cls, request: Request, fields: Fields) -> Self:
        token: str = request.app.state.server.config.token
        header = request.headers.get("authorization", "").split(" ", 1)[-1].strip()
        sent = str(fields.get(cls.key_field, "")).encode("utf-8", "replace"), header.encode("latin-1")
        if token and not any(is_token(key, token) for key in sent):
            raise WrongKey
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            raise ConfigError(cls.describe(str((*first["loc"], "body")[0]), first, fields)) from None

    @classmethod
    def body(cls, *kinds: str) -> dict[str, Any]:
        """The OpenAPI description of a body that may be JSON or a form."""
        schema = cls.model_json_schema()
        # OpenAPI looks up references from the root of its document: nested classes are written in their place.
        nested = {f"#/$defs/{name}": table for name, table in schema.pop("$defs", {}).items()}
        schema = json.loads(json.dumps(schema), object_hook=lambda table: nested.get(table.get("$ref", ""), table))
        content = {kind: {"schema": schema} for kind in kinds or ("application/json", FORMS[0])}
        return {"requestBody": {"required": True, "content": content}}


async def fields_of(request: Request) -> Fields:
    """The fields of a request, from its address, a form or JSON: clients send all three. A file is (name, bytes)."""
    fields: Fields = {}
    for name, value in request.query_params.multi_items():
        fields[name] = [*listed(fields[name]), value] if name in fields else value
    if content_type_of(request) in FORMS:
        async with request.form(max_files=2, max_fields=2_000) as form:
            for name, entry in form.multi_items():
                if isinstance(entry, UploadFile):
                    fields[name] = (entry.filename or "", await entry.read())
                else:
                    fields[name] = [*listed(fields[name]), entry] if name in fields else entry
    elif body := await request.body():
        try:
            table = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"body: found no JSON ({str(error)[:80]}), expected JSON or a form") from None
        if not isinstance(table, dict):
            raise ConfigError("body: expected a JSON object")
        fields |= table
    return fields
