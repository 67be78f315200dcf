"""The routes of `/v1/rubrics`: publish, read, list, search and compare versions; change aliases, tags and retirement.

Changes of aliases require `If-Match` or `If-None-Match`, so that concurrent moves do not overwrite each other.
"""

import re
from typing import Annotated, Any

from fastapi import Header, Query, Request, Response
from fastapi import Path as PathParameter
from pydantic import TypeAdapter, ValidationError

from judge_server.api.auth import project_of
from judge_server.api.http.problems import problem_responses
from judge_server.api.http.requests import After, Limit, api_router, refuse_unusable_criteria, reject_unknown_cursor
from judge_server.api.idempotency import IdempotencyKey, run_idempotent
from judge_server.api.service import service_of
from judge_server.errors import PreconditionRequired, invalid_field
from judge_server.scheduling.time_sharing import LARGE_CHARACTERS, run_inline_or_in_thread
from judge_server.scoring import rubrics as changes
from judge_server.scoring.rubrics import find_rubric
from rubric_store.rubrics.rows import criteria_characters
from trainer_client.wire import (
    AliasMove,
    NewRubricName,
    RetirementRequest,
    RubricAlias,
    RubricAliases,
    RubricDiff,
    RubricHistory,
    RubricPage,
    RubricPublication,
    RubricTags,
    RubricVersion,
    TagSet,
)

rubrics_router = api_router("rubrics", "read", "rubrics:write", prefix="/v1/rubrics")

Name = Annotated[str, PathParameter(description="The rubric's name.", examples=["team/math/quadratics"])]
Alias = Annotated[str, PathParameter(description="Begins with a lower-case letter.", examples=["production"])]
PinnedReference = Annotated[str, PathParameter(description="`name@3`", examples=["team/math/quadratics@3"])]
IfMatch = Annotated[
    str | None, Header(description="The version the alias points to now, in quotes: its ETag.", examples=['"2"'])
]
IfNoneMatch = Annotated[str | None, Header(description="`*`: only if the alias does not exist.", examples=["*"])]

_ETAG = re.compile(r'"([1-9][0-9]{0,8})"')
_ETAG_HEADERS: dict[str, Any] = {"ETag": {"description": "The version, in quotes.", "schema": {"type": "string"}}}


_NAME: TypeAdapter[str] = TypeAdapter(NewRubricName)
_MAX_SHOWN_CHARACTERS = 100


