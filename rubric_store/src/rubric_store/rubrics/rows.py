"""Validity of published criteria, and the size of criteria by which rubrics are limited."""

from collections.abc import Sequence
from datetime import datetime

from trainer_client.wire.base import AnswerModel
from trainer_client.wire.criteria import GUIDANCE_FIELDS, Criterion

_CRITERION_CHARACTERS = 512
"""To hash a criterion, however short, takes as long as this many characters."""


def criteria_characters(criteria: Sequence[Criterion]) -> int:
    """Return the number of characters whose work that of the criteria equals."""
    texts = [getattr(one, field) for one in criteria for field in ("description", *GUIDANCE_FIELDS)]
    lengths = [sum(map(len, text)) if isinstance(text, tuple) else len(text) for text in texts if text]
    return sum(lengths) + _CRITERION_CHARACTERS * len(criteria)


class CriterionValidity(AnswerModel):
    """Whether one criterion of a rubric is valid. `valid` is null if judging failed; `reason` then says why."""

    criterion: str
    valid: bool | None
    reason: str


class RubricValidation(AnswerModel):
    """The verdicts of a validity judge on a version's criteria, in the criteria's order.

    Attributes:
        judge: `sha256:…` of everything about the judge that can change its verdicts.
        template_digest: `sha256:…` of the prompt template.
    """

    name: str
    version: int
    judge: str
    model: str
    template_digest: str
    created_at: datetime
    items: tuple[CriterionValidity, ...]

    @property
    def reference(self) -> str:
        """The pinned reference, `name@version`."""
        return f"{self.name}@{self.version}"
