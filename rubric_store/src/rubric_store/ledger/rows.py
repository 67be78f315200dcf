"""The ledger's rows, which judging creates and the store keeps.

They are plain tuples because there are thousands a second. Digests are 32 bytes; `request` is 16 bytes that sort by
time. The run is the empty string if the request has none, and so is the protocol if no judge was called.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Literal, NamedTuple

from trainer_client.wire.verdicts import FailureKind, VerdictStatus


class RequestRow(NamedTuple):
    """One request. `uses` is the number of votes in its use rows; `seconds` is the time from arrival to answer.

    `members` is JSON: the cost of each judge of a cascade or panel, by name, as `MemberUsage`. None for other judges.
    `reward_rules` is JSON: what of the request's `RewardRules` differs from the defaults. None if the request asked for
    no rewards, or was recorded before the rules were. `judging_rules` is JSON: what of the request's `JudgingRules`
    differs from the defaults. None if it was recorded before they were.
    """

    project_id: str
    run: str
    request: bytes
    request_id: str
    step: int | None
    mode: str | None
    protocol: str
    fingerprint: str | None
    model: str | None
    votes: int
    uses: int
    judge_calls: int
    tokens_computed: int
    tokens_reused: int
    tokens_written: int
    seconds: float
    created_at: datetime
    members: str | None = None
    reward_rules: str | None = None
    judging_rules: str | None = None


class ResponseRow(NamedTuple):
    """One response of a request.

    `place` is the response's index in the request, `position` its index in the group. `format_ok` is SRaR's format
    reward. `spans` holds the steps as JSON triples (number, start, end) in code points of the response as sent, the
    whole response first; None if steps were not requested. `reward` and `status` are as answered, None if there was no
    reward. `declared_reward` is the one under the rubric's own weights; None if others were not used.
    """

    project_id: str
    run: str
    request: bytes
    place: int
    group_id: str
    position: int
    rubric: bytes | None
    prompt: bytes
    response: bytes
    grounding: bytes | None
    tokens: int | None
    stopped: bool | None
    format_ok: bool
    spans: str | None
    reward: float | None
    status: str | None
    reference_answer: bytes | None = None
    ground_truth: bytes | None = None
    declared_reward: float | None = None

    @property
    def own_reward(self) -> float | None:
        """The reward as answered; None without one, or if the failure policy alone made it."""
        return None if self.status == "unscored" else self.reward


TEXTS = ("rubric", "prompt", "response", "grounding", "reference_answer", "ground_truth")
"""The columns of a response that are digests of texts."""

UNCERTAIN = "uncertain"
"""The `failure` of every vote on a criterion whose verdict did not fail but was uncertain."""


LEFT_OUT = "left_out"
"""The `failure` of a row for a criterion that rubric dropout left out; its digest is 32 zero bytes."""


class UseRow(NamedTuple):
    """One vote on one criterion of a response. `digest` is that of its judge call.

    `failed` says whether the criterion has no verdict from any of its votes; `failure` and `detail` say why this vote
    failed, or `failure` is `UNCERTAIN` or `LEFT_OUT`. `step` is the verdict's step if the verdict row has none.
    `passages` is JSON: the passages that the judge was shown of longer texts, as a list of `Passage`; None if it was
    shown all.
    """

    project_id: str
    run: str
    request: bytes
    place: int
    slot: int
    vote: int
    criterion: str
    method: str
    digest: bytes
    failed: bool
    failure: str | None
    detail: str | None
    step: int | None
    cached: bool
    passages: str | None = None


class VerdictRow(NamedTuple):
    """The verdict of a judge call, by the call's digest, and the request that made the call.

    `raw_probability` is None in rows written before calibration existed; their `probability` is the raw one. `members`
    is JSON: what each judge of a cascade or panel said, as a list of `MemberVerdict`. None for other judges.
    """

    project_id: str
    digest: bytes
    request: bytes
    score: float
    probability: float | None
    menu_mass: float | None
    step: int | None
    grade: float | None
    rationale: str | None
    raw_probability: float | None = None
    members: str | None = None


class TextRow(NamedTuple):
    """A text, by the digest of its JSON form (a rubric by its content digest). `body` is that JSON, zlib-compressed."""

    project_id: str
    digest: bytes
    body: bytes


class SignalRow(NamedTuple):
    """Sums over pairs (x, y) of one request, which monitors read; `signal` and `name` say what x and y are.

    `within_xx`, `within_yy` and `within_xy` are sums of products of deviations from the mean of each pair's group, with
    `within` degrees of freedom (pairs minus groups). `judge_server.ledger.monitoring.signals` defines the signals.
    """

    project_id: str
    run: str
    request: bytes
    signal: str
    name: str
    step: int | None
    pairs: int
    x: float
    y: float
    xx: float
    yy: float
    xy: float
    within: int = 0
    within_xx: float = 0.0
    within_yy: float = 0.0
    within_xy: float = 0.0


class LedgerRows(NamedTuple):
    """Rows to write together, one list per table."""

    texts: list[TextRow]
    verdicts: list[VerdictRow]
    requests: list[RequestRow]
    responses: list[ResponseRow]
    uses: list[UseRow]
    signals: Sequence[SignalRow] = ()

    @classmethod
    def concat(cls, parts: Sequence["LedgerRows"]) -> "LedgerRows":
        """Concatenate the rows of several parts, in order."""
        if len(parts) == 1:
            return parts[0]
        return cls(*([row for rows in lists for row in rows] for lists in zip(*parts, strict=True)))


class RefusedRows(NamedTuple):
    """Rows that the ledger refused, and the reason in one line."""

    rows: LedgerRows
    reason: str


class JudgedVote(NamedTuple):
    """A vote read back to recompute rewards. `score` is None if it failed or its verdict is not in the ledger.

    `probability` is the calibrated one; None if the judge gave none.
    """

    slot: int
    criterion: str
    method: str
    failure: str | None
    detail: str | None
    score: float | None
    grade: float | None
    step: int | None
    probability: float | None = None


class JudgedResponse(NamedTuple):
    """A response read back to recompute rewards, with its votes by slot; `reward_rules` are those of its request."""

    request_id: str
    step: int | None
    group_id: str
    position: int
    rubric: bytes | None
    tokens: int | None
    stopped: bool | None
    format_ok: bool
    spans: str | None
    votes: list[JudgedVote]
    reward_rules: str | None = None


class JudgedBy(NamedTuple):
    """A protocol ('' if no judge was asked), recorded reward rules and a rubric under which responses were judged."""

    protocol: str
    reward_rules: str | None
    rubric: bytes | None


class JudgedRun(NamedTuple):
    """The part of a run that rewards are recomputed from.

    `judged_by` are the distinct ways in which its responses were judged. `rubrics` maps the digests of its rubrics to
    their criteria as JSON. `judges` are the pairs of a judge's fingerprint and a number of votes; requests that asked
    no judge have none.
    """

    requests: int
    uses: int
    judged_by: tuple[JudgedBy, ...]
    rubrics: dict[bytes, str]
    judges: tuple[tuple[str, int], ...] = ()


class UseRecord(NamedTuple):
    """Votes read back for display, with their request and response: those on one criterion, or on all, by slot."""

    request: RequestRow
    response: ResponseRow
    votes: list[tuple[UseRow, VerdictRow | None]]

    @property
    def key(self) -> tuple[bytes, int]:
        """The (request, place) of the response."""
        return self.response.request, self.response.place

    @property
    def group(self) -> tuple[bytes, int]:
        """The (request, place) of the first response of its group; a request may have several groups of one id."""
        return self.response.request, self.response.place - self.response.position


class UseFilter(NamedTuple):
    """A filter of a run's uses; None matches all. `after` is the (request, place, slot) of the last use returned."""

    project_id: str
    run: str
    step: int | None = None
    rubric: bytes | None = None
    criterion: str | None = None
    status: VerdictStatus | None = None
    after: tuple[bytes, int, int] | None = None
    limit: int = 100
    failure: FailureKind | None = None


