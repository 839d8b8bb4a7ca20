"""Messages about requests that cannot be read: the place, what was found, what was expected and what to do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, get_args, get_origin

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel

from dragoman.errors import hint, nearest
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
        return 422, f"body: {json_problem(str(error.body), int(first['loc'][-1]), first['ctx']['error'])}"
    if message := content_type_problem(request, first, bool(error.body)):
        return 415, message
    model = body_model(request)
    problems: dict[str, list[str]] = {}
    for one in errors:
        place, message = problem_of(one, model)
        problems.setdefault(place, []).append(message)
    parts = [merged(place, messages) for place, messages in list(problems.items())[:MAX_PROBLEMS]]
    return 422, "; ".join(parts).encode("utf-8", "replace").decode()


def content_type_problem(request: Request, first: dict[str, Any], has_body: bool) -> str:
    """What is wrong with the type of a body that could not be read at all; empty if that is not the reason."""
    kind = content_type_of(request)
    if has_form(request):
        expected, how = "multipart/form-data", "curl -F file=@FILE"
        is_reason = first["type"] == "missing" and kind != expected
    else:
        expected, how = "application/json", "curl -H 'content-type: application/json'"
        is_reason = first["loc"] in (("body",), ()) and has_body and not kind.endswith(("/json", "+json"))
    found = f"found {shown(kind)}" if kind else "found none"
    return f"content-type: {found}, expected {expected}; send it as in: {how} …" if is_reason else ""


def json_problem(text: str, position: int, reason: str) -> str:
    line, column = text.count("\n", 0, position) + 1, position - (text.rfind("\n", 0, position) + 1) + 1
    return f"found no JSON ({reason}, line {line}, column {column}), expected a JSON object"


def problem_of(one: dict[str, Any], body: type[BaseModel] | None) -> tuple[str, str]:
    """The place of one of pydantic's errors, and what it says in our words."""
    place, model = place_of(one["loc"], body)
    if one["type"] == "extra_forbidden":
        fields = list(model.model_fields) if model is not None else []
        name = str(one["loc"][-1])
        return place, f"found the field {shown(name, 40)}. {hint(name, fields)}"
    if one["type"] == "missing":
        fields = (
            [name for name, field in model.model_fields.items() if field.is_required()] if model is not None else []
        )
        whole = f" with the field{'s' if len(fields) > 1 else ''} {', '.join(fields)}" if fields else ""
        return place, "missing" if place else f"missing, expected a JSON object{whole}"
    message = str(one["msg"])
    for start in ("Input should be ", "Value error, expected "):
        if message.startswith(start):
            return place, f"found {found_kind(one.get('input'))}, expected {message.removeprefix(start)}"
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


def has_form(request: Request) -> bool:
    """Whether the route of a request reads an upload."""
    dependant = getattr(request.scope.get("route"), "dependant", None)
    return any(type(one.field_info).__name__ in ("File", "Form") for one in getattr(dependant, "body_params", ()))


def body_model(request: Request) -> type[BaseModel] | None:
    """The class of the body that the route of a request expects."""
    field = getattr(request.scope.get("route"), "body_field", None)
    annotation = getattr(getattr(field, "field_info", None), "annotation", None)
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def place_of(location: Sequence[Any], model: type[BaseModel] | None) -> tuple[str, type[BaseModel] | None]:
    """The path of a field as a client writes it, without the branches of unions, and the class around the field."""
    parts: list[str] = []
    inside: dict[str, type[BaseModel]] = {}
    for index, part in enumerate(location):
        if index == 0 and part in ("body", "query", "path", "header"):
            continue
        if part in inside:  # which of several classes it is
            model, inside = inside[part], {}
            continue
        if isinstance(part, int):
            parts.append(str(part))
            continue
        if model is not None and part in model.model_fields:
            inside = {name: cls for cls in classes_in(model.model_fields[part].annotation) for name in names_of(cls)}
            parts.append(part)
            if index < len(location) - 1 and len({*inside.values()}) == 1:
                model = next(iter(inside.values()))
        elif model is None:
            parts.append(str(part))
    return ".".join(parts), model


def classes_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """The classes of tables that a field may have."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for one in get_args(annotation):
        yield from classes_in(one)


def names_of(cls: type[BaseModel]) -> list[str]:
    """How pydantic names a class in a place: by its name, or by its kind."""
    kind = cls.model_fields.get("kind")
    kinds = get_args(kind.annotation) if kind is not None and get_origin(kind.annotation) is Literal else ()
    return [cls.__name__, *map(str, kinds)]


def unknown_path(path: str, paths: Iterable[str]) -> str:
    """The message for a path that does not exist."""
    known = sorted({one for one in paths if "{" not in one and one != "/"})
    match = nearest(path.rstrip("/") or path, known)
    suggestion = f"Did you mean {match}?" if match else f"Expected one of: {', '.join(known)}."
    return f"path: found {shown(path)}. {suggestion} /openapi.json describes all of them"
