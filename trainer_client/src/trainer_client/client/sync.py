"""`Client`: what a trainer calls Adjudge with, in code without an event loop.

Generated from `AsyncClient` by `python -m tests.trainer_client.sync_client`: change that class instead.
"""

import random as _random
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Self, Unpack

import httpx2
from pydantic import JsonValue

from trainer_client._inputs import CriterionLike
from trainer_client.client.answers import (
    NDJSON,
    AnswerT,
    PreparedRequest,
    RewardStreamParser,
    error_for,
    read_answer,
    readiness_error,
    summary_of,
    typed_errors,
)
from trainer_client.client.calls import (
    GroupLike,
    PairLike,
    RubricLike,
    comparison_request,
    rewards_request,
    send_options,
    service_url,
    verdicts_request,
)
from trainer_client.client.connection import (
    ConnectionSettings,
    ProcessBound,
    own_pieces,
)
from trainer_client.client.keywords import ComparisonKeywords, RewardKeywords, VerdictKeywords
from trainer_client.client.ledger import (
    RecomputeKeywords,
    RecomputeStreamParser,
    RunKeywords,
    corrected_rates_request,
    label_request,
    measures_request,
    monitors_request,
    recompute_request,
    recorded_verdicts_request,
    run_request,
    runs_request,
)
from trainer_client.client.operations import (
    OperationEventParser,
    OperationLike,
    events_request,
    list_request,
    make_retryable,
    operation_request,
    results_request,
    stream_ended_error,
    submit_request,
)
from trainer_client.client.projects import (
    LimitsLike,
    audit_request,
    create_key_request,
    create_project_request,
    keys_request,
    limits_request,
    project_request,
    projects_request,
    revoke_key_request,
    state_request,
)
from trainer_client.client.rubrics import (
    aliases_request,
    diff_request,
    history_request,
    move_alias_request,
    publish_request,
    remove_alias_request,
    restore_request,
    retire_request,
    rubric_request,
    rubrics_request,
    tags_request,
)
from trainer_client.errors import (
    AdjudgeError,
    ConnectionFailed,
    TimedOut,
)
from trainer_client.wire import (
    ComparisonAnswer,
    FailurePolicy,
    GroupRewards,
    Lineage,
    RewardAnswer,
    RewardMode,
    RewardSummary,
    RubricAlias,
    RubricAliases,
    RubricDiff,
    RubricSummary,
    RubricTags,
    RubricVersion,
    VerdictAnswer,
    VersionSummary,
)
from trainer_client.wire.ledger import (
    CorrectedRates,
    LabelReceipt,
    RecomputeEvent,
    RecordedVerdict,
    RunReport,
    RunSummary,
)
from trainer_client.wire.monitors import MonitorReport
from trainer_client.wire.operations import (
    Operation,
)
from trainer_client.wire.tenants import ApiKey, AuditEntry, CreatedApiKey, NewLimits, Project, ProjectState, Scope