class RunRange(NamedTuple):
    """A part of a run: steps from `first` to `last`, both included, judged with one protocol. None means no limit."""

    project_id: str
    run: str
    first: int | None = None
    last: int | None = None
    protocol: str | None = None


class RunReportQuery(NamedTuple):
    """A query for a page of a run's statistics.

    Selects steps from `first` to `last`, both included, and returns `limit` of them after the cursor `after`. Of the
    criteria, it selects the `criteria` ones with the most verdicts, restricted to those of `rubric` and to
    `criterion_ids` if these are given.
    """

    project_id: str
    run: str
    first: int | None = None
    last: int | None = None
    newest_first: bool = False
    rubric: bytes | None = None
    criterion_ids: tuple[str, ...] = ()
    criteria: int = 50
    after: str | None = None
    limit: int = 100


class RunChartQuery(NamedTuple):
    """A query for the charts of a run.

    Selects steps from `first` to `last`, both included, and divides them into at most `buckets` buckets of equally many
    step numbers. Pass rates cover the criteria of `criterion_ids`. The histogram has `bins` bins. Without
    `distribution`, there is no histogram, no spread within groups and no list of judges, which are counted from the
    responses and requests and so take longer the more there are.
    """

    project_id: str
    run: str
    first: int | None = None
    last: int | None = None
    criterion_ids: tuple[str, ...] = ()
    buckets: int = 60
    bins: int = 20
    distribution: bool = True


