"""How operation handlers treat answers and errors of the service."""

import json
import logging
from collections.abc import Callable
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from judge_server.operations.handlers import judging
from judge_server.operations.handlers.base import (
    FatalChunkError,
    InvalidOperationError,
    RetryableChunkError,
    ServiceUnavailableError,
)
from judge_server.operations.handlers.judging import (
    CHUNK_RESPONSES,
    LOG_INTERVAL_S,
    ClientFactory,
    EvaluateHandler,
    ScoreHandler,
    ThrottledLog,
)
from judge_server.ports.operations import WILL_RETRY_HEADER
from rubric_store.operations.rows import MAX_ATTEMPTS, ChunkRef, LeasedChunk
from trainer_client import AsyncClient
from trainer_client.wire import Group, RubricVersion
from trainer_client.wire.operations import EvaluateOperation, ScoreOperation

RUBRIC = {"criteria": [{"id": "a", "description": "Is right."}]}


class NoRubrics:
    """A source with one rubric, which has a new version each time it is looked up."""

    versions = 0

    async def find(self, project_id: str, reference: str, *, max_age_s: float = 0.0) -> RubricVersion | None:
        self.versions += 1
        made = {"name": "team/a", "version": self.versions, "digest": "sha256:" + "0" * 64, "created_at": "2026-01-01"}
        return RubricVersion.model_validate(made | RUBRIC)


def clients(answer: Callable[[httpx2.Request], httpx2.Response]) -> ClientFactory:
    """Clients of a service that gives this answer."""
    return lambda project: AsyncClient(
        "http://judge", api_key="", headers={"X-For": project}, transport=httpx2.MockTransport(answer), retries=0
    )


def kind(answer: Callable[[httpx2.Request], httpx2.Response]) -> ScoreHandler:
    """A score handler for a service that gives this answer."""
    return ScoreHandler(clients(answer), NoRubrics())  # type: ignore[arg-type]


def work(attempt: int = 1) -> LeasedChunk:
    """A chunk with one group, the eighth of its operation."""
    body = {"first": 7, "groups": [{"id": "q", "prompt": "?", "responses": ["Yes!"]}]}
    return LeasedChunk(ChunkRef("p", "op-1", 0), "score", {"rubric": RUBRIC, "run": "r"}, body, 1, attempt, "w")


def rewards(**failure: Any) -> dict[str, Any]:
    """An answer whose verdict failed like this, if given."""
    verdict: dict[str, Any] = {"criterion": "a", "status": "ok", "score": 1.0}
    if failure:
        verdict = {"criterion": "a", "status": "failed", "failure": failure}
    status = "unscored" if failure else "scored"
    response = {"reward": None if failure else 1.0, "status": status, "verdicts": [verdict]}
    about = {"request_id": "r", "mode": "weighted_mean", "on_failure": "null", "rubrics": []}
    return {**about, "usage": {"judge_calls": 3}, "groups": [{"id": "q", "responses": [response]}]}


def problem(status: int, kind_: str, *, retryable: bool) -> httpx2.Response:
    """A problem document."""
    about = {"title": "No", "detail": "Not so.", "request_id": "r", "retryable": retryable}
    return httpx2.Response(status, json={"type": f"urn:adjudge:{kind_}", "status": status, **about})


async def test_a_chunk_is_one_request_for_bulk_rewards_on_behalf_of_the_project() -> None:
    sent: list[httpx2.Request] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        sent.append(request)
        return httpx2.Response(200, json=rewards())

    outcome = await kind(answer).run(work())
    body = json.loads(sent[0].content)
    assert (len(sent), sent[0].url.path, sent[0].headers["X-For"]) == (1, "/v1/rewards", "p")
    assert (body["priority"], body["run"], body["deadline_s"]) == ("bulk", "r", 600.0)
    assert (outcome.results[0]["index"], outcome.results[0]["id"], outcome.usage.judge_calls) == (7, "q", 3)
    assert outcome.counts == {"failed": 0}