class Connection:
    """The connection of `Client` to its service; see `Client` for the arguments."""

    def __init__(
        self,
        base_url: str | None = None,
        run: str | None = None,
        *,
        timeout_s: float = 30.0,
        retries: int = 4,
        retry_budget_s: float = 120.0,
        headers: Mapping[str, str] | None = None,
        api_key: str | None = None,
        transport: httpx2.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        random: Callable[[], float] = _random.random,
    ) -> None:
        self.base_url = service_url(base_url)
        self.run = run
        self.settings = ConnectionSettings(
            self.base_url, run, timeout_s, retries, retry_budget_s, headers, api_key, transport, sleep, clock, random
        )
        self._policy = self.settings.retry_policy
        self._connections = ProcessBound(
            lambda: self.settings.make_client(httpx2.Client, httpx2.HTTPTransport),
            can_remake=transport is None,
        )

    def ready(self) -> bool:
        """Whether the service can judge now; also False if it cannot be reached. Sends one request, without retries.

        Raises:
            AdjudgeError: the answer is not from Adjudge.
        """
        return self.not_ready_reason() is None

    def not_ready_reason(self) -> AdjudgeError | None:
        """Why the service cannot judge now: it cannot be reached, or says that it is not ready. None if it can judge.

        Sends one request, without retries.

        Raises:
            AdjudgeError: the answer is not from Adjudge.
        """
        try:
            return readiness_error(self._request_once(method="GET", url="/readyz", timeout=self.settings.timeout_s))
        except (ConnectionFailed, TimedOut) as error:
            return error

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def send(self, request: PreparedRequest[AnswerT]) -> AnswerT:
        """Send a request with retries, and return its answer.

        Raises:
            AdjudgeError: the last attempt failed, or its error is not retryable.
        """
        options, retry_state = send_options(request, self.settings.timeout_s), self._policy.start()
        while True:
            try:
                return read_answer(self._request_once(**options), request)
            except AdjudgeError as error:
                wait = retry_state.wait_after(error) if request.repeatable else None
                if wait is None:
                    raise
            self.settings.sleep(wait)

    @property
    def _http(self) -> httpx2.Client:
        return self._connections.get()

    def _request_once(self, **options: Any) -> httpx2.Response:
        """Send a request once and return its response, which may be an error."""
        with typed_errors(self.base_url):
            return self._http.request(**options)

    def _stream_groups(
        self, request: PreparedRequest[RewardAnswer], parser: RewardStreamParser
    ) -> Generator[GroupRewards, None, None]:
        """Send a request and yield the groups as they arrive. It is retried only until the first group has arrived.

        Closing the generator closes the connection.

        Raises:
            AdjudgeError: the request failed, or the stream was cut off.
        """
        options, retry_state = send_options(request, self.settings.timeout_s), self._policy.start()
        while True:
            try:
                with typed_errors(self.base_url):
                    with self._http.stream(**options) as response:
                        if parser.is_stream(response):
                            for piece in own_pieces(response):
                                for group in parser.feed(piece):
                                    yield group
                            parser.end()
                        else:
                            response.read()
                            for group in parser.parse_whole(response):
                                yield group
                return
            except AdjudgeError as error:
                if parser.summary is not None:
                    return
                wait = None if parser.started else retry_state.wait_after(error)
                if wait is None:
                    raise
                parser.retried_error = error
            self.settings.sleep(wait)


