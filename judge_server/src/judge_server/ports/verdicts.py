"""Verdicts known already, by the digest of the call that made them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class JudgeResult:
    """A verdict as it is kept under its call digest: no run, no criterion id, no response.

    The fields mean what they mean in `trainer_client.wire.Verdict`.
    """

    score: float
    probability: float | None = None
    choice_mass: float | None = None
    step: int | None = None
    grade: float | None = None
    rationale: str | None = None
    raw_probability: float | None = None


class VerdictCache(Protocol):
    """Findings by call digest. The first one stored under a digest stands. Failures are never stored.

    A cache that cannot be reached knows nothing and keeps nothing: a request is judged all the same.
    """

    async def get_many(self, digests: Sequence[bytes]) -> Mapping[bytes, JudgeResult]:
        """The findings known for these digests."""

    async def put_many(self, results: Mapping[bytes, JudgeResult]) -> None:
        """Store findings, leaving those already there untouched."""

    async def ready(self) -> bool:
        """Whether it can be reached."""

    async def close(self) -> None:
        """Release connections."""
