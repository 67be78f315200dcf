"""`/v1/rubrics/{name}/…`: aliases, tags, and what is in use. Moves of aliases go by If-Match."""

import re
from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, Header, Request, Response
from fastapi import Path as PathParameter

from judge_server import rubric_changes as changes
from judge_server.errors import PreconditionRequired
from judge_server.rubrics import find_rubric
from judge_server.web.access import RequiredScope, project_of
from judge_server.web.problems import invalid_request, problem_responses
from judge_server.web.service import service_of
from judge_server.web.strict_json import StrictRoute
from trainer_client.wire import (
    AliasMove,
    FieldError,
    RetirementRequest,
    RubricAlias,
    RubricAliases,
    RubricTags,
    RubricVersion,
    TagSet,
)

RUBRIC_SCOPES = RequiredScope("read", write_scope="rubrics:write")

router = APIRouter(route_class=StrictRoute, dependencies=[Depends(RUBRIC_SCOPES)])

Name = Annotated[str, PathParameter(description="The rubric's name.", examples=["team/math/quadratics"])]
Alias = Annotated[str, PathParameter(description="Begins with a lower-case letter.", examples=["production"])]
PinnedReference = Annotated[str, PathParameter(description="`name@3`", examples=["team/math/quadratics@3"])]
IfMatch = Annotated[
    str | None, Header(description="The version the alias stands for now, in quotes: its ETag.", examples=['"2"'])
]
IfNoneMatch = Annotated[str | None, Header(description="`*`: only if there is no such alias yet.", examples=["*"])]

_ETAG = re.compile(r'"([1-9][0-9]{0,8})"')
_ETAG_HEADERS: dict[str, Any] = {"ETag": {"description": "The version, in quotes.", "schema": {"type": "string"}}}


@router.get(
    "/{name:path}/aliases",
    summary="List the aliases of a rubric",
    response_model=RubricAliases,
    responses=problem_responses(404, 422),
)
async def aliases(request: Request, name: Name) -> RubricAliases:
    """Each alias and the version it stands for."""
    rubrics = service_of(request).rubrics
    await find_rubric(rubrics, project_of(request), name)
    return await rubrics.aliases(project_of(request), name)


@router.get(
    "/{name:path}/aliases/{alias}",
    summary="Read one alias of a rubric",
    response_model=RubricAlias,
    responses={200: {"headers": _ETAG_HEADERS}, **problem_responses(404, 422)},
)
async def read_alias(request: Request, response: Response, name: Name, alias: Alias) -> RubricAlias:
    """The version it stands for, and the ETag that moving it takes."""
    found = await changes.alias_of(service_of(request).rubrics, project_of(request), name, alias)
    response.headers["ETag"] = f'"{found.version}"'
    return found


@router.put(
    "/{name:path}/aliases/{alias}",
    summary="Move an alias to a version, or create it",
    response_model=RubricAlias,
    responses={200: {"headers": _ETAG_HEADERS}, **problem_responses(404, 412, 413, 422, 428)},
)
async def move_alias(
    request: Request,
    response: Response,
    name: Name,
    alias: Alias,
    body: Annotated[
        AliasMove, Body(openapi_examples={"release": {"summary": "To version 3", "value": {"version": 3}}})
    ],
    if_match: IfMatch = None,
    if_none_match: IfNoneMatch = None,
) -> RubricAlias:
    """`If-Match: "2"` moves the alias from version 2 and from no other; `If-None-Match: *` creates it.

    An alias that somebody else moved in between stays where it is (412). One that stands for the version already is
    answered like one that was moved, so that a request whose answer was lost may be sent again.
    """
    expected = _expected(if_match, if_none_match)
    moved = await changes.move_alias(
        service_of(request).rubrics, project_of(request), name, alias, body.version, expected=expected
    )
    response.headers["ETag"] = f'"{moved.version}"'
    return moved


@router.delete(
    "/{name:path}/aliases/{alias}",
    summary="Remove an alias",
    response_model=RubricAliases,
    responses=problem_responses(404, 412, 422, 428),
)
async def remove_alias(request: Request, name: Name, alias: Alias, if_match: IfMatch = None) -> RubricAliases:
    """The version stays. Takes `If-Match` like a move, and answers with the aliases that are left."""
    expected = _expected(if_match, None)
    assert expected is not None  # without If-None-Match there is a version, or a problem
    rubrics = service_of(request).rubrics
    await changes.remove_alias(rubrics, project_of(request), name, alias, expected=expected)
    return await rubrics.aliases(project_of(request), name)


@router.put(
    "/{name:path}/tags",
    summary="Replace the tags of a rubric",
    response_model=RubricTags,
    responses=problem_responses(404, 413, 422),
)
async def replace_tags(
    request: Request,
    name: Name,
    body: Annotated[
        TagSet, Body(openapi_examples={"two": {"summary": "Two tags", "value": {"tags": ["math", "reviewed"]}}})
    ],
) -> RubricTags:
    """Tags belong to the name, not to a version. An empty list takes them all away."""
    return await changes.replace_tags(service_of(request).rubrics, project_of(request), name, body.tags)


@router.put(
    "/{reference:path}/retirement",
    summary="Retire a version",
    response_model=RubricVersion,
    responses=problem_responses(404, 413, 422),
)
async def retire(
    request: Request,
    reference: PinnedReference,
    body: Annotated[
        RetirementRequest,
        Body(
            openapi_examples={
                "flaw": {"summary": "With its reason", "value": {"reason": "Rewards guessing; use version 4."}}
            }
        ),
    ],
) -> RubricVersion:
    """It stays readable. Requests that would judge by it are refused with the reason, unless they allow it."""
    return await changes.retire(service_of(request).rubrics, project_of(request), reference, body.reason)


@router.delete(
    "/{reference:path}/retirement",
    summary="Take a retired version back into use",
    response_model=RubricVersion,
    responses=problem_responses(404, 422),
)
async def restore(request: Request, reference: PinnedReference) -> RubricVersion:
    """Nothing happens to a version that is in use."""
    return await changes.retire(service_of(request).rubrics, project_of(request), reference, None)


def _expected(if_match: str | None, if_none_match: str | None) -> int | None:
    """The version an alias must stand for; None where there must be no such alias."""
    if if_match is None and if_none_match is None:
        raise PreconditionRequired(
            "Say what the alias stands for now, so that nobody's move is lost: If-Match with the ETag that "
            'GET …/aliases/{alias} gives (such as "2"), or If-None-Match: * for an alias that does not exist yet.'
        )
    if if_match is not None and if_none_match is not None:
        raise _invalid_header("If-None-Match", "If-Match and If-None-Match rule each other out; send one of them")
    if if_match is None:
        if (if_none_match or "").strip() != "*":
            raise _invalid_header("If-None-Match", f"{if_none_match!r} cannot be used here; write *")
        return None
    match = _ETAG.fullmatch(if_match.strip())
    if match is None:
        raise _invalid_header(
            "If-Match", f'{if_match!r} is no ETag of an alias; write its version in quotes, such as "2"'
        )
    return int(match[1])


def _invalid_header(header: str, message: str) -> Exception:
    return invalid_request((FieldError(field=header, message=message),))