class RewardStream(Iterator[GroupRewards]):
    """The groups of one request, in the order in which they finish.

    The request is sent when you request the first group. `close`, or leaving a `with` block, closes the
    connection, and the service then cancels the groups that are not done.
    """

    def __init__(self, groups: Generator[GroupRewards, None, None], parser: RewardStreamParser) -> None:
        self._groups = groups
        self._parser = parser

    @property
    def summary(self) -> RewardSummary:
        """The answer without its groups.

        Raises:
            RuntimeError: the stream has not been read to its end.
        """
        return summary_of(self._parser)

    @property
    def retried_error(self) -> AdjudgeError | None:
        """The error after which the request is being sent again; None once the service answers."""
        return self._parser.retried_error

    def close(self) -> None:
        """Close the connection and end the stream. Closing it again has no effect."""
        self._groups.close()

    def __next__(self) -> GroupRewards:
        return next(self._groups)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class RubricMethods(Connection):
    """The methods of `Client` about rubrics.

    All methods raise `AdjudgeError` as `Client.rewards` does, `InvalidRequest` for malformed names and references,
    and `UnknownRubric` if there is no such rubric or version.
    """

    def publish_rubric(
        self,
        name: str,
        criteria: Sequence[CriterionLike],
        *,
        metadata: Mapping[str, Any] | None = None,
        tags: Sequence[str] = (),
        lineage: Lineage | Mapping[str, Any] | None = None,
        parent: int | None = None,
    ) -> RubricVersion:
        """Publish criteria as the next version of a rubric. If a version has the same criteria, return that one.

        Args:
            name: the rubric, such as `team/math/quadratics`.
            criteria: `Criterion` models or mappings of their fields.
            metadata: a JSON object to store with the version, at most 64 KiB.
            tags: tags to add to the rubric.
            lineage: who or what made the version, as a `wire.Lineage` or a mapping of its fields.
            parent: the version of this rubric that it was made from; defaults to the newest.

        Raises:
            InvalidRequest: the name or the criteria break the contract, or there is no such parent.
        """
        return self.send(publish_request(name, criteria, metadata, tags, lineage, parent))

    def rubric(self, reference: str) -> RubricVersion:
        """Fetch a version by `name` (the newest not retired), `name@3`, `name@alias` or `sha256:…`, even if retired."""
        return self.send(rubric_request(reference))

    def rubrics(self, prefix: str = "", *, tag: str | None = None, text: str = "") -> Iterator[RubricSummary]:
        """Iterate over rubrics sorted by name, fetching a page at a time.

        Args:
            prefix: only names that begin with this.
            tag: only rubrics that have this tag.
            text: words to search for; only rubrics whose criteria contain, for each word, one that begins with it.
        """
        after: str | None = None
        while True:
            page = self.send(rubrics_request(prefix, tag, text, after))
            for summary in page.rubrics:
                yield summary
            if page.next_cursor is None:
                return
            after = page.next_cursor

    def rubric_history(self, name: str) -> Iterator[VersionSummary]:
        """Iterate over the versions of a rubric, newest first, without their criteria."""
        after: str | None = None
        while True:
            page = self.send(history_request(name, after))
            for summary in page.versions:
                yield summary
            if page.next_cursor is None:
                return
            after = page.next_cursor

    def rubric_diff(self, name: str, before: int | str, after: int | str = "latest") -> RubricDiff:
        """Fetch the difference of two versions of a rubric, each a number or an alias, criterion by criterion."""
        return self.send(diff_request(name, before, after))

    def rubric_aliases(self, name: str) -> RubricAliases:
        """Fetch the aliases of a rubric and the versions that they point to."""
        return self.send(aliases_request(name))

    def move_alias(self, name: str, alias: str, version: int, *, expected: int | None) -> RubricAlias:
        """Point an alias of a rubric to a version.

        Args:
            name: the rubric.
            alias: the alias, such as `production`.
            version: the version that the alias will point to.
            expected: the version that it points to now; None to create the alias.

        Raises:
            AliasMoved: it points to another version than expected; `problem.current_version` says which.
        """
        return self.send(move_alias_request(name, alias, version, expected))

    def remove_alias(self, name: str, alias: str, *, expected: int) -> RubricAliases:
        """Remove an alias that points to the expected version, and return the remaining ones.

        Raises:
            AliasMoved: it points to another version.
        """
        return self.send(remove_alias_request(name, alias, expected))

    def tag_rubric(self, name: str, tags: Sequence[str]) -> RubricTags:
        """Replace the tags of a rubric."""
        return self.send(tags_request(name, tags))

    def retire_rubric(self, reference: str, reason: str) -> RubricVersion:
        """Retire the version of a reference `name@3`: it stays readable, but judging by it is refused."""
        return self.send(retire_request(reference, reason))

    def restore_rubric(self, reference: str) -> RubricVersion:
        """Restore a retired version."""
        return self.send(restore_request(reference))


class RunMethods(Connection):
    """The methods of `Client` about training runs."""

    def runs(self) -> Generator[RunSummary, None, None]:
        """Iterate over the runs of the ledger, most recently used first, fetching a page at a time.

        Raises:
            AdjudgeError: as for `rewards`.
        """
        after: str | None = None
        while True:
            page = self.send(runs_request(after))
            for run in page.runs:
                yield run
            if (after := page.next_cursor) is None:
                return

    def run_report(self, run: str | None = None, **part: Unpack[RunKeywords]) -> RunReport:
        """Fetch the statistics of a run, with all its steps in order; `next_cursor` is None.

        Args:
            run: the run's name; defaults to the client's run. Pass '' for requests without a run.

        Part:
            first_step, last_step: only these steps, both included; leaves out requests without a step.
            rubric: only verdicts under this rubric: `name`, `name@3`, `name@alias` or `sha256:…`.
            criterion: only these criteria, by their ids.
            criteria: at most this many criteria, those with the most verdicts; defaults to 50, at most 200.

        Raises:
            NotFound: the ledger has no such run.
            AdjudgeError: as for `rewards`.
        """
        name = self.run if run is None else run
        report = self.send(run_request(name, part, None))
        steps = [*report.steps]
        while report.next_cursor is not None:
            report = self.send(run_request(name, part, report.next_cursor))
            steps += report.steps
        return report.model_copy(update={"steps": tuple(steps)})

    def run_monitors(self, run: str | None = None, *, until_step: int | None = None) -> MonitorReport:
        """Fetch what the monitors find in a run.

        Args:
            run: the run's name; defaults to the client's run.
            until_step: the last step to look at; defaults to the run's last one.

        Raises:
            NotFound: the ledger has no step of such a run.
            AdjudgeError: as for `rewards`.
        """
        return self.send(monitors_request(self.run if run is None else run, until_step))

    def corrected_rates(
        self, run: str | None = None, *, first_step: int | None = None, last_step: int | None = None
    ) -> CorrectedRates:
        """Fetch the pass rates of a run, corrected for its judge's error if a stored calibration measured that.

        Args:
            run: the run's name; defaults to the client's run.
            first_step, last_step: only these steps, both included.

        Raises:
            NotFound: the ledger has no such run.
            AdjudgeError: as for `rewards`.
        """
        return self.send(corrected_rates_request(self.run if run is None else run, first_step, last_step))

    def report_measures(self, step: int, measures: Mapping[str, float], run: str | None = None) -> None:
        """Report what was measured in a training step, which the console draws over the steps of the run.

        Args:
            step: the training step, as in `rewards`.
            measures: up to 100 finite numbers by name, such as `{"rgr/refined": 0.25}`. A later report of the same
                step and name replaces the earlier one.
            run: the run's name; defaults to the client's run.

        Raises:
            InvalidRequest: there is no run, or a name or a number is invalid.
            AdjudgeError: as for `rewards`.
        """
        self.send(measures_request(self.run if run is None else run, step, measures))


