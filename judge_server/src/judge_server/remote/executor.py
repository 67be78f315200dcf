"""The judge executor of an api without an engine: judges in other processes answer its calls.

All calls about a response go to one judge. If that judge goes down, its unanswered calls go to another.

`JudgeClient` is the client for one judge process, and maps each way its connection can fail to an error of its own.
"""

import asyncio
import hashlib
import json
import logging
import math
from collections import defaultdict
from collections.abc import AsyncGenerator, Collection, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from http import HTTPStatus
from typing import NamedTuple, NoReturn

import httpx2
from opentelemetry.trace import SpanKind
from pydantic import TypeAdapter, ValidationError

from judge_server.engines.openai.http import retry_after_s
from judge_server.errors import (
    CannotLoad,
    CannotSleep,
    EngineStartError,
    EngineUnavailable,
    NotReady,
    Overloaded,
    WeightsChanged,
)
from judge_server.judging.plan import PlannedCall, ResponsePlan
from judge_server.judging.results import (
    Caller,
    JudgingProgress,
    Outcomes,
    UnresolvedWork,
    WriteBehindBuffer,
)
from judge_server.observability.tracing import propagation_headers, span
from judge_server.ports import Batch, CallFailure, EngineIdentity, JudgeResult, MemberView
from judge_server.remote.messages import PROTOCOL_VERSION, Handshake, ResultEvent, Shard, ShardRequest, TokenCount
from judge_server.scheduling.admission import DEFAULT_QUEUE_RULES
from judge_server.scheduling.call_runner import DEADLINE_EXCEEDED, MAX_HOLD_S
from judge_server.scheduling.metrics import JudgeMetrics
from judge_server.scheduling.pools import Member, MemberUnavailable, Pool, PoolRules, key_of
from judge_server.scheduling.sleep import Lease, SleepReport, together
from judge_server.scheduling.weights import VersionGate, WeightsOrder, WeightsReport, require_tag, weights_tag
from trainer_client import __version__
from trainer_client.wire import Problem
from trainer_client.wire.judges import SleepState

log = logging.getLogger("adjudge")

DEADLINE_GRACE_S = 0.1
"""How long after the deadline the api waits for a judge to send its results."""

RETRY_WINDOW_S = 5.0
"""An api looks for a judge for this long before it refuses a request that no judge has taken. If it is shorter than a
judge's restart in place, the api refuses requests needlessly."""


class JudgeWaits(NamedTuple):
    """How long a request looks for a judge, in seconds: if no judge has taken it, and if one has and went away."""

    retry_window_s: float = RETRY_WINDOW_S
    max_hold_s: float = MAX_HOLD_S


JUDGE_WAITS = JudgeWaits()

_POLL_S = 0.1
_MAX_PLANS, _MAX_CHARACTERS = 64, 4_000_000
"""The most in one shard request, so that no judge is busy for long reading one."""

CONNECT_TIMEOUT_S = 5.0
"""Timeout of an api to connect to a judge."""

HEARTBEATS_MISSED = 3
"""How many heartbeats a judge may miss before the connection counts as lost."""

ROOT = "/internal/v1"
BATCH, LEASE, REPORT = TypeAdapter(Batch), TypeAdapter(Lease), TypeAdapter(SleepReport)
ORDER, WEIGHTS = TypeAdapter(WeightsOrder), TypeAdapter(WeightsReport)
_JSON = {"Content-Type": "application/json"}

_BROKEN = (httpx2.HTTPError, OSError, RuntimeError, AttributeError)
"""What a broken connection raises. If it is reset during connect, httpx2 asks uvloop for a closed socket."""


class JudgeUnavailable(Exception):
    """A judge did not answer, or not as a judge should; the message gives the details."""


class JudgeNotReady(JudgeUnavailable):
    """A judge took no calls: no connection could be made, or it is not ready."""


class ProtocolMismatch(JudgeUnavailable):
    """A judge speaks another protocol, because a rolling upgrade has not reached it or this api."""

    def __init__(self, url: str, protocol: object) -> None:
        super().__init__(
            f"the judge at {url} speaks protocol {protocol} and this api {PROTOCOL_VERSION} (Adjudge {__version__}); "
            "it is not used until both run the same version"
        )
        self.protocol = protocol


