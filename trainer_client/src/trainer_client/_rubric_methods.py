"""The methods of `Client` about rubrics; `AsyncRubricMethods` is the twin of its class."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trainer_client import _rubric_requests as requests
from trainer_client._connection import Connection
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
        return self._send(requests.publish_request(name, criteria, metadata, tags, lineage, parent))

    def rubric(self, reference: str) -> RubricVersion:
        """Fetch a version by `name` (the newest in use), `name@3`, `name@alias` or `sha256:…`; also a retired one."""
        return self._send(requests.rubric_request(reference))

    def rubrics(self, prefix: str = "", *, tag: str | None = None, text: str = "") -> Iterator[RubricSummary]:
        """Go through rubrics by name, fetching a page at a time.

        Args:
            prefix: only names that begin with this.
            tag: only rubrics that have this tag.
            text: only rubrics whose criteria have, for each of these words, one that begins with it.
        """
        after: str | None = None
        while True:
            page = self._send(requests.rubrics_request(prefix, tag, text, after))
            yield from page.rubrics
            if page.next_cursor is None:
                return
            after = page.next_cursor

    def rubric_history(self, name: str) -> Iterator[VersionSummary]:
        """Go through the versions of a rubric, the newest first, without their criteria."""
        after: str | None = None
        while True:
            page = self._send(requests.history_request(name, after))
            yield from page.versions
            if page.next_cursor is None:
                return
            after = page.next_cursor

    def rubric_diff(self, name: str, before: int | str, after: int | str = "latest") -> RubricDiff:
        """Say what differs between two versions of a rubric, each a number or an alias, criterion by criterion."""
        return self._send(requests.diff_request(name, before, after))

    def rubric_aliases(self, name: str) -> RubricAliases:
        """Fetch the aliases of a rubric and the versions they stand for."""
        return self._send(requests.aliases_request(name))

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
        return self._send(requests.move_alias_request(name, alias, version, expected))

    def remove_alias(self, name: str, alias: str, *, expected: int) -> RubricAliases:
        """Take away an alias that stands for the expected version; gives those that are left.

        Raises:
            AliasMoved: it stands for another version.
        """
        return self._send(requests.remove_alias_request(name, alias, expected))

    def tag_rubric(self, name: str, tags: Sequence[str]) -> RubricTags:
        """Give a rubric these tags in place of those it has."""
        return self._send(requests.tags_request(name, tags))

    def retire_rubric(self, reference: str, reason: str) -> RubricVersion:
        """Take the version of a reference `name@3` out of use: it stays readable, and judging by it is refused."""
        return self._send(requests.retire_request(reference, reason))

    def restore_rubric(self, reference: str) -> RubricVersion:
        """Take a retired version back into use."""
        return self._send(requests.restore_request(reference))