class GroupSpread(NamedTuple):
    """The spread of rewards within groups.

    `groups` is the number of groups with at least two rewards, `flat` the number of those whose rewards are all equal.
    `deviation` is the pooled standard deviation: sqrt(sum (r - mean of its group)^2 / number of rewards).
    """

    groups: int
    flat: int
    deviation: float


class StepBucket(NamedTuple):
    """The figures of some consecutive steps, from `first` to `last`.

    `mean_reward` is None without rewards, `spread` without a group that has two. `failures` counts failed verdicts by
    kind. The other fields are as in `JudgingFigures`.
    """

    first: int
    last: int
    requests: int
    responses: int
    partial: int
    unscored: int
    mean_reward: float | None
    verdicts: int
    failed: int
    judge_calls: int
    tokens_computed: int
    tokens_reused: int
    tokens_written: int
    failures: dict[str, int]
    spread: GroupSpread | None
    mean_declared_reward: float | None = None


class CriterionBucket(NamedTuple):
    """The verdicts on a criterion in a bucket of steps, by its index; `verdicts` includes failed and uncertain ones."""

    criterion: str
    bucket: int
    verdicts: int
    failed: int
    passed: int
    uncertain: int = 0

    @property
    def given(self) -> int:
        """The verdicts that are neither failed nor uncertain, of which pass rates are taken."""
        return self.verdicts - self.failed - self.uncertain


class RubricRate(NamedTuple):
    """The verdicts on a criterion of a rubric, given by its digest, in all steps of some runs."""

    rubric: bytes
    criterion: str
    verdicts: int
    failed: int
    passed: int
    uncertain: int = 0

    @property
    def given(self) -> int:
        """The verdicts that are neither failed nor uncertain, of which pass rates are taken."""
        return self.verdicts - self.failed - self.uncertain


class RubricUse(NamedTuple):
    """The latest runs that used one of some rubrics, newest first, and the verdicts in them by rubric and criterion."""

    runs: tuple[str, ...]
    rates: tuple[RubricRate, ...]


class RewardBin(NamedTuple):
    """The number of responses with a reward of at least `low` and below `high`; the last bin includes `high`."""

    low: float
    high: float
    responses: int


class JudgeUse(NamedTuple):
    """The requests of a run that were judged in one way; steps are None if none of them names one."""

    fingerprint: str | None
    model: str | None
    protocol: str
    mode: str | None
    votes: int
    requests: int
    first_step: int | None
    last_step: int | None


class MeasureBucket(NamedTuple):
    """What a trainer reported under a name in some consecutive steps: the mean over the `steps` that have it."""

    name: str
    first: int
    last: int
    steps: int
    mean: float


class RunCharts(NamedTuple):
    """What the charts of a run show. `bins` is empty without rewards; requests without a step are in no bucket."""

    steps: tuple[StepBucket, ...]
    criteria: tuple[CriterionBucket, ...]
    bins: tuple[RewardBin, ...]
    judges: tuple[JudgeUse, ...]
    measures: tuple[MeasureBucket, ...] = ()


VerdictOutcome = Literal["passed", "not passed", "failed", "uncertain", "left out"]
"""What a verdict says, as charts count it: a score of 0.5 or more passes."""