def identity_digest(identity: EngineIdentity) -> str:
    """Hash an identity without its concurrency. Judges with equal digests give the same measurement."""
    parts = asdict(identity)
    del parts["concurrent_batches"]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


class JudgeClient:
    """A client for the judge process at `url`; `token` is the token it requires, if any."""

    def __init__(self, url: str, token: str | None, *, transport: httpx2.AsyncBaseTransport | None = None) -> None:
        self.url = url.rstrip("/")
        self._client = httpx2.AsyncClient(
            base_url=self.url,
            headers={"Authorization": f"Bearer {token}"} if token else {},
            timeout=httpx2.Timeout(None, connect=CONNECT_TIMEOUT_S),  # health checks have a timeout of their own
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=2.0),
            transport=transport,
        )
        self._read_timeout_s: float | None = None

    async def handshake(self) -> Handshake:
        """Ask the judge for its identity and state.

        Raises:
            EngineStartError: it refuses the token.
            ProtocolMismatch: it speaks another protocol.
            JudgeUnavailable: it does not answer, or is not a judge.
        """
        try:
            answer = await self._client.get(f"{ROOT}/judge")
        except _BROKEN as error:
            raise self._unavailable(error) from error
        if answer.status_code == HTTPStatus.UNAUTHORIZED:
            raise EngineStartError(
                f"the judge at {self.url} refuses the token; set ADJUDGE_JUDGE_TOKEN to the same secret on both sides"
            )
        if answer.status_code != HTTPStatus.OK:
            raise JudgeUnavailable(f"the judge at {self.url} answered HTTP {answer.status_code}")
        try:
            protocol = answer.json().get("protocol")
            if protocol != PROTOCOL_VERSION:
                raise ProtocolMismatch(self.url, protocol)
            handshake = Handshake.model_validate_json(answer.content)
        except (ValidationError, ValueError, AttributeError) as error:
            raise JudgeUnavailable(
                f"the server at {self.url} is not a judge; it answered {answer.text[:80]!r}"
            ) from error
        self._read_timeout_s = HEARTBEATS_MISSED * handshake.heartbeat_s or None
        return handshake

    async def ask(self, shard_request: ShardRequest) -> AsyncGenerator[ResultEvent, None]:
        """Have calls answered, and yield their outcomes. Closing the generator drops unanswered calls.

        Raises:
            JudgeUnavailable: it went down, missed its heartbeats, or is no longer the judge asked for.
            Overloaded: its queue is full.
        """
        rest = b""
        headers = _JSON | propagation_headers()
        try:
            async with self._client.stream(
                "POST",
                f"{ROOT}/outcomes",
                content=shard_request.model_dump_json(),
                headers=headers,
                timeout=httpx2.Timeout(None, connect=CONNECT_TIMEOUT_S, read=self._read_timeout_s),
            ) as answer:
                if answer.status_code != HTTPStatus.OK:
                    await answer.aread()
                    self._raise_for_status(answer)
                async with aclosing(answer.aiter_raw()) as chunks:
                    async for chunk in chunks:
                        *lines, rest = (rest + chunk).split(b"\n")
                        for line in lines:
                            event = ResultEvent.model_validate_json(line)
                            if event.outcomes:
                                yield event
        except ValidationError as error:
            raise JudgeUnavailable(f"the judge at {self.url} sent an invalid line") from error
        except _BROKEN as error:
            raise self._unavailable(error) from error
        if rest:
            raise JudgeUnavailable(f"the judge at {self.url} closed the connection in the middle of a line")

    async def count_tokens(self, batch: Batch) -> int:
        """Count the tokens of the batch's longest prompt. Raises `JudgeUnavailable`."""
        try:
            answer = await self._client.post(
                f"{ROOT}/tokens", content=BATCH.dump_json(batch), headers=_JSON | propagation_headers()
            )
            if answer.status_code != HTTPStatus.OK:
                self._raise_for_status(answer)
            return TokenCount.model_validate_json(answer.content).tokens
        except (*_BROKEN, ValidationError, Overloaded) as error:
            raise self._unavailable(error) from error

    async def hold(self, lease: Lease) -> SleepReport:
        """Give the judge a lease, and wait until its engine follows.

        Raises:
            CannotSleep: its engine cannot sleep.
            NotReady: it failed to fall asleep or to wake.
            JudgeUnavailable: it does not answer.
        """
        try:
            answer = await self._client.post(f"{ROOT}/leases", content=LEASE.dump_json(lease), headers=_JSON)
            if answer.status_code == HTTPStatus.OK:
                return REPORT.validate_json(answer.content)
            problem = Problem.model_validate_json(answer.content)
        except (*_BROKEN, ValidationError) as error:
            raise self._unavailable(error) from error
        if answer.status_code == HTTPStatus.UNPROCESSABLE_ENTITY:
            raise CannotSleep(problem.detail)
        raise NotReady(f"the judge at {self.url}: {problem.detail}", retry_after_s=2)

    async def load(self, order: WeightsOrder) -> WeightsReport:
        """Have the judge load other weights.

        Raises:
            CannotLoad, WeightsChanged: it has the weights before.
            NotReady: its requests under way have not ended, or which weights it has is unknown.
            JudgeUnavailable: it does not answer, or is of a version that loads no weights.
        """
        try:
            answer = await self._client.post(f"{ROOT}/weights", content=ORDER.dump_json(order), headers=_JSON)
            if answer.status_code == HTTPStatus.OK:
                return WEIGHTS.validate_json(answer.content)
            problem = Problem.model_validate_json(answer.content)
        except (*_BROKEN, ValidationError) as error:
            raise self._unavailable(error) from error
        if answer.status_code == HTTPStatus.UNPROCESSABLE_ENTITY:
            raise CannotLoad(problem.detail)
        if answer.status_code == HTTPStatus.PRECONDITION_FAILED:
            raise WeightsChanged(problem.detail)
        if answer.status_code == HTTPStatus.SERVICE_UNAVAILABLE:
            raise NotReady(f"The judge at {self.url}: {problem.detail}", retry_after_s=2)
        raise JudgeUnavailable(f"the judge at {self.url} answered HTTP {answer.status_code}: {problem.detail}")

    async def close(self) -> None:
        """Close every connection; requests in progress fail."""
        await self._client.aclose()

    def _raise_for_status(self, answer: httpx2.Response) -> NoReturn:
        if answer.status_code == HTTPStatus.TOO_MANY_REQUESTS:
            wait = retry_after_s(answer.headers, datetime.now(UTC))
            raise Overloaded(
                Problem.model_validate_json(answer.content).detail,
                retry_after_s=None if wait is None else math.ceil(wait),
            )
        # The body is not quoted: a proxy in between may repeat what it was sent.
        refusal, why = JudgeUnavailable, "not an answer of a judge"
        with suppress(ValidationError):
            problem = Problem.model_validate_json(answer.content)
            why = problem.detail
            if problem.type == NotReady.type:
                refusal = JudgeNotReady
        raise refusal(f"the judge at {self.url} answered HTTP {answer.status_code}: {why}")

    def _unavailable(self, error: Exception) -> JudgeUnavailable:
        not_connected = isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout)
        return (JudgeNotReady if not_connected else JudgeUnavailable)(
            f"no answer from the judge at {self.url}: {error or type(error).__name__}"
        )