@pytest.mark.parametrize("passing", ["timeout", "engine", "overloaded"])
async def test_retryable_verdict_failures_are_retried_and_kept_after_the_last_attempt(
    passing: str,
) -> None:
    scoring = kind(lambda _: httpx2.Response(200, json=rewards(kind=passing, detail="so it is")))
    with pytest.raises(RetryableChunkError, match=f"1 verdicts failed, for example: {passing}: so it is") as undone:
        await scoring.run(work(MAX_ATTEMPTS - 1))
    assert undone.value.outcome.usage.judge_calls == 3
    outcome = await scoring.run(work(MAX_ATTEMPTS))
    assert (len(outcome.results), outcome.counts) == (1, {"failed": 1})


@pytest.mark.parametrize("lasting", ["parse", "truncated_input"])
async def test_permanent_verdict_failures_are_kept_at_once(lasting: str) -> None:
    outcome = await kind(lambda _: httpx2.Response(200, json=rewards(kind=lasting, detail="no"))).run(work())
    assert (len(outcome.results), outcome.counts) == (1, {"failed": 1})


@pytest.mark.parametrize(
    ("answer", "meaning"),
    [
        (problem(429, "overloaded", retryable=True), ServiceUnavailableError),
        (problem(503, "not-ready", retryable=True), ServiceUnavailableError),
        (problem(422, "unsuitable-rubric", retryable=False), FatalChunkError),
        (problem(404, "unknown-rubric", retryable=False), FatalChunkError),
        (problem(413, "too-large", retryable=False), FatalChunkError),
        (httpx2.Response(413, text="a proxy"), FatalChunkError),
        (
            problem(401, "unauthorized", retryable=False),
            ServiceUnavailableError,
        ),  # about this worker's token, not the chunk
        (problem(403, "forbidden", retryable=False), ServiceUnavailableError),
        (problem(404, "not-found", retryable=False), ServiceUnavailableError),  # about this worker's ADJUDGE_URL
        *((httpx2.Response(status, text="a proxy"), ServiceUnavailableError) for status in (302, 401, 403, 404, 500)),
        (problem(500, "internal", retryable=False), RetryableChunkError),
        (httpx2.Response(502, text="a proxy"), ServiceUnavailableError),
        (problem(502, "judging-failed", retryable=True), RetryableChunkError),
        (httpx2.Response(200, text="no JSON"), RetryableChunkError),
    ],
)
async def test_errors_mean_unavailable_retryable_or_fatal(answer: httpx2.Response, meaning: type[Exception]) -> None:
    with pytest.raises(meaning) as raised:
        await kind(lambda _: answer).run(work())
    assert type(raised.value) is meaning


