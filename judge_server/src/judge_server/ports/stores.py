"""The stores that judging needs: rubrics, verdicts, the ledger, API keys, rate limits, and idempotency keys."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Literal, Protocol

from rubric_store.ledger.rows import (
    JudgedResponse,
    JudgedRun,
    LabelCount,
    LabelFilter,
    LabelledUse,
    LabelRow,
    LedgerRows,
    MonitoredRun,
    MonitorQuery,
    RecentFilter,
    RefusedRows,
    ResponseFilter,
    RubricUse,
    RunChartQuery,
    RunCharts,
    RunRange,
    RunReportQuery,
    UseFilter,
    UseRecord,
    VerdictKey,
    VerdictRow,
)
from rubric_store.rubrics.rows import CriterionValidity, RubricValidation
from rubric_store.tenants.rows import ApiKeyRecord, KeyClaim, StoredAnswer, TokenUsage
from trainer_client.wire import (
    Criterion,
    Lineage,
    MemberVerdict,
    RubricAliases,
    RubricContent,
    RubricHistory,
    RubricPage,
    RubricTags,
    RubricVersion,
)
from trainer_client.wire.base import AnswerModel
from trainer_client.wire.runs import RunPage, RunReport
from trainer_client.wire.tenants import ApiKey, ApiKeyList, AuditTail, Limits, Project, ProjectList


class RubricSource(Protocol):
    """Reads and changes named rubrics.

    Methods raise `LookupError` if what a change needs does not exist, `ValueError` with the reason if a change is not
    allowed, and `ConnectionError` if the store cannot be reached.
    """

    async def find(self, project_id: str, reference: str, *, max_age_s: float = 0.0) -> RubricVersion | None:
        """Return the version that `name`, `name@3`, `name@alias` or `sha256:…` refers to; None if there is none.

        For `name@3` and digests, the store may return what it read at most `max_age_s` ago.
        """

    async def closest(self, project_id: str, reference: str) -> str | None:
        """Return the existing reference most similar to this one, for an error message."""

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
        """Add a version, or return the existing one with the same criteria; True if it was added.

        Raises `ValueError` if the name is invalid, the parent does not exist, or the input violates
        `RubricPublication`.
        """

    async def list(
        self, project_id: str, *, prefix: str, tag: str | None, text: str, after: str | None, limit: int
    ) -> RubricPage:
        """List rubrics by name, `limit` per page, filtered by name prefix, tag, and words in the criteria.

        Raises `ValueError` if `after` is not a cursor from an earlier page.
        """

    async def history(self, project_id: str, name: str, *, after: str | None, limit: int) -> RubricHistory | None:
        """List the versions of a rubric, newest first, `limit` per page; None if there is no such rubric."""

    async def aliases(self, project_id: str, name: str) -> RubricAliases:
        """Return the aliases of a rubric."""

    async def move_alias(
        self, project_id: str, name: str, alias: str, version: int, *, expected: int | None
    ) -> tuple[bool, int | None]:
        """Point an alias at a version if it points at the expected one now.

        Returns whether it points at `version`, and the version it points at. None stands for an alias that does not
        exist. An alias that already points at `version` counts as moved, whatever was expected.
        """

    async def remove_alias(
        self, project_id: str, name: str, alias: str, *, expected: int | None
    ) -> tuple[bool, int | None]:
        """Remove an alias if it points at the expected version; return whether it did, and where it pointed."""

    async def replace_tags(self, project_id: str, name: str, tags: Sequence[str]) -> RubricTags:
        """Replace the tags of a rubric."""

    async def retire(self, project_id: str, name: str, version: int, reason: str) -> RubricVersion:
        """Retire a version; it can still be read."""

    async def restore(self, project_id: str, name: str, version: int) -> RubricVersion:
        """Restore a retired version."""

    async def ready(self) -> bool:
        """Whether the store can be read."""


class RubricDocument(Protocol):
    """A rubric as a file has it: its criteria, and what it may say besides them."""

    @property
    def content(self) -> RubricContent:
        """The criteria."""

    @property
    def metadata(self) -> Mapping[str, Any] | None:
        """An object of the author's own."""

    @property
    def tags(self) -> Sequence[str]:
        """The tags of the rubric."""

    @property
    def lineage(self) -> Lineage | None:
        """Who or what made it."""

    @property
    def changes(self) -> Sequence[object]:
        """What it does not hold as the file has it."""


class NamedRubric(Protocol):
    """A rubric of a file, with the name to publish it under."""

    @property
    def name(self) -> str:
        """Its name: the one in the file, or else the file's."""

    @property
    def document(self) -> RubricDocument:
        """The rubric."""


