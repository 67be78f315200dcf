"""The clients' methods for rubrics, and the requests they send.

Makes the requests of `/v1/rubrics`, checked by the wire contract before anything is sent. Sends none itself.

The methods of `Client` about rubrics; `AsyncRubricMethods` is the twin of its class.

The methods of `AsyncClient` about rubrics; `RubricMethods` is the twin of its class, and its reference.
"""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from trainer_client._criteria import CriterionLike
from trainer_client.client.answers import AnswerT
from trainer_client.client.calls import PreparedRequest, invalid_request_error, new_idempotency_header, to_json_bytes
from trainer_client.client.connection import AsyncConnection, Connection
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
    """Make `POST /v1/rubrics/{name}/versions`, under a key of its own, so that it may be sent again.

    Raises:
        InvalidRequest: the name is no rubric name, or what is to be published breaks the wire contract.
    """
    optional_fields = {"metadata": metadata, "tags": tags or None, "lineage": lineage, "parent": parent}
    given = {"criteria": criteria} | {field: value for field, value in optional_fields.items() if value is not None}
    path = f"{_path(name, _NEW_NAME)}/versions"
    return _json_request("POST", path, RubricVersion, RubricPublication, given, new_idempotency_header())


def rubric_request(reference: str) -> PreparedRequest[RubricVersion]:
    """Make `GET /v1/rubrics/{reference}`; raises `InvalidRequest` where the reference is none."""
    return PreparedRequest("GET", f"/v1/rubrics/{_reference(reference)}", RubricVersion)


def rubrics_request(prefix: str, tag: str | None, text: str, after: str | None) -> PreparedRequest[RubricPage]:
    """Make `GET /v1/rubrics`, the page after a cursor."""
    given = {"prefix": prefix, "tag": tag, "text": text, "after": after}
    params = {key: value for key, value in given.items() if value}
    return PreparedRequest("GET", "/v1/rubrics", RubricPage, params=params)


def history_request(name: str, after: str | None) -> PreparedRequest[RubricHistory]:
    """Make `GET /v1/rubrics/{name}/versions`, the page after a cursor."""
    return PreparedRequest("GET", f"{_path(name)}/versions", RubricHistory, params={"after": after} if after else {})


def diff_request(name: str, before: int | str, after: int | str) -> PreparedRequest[RubricDiff]:
    """Make `GET /v1/rubrics/{name}/diff`."""
    return PreparedRequest("GET", f"{_path(name)}/diff", RubricDiff, params={"from": str(before), "to": str(after)})


def aliases_request(name: str) -> PreparedRequest[RubricAliases]:
    """Make `GET /v1/rubrics/{name}/aliases`."""
    return PreparedRequest("GET", f"{_path(name)}/aliases", RubricAliases)


def move_alias_request(name: str, alias: str, version: int, expected: int | None) -> PreparedRequest[RubricAlias]:
    """Make `PUT /v1/rubrics/{name}/aliases/{alias}`; expecting None, only if there is no such alias."""
    condition = {"If-None-Match": "*"} if expected is None else {"If-Match": f'"{expected}"'}
    return _json_request("PUT", _alias_path(name, alias), RubricAlias, AliasMove, {"version": version}, condition)


def remove_alias_request(name: str, alias: str, expected: int) -> PreparedRequest[RubricAliases]:
    """Make `DELETE /v1/rubrics/{name}/aliases/{alias}`."""
    return PreparedRequest("DELETE", _alias_path(name, alias), RubricAliases, headers={"If-Match": f'"{expected}"'})


def tags_request(name: str, tags: Sequence[str]) -> PreparedRequest[RubricTags]:
    """Make `PUT /v1/rubrics/{name}/tags`."""
    return _json_request("PUT", f"{_path(name)}/tags", RubricTags, TagSet, {"tags": tags})