async def test_an_unreachable_service_is_unavailable() -> None:
    def refuse(request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError("refused")

    with pytest.raises(ServiceUnavailableError):
        await kind(refuse).run(work())


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (problem(401, "unauthorized", retryable=False), ("status 401", "ADJUDGE_SIGNING_SECRET", "clocks")),
        (httpx2.Response(404, text="Who asked: secret."), ("status 404", "ADJUDGE_URL", "proxy in between")),
    ],
)
async def test_a_misconfigured_worker_logs_the_cause_once_a_minute_and_quotes_no_answer(
    answer: httpx2.Response, says: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now, told = [0.0], []
    monkeypatch.setattr(judging, "BLOCKED_LOG", ThrottledLog(lambda: now[0]))
    for now[0] in (0.0, LOG_INTERVAL_S - 1, LOG_INTERVAL_S, LOG_INTERVAL_S + 1):
        with pytest.raises(ServiceUnavailableError):
            await kind(lambda _: answer).run(work())
        told.append(len(caplog.records))
    assert told == [1, 1, 2, 2]
    assert all(word in caplog.text for word in says)
    assert {record.levelno for record in caplog.records} == {logging.ERROR}
    assert "Who asked" not in caplog.text


async def test_an_unavailable_service_is_not_logged_as_a_misconfiguration(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(judging, "BLOCKED_LOG", ThrottledLog())
    for answer in (httpx2.Response(502, text="a proxy"), problem(503, "not-ready", retryable=True)):
        with pytest.raises(ServiceUnavailableError):
            await kind(lambda _, answer=answer: answer).run(work())
    assert caplog.records == []


@pytest.mark.parametrize("evaluates", [False, True])
async def test_all_attempts_of_a_chunk_share_a_key_and_all_but_the_last_announce_a_retry(
    evaluates: bool,
) -> None:
    sent: list[httpx2.Headers] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        sent.append(request.headers)
        return httpx2.Response(503)

    asked = EvaluateHandler(clients(answer), NoRubrics(), None) if evaluates else kind(answer)  # type: ignore[arg-type]
    labelled = {"labels": [{"a": True}]} if evaluates else {}

    async def tried(attempt: int, chunk: int = 0, run: str = "r") -> tuple[str, str]:
        one = work(attempt)
        body = one.body | {"groups": [group | labelled for group in one.body["groups"]]}
        ref = one.ref._replace(chunk=chunk)
        with pytest.raises(ServiceUnavailableError):
            await asked.run(one._replace(ref=ref, body=body, request=one.request | {"run": run}))
        return sent[-1]["Idempotency-Key"], sent[-1][WILL_RETRY_HEADER]

    key, again = await tried(1)
    assert again == "true"
    assert await tried(MAX_ATTEMPTS - 1) == (key, "true")
    assert await tried(MAX_ATTEMPTS) == (key, "false")
    assert (await tried(1, chunk=1))[0] != key
    assert (await tried(1, run="as another release writes it"))[0] != key


@given(st.lists(st.integers(1, 2 * CHUNK_RESPONSES), min_size=1, max_size=40))
async def test_chunks_hold_whole_groups_in_order_and_a_limited_number_of_responses(sizes: list[int]) -> None:
    groups = [Group(id=f"q{n}", prompt="?", responses=("Yes!",) * size) for n, size in enumerate(sizes)]
    _, chunks = await kind(lambda _: httpx2.Response(500)).split(
        "p", ScoreOperation(groups=tuple(groups), rubric="team/a")
    )
    bodies: list[Any] = [chunk.body for chunk in chunks]
    assert [group["id"] for body in bodies for group in body["groups"]] == [group.id for group in groups]
    first = 0
    for chunk, body in zip(chunks, bodies, strict=True):
        responses = sum(len(group["responses"]) for group in body["groups"])
        assert responses <= CHUNK_RESPONSES or len(body["groups"]) == 1
        assert (body["first"], chunk.inputs) == (first, len(body["groups"]))
        first += chunk.inputs


async def test_a_rubric_is_looked_up_once_however_many_groups_name_it() -> None:
    groups = [Group(id=f"q{n}", prompt="?", responses=("Yes!",), rubric="team/a") for n in range(3)]
    scoring = kind(lambda _: httpx2.Response(500))
    options, chunks = await scoring.split("p", ScoreOperation(groups=tuple(groups), rubric="team/a"))
    body: Any = chunks[0].body
    assert options["rubric"] == "team/a@1"
    assert [group["rubric"] for group in body["groups"]] == ["team/a@1"] * 3


@pytest.mark.parametrize(
    ("rubric", "protocol", "label", "known"),
    [("team/a", "binary", "typo", "a"), (RUBRIC, "binary", "typo", "a"), (RUBRIC, "likert", "a", "overall")],
)
async def test_a_label_of_a_criterion_that_is_not_judged_is_refused(
    rubric: Any, protocol: str, label: str, known: str
) -> None:
    asked = EvaluateHandler(clients(lambda _: httpx2.Response(500)), NoRubrics(), None)  # type: ignore[arg-type]

    def request(*labels: str) -> EvaluateOperation:
        groups = [{"id": "q", "prompt": "?", "responses": ["Yes!"], "labels": [{name: True}]} for name in labels]
        judging = {"protocol": protocol}
        return EvaluateOperation.model_validate({"rubric": rubric, "judging": judging, "groups": groups})

    await asked.split("p", request(known, known))
    with pytest.raises(InvalidOperationError, match=rf"groups\.1\.labels\.0: .* no criterion '{label}'.* has {known}"):
        await asked.split("p", request(known, label))