class RemoteExecutor:
    """Judges of one model, reached through `links`. A judge of another model or protocol is left out and logged.

    Judges may start after the api, and may be replaced by others of its protocol. Once all of them have changed their
    model, the api adopts the new one.
    """

    identity: EngineIdentity
    fatal_error = ""

    def __init__(
        self,
        links: Collection[JudgeClient],
        rules: PoolRules = PoolRules(),  # noqa: B008 - a frozen value
        *,
        max_calls: int = DEFAULT_QUEUE_RULES.calls,
        waits: JudgeWaits = JUDGE_WAITS,
    ) -> None:
        self._waits = waits
        self.write_buffer = WriteBehindBuffer()
        self.max_calls = max_calls
        self._pool = Pool({link.url: link for link in links}, self._check_health, rules)
        self._identified = asyncio.Event()
        self._errors: dict[str, EngineStartError | JudgeUnavailable] = {}
        self._sleep_states: dict[str, SleepState] = {}
        self._gate = VersionGate()
        self._loading = asyncio.Lock()
        self._weights: dict[str, WeightsReport] = {}

    @property
    def unavailable_reason(self) -> str:
        """Why calls cannot be answered: every judge speaks another protocol. Empty otherwise."""
        mismatches = [error for error in self._errors.values() if isinstance(error, ProtocolMismatch)]
        if len(mismatches) < len(self._pool.members):
            return ""
        theirs = ", ".join(sorted({str(error.protocol) for error in mismatches}))
        return (
            f"every judge speaks protocol {theirs} and this api {PROTOCOL_VERSION}; "
            "it waits for judges of its own version"
        )

    @property
    def sleep_state(self) -> SleepState:
        """The state that all judges which are up had at their last health check, or whether they are on their way."""
        return together(SleepReport(self._sleep_states.get(link.url, "awake")) for link in self._up).state

    async def hold(self, lease: Lease) -> SleepReport:
        """Give the lease to every judge, also to those that are gone because they cannot wake.

        One that does not answer holds no memory, and starts in its resting state: it is left out. Raises the first
        error, when all others have followed or failed.
        """
        members = self._pool.members
        reports = await asyncio.gather(*[self._hold(member, lease) for member in members], return_exceptions=True)
        away = [isinstance(one, JudgeUnavailable | MemberUnavailable) for one in reports]
        if all(away):
            raise NotReady("no judge is available; see the api's log for the reason", retry_after_s=2)
        found = [one for one, gone in zip(reports, away, strict=True) if not gone]
        for one in found:
            if isinstance(one, BaseException):
                raise one
        return together(one for one in found if isinstance(one, SleepReport))

    async def _hold(self, member: Member[JudgeClient], lease: Lease) -> SleepReport:
        link = member.target
        try:
            if member.gone.is_set():
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    report = await link.hold(lease)
            else:
                async with member.cancel_when_gone():
                    report = await link.hold(lease)
        except TimeoutError as error:
            raise JudgeUnavailable(f"no answer from the judge at {link.url}") from error
        self._sleep_states[link.url] = report.state
        return report

    @property
    def weights(self) -> WeightsReport:
        """The weights of the judges that calls are sent to."""
        tag = weights_tag(self.identity)
        known = (report for report in self._weights.values() if report.tag == tag)
        return next(known, WeightsReport(self.identity.model, tag))

    async def load(self, order: WeightsOrder) -> WeightsReport:
        """Have every judge that is up load other weights, once the requests of this api have ended.

        Each judge waits for the requests of other apis, which then find out that it has other weights. If some fail,
        calls go to those that have the weights before, until a later load succeeds. Raises the first error.
        """
        async with self._loading:
            require_tag(order, self.weights)
            async with self._gate.change(order.wait_s):
                links = self._up
                if not links:
                    raise NotReady("no judge is available; see the api's log for the reason", retry_after_s=2)
                done = await asyncio.gather(*[link.load(order) for link in links], return_exceptions=True)
                for one in done:
                    if isinstance(one, JudgeUnavailable):
                        raise NotReady(str(one), retry_after_s=2) from one
                    if isinstance(one, BaseException):
                        raise one
                await self._take_over(links[0])
                self._weights |= {
                    link.url: one for link, one in zip(links, done, strict=True) if isinstance(one, WeightsReport)
                }
                return self.weights

    async def _take_over(self, link: JudgeClient) -> None:
        try:
            identity = (await link.handshake()).identity
        except JudgeUnavailable as error:
            raise NotReady(str(error), retry_after_s=2) from error
        if identity is not None:
            self.identity = identity

    def one_version(self, deadline: float) -> AbstractAsyncContextManager[None]:
        """Keep requests and changes of weights of this api apart."""
        return self._gate.request(deadline)

    @property
    def _up(self) -> list[JudgeClient]:
        return [member.target for member in self._pool.members if not member.gone.is_set()]

    def members(self) -> list[MemberView]:
        """Return the judges, available or not."""
        return [member.view for member in self._pool.members]

    async def start(self, metrics: JudgeMetrics) -> None:
        """Wait for the first judge. Raises `EngineStartError` if all refuse this api's token."""
        self._metrics = metrics
        self._pool.start()
        while not self._identified.is_set():
            refused = [error for error in self._errors.values() if isinstance(error, EngineStartError)]
            if len(refused) == len(self._pool.members):
                raise refused[0]
            await asyncio.sleep(0.05)

    def submit(
        self,
        work: Sequence[UnresolvedWork],
        caller: Caller,
        progress: JudgingProgress,
        deadline: float,
    ) -> "RemotePendingJudgement":
        """Prepare the calls. They are sent when the request waits for them."""
        judges = Judges(self._pool, identity_digest(self.identity), self._metrics, self._waits)
        return RemotePendingJudgement(judges, work, caller, progress, deadline)

    async def count_tokens(self, batch: Batch) -> int:
        """Count with the judge that the batch is assigned to."""
        member = self._pool.choose(key_of(batch.shared))
        if member is None:
            raise EngineUnavailable("no judge is available")
        try:
            return await member.target.count_tokens(batch)
        except JudgeUnavailable as error:
            member.failed(str(error))
            raise EngineUnavailable(str(error)) from error

    async def ready(self) -> bool:
        """Whether a judge is available."""
        return any(member.available for member in self._pool.members)

    async def should_receive_traffic(self) -> bool:
        """Whether a judge was found, and not every judge speaks another protocol."""
        return self._identified.is_set() and not self.unavailable_reason

    async def close(self) -> None:
        """Close the connections to all judges."""
        await self._pool.close()
        await asyncio.gather(*(member.target.close() for member in self._pool.members))

    async def _check_health(self, link: JudgeClient) -> bool:
        try:
            handshake = await link.handshake()
        except (EngineStartError, JudgeUnavailable) as error:
            self._errors[link.url] = error
            raise
        self._errors.pop(link.url, None)
        self._sleep_states[link.url] = handshake.sleep_state
        if handshake.weights is not None:
            self._weights[link.url] = handshake.weights
        if handshake.identity is None or not handshake.ready:
            return False
        if not self._identified.is_set():
            self.identity = handshake.identity
            self._identified.set()
        elif identity_digest(handshake.identity) != identity_digest(self.identity):
            if self._loading.locked():  # the judges change their weights one by one
                return True
            if any(member.target is not link and not member.gone.is_set() for member in self._pool.members):
                raise JudgeUnavailable(
                    f"it judges with {handshake.identity.model}, but the others judge with {self.identity.model}"
                )
            log.warning("all judges have changed their model: judging with %s from now on", handshake.identity.model)
            self.identity = handshake.identity
        return True


