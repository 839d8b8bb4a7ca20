"""Requests of other programs' APIs, described in one way: fields that this server has, lacks or need not heed."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import BaseModel, Field, model_validator

from dragoman.errors import ConfigError, hint


def unsupported(reason: str, *neutral: Any) -> Any:
    """A field that asks for what this server does not have: any value but null and the `neutral` ones is refused."""
    return Field(None, description=f"refused: {reason}", json_schema_extra={"neutral": list(neutral)})


def ignored(reason: str) -> Any:
    """A field that changes no answer."""
    return Field(None, description=f"no effect: {reason}")


class ForeignRequest(BaseModel):
    """A body whose unknown and unsupported fields are refused in the words of its API."""

    unknown_field: ClassVar[str] = "{name}: no such field. {hint}"
    refused_field: ClassVar[str] = "{name}: this server does not support it; leave it out"

    @model_validator(mode="before")
    @classmethod
    def _refuse(cls, fields: Any) -> Any:
        known = {field.alias or name: field for name, field in cls.model_fields.items()}
        for name, value in fields.items() if isinstance(fields, dict) else ():
            if name not in known:
                raise ConfigError(cls.unknown_field.format(name=name[:80], hint=hint(name, known)))
            extra = known[name].json_schema_extra
            neutral = extra.get("neutral") if isinstance(extra, dict) else None
            if isinstance(neutral, list) and value is not None and value not in neutral:
                raise ConfigError(cls.refused_field.format(name=name, reason=known[name].description))
        return fields
