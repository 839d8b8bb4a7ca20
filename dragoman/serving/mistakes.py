"""Messages about requests that cannot be read: the place, what was found, what was expected and what to do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, get_args

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel

from dragoman.base import hint, nearest
from dragoman.serving.request_fields import content_type_of

MAX_PROBLEMS = 5  # in one message
JSON_TYPES: dict[type, str] = {str: "a text", list: "a list", dict: "an object", bytes: "bytes", type(None): "null"}
UNREADABLE_BODY = "There was an error parsing the body"  # how FastAPI says it


def shown(text: str, most: int = 80) -> str:
    """A text of a client inside a message: short, and printable in any log."""
    text = text.encode("utf-8", "replace").decode()
    return repr(text if len(text) <= most else text[: most - 1] + "…")


def validation_problem(request: Request, error: RequestValidationError) -> tuple[int, str]:
    """Status and message for fields that are missing, misspelt or of a wrong type."""
    errors: list[dict[str, Any]] = list(error.errors())
    first = errors[0]
    if first["type"] == "json_invalid":
        before = str(error.body)[: int(first["loc"][-1])]
        line, column = before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1
        reason = f"{first['ctx']['error']}, line {line}, column {column}"
        return 422, f"body: found no JSON ({reason}), expected a JSON object"
    if message := content_type_problem(request, first, bool(error.body)):
        return 415, message
    model = body_model(request)
    problems: dict[str, list[str]] = {}
    for problem in errors:
        place, message = problem_of(problem, model)
        problems.setdefault(place, []).append(message)
    parts = [merged(place, messages) for place, messages in list(problems.items())[:MAX_PROBLEMS]]
    return 422, "; ".join(parts).encode("utf-8", "replace").decode()


def content_type_problem(request: Request, first: dict[str, Any], has_body: bool) -> str:
    """What is wrong with the type of a body that could not be read at all; empty if that is not the reason."""
    kind = content_type_of(request)
    dependant = getattr(request.scope.get("route"), "dependant", None)
    if any(type(field.field_info).__name__ in ("File", "Form") for field in getattr(dependant, "body_params", ())):
        expected, how = "multipart/form-data", "curl -F file=@FILE"
        is_reason = first["type"] == "missing" and kind != expected
    else:
        expected, how = "application/json", "curl -H 'content-type: application/json'"
        is_reason = first["loc"] in (("body",), ()) and has_body and not kind.endswith(("/json", "+json"))
    found = f"found {shown(kind)}" if kind else "found none"
    return f"content-type: {found}, expected {expected}; send it as in: {how} …" if is_reason else ""


def problem_of(error: dict[str, Any], body: type[BaseModel] | None) -> tuple[str, str]:
    """The place of one of pydantic's errors, and what it says in our words."""
    place, model = place_of(error["loc"], body)
    known = model.model_fields if model is not None else {}
    if error["type"] == "extra_forbidden":
        name = str(error["loc"][-1])
        return place, f"found the field {shown(name, 40)}. {hint(name, known)}"
    if error["type"] == "missing":
        fields = [name for name, field in known.items() if field.is_required()]
        whole = f" with the field{'s' if len(fields) > 1 else ''} {', '.join(fields)}" if fields else ""
        return place, "missing" if place else f"missing, expected a JSON object{whole}"
    message = str(error["msg"])
    for start in ("Input should be ", "Value error, expected "):
        if message.startswith(start):
            return place, f"found {found_kind(error.get('input'))}, expected {message.removeprefix(start)}"
    return place, message


def merged(place: str, messages: Sequence[str]) -> str:
    """All that is wrong with one place; of a field with two types the found value is named once."""
    distinct = list(dict.fromkeys(messages))
    starts = {message.partition(", expected ")[0] for message in distinct}
    if len(distinct) > 1 and len(starts) == 1:
        expected = " or ".join(message.partition(", expected ")[2] for message in distinct)
        distinct = [f"{starts.pop()}, expected {expected}"]
    return "; ".join(f"{place}: {message}" if place else f"body: {message}" for message in distinct)


def found_kind(value: Any) -> str:
    """What a client sent, by its type; a number is shown, a text is not repeated."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)[:30]
    return JSON_TYPES.get(type(value), "another type")


def body_model(request: Request) -> type[BaseModel] | None:
    """The class of the body that the route of a request expects."""
    field = getattr(request.scope.get("route"), "body_field", None)
    annotation = getattr(getattr(field, "field_info", None), "annotation", None)
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def place_of(location: Sequence[Any], model: type[BaseModel] | None) -> tuple[str, type[BaseModel] | None]:
    """The path of a field as a client writes it, without the branches of unions, and the class around the field."""
    parts: list[str] = []
    for index, part in enumerate(location):
        if index == 0 and part in ("body", "query", "path", "header"):
            continue
        if isinstance(part, int) or model is None:
            parts.append(str(part))
        elif part in model.model_fields:
            parts.append(part)
            if index < len(location) - 1:
                model = next(classes_in(model.model_fields[part].annotation), model)
    return ".".join(parts), model


def classes_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """The classes of tables that a field may have."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from classes_in(part)


def unknown_path(path: str, paths: Iterable[str]) -> str:
    known = sorted({other for other in paths if "{" not in other and other != "/"})
    match = nearest(path.rstrip("/") or path, known)
    suggestion = f"Did you mean {match}?" if match else f"Expected one of: {', '.join(known)}."
    return f"path: found {shown(path)}. {suggestion} /openapi.json describes all of them"