class RubricFile(Protocol):
    """What a file of rubrics holds. Problems and changes are shown by `str`."""

    @property
    def rubrics(self) -> Sequence[NamedRubric]:
        """The rubrics that can be published."""

    @property
    def problems(self) -> Sequence[object]:
        """What prevents the others from being read."""

    @property
    def changes(self) -> Sequence[object]:
        """What the rubrics do not hold as the file has it."""

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """The numbers of rubrics read, kept as they are, changed, and refused."""


class LintFinding(Protocol):
    """What lint found: a `severity` of `error`, `warning` or `note`, and the criterion, None for the whole rubric."""

    @property
    def severity(self) -> str:
        """How bad it is."""

    @property
    def criterion(self) -> str | None:
        """The id of the criterion."""

    @property
    def problem(self) -> str:
        """What is wrong."""

    @property
    def advice(self) -> str:
        """What to do."""


class RubricTexts(Protocol):
    """Reads and writes rubrics as text, and checks their wording. Large ones take a while: call it in a thread."""

    def read(self, content: bytes, file_name: str) -> RubricFile:
        """Read a file as a whole: all of its rubrics, or none if there is a problem."""

    def write(self, content: RubricContent) -> str:
        """Write criteria as text that people edit and that `read` reads."""

    def lint(self, criteria: Sequence[Criterion]) -> Sequence[LintFinding]:
        """Return what makes judges disagree or rewards go the wrong way, the worst first."""


@dataclass(slots=True, unsafe_hash=True)
class JudgeResult:
    """A verdict as stored under its call digest, without run, criterion id or response.

    The fields have the same meaning as in `trainer_client.wire.Verdict`. Requests share it, so never change one; it is
    not frozen because making a frozen one takes three times as long, and there are thousands a second.

    A verdict made of others is not stored, but they are: one relative to an empty response, which has
    `content_free_probability`, and one of a cascade or panel, which has `members`.
    """

    score: float
    probability: float | None = None
    choice_mass: float | None = None
    step: int | None = None
    grade: float | None = None
    rationale: str | None = None
    raw_probability: float | None = None
    content_free_probability: float | None = None
    members: tuple[MemberVerdict, ...] = ()


class VerdictCache(Protocol):
    """Verdicts by call digest. The first one stored under a digest stands. Failures are never stored.

    A cache that cannot be reached returns nothing and stores nothing; requests are judged without it.
    """

    async def get_many(self, digests: Sequence[bytes]) -> Mapping[bytes, JudgeResult]:
        """Return the verdicts stored under these digests."""

    async def put_many(self, results: Mapping[bytes, JudgeResult]) -> None:
        """Store verdicts; those already stored are unchanged."""

    async def ready(self) -> bool:
        """Whether the cache can be reached."""

    async def close(self) -> None:
        """Release connections."""


class LedgerState(AnswerModel):
    """The status of this process's ledger.

    Attributes:
        keeps: what the ledger stores: verdicts and texts (`all`), only verdicts, or nothing.
        recorded: verdicts recorded since the process started, including those found in the spool at its start.
        written: verdicts written to the database.
        waiting: verdicts not yet written.
        lost: verdicts dropped because memory, the spool or the space for refused rows was full.
        refused: verdicts that the database refused and that are kept in files.
        refused_files: the number of these files; see `adjudge ledger refused`.
        spool_bytes: bytes that wait on disk.
        memory_bytes: bytes that wait in memory because the spool cannot be written.
        lag_s: seconds since the longest-waiting verdict was judged or spooled; 0 if none waits.
        restarts: how often a thread of the ledger ended and was restarted.
        problem: why the database cannot be written; null if it can.
        spool_problem: why the spool cannot be written; null if it can.
    """

    keeps: Literal["all", "verdicts", "nothing"]
    recorded: int = 0
    written: int = 0
    waiting: int = 0
    lost: int = 0
    refused: int = 0
    refused_files: int = 0
    spool_bytes: int = 0
    memory_bytes: int = 0
    lag_s: float = 0.0
    restarts: int = 0
    problem: str | None = None
    spool_problem: str | None = None


class Ledger(Protocol):
    """Stores rows for good. The first verdict under a digest stands; a later one that differs is a re-judgement."""

    def write(self, rows: LedgerRows) -> None:
        """Write rows in one transaction, leaving existing rows unchanged. Blocks its thread.

        Raises `ConnectionError` if the database cannot be reached, and `ValueError` if it refuses some of the rows.
        """

    def salvage(self, rows: LedgerRows) -> list[RefusedRows]:
        """Write refused rows request by request, or row by row if needed, and return the rows still refused.

        Blocks its thread, and may be called again with the same rows. Raises `ConnectionError` as `write` does.
        """

    async def ready(self) -> bool:
        """Whether the ledger can be read."""

    async def close(self) -> None:
        """Release connections."""


