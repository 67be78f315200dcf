"""Where named rubrics come from, and where what is known of them is changed."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from trainer_client.wire import (
    Lineage,
    RubricAliases,
    RubricContent,
    RubricHistory,
    RubricPage,
    RubricTags,
    RubricVersion,
)


class RubricSource(Protocol):
    """Where named rubrics come from.

    What a change needs and is not there is a `LookupError`; what may not be, a `ValueError` that says why; and where
    nothing can be read now, a `ConnectionError`.
    """

    async def find(self, project_id: str, reference: str) -> RubricVersion | None:
        """The version that `name`, `name@3`, `name@alias` or `sha256:…` stands for; None if there is none."""

    async def closest(self, project_id: str, reference: str) -> str | None:
        """The existing reference that looks most like this one, for an error message."""

    async def publish(
        self,
        project_id: str,
        name: str,
        content: RubricContent,
        *,
        metadata: Mapping[str, Any] | None = None,
        tags: Sequence[str] = (),
        lineage: Lineage | None = None,
        parent: int | None = None,
    ) -> tuple[RubricVersion, bool]:
        """Add a version, or return the one that has these criteria already; True if it was added.

        `ValueError` where the name is none, there is no such parent, or what is given breaks `RubricPublication`.
        """

    async def list(
        self, project_id: str, *, prefix: str, tag: str | None, text: str, after: str | None, limit: int
    ) -> RubricPage:
        """Rubrics by name, `limit` a page: those with a prefix, a tag, and criteria of these words.

        `ValueError` where `after` is no cursor of ours.
        """

    async def history(self, project_id: str, name: str, *, after: str | None, limit: int) -> RubricHistory | None:
        """The versions of a rubric, the newest first, `limit` a page; None if there is no such rubric."""

    async def aliases(self, project_id: str, name: str) -> RubricAliases:
        """The aliases of a rubric."""

    async def move_alias(
        self, project_id: str, name: str, alias: str, version: int, *, expected: int | None
    ) -> tuple[bool, int | None]:
        """Have an alias stand for a version if it stands for the expected one; whether it does, and for which.

        None is no such alias. One that stands for `version` already counts as moved, whatever was expected.
        """

    async def remove_alias(
        self, project_id: str, name: str, alias: str, *, expected: int | None
    ) -> tuple[bool, int | None]:
        """Take an alias away if it stands for the expected version; whether it did, and for which it stood."""

    async def replace_tags(self, project_id: str, name: str, tags: Sequence[str]) -> RubricTags:
        """Give a rubric these tags in place of those it has."""

    async def retire(self, project_id: str, name: str, version: int, reason: str) -> RubricVersion:
        """Take a version out of use; it stays to be read."""

    async def restore(self, project_id: str, name: str, version: int) -> RubricVersion:
        """Take a version back into use."""

    async def ready(self) -> bool:
        """Whether the store can be read."""
