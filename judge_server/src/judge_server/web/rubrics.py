"""`/v1/rubrics`: publish a version, read one, list and search the names, follow a name's history."""

from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, Query, Request, Response
from fastapi import Path as PathParameter
from pydantic import TypeAdapter, ValidationError

from judge_server import rubric_changes as changes
from judge_server.rubrics import find_rubric
from judge_server.web import rubric_changes
from judge_server.web.access import project_of
from judge_server.web.idempotency import IdempotencyKey, run_idempotent
from judge_server.web.patterns import refuse_unusable_criteria
from judge_server.web.problems import invalid_request, problem_responses
from judge_server.web.rubric_changes import RUBRIC_SCOPES
from judge_server.web.service import service_of
from judge_server.web.strict_json import StrictRoute
from trainer_client.wire import (
    FieldError,
    NewRubricName,
    RubricDiff,
    RubricHistory,
    RubricPage,
    RubricPublication,
    RubricVersion,
)

router = APIRouter(
    prefix="/v1/rubrics", tags=["rubrics"], route_class=StrictRoute, dependencies=[Depends(RUBRIC_SCOPES)]
)

Name = Annotated[str, PathParameter(description="The rubric's name.", examples=["team/math/quadratics"])]
After = Annotated[str | None, Query(description="The `next_cursor` of the page before.")]

PUBLICATION_EXAMPLE: dict[str, Any] = {
    "criteria": [
        {"id": "answer", "kind": "factual", "weight": 3, "description": "The final answer is 80 km/h."},
        {"id": "method", "kind": "process", "description": "Divides the distance by the time."},
    ],
    "tags": ["math", "gsm8k"],
    "metadata": {"reviewed_by": "Ada"},
    "lineage": {"author": "team-math"},
}
_NAME: TypeAdapter[str] = TypeAdapter(NewRubricName)
_MAX_SHOWN_CHARACTERS = 100


@router.post(
    "/{name:path}/versions",
    summary="Publish a version of a rubric",
    status_code=201,
    response_model=RubricVersion,
    responses={
        200: {"description": "These criteria are published already.", "model": RubricVersion},
        **problem_responses(409, 413, 422),
    },
)
async def publish(
    request: Request,
    name: Annotated[str, PathParameter(description="Lower-case, may have folders: team/math/quadratics")],
    body: Annotated[
        RubricPublication, Body(openapi_examples={"speed": {"summary": "A word problem", "value": PUBLICATION_EXAMPLE}})
    ],
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Versions are immutable and numbered from 1. Publishing the same criteria again returns the version there is.

    Metadata and lineage are kept with the version, and those of a version there is stand. Tags are added to the
    name's. `parent` is the version of this name that the new one was made from, the newest unless given.

    A request that is sent again under its `Idempotency-Key` is answered as it was, and changes nothing.
    """
    _check_name(name)
    await refuse_unusable_criteria(service_of(request).checker, project_of(request), body)

    async def work() -> Response:
        try:
            version, added = await service_of(request).rubrics.publish(
                project_of(request),
                name,
                body,
                metadata=body.metadata,
                tags=body.tags,
                lineage=body.lineage,
                parent=body.parent,
            )
        except ValueError as error:
            field, _, message = str(error).partition(": ")
            raise invalid_request((FieldError(field=field, message=message),)) from None
        status, headers = 201 if added else 200, {"Location": f"/v1/rubrics/{version.reference}"}
        return Response(version.model_dump_json(), status, headers, "application/json")

    return await run_idempotent(request, idempotency_key, work)


@router.get("", summary="List and search rubrics", response_model=RubricPage, responses=problem_responses(422))
async def list_rubrics(
    request: Request,
    prefix: Annotated[str, Query(description="Only names that begin with this.", examples=["team/math/"])] = "",
    tag: Annotated[str | None, Query(description="Only rubrics that have this tag.", examples=["safety"])] = None,
    text: Annotated[
        str,
        Query(
            description="Only rubrics whose criteria have, for each of these words, one that begins with it.",
            examples=["final answer"],
            max_length=1000,
        ),
    ] = "",
    after: After = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
) -> RubricPage:
    """By name, each with the version that its bare name stands for: the newest that is not retired.

    Words are found whatever their case, in that version only. A page costs the same wherever it is in the list.
    """
    try:
        return await service_of(request).rubrics.list(
            project_of(request), prefix=prefix, tag=tag, text=text, after=after, limit=limit
        )
    except ValueError as error:
        raise invalid_request((FieldError(field="after", message=str(error)),)) from None


@router.get(
    "/{name:path}/versions",
    summary="List the versions of a rubric",
    response_model=RubricHistory,
    responses=problem_responses(404, 422),
)
async def history(
    request: Request,
    name: Name,
    after: After = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
) -> RubricHistory:
    """The newest first, each with its lineage, metadata, retirement and aliases, and without its criteria."""
    return await changes.history(service_of(request).rubrics, project_of(request), name, after=after, limit=limit)


@router.get(
    "/{name:path}/diff",
    summary="What differs between two versions of a rubric",
    response_model=RubricDiff,
    responses=problem_responses(404, 422),
)
async def diff(
    request: Request,
    name: Name,
    from_: Annotated[str, Query(alias="from", description="A version's number, or an alias.", examples=["3"])],
    to: Annotated[str, Query(description="The same.", examples=["production"])] = "latest",
) -> RubricDiff:
    """By criterion id: what was added, removed, reworded, reweighted, otherwise changed, or moved."""
    return await changes.difference(service_of(request).rubrics, project_of(request), name, from_, to)


router.include_router(rubric_changes.router)


@router.get(
    "/{reference:path}",
    summary="Read one version of a rubric",
    response_model=RubricVersion,
    responses=problem_responses(404, 422),
)
async def read(
    request: Request,
    reference: Annotated[
        str,
        PathParameter(
            description="`name` (its newest version in use), `name@3`, `name@alias`, or `sha256:…`",
            examples=["team/math/quadratics@production"],
        ),
    ],
) -> RubricVersion:
    """Retired versions are read like others. An unknown reference is answered with the closest one there is."""
    return await find_rubric(service_of(request).rubrics, project_of(request), reference)


def _check_name(name: str) -> None:
    try:
        _NAME.validate_python(name)
    except ValidationError as error:
        problem = error.errors()[0]
        why = "use lower-case letters, digits, '.', '_', '-' and '/' between folders, at most 200 characters"
        if problem["type"] == "value_error":
            why = str(problem["ctx"]["error"])
        shown = (
            name if len(name) <= _MAX_SHOWN_CHARACTERS else f"{name[:_MAX_SHOWN_CHARACTERS]}… ({len(name)} characters)"
        )
        message = f"{shown!r} is no rubric name; {why}"
        raise invalid_request((FieldError(field="name", message=message),)) from None
