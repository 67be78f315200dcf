"""Operations that call the service over HTTP: bulk scoring, and the evaluation of a judge or of rubrics.

They split their groups into chunks, one request each, and share the meaning of responses and errors for a chunk. Bulk
scoring sends `POST /v1/rewards`. The evaluation of a judge sends `POST /v1/verdicts` for labelled groups, and its final
chunk measures how well the verdicts agree with the labels. That of rubrics sends `POST /v1/rewards` for responses that
are known to be good and bad, and its final chunk measures how well the rewards tell them apart.
"""

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from hashlib import sha256
from typing import Any, cast

from pydantic import BaseModel, JsonValue

from judge_server.evaluation.labelled import read_labels
from judge_server.evaluation.measuring.separation import LabelledPrompt, separation_summary
from judge_server.judging.questions import HOLISTIC
from judge_server.ledger.recorder import TRANSIENT_FAILURES
from judge_server.operations.handlers.base import (
    FatalChunkError,
    InvalidOperationError,
    RetryableChunkError,
    ServiceUnavailableError,
)
from judge_server.operations.worker_tokens import TOKEN_LIFETIME_S
from judge_server.ports import OperationStore, RubricSource
from judge_server.ports.operations import MAX_PAGE_RESULTS, WILL_RETRY_HEADER
from judge_server.scoring.rubrics import find_rubric
from rubric_store.operations.rows import ChunkOutcome, ChunkRef, LeasedChunk, NewChunk
from trainer_client import AsyncClient
from trainer_client.client.calls import GroupsAnswerT, judging_request
from trainer_client.errors import AdjudgeError, BudgetExhausted, ConnectionFailed, NotReady, Overloaded
from trainer_client.wire import (
    Criterion,
    Group,
    ResponseReward,
    RewardAnswer,
    RewardRequest,
    RubricContent,
    VerdictAnswer,
    VerdictRequest,
)
from trainer_client.wire.operations import (
    CHUNK_DEADLINE_S,
    DiscriminateOperation,
    EvaluateOperation,
    LabelledGroup,
    PairedGroup,
    ScoreOperation,
)

log = logging.getLogger("adjudge")

CHUNK_RESPONSES = 32
"""The responses per chunk: a few seconds of judging, so that little is lost with a worker. Groups are not split."""

LOG_INTERVAL_S = 60.0
"""Interval of a worker's log lines that say why it gets no answer: often enough to notice, without a line for each
waiting chunk."""

_PROXY_STATUSES = frozenset({429, 502, 503, 504})
"""The statuses of a proxy between worker and service while the service cannot be reached."""

_NOT_FOUND_TYPE = "urn:adjudge:not-found"

_UNAUTHORIZED_MESSAGE = (
    "the service rejects the token of this process (status {status}); set the same ADJUDGE_SIGNING_SECRET for both, "
    f"and keep their clocks within {TOKEN_LIFETIME_S / 60:g} minutes of each other"
)
_WRONG_SERVICE_MESSAGE = (
    "the response is not from the service (status {status}); check that ADJUDGE_URL leads to its API, and check any "
    "proxy in between"
)

CHUNK_OPTIONS = {"deadline_s": CHUNK_DEADLINE_S, "priority": "bulk"}
"""The options of a chunk's request, unless the operation has its own."""

ClientFactory = Callable[[str], AsyncClient]
"""Creates a client of the service that acts for a project; the caller closes it."""


async def split_groups(
    rubrics: RubricSource, project_id: str, request: ScoreOperation | EvaluateOperation | DiscriminateOperation
) -> tuple[dict[str, Any], list[NewChunk]]:
    """Split a request into its options and chunks of its groups, each with the index of its first group.

    A chunk has about `CHUNK_RESPONSES` responses. References become pinned ones, `name@version`. Raises
    `UnknownRubric`.
    """
    pinned: dict[str, str] = {}
    for rubric in (request.rubric, *(group.rubric for group in request.groups)):
        if isinstance(rubric, str) and rubric not in pinned:
            pinned[rubric] = (await find_rubric(rubrics, project_id, rubric)).reference
    options = request.model_dump(mode="json", exclude={"groups", "kind"}, exclude_unset=True)
    if isinstance(request.rubric, str):
        options["rubric"] = pinned[request.rubric]
    batches: list[list[Group | PairedGroup]] = [[]]
    responses = 0
    for group in request.groups:
        if batches[-1] and responses + len(group.responses) > CHUNK_RESPONSES:
            batches.append([])
            responses = 0
        if isinstance(group.rubric, str):
            group = group.model_copy(update={"rubric": pinned[group.rubric]})
        batches[-1].append(group)
        responses += len(group.responses)
    first, chunks = 0, []
    for batch in batches:
        await asyncio.sleep(0)  # encoding all of them takes long
        encoded: list[JsonValue] = [group.model_dump(mode="json", exclude_unset=True) for group in batch]
        chunks.append(NewChunk(len(batch), {"first": first, "groups": encoded}))
        first += len(batch)
    return options, chunks