class RunReader(Protocol):
    """Reads the statistics of runs. Both methods raise `ValueError` for a cursor that is not from an earlier page."""

    async def runs(self, project_id: str, *, text: str = "", after: str | None = None, limit: int = 100) -> RunPage:
        """Return a page of a project's runs, the most recently judged first, whose names contain a text.

        Upper and lower case count as equal for ASCII letters.
        """

    async def run(self, view: RunReportQuery) -> RunReport | None:
        """Return the statistics of a run, with a page of its steps; None if there is no such run."""

    async def monitored_run(self, query: MonitorQuery) -> MonitoredRun:
        """Return what monitors read of a run; no steps if the run does not exist."""


class LedgerReader(RunReader, Protocol):
    """Reads the ledger."""

    async def uses(self, wanted: UseFilter) -> list[UseRecord]:
        """Return the selected uses of a run, oldest first, with all their votes."""

    async def texts(self, project_id: str, digests: Sequence[bytes]) -> dict[bytes, str]:
        """Return texts by digest, as JSON; those not stored are absent."""

    async def short_texts(self, project_id: str, digests: Sequence[bytes], max_bytes: int) -> dict[bytes, str | None]:
        """Return texts as `texts` does, with None for each that has more than `max_bytes`, plain or compressed."""

    async def verdicts(self, project_id: str, digests: Sequence[bytes]) -> dict[bytes, VerdictRow]:
        """Return verdicts by the digest of their call; calls without a verdict are absent."""

    async def judged_run(self, part: RunRange) -> JudgedRun:
        """Return what there is to recompute in a part of a run."""

    async def judged_responses(
        self, part: RunRange, after: bytes | None, count: int
    ) -> tuple[list[JudgedResponse], bytes | None]:
        """Return responses of a part of a run with about `count` uses, and the cursor of the next page or None."""

    async def run_curves(
        self, project_id: str, runs: Sequence[str], buckets: int
    ) -> dict[str, tuple[float | None, ...]]:
        """Return the mean reward of each run by bucket of steps; runs without a step are absent."""

    async def run_charts(self, wanted: RunChartQuery) -> RunCharts:
        """Return what the charts of a run show."""

    async def rubric_use(self, project_id: str, digests: Sequence[bytes], limit: int) -> RubricUse:
        """Return the latest runs that used one of some rubrics, and the verdicts in them by rubric and criterion."""

    async def responses(self, wanted: ResponseFilter) -> list[UseRecord]:
        """Return the selected responses of a run, oldest first, with all their votes."""

    async def criterion_groups(
        self, project_id: str, run: str, before: int, groups: int
    ) -> dict[str, tuple[float, float]]:
        """Return, by criterion, in how many of its last groups all responses met it, and how many groups these are.

        These are about `groups` groups, those of whole steps, from the last 200 steps before a step. Groups with fewer
        than two verdicts on a criterion are not counted.
        """

    async def set_measures(self, project_id: str, run: str, step: int, values: Mapping[str, float]) -> None:
        """Set what a trainer reports of a step by name; what was set before under other names stays."""


class LabelStore(Protocol):
    """Labels of recorded verdicts, one per verdict and person, and the verdicts that may be labelled next.

    Raises `ConnectionError` if the database cannot be reached.
    """

    async def set_label(self, project_id: str, verdict: VerdictKey, labeller: str, met: bool | None) -> LabelRow | None:
        """Set a person's label of a verdict, or remove it if `met` is None; return the new label, or the removed one.

        Raises `LookupError` if the verdict does not exist.
        """

    async def set_labels(self, project_id: str, labels: Mapping[VerdictKey, bool | None], labeller: str) -> int:
        """Set or remove a person's labels of several verdicts, all or none; return how many were removed."""

    async def labels(self, wanted: LabelFilter) -> list[LabelRow]:
        """Return the selected labels of a run, by verdict and person."""

    async def label_counts(self, project_id: str) -> list[LabelCount]:
        """Return the labels of each person in each run, the most recently labelled first."""

    async def labelled_uses(self, wanted: LabelFilter) -> list[LabelledUse]:
        """Return the verdicts that have selected labels, oldest first, with these labels."""

    async def recent_uses(self, wanted: RecentFilter) -> list[UseRecord]:
        """Return the verdicts of judges in the latest requests of a run, with all their votes."""

    async def texts(self, project_id: str, digests: Sequence[bytes]) -> dict[bytes, str]:
        """Return texts by digest, as JSON; those not stored are absent."""


