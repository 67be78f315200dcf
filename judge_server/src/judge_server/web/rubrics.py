"""`/v1/rubrics`: publish a version, read one, list the names."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi import Path as PathParameter
from pydantic import TypeAdapter, ValidationError

from judge_server.rubrics import PROJECT_ID, find_rubric
from judge_server.web.problems import documented, invalid_request
from judge_server.web.service import service_of
from trainer_client.wire import FieldError, RubricContent, RubricName, RubricPage, RubricVersion

router = APIRouter(prefix="/v1/rubrics", tags=["rubrics"])

_NAME: TypeAdapter[str] = TypeAdapter(RubricName)


@router.post(
    "/{name:path}/versions",
    summary="Publish a version of a rubric",
    status_code=201,
    response_model=RubricVersion,
    responses={
        200: {"description": "This content is published already.", "model": RubricVersion},
        **documented(413, 422),
    },
)
async def publish(
    request: Request,
    response: Response,
    name: Annotated[str, PathParameter(description="Lower-case, may have folders: team/math/quadratics")],
    body: RubricContent,
) -> RubricVersion:
    """Versions are immutable and numbered from 1. Publishing the same content again returns the version there is."""
    try:
        _NAME.validate_python(name)
    except ValidationError:
        message = f"{name!r} is no rubric name; use lower-case letters, digits, '.', '_', '-' and '/' between folders"
        raise invalid_request((FieldError(field="name", message=message),)) from None
    version, added = await service_of(request).rubrics.publish(PROJECT_ID, name, body)
    response.status_code = 201 if added else 200
    response.headers["Location"] = f"/v1/rubrics/{version.reference}"
    return version


@router.get("", summary="List rubrics by name", response_model=RubricPage, responses=documented(422))
async def list_rubrics(
    request: Request,
    prefix: Annotated[str, Query(description="Only names that begin with this.")] = "",
    after: Annotated[str | None, Query(description="The `next_cursor` of the page before.")] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
) -> RubricPage:
    """The newest version of each rubric, in the order of their names."""
    try:
        return await service_of(request).rubrics.list(PROJECT_ID, prefix=prefix, after=after, limit=limit)
    except ValueError as error:
        raise invalid_request((FieldError(field="after", message=str(error)),)) from None


@router.get(
    "/{reference:path}",
    summary="Read one version of a rubric",
    response_model=RubricVersion,
    responses=documented(404, 422),
)
async def read(
    request: Request,
    reference: Annotated[str, PathParameter(description="`name` (newest), `name@3`, or `sha256:…`")],
) -> RubricVersion:
    """An unknown reference is answered with the closest one there is."""
    return await find_rubric(service_of(request).rubrics, PROJECT_ID, reference)