class LedgerMethods(RunMethods):
    """The methods of `Client` about the ledger."""

    def recompute(
        self, run: str | None = None, **rules: Unpack[RecomputeKeywords]
    ) -> Generator[RecomputeEvent, None, None]:
        """Recompute the rewards of a run under other rules, from its recorded verdicts and without a judge.

        Args:
            run: the run's name; defaults to the client's run.

        Rules; those left out are as each request recorded them (see `wire.ledger.RecomputeRequest`):
            first_step, last_step: only these steps, both included.
            protocol: use only verdicts of this judging protocol.
            mode, kinds, format_weight, gate_fraction, length_penalty, overlong_penalty, truncation_factor, use,
                on_failure, uncertain_band, on_uncertain: as for `rewards`.
            weights: weights by criterion id, which replace those of the rubrics.
            budgets: `suggest`, `pitfall` and `bonus` of step rewards.

        Returns:
            Events as they arrive: one `start`, each `group` in the order of judging, and at the end a `summary`. A
            group that was judged twice occurs twice.

        Raises:
            InvalidRequest: at once if the rules break the contract; during iteration if the run's verdicts do not suit
                the mode.
            AdjudgeError: during iteration, as for `rewards`. The request is not retried.
        """
        return self._stream_recompute(recompute_request(run or self.run, rules))

    def recorded_verdicts(self, run: str | None = None, **filters: Any) -> Generator[RecordedVerdict, None, None]:
        """Iterate over the recorded verdicts of a run, oldest first, fetching a page at a time.

        Args:
            run: the run's name; defaults to the client's run.
            filters: `step`, `rubric`, `criterion`, `status` (`ok` or `failed`), and `texts=True` to include the judged
                texts.

        Raises:
            AdjudgeError: as for `rewards`.
        """
        after: str | None = None
        while True:
            page = self.send(recorded_verdicts_request(run or self.run, filters, after))
            for verdict in page.verdicts:
                yield verdict
            if page.next_cursor is None:
                return
            after = page.next_cursor

    def label(self, labels: Mapping[str, bool | None], run: str | None = None) -> LabelReceipt:
        """Say of recorded verdicts whether the criterion is met; the labels belong to this client's key.

        Args:
            labels: by the `id` of a verdict of `recorded_verdicts`, True or False; None takes a label back. At most
                1,000, which are stored all or none.
            run: the run's name; defaults to the client's run.

        Raises:
            NotFound: the run has no such verdict.
            AdjudgeError: as for `rewards`.
        """
        return self.send(label_request(self.run if run is None else run, labels))

    def _stream_recompute(self, request: PreparedRequest[RecomputeEvent]) -> Generator[RecomputeEvent, None, None]:
        parser = RecomputeStreamParser(self.base_url, request)
        with typed_errors(self.base_url):
            with self._http.stream(**send_options(request, self.settings.timeout_s)) as response:
                if not response.is_success:
                    response.read()
                    raise error_for(response)
                for piece in own_pieces(response):
                    for line in parser.feed(piece):
                        yield line
                parser.end(response)


