"""The clients' methods for rubrics. Their requests are validated against the wire contract before they are sent."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from functools import partial
from typing import Any

from pydantic import TypeAdapter, ValidationError

from trainer_client.client.answers import AnswerT, PreparedRequest
from trainer_client.client.calls import invalid_request_error, new_idempotency_header, query, validated
from trainer_client.client.connection import AsyncConnection
from trainer_client.client.matching import rubric_problem, unequal
from trainer_client.errors import InvalidRequest
from trainer_client.rewards import CriterionLike
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
        optional_fields = {"metadata": metadata, "tags": tags or None, "lineage": lineage, "parent": parent}
        given = {"criteria": criteria} | {field: value for field, value in optional_fields.items() if value is not None}
        publication = validated(RubricPublication, given)
        ids = [criterion.id for criterion in publication.criteria]

        def mismatch(answer: RubricVersion) -> str | None:
            same = [criterion.id for criterion in answer.criteria] == ids
            return None if same else "its criteria are not those that were published"

        request = PreparedRequest(
            "POST",
            f"/v1/rubrics/{_checked(name, _NEW_NAME)}/versions",
            RubricVersion,
            publication,
            headers=new_idempotency_header(),
            expected={"name": name},
            mismatch=mismatch,
        )
        return await self.send(request)

    async def rubric(self, reference: str) -> RubricVersion:
        """Fetch a version by `name` (the newest not retired), `name@3`, `name@alias` or `sha256:…`, even if retired."""
        return await self.send(_version_request("GET", reference))

    def rubrics(
        self, prefix: str = "", *, tag: str | None = None, text: str = ""
    ) -> AsyncGenerator[RubricSummary, None]:
        """Iterate over rubrics sorted by name, fetching a page at a time.

        Args:
            prefix: only names that begin with this.
            tag: only rubrics that have this tag.
            text: words to search for; only rubrics whose criteria contain, for each word, one that begins with it.
        """
        params = query(prefix=prefix or None, tag=tag or None, text=text or None)
        return self._items(PreparedRequest("GET", "/v1/rubrics", RubricPage, params=params), lambda page: page.rubrics)

    def rubric_history(self, name: str) -> AsyncGenerator[VersionSummary, None]:
        """Iterate over the versions of a rubric, newest first, without their criteria."""
        return self._items(_request_of("GET", name, "versions", RubricHistory), lambda page: page.versions)

    async def rubric_diff(self, name: str, before: int | str, after: int | str = "latest") -> RubricDiff:
        """Fetch the difference of two versions of a rubric, each a number or an alias, criterion by criterion."""

        def mismatch(answer: RubricDiff) -> str | None:
            sides = [(before, answer.before), (after, answer.after)]
            wrong = [unequal({"version": asked}, side) for asked, side in sides if isinstance(asked, int)]
            return next(filter(None, wrong), None)

        params = {"from": str(before), "to": str(after)}
        return await self.send(_request_of("GET", name, "diff", RubricDiff, params=params, mismatch=mismatch))

    async def rubric_aliases(self, name: str) -> RubricAliases:
        """Fetch the aliases of a rubric and the versions that they point to."""
        return await self.send(_request_of("GET", name, "aliases", RubricAliases))

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
        condition = {"If-None-Match": "*"} if expected is None else {"If-Match": f'"{expected}"'}
        request = _request_of(
            "PUT",
            name,
            f"aliases/{_checked(alias, _ALIAS)}",
            RubricAlias,
            content=validated(AliasMove, {"version": version}),
            headers=condition,
            expected={"alias": alias, "version": version},
        )
        return await self.send(request)

    async def remove_alias(self, name: str, alias: str, *, expected: int) -> RubricAliases:
        """Remove an alias that points to the expected version, and return the remaining ones.

        Raises:
            AliasMoved: it points to another version.
        """
        part, condition = f"aliases/{_checked(alias, _ALIAS)}", {"If-Match": f'"{expected}"'}
        return await self.send(_request_of("DELETE", name, part, RubricAliases, headers=condition))

    async def tag_rubric(self, name: str, tags: Sequence[str]) -> RubricTags:
        """Replace the tags of a rubric."""
        tag_set = validated(TagSet, {"tags": tags})
        return await self.send(_request_of("PUT", name, "tags", RubricTags, content=tag_set))

    async def retire_rubric(self, reference: str, reason: str) -> RubricVersion:
        """Retire the version of a reference `name@3`: it stays readable, but judging by it is refused."""
        request = validated(RetirementRequest, {"reason": reason})
        return await self.send(_version_request("PUT", reference, "/retirement", request))

    async def restore_rubric(self, reference: str) -> RubricVersion:
        """Restore a retired version."""
        return await self.send(_version_request("DELETE", reference, "/retirement"))


def _request_of(
    method: str,
    name: str,
    part: str,
    answer: type[AnswerT],
    *,
    expected: Mapping[str, object] | None = None,
    **more: Any,
) -> PreparedRequest[AnswerT]:
    """Build a request about a part of a rubric, whose answer names the rubric."""
    path = f"/v1/rubrics/{_checked(name, _NAME)}/{part}"
    return PreparedRequest(method, path, answer, expected={"name": name, **(expected or {})}, **more)


def _version_request(
    method: str, reference: str, part: str = "", content: RetirementRequest | None = None
) -> PreparedRequest[RubricVersion]:
    """Build a request about the version of a reference; raises `InvalidRequest` if the reference is malformed."""
    try:
        parse_reference(reference)
    except ValueError as error:
        raise InvalidRequest(str(error)) from error
    mismatch = partial(rubric_problem, reference)
    return PreparedRequest(method, f"/v1/rubrics/{reference}{part}", RubricVersion, content, mismatch=mismatch)


def _checked(name: str, allowed: TypeAdapter[str]) -> str:
    try:
        return allowed.validate_python(name)
    except ValidationError as error:
        raise invalid_request_error(error) from error
