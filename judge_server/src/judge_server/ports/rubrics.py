"""Where named rubrics come from."""

from typing import Protocol

from trainer_client.wire import RubricContent, RubricPage, RubricVersion


class RubricSource(Protocol):
    """Where named rubrics come from."""

    async def find(self, project_id: str, reference: str) -> RubricVersion | None:
        """The version that `name`, `name@3` or `sha256:…` stands for; None if there is none."""

    async def closest(self, project_id: str, reference: str) -> str | None:
        """The existing reference that looks most like this one, for an error message."""

    async def publish(self, project_id: str, name: str, content: RubricContent) -> tuple[RubricVersion, bool]:
        """Add a version, or return the one that has this content already; True if it was added."""

    async def list(self, project_id: str, *, prefix: str, after: str | None, limit: int) -> RubricPage:
        """Rubrics by name, newest version of each, `limit` a page; `ValueError` where `after` is no cursor of ours."""

    async def ready(self) -> bool:
        """Whether the store can be read."""