class Judges(NamedTuple):
    """The judges that a request is sent to, all with this digest of their identity, and how long it looks for one."""

    pool: Pool[JudgeClient]
    identity: str
    metrics: JudgeMetrics
    waits: JudgeWaits


class RemotePendingJudgement:
    """One request's calls at judges in other processes.

    The calls about a response go to the judge that its digest is assigned to. If that judge goes down, the calls it has
    not answered go to the next one; its answers stand.
    """

    def __init__(
        self,
        judges: Judges,
        work: Sequence[UnresolvedWork],
        caller: Caller,
        progress: JudgingProgress,
        deadline: float,
    ) -> None:
        self._pool, self._identity, self._metrics, self._waits = judges
        self._shard: Shard = [(plan, planned_calls) for plan, planned_calls, _ in work if planned_calls]
        self._caller = caller
        self._progress = progress
        self._deadline = deadline
        self._failure = DEADLINE_EXCEEDED
        self._overloaded: Overloaded | None = None
        self._not_ready: NotReady | None = None
        self._judged = False
        self._at_judges = 0

    async def wait(self) -> None:
        """Wait until every outcome is known or the deadline passes.

        Raises:
            Overloaded: every judge's queue was full; nothing was judged.
            NotReady: no judge accepted any call within the retry window.
        """
        late = False
        try:
            async with asyncio.timeout_at(self._deadline + DEADLINE_GRACE_S):
                await self._dispatch(self._shard)
        except TimeoutError:
            late = True
        left = self._missing(self._shard)
        if left and not self._judged and not late:
            if self._overloaded is not None:
                self._metrics.count_shed(sum(len(planned_calls) for _, planned_calls in left))
                raise self._overloaded
            if self._not_ready is not None:
                raise self._not_ready
        failure = DEADLINE_EXCEEDED if late else self._failure
        late_digests = [digest for _, planned_calls in left for one in planned_calls for digest in one.digests]
        self._progress.add(Outcomes(dict.fromkeys(late_digests, failure)))

    def cancel(self) -> None:
        """Do nothing: cancelling `wait` has closed the connection to every judge already."""

    async def _dispatch(self, shard: Shard, tried: Collection[str] = (), failing_since: float | None = None) -> None:
        """Ask each response of a shard of its judge, or of one that is not in `tried`."""
        exclude = await self._wait_for_judge(tried, failing_since)
        if exclude is None:
            return
        shares: defaultdict[str, Shard] = defaultdict(list)
        members: dict[str, Member[JudgeClient]] = {}
        held: Shard = []  # a judge that was down gets one response to try; what has no other judge waits for the result
        for plan, planned_calls in shard:
            member = self._pool.choose(key_of(plan.batch.shared), len(planned_calls), exclude=exclude)
            if member is None:
                held.append((plan, planned_calls))
                continue
            member.load += len(planned_calls)
            members[member.name] = member
            shares[member.name].append((plan, planned_calls))
        async with asyncio.TaskGroup() as tasks:
            for name, share in shares.items():
                for part in _split_shard(share):
                    tasks.create_task(self._ask(members[name], part, exclude, failing_since))
            if held:
                tasks.create_task(self._dispatch(held, exclude, failing_since))

    async def _wait_for_judge(self, tried: Collection[str], failing_since: float | None) -> Collection[str] | None:
        """Wait for a judge that was not tried or may be tried again; return those to exclude, or None to give up."""
        now = asyncio.get_running_loop().time
        lost = self._failure is not DEADLINE_EXCEEDED  # a judge had calls of this request and went away
        wait_s = self._waits.max_hold_s if lost else self._waits.retry_window_s
        until = (now() if failing_since is None else failing_since) + wait_s
        while not any(member.available and member.name not in tried for member in self._pool.members):
            if self._overloaded is not None:
                return None
            if now() >= until and not self._at_judges:
                if not lost:
                    names = ", ".join(member.name for member in self._pool.members)
                    why = f"no judge is available ({names}); see the api's log for the reason"
                    self._failure, self._not_ready = CallFailure("engine", why), NotReady(why, retry_after_s=2)
                return None
            await asyncio.sleep(_POLL_S)
            tried = ()
        return tried

    async def _ask(
        self, member: Member[JudgeClient], part: Shard, tried: Collection[str], failing_since: float | None
    ) -> None:
        now = asyncio.get_running_loop().time
        shard_request = ShardRequest.of(part, self._caller, self._identity, max(0.0, self._deadline - now()))
        self._at_judges += 1
        try:
            with span("judge_request", SpanKind.CLIENT, judge=member.name, responses=len(part)):
                async with member.cancel_when_gone(), aclosing(member.target.ask(shard_request)) as events:
                    async for event in events:
                        member.answers += 1
                        if member.state == "half_open":
                            member.succeeded()
                        self._apply_event(event)
                        failing_since = None
            member.succeeded()
        except MemberUnavailable:
            self._failure = CallFailure("engine", f"the judge at {member.name} went down")
        except JudgeUnavailable as error:
            member.failed(str(error))
            if not isinstance(error, JudgeNotReady):
                self._failure = CallFailure("engine", str(error))
        except Overloaded as error:
            member.succeeded()
            self._overloaded = error
            self._failure = CallFailure("overloaded", error.detail, error.retry_after_s)
        finally:
            self._at_judges -= 1
            member.load -= sum(len(planned_calls) for _, planned_calls in part)
        left = self._missing(part)
        if left:
            await self._dispatch(left, {*tried, member.name}, now() if failing_since is None else failing_since)

    def _apply_event(self, event: ResultEvent) -> None:
        self._judged = True
        self._progress.charge(event.account)
        found, known = event.read(), self._progress.known
        for digest in [digest for digest in found.by_digest if isinstance(known.get(digest), JudgeResult)]:
            del found.by_digest[digest]
        self._progress.add(found)

    def _missing(self, shard: Shard) -> Shard:
        """Return the calls of a shard that have no outcome yet."""
        known = self._progress.known
        open_calls = [
            (plan, [one for one in planned_calls if any(digest not in known for digest in one.digests)])
            for plan, planned_calls in shard
        ]
        return [(plan, planned_calls) for plan, planned_calls in open_calls if planned_calls]


def _split_shard(share: Shard) -> Iterator[list[tuple[ResponsePlan, list[PlannedCall]]]]:
    part: Shard = []
    characters = 0
    for plan, planned_calls in share:
        if part and (len(part) >= _MAX_PLANS or characters + len(plan.batch.shared) > _MAX_CHARACTERS):
            yield part
            part, characters = [], 0
        part.append((plan, planned_calls))
        characters += len(plan.batch.shared)
    if part:
        yield part