class ApiKeyStore(Protocol):
    """Looks up API keys and projects, ends sessions, and records usage. Keys and limits are changed elsewhere."""

    async def find_key(self, key_id: str) -> ApiKeyRecord | None:
        """Return a key by its id, usable or not; None if there is none."""

    async def projects(self) -> Sequence[Project]:
        """Return every project with its limits."""

    async def end_session(self, project_id: str, session_id: str, expires_at: datetime) -> None:
        """End a session of the console for good. `expires_at` is when it would have ended anyway."""

    async def has_ended(self, project_id: str, session_id: str) -> bool:
        """Return whether a session was ended. It takes effect at once in all processes."""

    async def record_key_use(self, last_used: Mapping[str, datetime]) -> None:
        """Record when keys were last used, by id."""

    async def add_usage(self, day: date, used: Mapping[str, tuple[int, int]]) -> None:
        """Add requests and prompt tokens to a day's usage (UTC), by project."""

    async def used_tokens(self, project_id: str, day: date) -> TokenUsage:
        """Return the prompt tokens computed for a project on a day, and in total."""


class ProjectAdministration(Protocol):
    """Lists and creates projects and sets their limits, with an audit entry for each change."""

    async def project(self, project_id: str) -> Project | None:
        """Return a project; None if it does not exist."""

    async def project_page(self, *, after: str | None, limit: int) -> ProjectList:
        """Return a page of projects, by name. Raises `ValueError` for a cursor that is not from an earlier page."""

    async def create_project(self, project_id: str, limits: Limits) -> Project:
        """Create a project. Raises `ValueError` if it exists."""

    async def set_limits(self, project_id: str, limits: Limits) -> Project:
        """Replace the limits of a project. Raises `LookupError` if it does not exist."""


class KeyAdministration(Protocol):
    """Lists, adds and revokes API keys, with an audit entry for each change."""

    async def key_page(self, project_id: str, *, after: str | None, limit: int) -> ApiKeyList:
        """Return a page of a project's keys, oldest first. Raises `ValueError` for a cursor from no earlier page."""

    async def find_key(self, key_id: str) -> ApiKeyRecord | None:
        """Return a key by its id, usable or not; None if there is none."""

    async def keys(self, project_id: str) -> Sequence[ApiKey]:
        """Return all keys of a project, oldest first."""

    async def add_key(
        self,
        project_id: str,
        key_id: str,
        digest: bytes,
        *,
        scopes: Sequence[str],
        label: str = "",
        expires_at: datetime | None = None,
    ) -> ApiKey:
        """Store a new key. Raises `LookupError` if the project does not exist."""

    async def revoke_key(self, key_id: str) -> ApiKey:
        """Revoke a key permanently. Raises `LookupError` if it does not exist."""


class AuditTrail(Protocol):
    """Reads the audit trail, which every change adds to."""

    async def record_change(self, project_id: str, action: str, subject: str, after: str) -> None:
        """Add an entry for a change that no store makes; raises `ConnectionError` if that is impossible now."""

    async def audit(self, project_id: str, *, subject: str | None, limit: int, after: str | None = None) -> AuditTail:
        """Return a page of the changes of a project, newest first, optionally of one subject.

        Raises `ValueError` for a cursor that is not from an earlier page.
        """


class RateLimiter(Protocol):
    """Limits requests by project. A minute's worth may come at once; after that they are admitted at that rate."""

    async def wait_for(self, project_id: str, per_minute: int) -> float:
        """Count a request and return 0. If it exceeds the limit, count nothing and return the seconds to wait.

        Never raises: a limiter that cannot reach its counter falls back to another one.
        """

    async def close(self) -> None:
        """Release resources."""


class RubricValidations(Protocol):
    """Stores the validity of published criteria as found by judges, for good: nothing is replaced."""

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
        """Store one pass over a version's criteria. Raises `LookupError` if there is no such version."""

    async def validations(self, project_id: str, name: str, version: int) -> tuple[RubricValidation, ...]:
        """Return the latest pass of each judge over a version, newest first."""


class IdempotencyKeys(Protocol):
    """Stores idempotency keys for a day, by project. Raises `ConnectionError` if the store cannot be reached."""

    async def claim(self, project_id: str, key: str, asked: bytes, *, hold_s: float = 0.0) -> KeyClaim:
        """Claim a key for a request with the digest `asked`; the claim expires after `hold_s` seconds.

        Raises:
            ValueError: the key was used for another request.
        """

    async def store_answer(self, project_id: str, key: str, answer: StoredAnswer) -> None:
        """Store the answer to the request of a claimed key."""

    async def release(self, project_id: str, key: str) -> None:
        """Release a claimed key whose request created nothing."""