class OperationMethods(Connection):
    """The methods of `Client` about operations: `submit` one, `follow` it, and read its `operation_results`.

    All methods raise `AdjudgeError` as `Client.rewards` does, and `NotFound` if there is no such operation.
    """

    def submit(self, request: OperationLike, *, idempotency_key: str | None = None) -> Operation:
        """Submit an operation. When this returns, the operation is stored and runs without this client.

        Args:
            request: a request of `wire.operations`, or a mapping of its fields; `kind` selects which.
            idempotency_key: submissions with the same key create one operation; defaults to a new key.
        """
        return self.send(submit_request(request, self.run, idempotency_key))

    def operations(self) -> Iterator[Operation]:
        """Iterate over the operations, newest first, fetching a page at a time."""
        after: str | None = None
        while True:
            page = self.send(list_request(after))
            for operation in page.operations:
                yield operation
            if page.next_cursor is None:
                return
            after = page.next_cursor

    def operation(self, operation_id: str) -> Operation:
        """Fetch an operation and its current state."""
        return self.send(operation_request(operation_id))

    def cancel_operation(self, operation_id: str) -> Operation:
        """Cancel an operation; finished chunks keep their results."""
        return self.send(operation_request(operation_id, "DELETE"))

    def retry_operation(self, operation_id: str) -> Operation:
        """Resume an operation that failed or was cancelled."""
        return self.send(operation_request(operation_id, "POST", "/retry"))

    def operation_results(self, operation_id: str, after: int = 0) -> Iterator[dict[str, JsonValue]]:
        """Iterate over the results available so far, in the order in which they were produced."""
        while True:
            page = self.send(results_request(operation_id, after))
            for result in page.results:
                yield result
            if page.next_cursor is None or not page.results:
                return
            after = int(page.next_cursor)

    def follow(self, operation_id: str, after: int = 0) -> Iterator[Operation]:
        """Yield the operation after each change until it has ended. Broken connections are reopened.

        Args:
            operation_id: the operation.
            after: the last revision that you have seen.
        """
        retry_state = self._policy.start()
        while True:
            try:
                for operation in self._events(operation_id, after):
                    retry_state = self._policy.start()
                    if operation is not None:
                        after = operation.revision
                        yield operation
                        if operation.ended:
                            return
            except AdjudgeError as error:
                wait = retry_state.wait_after(make_retryable(error))
                if wait is None:
                    raise
                self.settings.sleep(wait)

    def _events(self, operation_id: str, after: int) -> Generator[Operation | None, None, None]:
        """Yield the events of one stream, and None for each keepalive comment; see `OperationEventParser.feed`."""
        request = events_request(operation_id, after)
        events = OperationEventParser(request)
        with typed_errors(self.base_url):
            with self._http.stream(**send_options(request, self.settings.timeout_s)) as response:
                if not response.is_success:
                    response.read()
                    raise error_for(response)
                for piece in own_pieces(response):
                    for operation in events.feed(piece):
                        yield operation
        raise stream_ended_error(self.base_url)