class ThrottledLog:
    """Logs why this process cannot use the service, at most once a minute. `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next_log_at = float("-inf")

    def log_error(self, problem: str) -> None:
        """Log a problem, unless one was logged within the last minute."""
        if self._clock() >= self._next_log_at:
            self._next_log_at = self._clock() + LOG_INTERVAL_S
            log.error("chunks of operations wait: %s", problem)


BLOCKED_LOG = ThrottledLog()
"""The throttled log of this process."""


@asynccontextmanager
async def translate_client_errors() -> AsyncIterator[None]:
    """Translate errors of the client to those of a chunk.

    If the service cannot be reached, is overloaded or not ready, the chunk waits without limit. It also waits if the
    service rejects this process, or if something else responds in its place, since another process may do the chunk. A
    request that the service rejects fails for good. Other errors are retried a limited number of times.
    """
    try:
        yield
    except (ConnectionFailed, NotReady, Overloaded, BudgetExhausted) as error:
        raise ServiceUnavailableError(str(error)) from error
    except AdjudgeError as error:
        if (problem := _blocking_problem(error)) is not None:
            BLOCKED_LOG.log_error(problem)
            raise ServiceUnavailableError(str(error)) from error
        if error.problem is None and error.status in _PROXY_STATUSES:
            raise ServiceUnavailableError(str(error)) from error
        is_fatal = error.status is not None and 400 <= error.status < 500 and not error.retryable
        raise (FatalChunkError if is_fatal else RetryableChunkError)(str(error)) from error


def _blocking_problem(error: AdjudgeError) -> str | None:
    """Why this process cannot use the service, in a message without quoted data; None if the chunk is at fault.

    A status of 413 means that the chunk is too large, even if it comes from a proxy.
    """
    status = error.status
    if status is None or 200 <= status < 300:
        return None
    if error.problem is None:
        return None if status == 413 or status in _PROXY_STATUSES else _WRONG_SERVICE_MESSAGE.format(status=status)
    if status in (401, 403):
        return _UNAUTHORIZED_MESSAGE.format(status=status)
    return _WRONG_SERVICE_MESSAGE.format(status=status) if error.problem.type == _NOT_FOUND_TYPE else None


class JudgingHandler:
    """What the handlers of groups share: they send a chunk to the service as one request.

    Attributes:
        rubrics: where references are looked up.
    """

    has_final_chunk = False

    def __init__(self, client_factory: ClientFactory, rubrics: RubricSource) -> None:
        self._client_factory = client_factory
        self.rubrics = rubrics

    async def split(self, project_id: str, request: BaseModel) -> tuple[dict[str, Any], Sequence[NewChunk]]:
        """Split a request into its options and chunks of its groups, with pinned rubrics."""
        assert isinstance(request, ScoreOperation | EvaluateOperation | DiscriminateOperation)
        return await split_groups(self.rubrics, project_id, request)

    async def criteria(self, project_id: str, rubric: RubricContent | str | None) -> Sequence[Criterion]:
        """The criteria of a rubric or reference; none for a mode without a rubric."""
        if rubric is None:
            return ()
        found = rubric if isinstance(rubric, RubricContent) else await find_rubric(self.rubrics, project_id, rubric)
        return found.criteria

    async def judge(
        self, work: LeasedChunk, request: RewardRequest | VerdictRequest, answer: type[GroupsAnswerT]
    ) -> GroupsAnswerT:
        """Judge a chunk, with headers by which all its attempts are recorded once.

        The key contains the body's digest, since a worker of another release may encode the same request differently.

        Raises:
            RetryableChunkError: another attempt may give verdicts that failed in this one.
        """
        path = "/v1/rewards" if isinstance(request, RewardRequest) else "/v1/verdicts"
        prepared = judging_request(path, request, answer, {})
        key = f"{work.ref.operation_id} {work.ref.chunk} {sha256(prepared.body or b'').hexdigest()[:32]}"
        will_retry = "false" if work.last_attempt else "true"
        prepared = replace(prepared, headers={"Idempotency-Key": key, WILL_RETRY_HEADER: will_retry})
        async with translate_client_errors(), self._client_factory(work.ref.project_id) as client:
            judged = await client.send(prepared)
        failures = [v.failure for group in judged.groups for r in group.responses for v in r.verdicts if v.failure]
        transient = [one for one in failures if one.kind in TRANSIENT_FAILURES]
        if transient and not work.last_attempt:
            problem = f"{len(transient)} verdicts failed, for example: {transient[0].kind}: {transient[0].detail}"
            raise RetryableChunkError(problem, ChunkOutcome(usage=judged.usage))
        return judged


def _unscored(answer: RewardAnswer) -> int:
    """The number of groups with a response that has no reward."""
    return sum(any(response.status == "unscored" for response in group.responses) for group in answer.groups)


class ScoreHandler(JudgingHandler):
    """Scores groups through a client of the service.

    A result has a group's rewards as `POST /v1/rewards` returns them, the `index` of the group among the inputs and the
    judge's `fingerprint`. A chunk with transient failures is retried, which does not repeat verdicts that succeeded;
    after the last attempt the failures become part of the result.
    """

    async def run(self, work: LeasedChunk) -> ChunkOutcome:
        """Score a chunk."""
        request = RewardRequest.model_validate({**CHUNK_OPTIONS, **work.request, "groups": work.body["groups"]})
        answer = await self.judge(work, request, RewardAnswer)
        results = [
            {"index": index, "fingerprint": fingerprint_of(answer), **group.model_dump(mode="json")}
            for index, group in enumerate(answer.groups, work.body["first"])
        ]
        return ChunkOutcome(results, answer.usage, {"failed": _unscored(answer)})


def fingerprint_of(answer: RewardAnswer | VerdictAnswer) -> str | None:
    """The fingerprint of the judge of an answer; None if none was asked."""
    return None if answer.judge is None else answer.judge.fingerprint


class SummingHandler(JudgingHandler, ABC):
    """What handlers share that judge in chunks, and sum up all results in a final one."""

    has_final_chunk = True

    def __init__(self, client_factory: ClientFactory, rubrics: RubricSource, store: OperationStore) -> None:
        super().__init__(client_factory, rubrics)
        self._store = store

    @abstractmethod
    async def run_chunk(self, work: LeasedChunk) -> ChunkOutcome:
        """Judge a chunk."""

    @abstractmethod
    async def summary(self, work: LeasedChunk) -> dict[str, JsonValue]:
        """Sum up the results of the whole operation."""

    async def run(self, work: LeasedChunk) -> ChunkOutcome:
        """Judge a chunk, or in the final chunk sum up all results."""
        return ChunkOutcome(summary=await self.summary(work)) if work.body is None else await self.run_chunk(work)

    async def results(self, ref: ChunkRef) -> AsyncIterator[Any]:
        """Read the results of an operation."""
        after: int | None = 0
        while after is not None:
            page = await self._store.results(ref.project_id, ref.operation_id, after=after, limit=MAX_PAGE_RESULTS)
            if page is None:
                return
            for result in page.results:
                yield result
            after = int(page.next_cursor) if page.results and page.next_cursor is not None else None


class EvaluateHandler(SummingHandler):
    """Judges labelled groups through a client of the service.

    A result has the `index` and `id` of a group, the judge's `fingerprint`, and `verdicts`: for each labelled criterion
    of each response, its `label`, `score`, `probability` and `raw_probability`. The summary compares verdicts and
    labels.
    """

    async def split(self, project_id: str, request: BaseModel) -> tuple[dict[str, Any], Sequence[NewChunk]]:
        """Split a request as the other handlers do; refuse a label of a criterion that is not judged."""
        assert isinstance(request, EvaluateOperation)
        options, chunks = await super().split(project_id, request)
        rubric: RubricContent | str | None = None
        known = {HOLISTIC}
        for chunk in chunks:
            await asyncio.sleep(0)  # checking all of them takes long
            body = cast("dict[str, Any]", chunk.body)
            for index, sent in enumerate(body["groups"], body["first"]):
                group = request.groups[index]
                own = group.rubric or request.rubric
                if isinstance(own, str):
                    own = str(sent.get("rubric") or options["rubric"])  # pinned
                if own != rubric and request.judging.protocol != "likert":
                    known = {one.id for one in await self.criteria(project_id, own)}
                    rubric = own
                _check_labels(group, index, known)
        return options, chunks

    async def run_chunk(self, work: LeasedChunk) -> ChunkOutcome:
        """Judge a chunk."""
        groups = [dict(group) for group in work.body["groups"]]
        labels = [group.pop("labels") for group in groups]
        request = VerdictRequest.model_validate({**CHUNK_OPTIONS, **work.request, "groups": groups})
        answer = await self.judge(work, request, VerdictAnswer)
        fingerprint = fingerprint_of(answer)
        results: list[dict[str, Any]] = []
        for index, (group, group_labels) in enumerate(zip(answer.groups, labels, strict=True), work.body["first"]):
            verdicts: list[dict[str, Any]] = [
                {"response": place, "criterion": v.criterion, "label": response_labels[v.criterion]}
                | {"score": v.score, "probability": v.probability, "raw_probability": v.raw_probability}
                for place, (response, response_labels) in enumerate(zip(group.responses, group_labels, strict=True))
                for v in response.verdicts
                if v.criterion in response_labels and v.method != "no_content"
            ]
            results.append({"index": index, "id": group.id, "fingerprint": fingerprint, "verdicts": verdicts})
        failed = sum(
            any(v["score"] is None and v["probability"] is None for v in result["verdicts"]) for result in results
        )
        return ChunkOutcome(results, answer.usage, {"failed": failed})

    async def summary(self, work: LeasedChunk) -> dict[str, JsonValue]:
        """Compare all verdicts with the labels."""
        from judge_server.evaluation.report import Measured, summary_of  # imports numpy, 14 MB, only if needed

        said = ("score", "probability", "raw_probability")
        measured = [
            Measured(str(result["index"]), one["criterion"], float(one["label"]), *(one[name] for name in said))
            async for result in self.results(work.ref)
            for one in result["verdicts"]
        ]
        return await asyncio.to_thread(summary_of, measured)


def _check_labels(group: LabelledGroup, index: int, known: set[str]) -> None:
    for place, labels in enumerate(group.labels):
        try:
            read_labels(labels, known, f"groups.{index}.labels.{place}")
        except ValueError as error:
            raise InvalidOperationError(str(error)) from None


_SHOWN_CHARACTERS = 200
"""Characters of a criterion's description in each result."""