def retire_request(reference: str, reason: str) -> PreparedRequest[RubricVersion]:
    """Make `PUT /v1/rubrics/{reference}/retirement`."""
    path = f"/v1/rubrics/{_reference(reference)}/retirement"
    return _json_request("PUT", path, RubricVersion, RetirementRequest, {"reason": reason})


def restore_request(reference: str) -> PreparedRequest[RubricVersion]:
    """Make `DELETE /v1/rubrics/{reference}/retirement`."""
    return PreparedRequest("DELETE", f"/v1/rubrics/{_reference(reference)}/retirement", RubricVersion)


def _json_request(
    method: str,
    path: str,
    answer: type[AnswerT],
    message: type[BaseModel],
    fields: Mapping[str, Any],
    headers: Mapping[str, str] | None = None,
) -> PreparedRequest[AnswerT]:
    try:
        body = to_json_bytes(message.model_validate(fields))
    except ValidationError as error:
        raise invalid_request_error(error) from error
    return PreparedRequest(method, path, answer, body, headers=headers or {})


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


class RubricMethods(Connection):
    """Publishing, finding and keeping rubrics.

    Every method raises `AdjudgeError` as `Client.rewards` does, `InvalidRequest` for names and references of no known
    form, and `UnknownRubric` for what is not there.
    """

    def publish_rubric(
        self,
        name: str,
        criteria: Sequence[CriterionLike],
        *,
        metadata: Mapping[str, Any] | None = None,
        tags: Sequence[str] = (),
        lineage: Lineage | Mapping[str, Any] | None = None,
        parent: int | None = None,
    ) -> RubricVersion:
        """Publish criteria as the next version of a rubric; identical criteria give the version that has them.

        Args:
            name: the rubric, such as `team/math/quadratics`.
            criteria: `Criterion` models or mappings of their fields.
            metadata: a JSON object to keep with the version, at most 64 KiB.
            tags: added to the name's tags.
            lineage: who or what made the version, as a `wire.Lineage` or a mapping of its fields.
            parent: the version of this name that it was made from; the newest unless given.

        Raises:
            InvalidRequest: the name or the criteria break the contract, or there is no such parent.
        """
        return self._send(publish_request(name, criteria, metadata, tags, lineage, parent))

    def rubric(self, reference: str) -> RubricVersion:
        """Fetch a version by `name` (the newest in use), `name@3`, `name@alias` or `sha256:…`; also a retired one."""
        return self._send(rubric_request(reference))

    def rubrics(self, prefix: str = "", *, tag: str | None = None, text: str = "") -> Iterator[RubricSummary]:
        """Go through rubrics by name, fetching a page at a time.

        Args:
            prefix: only names that begin with this.
            tag: only rubrics that have this tag.
            text: only rubrics whose criteria have, for each of these words, one that begins with it.
        """
        after: str | None = None
        while True:
            page = self._send(rubrics_request(prefix, tag, text, after))
            yield from page.rubrics
            if page.next_cursor is None:
                return
            after = page.next_cursor

    def rubric_history(self, name: str) -> Iterator[VersionSummary]:
        """Go through the versions of a rubric, the newest first, without their criteria."""
        after: str | None = None
        while True:
            page = self._send(history_request(name, after))
            yield from page.versions
            if page.next_cursor is None:
                return
            after = page.next_cursor

    def rubric_diff(self, name: str, before: int | str, after: int | str = "latest") -> RubricDiff:
        """Say what differs between two versions of a rubric, each a number or an alias, criterion by criterion."""
        return self._send(diff_request(name, before, after))

    def rubric_aliases(self, name: str) -> RubricAliases:
        """Fetch the aliases of a rubric and the versions they stand for."""
        return self._send(aliases_request(name))

    def move_alias(self, name: str, alias: str, version: int, *, expected: int | None) -> RubricAlias:
        """Have an alias of a rubric stand for a version.

        Args:
            name: the rubric.
            alias: such as `production`.
            version: what it shall stand for.
            expected: what it stands for now; None to create it.

        Raises:
            AliasMoved: it stands for another version than expected; `problem.current_version` says which.
        """
        return self._send(move_alias_request(name, alias, version, expected))

    def remove_alias(self, name: str, alias: str, *, expected: int) -> RubricAliases:
        """Take away an alias that stands for the expected version; gives those that are left.

        Raises:
            AliasMoved: it stands for another version.
        """
        return self._send(remove_alias_request(name, alias, expected))

    def tag_rubric(self, name: str, tags: Sequence[str]) -> RubricTags:
        """Give a rubric these tags in place of those it has."""
        return self._send(tags_request(name, tags))

    def retire_rubric(self, reference: str, reason: str) -> RubricVersion:
        """Take the version of a reference `name@3` out of use: it stays readable, and judging by it is refused."""
        return self._send(retire_request(reference, reason))

    def restore_rubric(self, reference: str) -> RubricVersion:
        """Take a retired version back into use."""
        return self._send(restore_request(reference))