@rubrics_router.post(
    "/{name:path}/versions",
    name="publish_version",
    summary="Publish a version of a rubric",
    status_code=201,
    response_model=RubricVersion,
    responses={
        200: {"description": "These criteria have been published before.", "model": RubricVersion},
        **problem_responses(409, 413, 422),
    },
)
async def publish(
    request: Request,
    name: Annotated[str, PathParameter(description="Lower case; may contain folders: team/math/quadratics")],
    body: RubricPublication,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Versions are immutable and numbered from 1. Publishing the same criteria again returns the existing version.

    Metadata and lineage are stored with the version; those of an existing version do not change. Tags are added to
    those of the name. `parent` is the version of this name that the new one was made from, by default the newest.

    A request that is repeated with its `Idempotency-Key` gets the same response again and changes nothing.
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
            raise invalid_field(field, message) from None
        status, headers = 201 if added else 200, {"Location": f"/v1/rubrics/{version.reference}"}
        large = criteria_characters(body.criteria) > LARGE_CHARACTERS
        answer = await run_inline_or_in_thread(large, version.model_dump_json)
        return Response(answer, status, headers, "application/json")

    return await run_idempotent(request, idempotency_key, work)


@rubrics_router.get("", summary="List and search rubrics", responses=problem_responses(422))
async def list_rubrics(
    request: Request,
    prefix: Annotated[str, Query(description="Only names that begin with this.", examples=["team/math/"])] = "",
    tag: Annotated[str | None, Query(description="Only rubrics that have this tag.", examples=["safety"])] = None,
    text: Annotated[
        str,
        Query(
            description="Only rubrics whose criteria contain, for each of these words, a word that begins with it.",
            examples=["final answer"],
            max_length=1000,
        ),
    ] = "",
    after: After = None,
    limit: Limit = 100,
) -> RubricPage:
    """Sorted by name, each with the version that its bare name refers to: the newest that is not retired.

    The search ignores case and covers only that version. A page costs the same wherever it is in the list.
    """
    rubrics = service_of(request).rubrics
    return await reject_unknown_cursor(
        rubrics.list(project_of(request), prefix=prefix, tag=tag, text=text, after=after, limit=limit)
    )


@rubrics_router.get(
    "/{name:path}/versions",
    name="list_versions",
    summary="List the versions of a rubric",
    responses=problem_responses(404, 422),
)
async def history(
    request: Request,
    name: Name,
    after: After = None,
    limit: Limit = 100,
) -> RubricHistory:
    """Newest first, each with its lineage, metadata, retirement and aliases, but without its criteria."""
    return await changes.history(service_of(request).rubrics, project_of(request), name, after=after, limit=limit)


@rubrics_router.get(
    "/{name:path}/diff",
    name="compare_versions",
    summary="Compare two versions of a rubric",
    responses=problem_responses(404, 422),
)
async def diff(
    request: Request,
    name: Name,
    from_: Annotated[str, Query(alias="from", description="A version's number, or an alias.", examples=["3"])],
    to: Annotated[str, Query(description="A version's number, or an alias.", examples=["production"])] = "latest",
) -> RubricDiff:
    """By criterion id: what was added, removed, reworded, reweighted, otherwise changed, or moved."""
    return await changes.difference(service_of(request).rubrics, project_of(request), name, from_, to)


@rubrics_router.get(
    "/{name:path}/aliases",
    name="list_aliases",
    summary="List the aliases of a rubric",
    responses=problem_responses(404, 422),
)
async def aliases(request: Request, name: Name) -> RubricAliases:
    """Each alias and the version it points to."""
    rubrics = service_of(request).rubrics
    await find_rubric(rubrics, project_of(request), name)
    return await rubrics.aliases(project_of(request), name)


@rubrics_router.get(
    "/{name:path}/aliases/{alias}",
    summary="Read one alias of a rubric",
    responses={200: {"headers": _ETAG_HEADERS}, **problem_responses(404, 422)},
)
async def read_alias(request: Request, response: Response, name: Name, alias: Alias) -> RubricAlias:
    """The version it points to, with the ETag that is required to move it."""
    current = await changes.alias_of(service_of(request).rubrics, project_of(request), name, alias)
    response.headers["ETag"] = f'"{current.version}"'
    return current


@rubrics_router.put(
    "/{name:path}/aliases/{alias}",
    summary="Move an alias to a version, or create it",
    responses={200: {"headers": _ETAG_HEADERS}, **problem_responses(404, 412, 413, 422, 428)},
)
async def move_alias(
    request: Request,
    response: Response,
    name: Name,
    alias: Alias,
    body: AliasMove,
    if_match: IfMatch = None,
    if_none_match: IfNoneMatch = None,
) -> RubricAlias:
    """`If-Match: "2"` moves the alias only if it points to version 2; `If-None-Match: *` creates it.

    If the alias points to another version, it is not moved and the response is 412. If it already points to the new
    version, the response is the same as for a move, so a request whose response was lost may be sent again.
    """
    expected = _expected(if_match, if_none_match)
    moved = await changes.move_alias(
        service_of(request).rubrics, project_of(request), name, alias, body.version, expected=expected
    )
    response.headers["ETag"] = f'"{moved.version}"'
    return moved


@rubrics_router.delete(
    "/{name:path}/aliases/{alias}",
    summary="Remove an alias",
    responses=problem_responses(404, 412, 422, 428),
)
async def remove_alias(request: Request, name: Name, alias: Alias, if_match: IfMatch = None) -> RubricAliases:
    """The version stays. Requires `If-Match` as a move does, and returns the remaining aliases."""
    expected = _expected(if_match, None)
    assert expected is not None  # only If-None-Match gives None
    rubrics = service_of(request).rubrics
    await changes.remove_alias(rubrics, project_of(request), name, alias, expected=expected)
    return await rubrics.aliases(project_of(request), name)


@rubrics_router.put(
    "/{name:path}/tags",
    summary="Replace the tags of a rubric",
    responses=problem_responses(404, 413, 422),
)
async def replace_tags(
    request: Request,
    name: Name,
    body: TagSet,
) -> RubricTags:
    """Tags belong to the name, not to a version. An empty list removes all tags."""
    return await changes.replace_tags(service_of(request).rubrics, project_of(request), name, body.tags)


@rubrics_router.put(
    "/{reference:path}/retirement",
    name="retire_version",
    summary="Retire a version",
    responses=problem_responses(404, 413, 422),
)
async def retire(
    request: Request,
    reference: PinnedReference,
    body: RetirementRequest,
) -> RubricVersion:
    """It stays readable. Requests that judge by it are rejected with the reason, unless they set `allow_retired`."""
    return await changes.retire(service_of(request).rubrics, project_of(request), reference, body.reason)


@rubrics_router.delete(
    "/{reference:path}/retirement",
    name="restore_version",
    summary="Restore a retired version",
    responses=problem_responses(404, 422),
)
async def restore(request: Request, reference: PinnedReference) -> RubricVersion:
    """A version that is not retired is left as it is."""
    return await changes.retire(service_of(request).rubrics, project_of(request), reference, None)


def _expected(if_match: str | None, if_none_match: str | None) -> int | None:
    """The version an alias must point to; None if the alias must not exist."""
    if if_match is None and if_none_match is None:
        raise PreconditionRequired(
            "A precondition is required, so that concurrent moves of the alias are not lost: send If-Match with the "
            'ETag from GET …/aliases/{alias} (such as "2"), or If-None-Match: * for an alias that does not exist yet.'
        )
    if if_match is not None and if_none_match is not None:
        raise invalid_field("If-None-Match", "If-Match and If-None-Match exclude each other; send one of them")
    if if_match is None:
        if (if_none_match or "").strip() != "*":
            raise invalid_field("If-None-Match", f"{if_none_match!r} cannot be used here; write *")
        return None
    match = _ETAG.fullmatch(if_match.strip())
    if match is None:
        raise invalid_field(
            "If-Match", f'{if_match!r} is not the ETag of an alias; write its version in quotes, such as "2"'
        )
    return int(match[1])


@rubrics_router.get(
    "/{reference:path}",
    name="read_rubric",
    summary="Read one version of a rubric",
    responses=problem_responses(404, 422),
)
async def read(
    request: Request,
    reference: Annotated[
        str,
        PathParameter(
            description="`name` (the newest version that is not retired), `name@3`, `name@alias`, or `sha256:…`",
            examples=["team/math/quadratics@production"],
        ),
    ],
) -> RubricVersion:
    """Retired versions can be read too. The problem for an unknown reference suggests the closest one."""
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
        message = f"{shown!r} is not a valid rubric name; {why}"
        raise invalid_field("name", message) from None
