"""The clients' methods for rubrics, and the requests they send, validated against the wire contract."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from trainer_client._inputs import CriterionLike
from trainer_client.client.answers import PreparedRequest
from trainer_client.client.calls import invalid_request_error, new_idempotency_header, to_json_bytes, validated
from trainer_client.client.connection import AsyncConnection
from trainer_client.client.matching import rubric_problem, unequal
from trainer_client.errors import InvalidRequest
from trainer_client.wire import (
    AliasMove,
    AliasName,
    Lineage,
    NewRubricName,
    RetirementRequest,
    RubricAlias,
    RubricAliases,
    RubricDiff,
    RubricHistory,
    RubricName,
    RubricPage,
    RubricPublication,
    RubricSummary,
    RubricTags,
    RubricVersion,
    TagSet,
    VersionSummary,
    parse_reference,
)

_NEW_NAME: TypeAdapter[str] = TypeAdapter(NewRubricName)
_NAME: TypeAdapter[str] = TypeAdapter(RubricName)
_ALIAS: TypeAdapter[str] = TypeAdapter(AliasName)


def publish_request(
    name: str,
    criteria: Sequence[CriterionLike],
    metadata: Mapping[str, Any] | None,
    tags: Sequence[str],
    lineage: Lineage | Mapping[str, Any] | None,
    parent: int | None,
) -> PreparedRequest[RubricVersion]:
    """Build `POST /v1/rubrics/{name}/versions` with a new idempotency key, so that it can be retried.

    Raises:
        InvalidRequest: the name is invalid, or the publication breaks the wire contract.
    """
    optional_fields = {"metadata": metadata, "tags": tags or None, "lineage": lineage, "parent": parent}
    given = {"criteria": criteria} | {field: value for field, value in optional_fields.items() if value is not None}
    path = f"{_path(name, _NEW_NAME)}/versions"
    request = validated(RubricPublication, given)
    ids = tuple([criterion.id for criterion in request.criteria])

    def mismatch(answer: RubricVersion) -> str | None:
        if tuple([criterion.id for criterion in answer.criteria]) != ids:
            return "its criteria are not those that were published"
        return unequal({"name": name}, answer)

    return PreparedRequest(
        "POST", path, RubricVersion, to_json_bytes(request), headers=new_idempotency_header(), mismatch=mismatch
    )


def rubric_request(reference: str) -> PreparedRequest[RubricVersion]:
    """Build `GET /v1/rubrics/{reference}`; raise `InvalidRequest` if the reference is invalid."""
    path = f"/v1/rubrics/{_reference(reference)}"
    return PreparedRequest("GET", path, RubricVersion, mismatch=partial(rubric_problem, reference))


def rubrics_request(prefix: str, tag: str | None, text: str, after: str | None) -> PreparedRequest[RubricPage]:
    """Build `GET /v1/rubrics` for the page after a cursor."""
    given = {"prefix": prefix, "tag": tag, "text": text, "after": after}
    params = {key: value for key, value in given.items() if value}
    return PreparedRequest("GET", "/v1/rubrics", RubricPage, params=params)


def history_request(name: str, after: str | None) -> PreparedRequest[RubricHistory]:
    """Build `GET /v1/rubrics/{name}/versions` for the page after a cursor."""
    params = {"after": after} if after else {}
    return PreparedRequest("GET", f"{_path(name)}/versions", RubricHistory, params=params, mismatch=_is_of(name))


def diff_request(name: str, before: int | str, after: int | str) -> PreparedRequest[RubricDiff]:
    """Build `GET /v1/rubrics/{name}/diff`."""

    def mismatch(answer: RubricDiff) -> str | None:
        sides = [(before, answer.before), (after, answer.after)]
        wrong = [unequal({"version": asked}, side) for asked, side in sides if isinstance(asked, int)]
        return unequal({"name": name}, answer) or next(filter(None, wrong), None)

    params = {"from": str(before), "to": str(after)}
    return PreparedRequest("GET", f"{_path(name)}/diff", RubricDiff, params=params, mismatch=mismatch)


def aliases_request(name: str) -> PreparedRequest[RubricAliases]:
    """Build `GET /v1/rubrics/{name}/aliases`."""
    return PreparedRequest("GET", f"{_path(name)}/aliases", RubricAliases, mismatch=_is_of(name))


def move_alias_request(name: str, alias: str, version: int, expected: int | None) -> PreparedRequest[RubricAlias]:
    """Build `PUT /v1/rubrics/{name}/aliases/{alias}`; with `expected` None, it succeeds only if the alias is new."""
    condition = {"If-None-Match": "*"} if expected is None else {"If-Match": f'"{expected}"'}
    body = to_json_bytes(validated(AliasMove, {"version": version}))
    mismatch = partial(unequal, {"name": name, "alias": alias, "version": version})
    return PreparedRequest("PUT", _alias_path(name, alias), RubricAlias, body, headers=condition, mismatch=mismatch)


def remove_alias_request(name: str, alias: str, expected: int) -> PreparedRequest[RubricAliases]:
    """Build `DELETE /v1/rubrics/{name}/aliases/{alias}`."""
    path, headers = _alias_path(name, alias), {"If-Match": f'"{expected}"'}
    return PreparedRequest("DELETE", path, RubricAliases, headers=headers, mismatch=_is_of(name))


def tags_request(name: str, tags: Sequence[str]) -> PreparedRequest[RubricTags]:
    """Build `PUT /v1/rubrics/{name}/tags`."""
    body = to_json_bytes(validated(TagSet, {"tags": tags}))
    return PreparedRequest("PUT", f"{_path(name)}/tags", RubricTags, body, mismatch=_is_of(name))


def retire_request(reference: str, reason: str) -> PreparedRequest[RubricVersion]:
    """Build `PUT /v1/rubrics/{reference}/retirement`."""
    path = f"/v1/rubrics/{_reference(reference)}/retirement"
    body = to_json_bytes(validated(RetirementRequest, {"reason": reason}))
    return PreparedRequest("PUT", path, RubricVersion, body, mismatch=partial(rubric_problem, reference))


def restore_request(reference: str) -> PreparedRequest[RubricVersion]:
    """Build `DELETE /v1/rubrics/{reference}/retirement`."""
    path = f"/v1/rubrics/{_reference(reference)}/retirement"
    return PreparedRequest("DELETE", path, RubricVersion, mismatch=partial(rubric_problem, reference))


def _is_of(name: str) -> Callable[[BaseModel], str | None]:
    return partial(unequal, {"name": name})


def _path(name: str, allowed: TypeAdapter[str] = _NAME) -> str:
    try:
        return f"/v1/rubrics/{allowed.validate_python(name)}"
    except ValidationError as error:
        raise invalid_request_error(error) from error


def _alias_path(name: str, alias: str) -> str:
    try:
        return f"{_path(name)}/aliases/{_ALIAS.validate_python(alias)}"
    except ValidationError as error:
        raise invalid_request_error(error) from error


def _reference(reference: str) -> str:
    try:
        parse_reference(reference)
    except ValueError as error:
        raise InvalidRequest(str(error)) from error
    return reference


class AsyncRubricMethods(AsyncConnection):
    """The methods of `AsyncClient` about rubrics.

    All methods raise `AdjudgeError` as `AsyncClient.rewards` does, `InvalidRequest` for malformed names and references,
    and `UnknownRubric` if there is no such rubric or version.
    """

    async def publish_rubric(
        self,
        name: str,
        criteria: Sequence[CriterionLike],
        *,
        metadata: Mapping[str, Any] | None = None,
        tags: Sequence[str] = (),
        lineage: Lineage | Mapping[str, Any] | None = None,
        parent: int | None = None,
    ) -> RubricVersion:
        """Publish criteria as the next version of a rubric. If a version has the same criteria, return that one.

        Args:
            name: the rubric, such as `team/math/quadratics`.
            criteria: `Criterion` models or mappings of their fields.
            metadata: a JSON object to store with the version, at most 64 KiB.
            tags: tags to add to the rubric.
            lineage: who or what made the version, as a `wire.Lineage` or a mapping of its fields.
            parent: the version of this rubric that it was made from; defaults to the newest.

        Raises:
            InvalidRequest: the name or the criteria break the contract, or there is no such parent.
        """
        return await self.send(publish_request(name, criteria, metadata, tags, lineage, parent))

    async def rubric(self, reference: str) -> RubricVersion:
        """Fetch a version by `name` (the newest not retired), `name@3`, `name@alias` or `sha256:…`, even if retired."""
        return await self.send(rubric_request(reference))

    async def rubrics(
        self, prefix: str = "", *, tag: str | None = None, text: str = ""
    ) -> AsyncGenerator[RubricSummary, None]:
        """Iterate over rubrics sorted by name, fetching a page at a time.

        Args:
            prefix: only names that begin with this.
            tag: only rubrics that have this tag.
            text: words to search for; only rubrics whose criteria contain, for each word, one that begins with it.
        """
        after: str | None = None
        while True:
            page = await self.send(rubrics_request(prefix, tag, text, after))
            for summary in page.rubrics:
                yield summary
            if page.next_cursor is None:
                return
            after = page.next_cursor

    async def rubric_history(self, name: str) -> AsyncGenerator[VersionSummary, None]:
        """Iterate over the versions of a rubric, newest first, without their criteria."""
        after: str | None = None
        while True:
            page = await self.send(history_request(name, after))
            for summary in page.versions:
                yield summary
            if page.next_cursor is None:
                return
            after = page.next_cursor

    async def rubric_diff(self, name: str, before: int | str, after: int | str = "latest") -> RubricDiff:
        """Fetch the difference of two versions of a rubric, each a number or an alias, criterion by criterion."""
        return await self.send(diff_request(name, before, after))

    async def rubric_aliases(self, name: str) -> RubricAliases:
        """Fetch the aliases of a rubric and the versions that they point to."""
        return await self.send(aliases_request(name))

    async def move_alias(self, name: str, alias: str, version: int, *, expected: int | None) -> RubricAlias:
        """Point an alias of a rubric to a version.

        Args:
            name: the rubric.
            alias: the alias, such as `production`.
            version: the version that the alias will point to.
            expected: the version that it points to now; None to create the alias.

        Raises:
            AliasMoved: it points to another version than expected; `problem.current_version` says which.
        """
        return await self.send(move_alias_request(name, alias, version, expected))

    async def remove_alias(self, name: str, alias: str, *, expected: int) -> RubricAliases:
        """Remove an alias that points to the expected version, and return the remaining ones.

        Raises:
            AliasMoved: it points to another version.
        """
        return await self.send(remove_alias_request(name, alias, expected))

    async def tag_rubric(self, name: str, tags: Sequence[str]) -> RubricTags:
        """Replace the tags of a rubric."""
        return await self.send(tags_request(name, tags))

    async def retire_rubric(self, reference: str, reason: str) -> RubricVersion:
        """Retire the version of a reference `name@3`: it stays readable, but judging by it is refused."""
        return await self.send(retire_request(reference, reason))

    async def restore_rubric(self, reference: str) -> RubricVersion:
        """Restore a retired version."""
        return await self.send(restore_request(reference))
