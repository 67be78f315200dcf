"""The methods of `AsyncClient` about rubrics; `RubricMethods` is the twin of its class, and its reference."""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from trainer_client import _rubric_requests as requests
from trainer_client._connection import AsyncConnection
from trainer_client._criteria import CriterionLike
from trainer_client.wire import (
    Lineage,
    RubricAlias,
    RubricAliases,
    RubricDiff,
    RubricSummary,
    RubricTags,
    RubricVersion,
    VersionSummary,
)


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
        return await self._send(requests.publish_request(name, criteria, metadata, tags, lineage, parent))

    async def rubric(self, reference: str) -> RubricVersion:
        """Fetch a version of a rubric; see `Client.rubric`."""
        return await self._send(requests.rubric_request(reference))

    async def rubrics(
        self, prefix: str = "", *, tag: str | None = None, text: str = ""
    ) -> AsyncIterator[RubricSummary]:
        """Go through rubrics by name; see `Client.rubrics`."""
        after: str | None = None
        while True:
            page = await self._send(requests.rubrics_request(prefix, tag, text, after))
            for summary in page.rubrics:
                yield summary
            if page.next_cursor is None:
                return
            after = page.next_cursor

    async def rubric_history(self, name: str) -> AsyncIterator[VersionSummary]:
        """Go through the versions of a rubric, the newest first; see `Client.rubric_history`."""
        after: str | None = None
        while True:
            page = await self._send(requests.history_request(name, after))
            for summary in page.versions:
                yield summary
            if page.next_cursor is None:
                return
            after = page.next_cursor

    async def rubric_diff(self, name: str, before: int | str, after: int | str = "latest") -> RubricDiff:
        """Say what differs between two versions of a rubric; see `Client.rubric_diff`."""
        return await self._send(requests.diff_request(name, before, after))

    async def rubric_aliases(self, name: str) -> RubricAliases:
        """Fetch the aliases of a rubric; see `Client.rubric_aliases`."""
        return await self._send(requests.aliases_request(name))

    async def move_alias(self, name: str, alias: str, version: int, *, expected: int | None) -> RubricAlias:
        """Have an alias of a rubric stand for a version; see `Client.move_alias`."""
        return await self._send(requests.move_alias_request(name, alias, version, expected))

    async def remove_alias(self, name: str, alias: str, *, expected: int) -> RubricAliases:
        """Take away an alias; see `Client.remove_alias`."""
        return await self._send(requests.remove_alias_request(name, alias, expected))

    async def tag_rubric(self, name: str, tags: Sequence[str]) -> RubricTags:
        """Replace the tags of a rubric; see `Client.tag_rubric`."""
        return await self._send(requests.tags_request(name, tags))

    async def retire_rubric(self, reference: str, reason: str) -> RubricVersion:
        """Take a version out of use; see `Client.retire_rubric`."""
        return await self._send(requests.retire_request(reference, reason))

    async def restore_rubric(self, reference: str) -> RubricVersion:
        """Take a retired version back into use; see `Client.restore_rubric`."""
        return await self._send(requests.restore_request(reference))