class AsyncRubricMethods(AsyncConnection):
    """Publishing, finding and keeping rubrics.

    Every method raises `AdjudgeError` as `Client.rewards` does, `InvalidRequest` for names and references of no known
    form, and `UnknownRubric` for what is not there.
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
        """Publish criteria as the next version of a rubric; see `Client.publish_rubric`."""
        return await self._send(publish_request(name, criteria, metadata, tags, lineage, parent))

    async def rubric(self, reference: str) -> RubricVersion:
        """Fetch a version of a rubric; see `Client.rubric`."""
        return await self._send(rubric_request(reference))

    async def rubrics(
        self, prefix: str = "", *, tag: str | None = None, text: str = ""
    ) -> AsyncIterator[RubricSummary]:
        """Go through rubrics by name; see `Client.rubrics`."""
        after: str | None = None
        while True:
            page = await self._send(rubrics_request(prefix, tag, text, after))
            for summary in page.rubrics:
                yield summary
            if page.next_cursor is None:
                return
            after = page.next_cursor

    async def rubric_history(self, name: str) -> AsyncIterator[VersionSummary]:
        """Go through the versions of a rubric, the newest first; see `Client.rubric_history`."""
        after: str | None = None
        while True:
            page = await self._send(history_request(name, after))
            for summary in page.versions:
                yield summary
            if page.next_cursor is None:
                return
            after = page.next_cursor

    async def rubric_diff(self, name: str, before: int | str, after: int | str = "latest") -> RubricDiff:
        """Say what differs between two versions of a rubric; see `Client.rubric_diff`."""
        return await self._send(diff_request(name, before, after))

    async def rubric_aliases(self, name: str) -> RubricAliases:
        """Fetch the aliases of a rubric; see `Client.rubric_aliases`."""
        return await self._send(aliases_request(name))

    async def move_alias(self, name: str, alias: str, version: int, *, expected: int | None) -> RubricAlias:
        """Have an alias of a rubric stand for a version; see `Client.move_alias`."""
        return await self._send(move_alias_request(name, alias, version, expected))

    async def remove_alias(self, name: str, alias: str, *, expected: int) -> RubricAliases:
        """Take away an alias; see `Client.remove_alias`."""
        return await self._send(remove_alias_request(name, alias, expected))

    async def tag_rubric(self, name: str, tags: Sequence[str]) -> RubricTags:
        """Replace the tags of a rubric; see `Client.tag_rubric`."""
        return await self._send(tags_request(name, tags))

    async def retire_rubric(self, reference: str, reason: str) -> RubricVersion:
        """Take a version out of use; see `Client.retire_rubric`."""
        return await self._send(retire_request(reference, reason))

    async def restore_rubric(self, reference: str) -> RubricVersion:
        """Take a retired version back into use; see `Client.restore_rubric`."""
        return await self._send(restore_request(reference))