class ResponseFilter(NamedTuple):
    """A filter of a run's responses; None matches all.

    Selects rewards of at least `low` and below `high`, or up to `high` if `includes_high`. `request` and `group_id`
    together select one group. `after` is the (request, place) of the last response returned.

    `criterion` selects responses that were judged by a criterion, and `outcome` those with this verdict on it. With
    several votes, responses with another verdict may be among them. `keys` selects responses by (request, place),
    whatever `limit` is. Without `with_votes`, records have no votes, which are most of what is read.
    """

    project_id: str
    run: str
    first: int | None = None
    last: int | None = None
    low: float | None = None
    high: float | None = None
    includes_high: bool = False
    status: str | None = None
    request: bytes | None = None
    group_id: str | None = None
    criterion: str | None = None
    outcome: VerdictOutcome | None = None
    after: tuple[bytes, int] | None = None
    limit: int = 50
    rubric: bytes | None = None
    keys: tuple[tuple[bytes, int], ...] = ()
    with_votes: bool = True


class VerdictKey(NamedTuple):
    """Which verdict of a run: the request, the response's index in the request, and the criterion's slot."""

    run: str
    request: bytes
    place: int
    slot: int


class LabelRow(NamedTuple):
    """What a person says of a verdict's criterion: whether the response meets it.

    `labeller` names the person as the audit log names the actor of a change. `at` is when the label was last changed.
    """

    project_id: str
    run: str
    request: bytes
    place: int
    slot: int
    labeller: str
    criterion: str
    met: bool
    at: datetime

    @property
    def verdict(self) -> VerdictKey:
        """The verdict that is labelled."""
        return VerdictKey(self.run, self.request, self.place, self.slot)


class LabelFilter(NamedTuple):
    """A filter of a run's labels; no requests and None match all."""

    project_id: str
    run: str
    requests: tuple[bytes, ...] = ()
    labeller: str | None = None


class LabelCount(NamedTuple):
    """The labels that a person gave in a run, and when the last one was given."""

    run: str
    labeller: str
    labels: int
    last_at: datetime


class LabelledUse(NamedTuple):
    """A verdict with its labels, by person."""

    use: UseRecord
    labels: list[LabelRow]


class RecentFilter(NamedTuple):
    """A filter of a run's latest verdicts of judges that did not fail; None matches all.

    Reads the requests of steps from `first` to `last`, both included, from the newest on, until they have `uses` uses.
    """

    project_id: str
    run: str
    first: int | None = None
    last: int | None = None
    criterion: str | None = None
    uses: int = 5000


class PurgeCounts(NamedTuple):
    """The number of rows deleted from the ledger."""

    requests: int = 0
    uses: int = 0
    verdicts: int = 0
    texts: int = 0
    labels: int = 0


class MonitorQuery(NamedTuple):
    """The steps of a run that monitors look at: the first `first` steps, and the last `last`, up to step `until`."""

    project_id: str
    run: str
    first: int
    last: int
    until: int | None = None


class StepRequest(NamedTuple):
    """A request of a training step: when it arrived, and the judge calls that it made."""

    project_id: str
    run: str
    step: int
    arrived_at: datetime
    judge_calls: int


class StepSums(NamedTuple):
    """Sums over the responses of a training step."""

    step: int
    responses: int
    unscored: int
    rewards: int
    reward_sum: float
    reward_squares: float


class SignalSums(NamedTuple):
    """The sums of a signal over the requests of a training step; the columns are those of `SignalRow`."""

    signal: str
    name: str
    step: int
    pairs: int
    x: float
    y: float
    xx: float
    yy: float
    xy: float
    within: int
    within_xx: float
    within_yy: float
    within_xy: float


class ControlVerdict(NamedTuple):
    """A request's verdict on one criterion of a response of the control set. `score` is None if it failed."""

    request: bytes
    step: int | None
    fingerprint: str | None
    group_id: str
    response: bytes
    criterion: str
    score: float | None


class MonitoredRun(NamedTuple):
    """What monitors read of a run: the selected steps in order, their signals, and its control set's verdicts."""

    steps: Sequence[StepSums]
    signals: Sequence[SignalSums]
    gold: Sequence[SignalSums]
    control: Sequence[ControlVerdict]