class ProjectMethods(Connection):
    """The methods of `Client` about projects, their keys and their audit logs.

    Keys and audit logs need a key with the scope `admin`, and those of other projects than its own `projects:write` as
    well; projects need `projects:write`. All methods raise `AdjudgeError` as `Client.rewards` does, `Forbidden` if
    the key lacks the scope, and `NotFound` if there is no such project or key.
    """

    def project_state(self) -> ProjectState:
        """Fetch the limits and usage of the key's project."""
        return self.send(state_request())

    def projects(self) -> Iterator[Project]:
        """Iterate over all projects, by name, fetching a page at a time."""
        after: str | None = None
        while True:
            page = self.send(projects_request(after))
            for entry in page.projects:
                yield entry
            if page.next_cursor is None:
                return
            after = page.next_cursor

    def project(self, project_id: str) -> Project:
        """Fetch a project with its limits."""
        return self.send(project_request(project_id))

    def create_project(self, project_id: str, limits: LimitsLike = NewLimits()) -> Project:  # noqa: B008 - frozen
        """Create a project.

        Args:
            project_id: its name: lower-case letters, digits, `.`, `_` and `-`.
            limits: a `NewLimits` or a mapping of its fields; by default there are no limits.

        Raises:
            InvalidRequest: a project of this name exists.
            AdjudgeError: as for other methods, but the request is not tried again.
        """
        return self.send(create_project_request(project_id, limits))

    def set_limits(self, project_id: str, limits: LimitsLike) -> Project:
        """Replace all limits of a project; what is left out is not limited any more."""
        return self.send(limits_request(project_id, limits))

    def api_keys(self, project: str | None = None) -> Iterator[ApiKey]:
        """Iterate over the keys of a project, by default the key's own, oldest first, revoked ones included."""
        after: str | None = None
        while True:
            page = self.send(keys_request(project, after))
            for entry in page.keys:
                yield entry
            if page.next_cursor is None:
                return
            after = page.next_cursor

    def create_key(
        self,
        scopes: Sequence[Scope],
        *,
        project: str | None = None,
        label: str = "",
        expires_at: datetime | None = None,
    ) -> CreatedApiKey:
        """Create a key; `key` of the answer is its text, which cannot be read again.

        Args:
            scopes: what the key may do; only what the key that asks may do itself.
            project: the project of the key; by default that of the key that asks.
            label: a name for people to recognise it by.
            expires_at: when it stops to be valid; by default never.

        Raises:
            AdjudgeError: as for other methods, but the request is not tried again: the key may exist nevertheless.
        """
        return self.send(create_key_request(scopes, project, label, expires_at))

    def revoke_key(self, key_id: str, *, project: str | None = None) -> ApiKey:
        """Revoke a key for good, by its id."""
        return self.send(revoke_key_request(key_id, project))

    def audit_log(self, subject: str | None = None, *, project: str | None = None) -> Iterator[AuditEntry]:
        """Iterate over the audit log of a project, newest first, or over the changes of one subject."""
        after: str | None = None
        while True:
            page = self.send(audit_request(subject, project, after))
            for entry in page.entries:
                yield entry
            if page.next_cursor is None:
                return
            after = page.next_cursor


