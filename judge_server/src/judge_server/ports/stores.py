"""The stores that judging needs: rubrics, verdicts, the ledger, projects, keys.

Where named rubrics come from, and where what is known of them is changed.

Verdicts known already, by the digest of the call that made them.

Where what was judged is kept, and read again.

Who may call, for which project, and what each project has used.

How many requests a project may send in a minute, counted for one process or for all of them.

Where it is kept which criteria of a rubric a judge found valid.

What each `Idempotency-Key` stands for, so that a request sent twice is done once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
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
from trainer_client.wire.ledger import RunPage, RunReport
from trainer_client.wire.ledger_rows import (
    JudgedResponse,
    JudgedRun,
    LedgerRows,
    RefusedRows,
    RunRange,
    RunReportQuery,
    UseFilter,
    UseRecord,
)
from trainer_client.wire.rubrics import CriterionValidity, RubricValidation
from trainer_client.wire.tenants import ApiKeyRecord, AuditEntry, KeyClaim, Project, StoredAnswer, TokenUsage


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


class Ledger(Protocol):
    """Keeps rows for good. The first verdict under a digest stands; a later one that differs is a re-judgement."""

    def write(self, rows: LedgerRows) -> None:
        """Write rows, all or none, those that are there already left as they are; blocks its thread.

        `ConnectionError` where they cannot be written now, `ValueError` where the database refuses some of them.
        """

    def salvage(self, rows: LedgerRows) -> list[RefusedRows]:
        """Write rows that were refused, request by request and where need be row by row; what is refused still.

        Blocks its thread, and may be called again with the same rows. `ConnectionError` as in `write`.
        """

    async def ready(self) -> bool:
        """Whether it can be read."""

    async def close(self) -> None:
        """Release connections."""


class RunReader(Protocol):
    """Reads the figures of runs. Both raise `ValueError` for a cursor that no page gave out."""

    async def runs(self, project_id: str, *, after: str | None = None, limit: int = 100) -> RunPage:
        """A page of a project's runs, the one that was judged for last first."""

    async def run(self, view: RunReportQuery) -> RunReport | None:
        """A run's figures, a page of its steps among them; None where there is no such run."""


class LedgerReader(RunReader, Protocol):
    """Reads what is kept."""

    async def uses(self, wanted: UseFilter) -> list[UseRecord]:
        """The uses of a run that are asked for, oldest first, with all their votes."""

    async def texts(self, project_id: str, digests: Sequence[bytes]) -> dict[bytes, str]:
        """Texts by digest, as JSON; those that are not kept are absent."""

    async def judged_run(self, part: RunRange) -> JudgedRun:
        """What of a part of a run there is to make rewards of."""

    async def judged_responses(
        self, part: RunRange, after: bytes | None, count: int
    ) -> tuple[list[JudgedResponse], bytes | None]:
        """Responses of a part of a run, about `count` uses of them, and what to continue after; None at the end."""


class ApiKeyStore(Protocol):
    """Looks keys and projects up, and keeps what was used. Keys and limits are changed elsewhere."""

    async def find_key(self, key_id: str) -> ApiKeyRecord | None:
        """A key by its id, usable or not; None where there is none."""

    async def projects(self) -> Sequence[Project]:
        """Every project with its limits."""

    async def record_key_use(self, last_used: Mapping[str, datetime]) -> None:
        """Keep when keys were last used, by id."""

    async def add_usage(self, day: date, used: Mapping[str, tuple[int, int]]) -> None:
        """Count requests and prompt tokens of a day (UTC), by project."""

    async def used_tokens(self, project_id: str, day: date) -> TokenUsage:
        """The prompt tokens computed for a project on a day, and ever."""


class AuditTrail(Protocol):
    """Tells who changed what. Whoever changes something adds to it by that."""

    async def audit(self, project_id: str, *, subject: str | None, limit: int) -> Sequence[AuditEntry]:
        """The newest changes of a project, the newest first; those of one subject where it is given."""


class RateLimiter(Protocol):
    """Counts requests by project. A minute's worth may come at once, and then as many as the minute has room for."""

    async def wait_for(self, project_id: str, per_minute: int) -> float:
        """Count a request, and give 0; where it is one too many, count nothing and give the seconds to come back after.

        Never raises: who cannot count lets by what another way of counting does.
        """

    async def close(self) -> None:
        """Release what counting took."""


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


class IdempotencyKeys(Protocol):
    """Keeps keys for a day, each project's apart. Methods raise `ConnectionError` where that cannot be done now."""

    async def claim(self, project_id: str, key: str, asked: bytes, *, hold_s: float = 0.0) -> KeyClaim:
        """Show a key, with the digest of what is asked; who is to do it has `hold_s` seconds for that.

        Raises:
            ValueError: the key stands for another request.
        """

    async def store_answer(self, project_id: str, key: str, answer: StoredAnswer) -> None:
        """Keep what a claimed key was answered with."""

    async def release(self, project_id: str, key: str) -> None:
        """Forget a claimed key that nothing was made under."""
