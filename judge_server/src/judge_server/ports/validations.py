"""Where it is kept which criteria of a rubric a judge found valid."""

from collections.abc import Sequence
from typing import Protocol

from trainer_client.wire.validations import CriterionValidity, RubricValidation


class RubricValidations(Protocol):
    """Keeps what validity judges found of published versions, for good: nothing is replaced."""

    async def add_validation(
        self,
        project_id: str,
        name: str,
        version: int,
        *,
        judge: str,
        model: str,
        template_digest: str,
        items: Sequence[CriterionValidity],
    ) -> RubricValidation:
        """Keep one pass over a version's criteria; `LookupError` where there is no such version."""

    async def validations(self, project_id: str, name: str, version: int) -> tuple[RubricValidation, ...]:
        """The newest pass of each judge over a version, the newest of all first."""
