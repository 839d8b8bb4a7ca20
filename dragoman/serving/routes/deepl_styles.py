"""DeepL's style rules, which clients store, and its list of translation memories, which the runs of the server have."""

from __future__ import annotations

import uuid
from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import Field

from dragoman.serving import styles
from dragoman.serving.routes.deepl import Code, DeepLRequest, Prompt
from dragoman.serving.state import CurrentCall, NotFound
from dragoman.serving.styles import Style

router = APIRouter(prefix="/v3", tags=["DeepL"])
Name = Annotated[str, Field(min_length=1, max_length=1_000)]
Rules = dict[str, Annotated[str, Field(max_length=300)]]
PAGE = 25  # entries of a list, unless a request says otherwise
Page = Annotated[int, Field(ge=0, le=1_000_000)]
PageSize = Annotated[int, Field(ge=1, le=PAGE)]


class RulesRequest(DeepLRequest):
    """Rules by category."""

    only_misspelt = False  # a rule that the server forgets would seem to be followed
    dates_and_times: Rules = Field({})
    formatting: Rules = Field({})
    numbers: Rules = Field({})
    punctuation: Rules = Field({})
    spelling_and_grammar: Rules = Field({})
    style_and_tone: Rules = Field({})
    vocabulary: Rules = Field({})


class InstructionRequest(DeepLRequest):
    """An instruction in the words of a person."""

    label: Annotated[str, Field(min_length=1, max_length=100)]
    prompt: Prompt
    source_language: Code | None = None

    def table(self) -> dict[str, Any]:
        return {"id": str(uuid.uuid4()), **self.model_dump(exclude_none=True)}


class NameRequest(DeepLRequest):
    """Another name of a style."""

    name: Name


class StyleRequest(NameRequest):
    """A style for outputs in one language."""

    language: Code
    configured_rules: RulesRequest = RulesRequest()
    custom_instructions: Annotated[list[InstructionRequest], Field(max_length=200)] = Field([])


@router.get("/style_rules")
async def list_styles(
    call: CurrentCall, page: Page = 0, page_size: PageSize = PAGE, detailed: bool = False
) -> dict[str, list[Style]]:
    """The stored styles; `detailed` with their rules and instructions."""
    found = styles.every(call)[page * page_size :][:page_size]
    brief = () if detailed else ("configured_rules", "custom_instructions")
    return {"style_rules": [{name: style[name] for name in style if name not in brief} for style in found]}


@router.post("/style_rules", status_code=201, openapi_extra=StyleRequest.body("application/json"))
async def create_style(call: CurrentCall, request: Request) -> Any:
    """Store a style. A translation with it needs a run that has a tag for all its rules and instructions."""
    body = await StyleRequest.read(request)
    own = {
        "configured_rules": body.configured_rules.model_dump(exclude_defaults=True),
        "custom_instructions": [instruction.table() for instruction in body.custom_instructions],
    }
    return JSONResponse(styles.create(call, {"name": body.name, "language": body.language.lower(), **own}), 201)


@router.get("/style_rules/{style_id}")
async def get_style(call: CurrentCall, style_id: str) -> Style:
    """A stored style."""
    return styles.get(call, style_id)


@router.patch("/style_rules/{style_id}", openapi_extra=NameRequest.body("application/json"))
async def rename_style(call: CurrentCall, request: Request, style_id: str) -> Style:
    """Rename a style."""
    body = await NameRequest.read(request)
    with styles.change(call, style_id) as style:
        style["name"] = body.name
    return style


@router.delete("/style_rules/{style_id}", status_code=204)
async def delete_style(call: CurrentCall, style_id: str) -> Response:
    """Forget a style."""
    styles.delete(call, style_id)
    return Response(status_code=204)


@router.put("/style_rules/{style_id}/configured_rules", openapi_extra=RulesRequest.body("application/json"))
async def put_rules(call: CurrentCall, request: Request, style_id: str) -> Style:
    """Put rules in place of those of a style."""
    body = await RulesRequest.read(request)
    with styles.change(call, style_id) as style:
        style["configured_rules"] = body.model_dump(exclude_defaults=True)
    return style


INSTRUCTIONS = "/style_rules/{style_id}/custom_instructions"


def place_of(style: Style, instruction_id: str) -> int:
    """The place of an instruction in its style; raises NotFound."""
    for place, instruction in enumerate(style["custom_instructions"]):
        if instruction["id"] == instruction_id.lower():
            return place
    raise NotFound(f"instruction_id: found {instruction_id[:40]!r}, expected one of this style")


@router.post(INSTRUCTIONS, status_code=201, openapi_extra=InstructionRequest.body("application/json"))
async def add_instruction(call: CurrentCall, request: Request, style_id: str) -> Any:
    """Add an instruction to a style."""
    instruction = (await InstructionRequest.read(request)).table()
    with styles.change(call, style_id) as style:
        style["custom_instructions"].append(instruction)
    return JSONResponse(instruction, 201)


@router.get(f"{INSTRUCTIONS}/{{instruction_id}}")
async def get_instruction(call: CurrentCall, style_id: str, instruction_id: str) -> dict[str, Any]:
    """An instruction of a style."""
    style = styles.get(call, style_id)
    found: dict[str, Any] = style["custom_instructions"][place_of(style, instruction_id)]
    return found


@router.put(f"{INSTRUCTIONS}/{{instruction_id}}", openapi_extra=InstructionRequest.body("application/json"))
async def put_instruction(call: CurrentCall, request: Request, style_id: str, instruction_id: str) -> dict[str, Any]:
    """Put other words in place of an instruction."""
    instruction = (await InstructionRequest.read(request)).table() | {"id": instruction_id.lower()}
    with styles.change(call, style_id) as style:
        style["custom_instructions"][place_of(style, instruction_id)] = instruction
    return instruction


@router.delete(f"{INSTRUCTIONS}/{{instruction_id}}", status_code=204)
async def delete_instruction(call: CurrentCall, style_id: str, instruction_id: str) -> Response:
    """Remove an instruction from a style."""
    with styles.change(call, style_id) as style:
        del style["custom_instructions"][place_of(style, instruction_id)]
    return Response(status_code=204)


@router.get("/translation_memories")
async def list_memories(call: CurrentCall, page: Page = 0, page_size: PageSize = PAGE) -> dict[str, Any]:
    """The translation memories with which runs of this server were started."""
    memories = [
        {
            "translation_memory_id": model.memory_id,
            "name": model.memory_file,
            "source_language": model.source,
            "target_languages": list(model.targets),
            "segment_count": model.memory_size,
        }
        for model in call.state.models
        if model.memory_id
    ]
    return {"translation_memories": memories[page * page_size :][:page_size]}
