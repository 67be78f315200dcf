"""Criteria on the wire, and the digest of a rubric's content.

Knows nothing of names and versions, nor of how a criterion is judged.
"""

import hashlib
import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from trainer_client.wire.base import Request
from trainer_client.wire.verification import Verification

CriterionKind = Literal["point", "factual", "process", "suggest", "pitfall", "bonus", "answer"]
"""What a criterion is to the reward: `point` is a plain weighted one; `factual` and `process` are RGR-GRPO's;
`suggest`, `pitfall`, `bonus` and `answer` are SRaR's. A satisfied `pitfall` means that the mistake was made."""

CriterionId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]

Tag = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=256)]


class Criterion(Request):
    """One thing to check in a response, and what it weighs (no unit; HealthBench's points are weights).

    `scale` is the highest grade of the protocol `graded`, whose grades are 0..scale. `verification` says how it is
    checked where the judge need not be asked; without one an `answer` is compared with the group's `ground_truth`,
    if there is one, and all else is judged.
    """

    id: CriterionId
    description: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=20_000)]
    kind: CriterionKind = "point"
    weight: float = 1.0
    tags: tuple[Tag, ...] = ()
    scale: int = Field(default=4, ge=1, le=100)
    verification: Verification | None = None


def content_digest(criteria: Sequence[Criterion]) -> str:
    """Hash criteria to `sha256:<hex>`: order, ids, wording, kinds, weights, tags and all else count.

    `scale`, `verification` and the `step` of a verification enter only where they are set, so that rubrics without
    them keep the digests they had before there were any.
    """
    content = [_content(c) for c in criteria]
    canonical = json.dumps(content, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest()


def _content(criterion: Criterion) -> dict[str, Any]:
    later: dict[str, Any] = {f: True for f, default in _LATER_FIELDS.items() if getattr(criterion, f) == default}
    if getattr(criterion.verification, "step", None) is None:
        later.setdefault("verification", {"step"})
    return criterion.model_dump(mode="json", exclude=later)


_LATER_FIELDS = {field: Criterion.model_fields[field].default for field in ("scale", "verification")}