class DiscriminateHandler(SummingHandler):
    """Rewards responses that are known to be good and bad, and measures how well the rewards tell them apart.

    A result has the `index` and `id` of a prompt, its `rubric` as a reference or the beginning of its digest, the `id`,
    `kind`, `weight` and beginning of the `description` of its `criteria`, the judge's `fingerprint`, and the rewards of
    the `good` and the `bad` responses as `POST /v1/rewards` returns them. The summary is that of
    `measuring.separation.separation_summary`.
    """

    async def run_chunk(self, work: LeasedChunk) -> ChunkOutcome:
        """Reward a chunk."""
        pairs = [PairedGroup.model_validate(group) for group in work.body["groups"]]
        groups = [
            Group.model_construct(
                id=pair.id or f"line-{index + 1}", responses=pair.responses,
                **{name: getattr(pair, name) for name in pair.model_fields_set - {"id", "good", "bad"}},
            )
            for index, pair in enumerate(pairs, work.body["first"])
        ]  # fmt: skip
        request = RewardRequest.model_validate({**CHUNK_OPTIONS, **work.request, "groups": groups})
        rubrics = [group.rubric or request.rubric for group in groups]
        criteria: dict[str, list[dict[str, Any]]] = {}
        for name, rubric in {_rubric_name(rubric): rubric for rubric in rubrics}.items():
            criteria[name] = [_shown(one) for one in await self.criteria(work.ref.project_id, rubric)]
        answer = await self.judge(work, request, RewardAnswer)
        fingerprint = fingerprint_of(answer)
        results: list[dict[str, Any]] = []
        rewarded = zip(pairs, map(_rubric_name, rubrics), answer.groups, strict=True)
        for index, (pair, name, group) in enumerate(rewarded, work.body["first"]):
            responses = [response.model_dump(mode="json") for response in group.responses]
            results.append({
                "index": index, "id": group.id, "rubric": name, "criteria": criteria[name],
                "fingerprint": fingerprint, "good": responses[: len(pair.good)], "bad": responses[len(pair.good) :],
            })  # fmt: skip
        return ChunkOutcome(results, answer.usage, {"failed": _unscored(answer)})

    async def summary(self, work: LeasedChunk) -> dict[str, JsonValue]:
        """Compare all rewards."""
        labelled = [
            LabelledPrompt(
                result["rubric"],
                tuple([Criterion.model_construct(**{"description": "", **one}) for one in result["criteria"]]),
                *(tuple([ResponseReward.model_validate(one) for one in result[s]]) for s in ("good", "bad")),
            )
            async for result in self.results(work.ref)
        ]
        return await asyncio.to_thread(separation_summary, labelled)


def _shown(one: Criterion) -> dict[str, Any]:
    """What a result says of a criterion."""
    return {"id": one.id, "kind": one.kind, "weight": one.weight, "description": one.description[:_SHOWN_CHARACTERS]}


def _rubric_name(rubric: RubricContent | str | None) -> str:
    """The reference of a rubric, or the beginning of its digest; empty for a mode without one."""
    return rubric if isinstance(rubric, str) else "" if rubric is None else rubric.digest[:19]
