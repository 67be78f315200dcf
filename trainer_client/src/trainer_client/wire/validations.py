"""What a validity judge found of a rubric's criteria, as it crosses between judging and the store.

Knows findings and who found them. Refuses to know how a criterion is judged.
"""

from datetime import datetime

from trainer_client.wire.base import AnswerModel


class CriterionValidity(AnswerModel):
    """Whether one criterion of a rubric is valid; null where the judge gave no verdict, and `reason` says why not."""

    criterion: str
    valid: bool | None
    reason: str


class RubricValidation(AnswerModel):
    """One pass of a validity judge over a version's criteria, in their order.

    Attributes:
        judge: `sha256:…` of what can change its verdicts about the judge itself.
        model: what the judge's model is called.
        template_digest: `sha256:…` of the words it was asked in.
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