class Client(RubricMethods, LedgerMethods, OperationMethods, ProjectMethods):
    """A connection to one Adjudge service. Threads can share it; close it when done.

    Processes can be forked: each opens connections of its own. Only a `transport` cannot be shared by them.

    Args:
        base_url: the service's URL, such as `http://judge:8000`. Defaults to the environment variable ADJUDGE_URL.
        run: the training run under which requests are recorded.
        timeout_s: seconds to wait for an answer. For judging requests, at least their deadline plus a margin.
        retries: how often a request is retried if the connection fails, the service is overloaded, or its problem is
            retryable. All requests are safe to repeat: nothing is judged or published twice.
        retry_budget_s: no retry starts later than this many seconds after the first attempt.
        headers: headers for every request; an `Authorization` header replaces that of the key.
        api_key: the API key (`adj_…`), if the service needs one. Defaults to the environment variable ADJUDGE_API_KEY;
            pass an empty string for no key.
        transport: an httpx2 transport to use instead of the network.
        sleep: waits the given seconds between attempts.
        clock: returns seconds, for the retry budget.
        random: returns a number in [0, 1), for the jitter of waits.

    Raises:
        ValueError: an argument is out of range, or there is no URL.
    """

    def rewards(
        self,
        groups: Sequence[GroupLike],
        rubric: RubricLike | None = None,
        mode: RewardMode = "weighted_mean",
        *,
        on_failure: FailurePolicy = "null",
        deadline_s: float = 60.0,
        step: int | None = None,
        idempotency_key: str | None = None,
        **options: Unpack[RewardKeywords],
    ) -> RewardAnswer:
        """Judge groups of responses by a rubric and return their rewards.

        Half a surrogate pair in a text, which JSON cannot carry, is sent as U+FFFD. Spans count code points and stay
        right.

        Args:
            groups: `Group` models or mappings of their fields: `id`, `prompt`, `responses`, … A response is text,
                a list of messages, or a mapping `{"text": …, "tokens": …, "stopped": …}`.
            rubric: a reference (`name`, `name@3`, `name@alias`, `sha256:…`), the rubric itself, or a list of its
                criteria. A group can have its own rubric instead.
            mode: how verdicts become a reward, see `trainer_client.rewards`.
            on_failure: the reward of a response when judging fails: `null`, `error`, `zero`, `zero_unparseable` or
                `skip`.
            deadline_s: the time that the service has, in seconds; verdicts that are not ready by then fail.
            step: the training step to record.
            idempotency_key: requests with the same key are processed and recorded once. A key that was used for a
                different request is refused. Not sent by default.

        Options; those left out are not sent, and the service uses its defaults:
            allow_retired: accept a rubric version that is retired; otherwise the request is refused.
            judge: the name of the judge; each judge of the service has one. Default: `default`.
            kinds: the kinds of criteria that count, as if the rubric had no others.
            format_weight: lambda of the `stepwise` base reward, the weight of the format in [0, 1] (SRaR has 0.1).
                Default: 0.1.
            gate_fraction: rho, the share of the criteria that a response must satisfy to pass a `gate`, in [0, 1].
                Default: 0.5.
            length_penalty: `LengthPenalty` or its fields: a penalty on length; needs `tokens` of every response.
            overlong_penalty: `OverlongPenalty` or its fields: a penalty near the generation limit; needs `tokens` of
                every response.
            truncation_factor: the factor, in [0, 1], for the reward of a response that was cut off; needs `stopped` of
                every response.
            use: what of a yes/no verdict enters the reward: `verdict` for hard rewards from scores of 0 and 1;
                `probability` for soft rewards, where the calibrated probability of yes takes the place of the score.
                Default: `verdict`.
            schedule: the pairs of a group that `ranking` compares, each in both orders: `all_pairs`; `swiss`, rounds in
                which each response meets another of about its own standing; `pivot`, every response against the same
                one of the group, which a hash of the texts picks. Default: `all_pairs`.
            rounds: the rounds of a `swiss` schedule; by default log2 of the number of responses, rounded up.
            rationale: have the judge write its reasons before the verdict, and return them.
            think_tokens: the maximum length of a thinking judge's thoughts, in its tokens. Default: 0.
            reasoning: which part of a response the judge sees: the response without its thinking block (`strip`), all
                of it (`keep`), or only the thinking block (`only`). Default: `strip`.
            prompt_opens: the tag of the thinking block that the policy's chat template opens at the end of the prompt,
                such as `<think>`, or `none` if it opens none.
            grounding_characters: the maximum length of the grounding shown to the judge, in characters.
            template: the name of one of the server's sets of prompt templates; defaults to the server's default set.
            protocol: the judging protocol; by default that of the reward mode, or `binary` without one.
            criteria_per_call: the number of criteria in one judge call, or `all`; by default all for `checklist`, and 1
                for the other protocols.
            votes: the number of verdicts to sample for each criterion. Default: 1.
            temperature: the judge's sampling temperature; defaults to 0, or to 0.7 if `votes` is above 1.
            truncate: judge a response that exceeds the judge's context without its middle, and report how much was left
                out.
            steps: what the steps of a response are, to which the protocol `stepwise` attributes verdicts: `headings`,
                its `### Step N` headings; `turns`, its messages of role `assistant`, counted from 1 (a text is one
                turn); `paragraphs`, separated by blank lines; `given`, the `steps` of each response of the request.
                Default: `headings`.
            defences: what protects the judge from deceitful responses, besides the fences around them. Default:
                `normalise`, `no_content`.
            contextual_calibration: ask each criterion once more about an empty response to the same prompt, and judge
                by what the response changes: the log-odds of yes with it, less those without it (Zhao et al. 2021).
            on_decoy: what becomes of a suspicious response: `flag` leaves its verdicts as they are; `fail` makes all of
                the judge's verdicts on it fail as `decoy`, so that `on_failure` decides about its reward. Default:
                `flag`.
            uncertain_band: a verdict is uncertain if its calibrated probability is from the first up to the second.
            on_uncertain: what reward a response gets whose reward needs a verdict that is uncertain. Default: `null`.
            dropout: `RubricDropout` or its fields: judge a random share of the criteria of each group, with an unbiased
                reward; only in linear modes.
            priority: `online` if a training step waits; `bulk` work waits until online requests are served. Default:
                `online`.
            gold: `GoldSampling` or its fields: judge a share of the responses by a second judge too, which needs a
                `run`.

        Returns:
            Rewards and verdicts, with groups and responses in the order given. A reward is None if judging failed.

        Raises:
            InvalidRequest: the request breaks the contract; nothing was sent if the error has no status.
            RubricRefused: the rubric does not suit the mode.
            RubricRetired: the rubric is retired.
            UnknownRubric: there is no such rubric.
            JudgingFailed: judging failed and `on_failure` is `error`.
            MismatchedAnswer: the answer belongs to another request, or lacks a group, a response or a criterion.
            AdjudgeError: the service cannot be reached, or its answer is invalid; see the subclasses.
            TypeError: there is no such option.
        """
        return self.send(
            rewards_request(
                "rewards",
                self.run,
                groups,
                rubric,
                mode,
                options,
                on_failure=on_failure,
                deadline_s=deadline_s,
                step=step,
                idempotency_key=idempotency_key,
            )
        )

    def stream_rewards(
        self,
        groups: Sequence[GroupLike],
        rubric: RubricLike | None = None,
        mode: RewardMode = "weighted_mean",
        *,
        on_failure: FailurePolicy = "null",
        deadline_s: float = 60.0,
        step: int | None = None,
        idempotency_key: str | None = None,
        **options: Unpack[RewardKeywords],
    ) -> RewardStream:
        """Reward groups like `rewards`, and yield each group as soon as it is done.

        The request is validated at once, and sent when you request the first group. It is retried only until that group
        has arrived. Closing the stream, by `close` or by leaving a `with` block, cancels the groups that are
        not done.

        Returns:
            The groups in the order in which they finish. After the last group, `summary` holds the rest of the answer.

        Raises:
            InvalidRequest, TypeError: at once, as for `rewards`.
            ConnectionFailed: during iteration: the answer was cut off. The groups received so far are complete.
            MismatchedAnswer: during iteration: the answer belongs to another request, or lacks a part of its own.
                Do not use the groups that came before.
            AdjudgeError: during iteration, as for `rewards`.
        """
        request = rewards_request(
            "stream_rewards",
            self.run,
            groups,
            rubric,
            mode,
            options,
            on_failure=on_failure,
            deadline_s=deadline_s,
            step=step,
            idempotency_key=idempotency_key,
        )
        parser = RewardStreamParser(self.base_url, request)
        return RewardStream(self._stream_groups(request.with_accept(NDJSON), parser), parser)

    def verdicts(
        self,
        groups: Sequence[GroupLike],
        rubric: RubricLike | None = None,
        *,
        deadline_s: float = 60.0,
        step: int | None = None,
        idempotency_key: str | None = None,
        **options: Unpack[VerdictKeywords],
    ) -> VerdictAnswer:
        """Judge groups of responses by a rubric, without computing rewards. Accepts any rubric.

        Arguments, options (those up to `priority`) and errors are the same as for `rewards`. `protocol` defaults to
        `binary`. With `fresh=True`, the judge is asked even where its verdict is known already.

        Returns:
            Verdicts, with groups and responses in the order given. A score is None if judging failed.
        """
        request = verdicts_request(
            self.run,
            groups,
            rubric,
            options,
            deadline_s=deadline_s,
            step=step,
            idempotency_key=idempotency_key,
        )
        return self.send(request)

    def compare(
        self,
        pairs: Sequence[PairLike],
        rubric: RubricLike | None = None,
        *,
        question: str | None = None,
        deadline_s: float = 60.0,
        step: int | None = None,
        **options: Unpack[ComparisonKeywords],
    ) -> ComparisonAnswer:
        """Ask which of two responses to a prompt is better, in both orders. If the orders disagree, it is a tie.

        Args:
            pairs: `Pair` models or mappings of their fields: `id`, `prompt`, `a`, `b`, …
            rubric: an optional rubric that tells the judge what to look at, as for `rewards`.
            question: the question to the judge; defaults to which response is better.
            deadline_s: as for `rewards`.
            step: as for `rewards`.

        The options `rationale`, `think_tokens`, `reasoning`, `grounding_characters`, `template`, `allow_retired`,
        `judge` and `priority` and the errors are the same as for `rewards`.

        Returns:
            Comparisons in the order of the pairs, and the win rate of `a`. A score is None if judging failed.
        """
        return self.send(
            comparison_request(self.run, pairs, rubric, question, options, deadline_s=deadline_s, step=step)
        )
