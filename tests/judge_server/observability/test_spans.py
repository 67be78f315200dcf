"""Spans: one trace from the caller to the engine, across processes and queues, with ids and figures but no text."""

import asyncio
from typing import Any

import httpx2
import pytest
from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode

from judge_server.api.app import create_app
from judge_server.api.service import Service
from judge_server.engines.scripted import ScriptedEngine
from judge_server.errors import Overloaded
from judge_server.judging.results import collect
from judge_server.observability.logs import log_context
from judge_server.observability.tracing import propagation_headers, span, span_headers
from judge_server.ports import Batch, Call, CallFailure
from judge_server.scoring.judge import Judge
from rubric_store import RubricStore
from tests.judge_server.conftest import Serve
from tests.judge_server.observability.captured import CapturedSpans, attributes
from tests.judge_server.remote.judges import api_of, judges
from tests.judge_server.support import criteria, deadline_after, plans, request

SECRETS = ("Is 7 prime?", "States that 7 is prime.", "Yes, it is", "Gives a reason.")
REWARDS = "POST /v1/rewards"


def api_client(judge: Judge, store: RubricStore) -> httpx2.AsyncClient:
    """A client of an api with this judge."""
    app = create_app(Service(rubrics=store, judges={"default": judge}))
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://adjudge.test")


async def test_a_request_through_an_api_and_a_judge_is_one_trace(store: RubricStore, spans: CapturedSpans) -> None:
    async with judges(None) as served, api_of(*served) as api, api_client(api, store) as http:
        answer = await http.post(
            "/v1/rewards", json=request("Yes, it is", "No", run="r-1"), headers={"X-Request-Id": "mine"}
        )
    assert answer.status_code == 200
    assert len({one.context.trace_id for one in spans.all if one.context}) == 1
    there = [REWARDS, "judging", "judge_request", "POST /internal/v1/outcomes", "judging"]
    paths = [spans.path(one) for one in spans.all]
    assert [REWARDS, "rubrics"] in paths
    assert [REWARDS, "plan"] in paths
    assert [REWARDS, "judging", "cache get"] in paths
    assert [*there, "cache get"] in paths
    assert paths.count([*there, "queue"]) == paths.count([*there, "engine"]) == 2
    rewards = spans.one(REWARDS)
    assert (rewards.kind, spans.one("judge_request").kind) == (SpanKind.SERVER, SpanKind.CLIENT)
    assert (
        attributes(rewards).items()
        >= {
            "http.route": "/v1/rewards",
            "http.response.status_code": 200,
            "adjudge.request_id": "mine",
            "adjudge.run": "r-1",
            "adjudge.project": "default",
        }.items()
    )
    judge_side = attributes(spans.one("POST /internal/v1/outcomes"))
    assert (judge_side["adjudge.request_id"], judge_side["adjudge.run"]) == ("mine", "r-1")
    engine = [attributes(one) for one in spans.named("engine")]
    usage = answer.json()["usage"]
    assert sum(one["adjudge.calls"] for one in engine) == sum(one["adjudge.replies"] for one in engine)
    assert sum(one["adjudge.tokens_computed"] for one in engine) == usage["prompt_tokens_computed"]
    assert sum(one["adjudge.tokens_reused"] for one in engine) == usage["prompt_tokens_reused"]
    assert not any(secret in spans.text for secret in SECRETS)


async def test_a_request_of_twelve_criteria_has_a_span_for_the_batch_and_none_for_a_call(
    serve: Serve, spans: CapturedSpans
) -> None:
    http = await serve()
    rubric = {"criteria": [{"id": f"c{n}", "description": f"Part {n} holds."} for n in range(12)]}
    await http.post("/v1/rewards", json=request() | {"rubric": rubric})
    assert sorted(one.name for one in spans.all) == sorted(
        [REWARDS, "rubrics", "plan", "judging", "cache get", "cache put", "queue", "engine"]
    )


async def test_our_spans_are_children_of_the_callers_span(serve: Serve, spans: CapturedSpans) -> None:
    http = await serve()
    with span("a trainer's step"):
        await http.post("/v1/rewards", json=request(), headers=span_headers())
    assert spans.path(spans.one(REWARDS)) == ["a trainer's step", REWARDS]


async def test_failed_calls_are_counted_by_kind_and_mark_their_batch_without_any_text(
    serve: Serve, spans: CapturedSpans
) -> None:
    def script(batch: Batch, call: Call) -> CallFailure:
        return CallFailure("parse", f"it said: {batch.shared}")

    http = await serve(ScriptedEngine(script))
    await http.post("/v1/rewards", json=request("Yes, it is"))
    engine = spans.named("engine")[0]
    assert (engine.status.status_code, engine.status.description) == (StatusCode.ERROR, "parse")
    assert attributes(engine)["adjudge.failed.parse"] == attributes(engine)["adjudge.calls"]
    assert attributes(spans.one("judging"))["adjudge.failed.parse"] > 0
    assert not any(secret in spans.text for secret in SECRETS)


async def test_an_unexpected_error_marks_its_spans_with_its_type(
    serve: Serve, spans: CapturedSpans, store: RubricStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("Yes, it is")

    monkeypatch.setattr(store, "find", broken)
    await (await serve()).post("/v1/rewards", json=request() | {"rubric": "any"})
    rubrics, rewards = spans.one("rubrics"), spans.one(REWARDS)
    assert (rubrics.status.status_code, rubrics.status.description) == (StatusCode.ERROR, "RuntimeError")
    assert rewards.status.status_code == StatusCode.ERROR
    assert attributes(rewards)["http.response.status_code"] == 500
    assert not any(one.events for one in spans.all)
    assert "Yes, it is" not in spans.text


async def test_a_refusal_is_named_by_its_problem_type(spans: CapturedSpans) -> None:
    with pytest.raises(Overloaded), span("queue"):
        raise Overloaded("Yes, it is")
    assert spans.one("queue").status.description == "urn:adjudge:overloaded"


async def test_cancellation_is_not_a_failure(spans: CapturedSpans) -> None:
    async def work() -> None:
        with span("queue"):
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert spans.one("queue").status.status_code == StatusCode.UNSET


async def test_probes_make_no_spans_and_query_strings_are_left_out(serve: Serve, spans: CapturedSpans) -> None:
    http = await serve()
    for path in ("/healthz", "/readyz", "/metrics", "/v1/rubrics?search=Gives+a+reason."):
        await http.get(path)
    assert [one.name for one in spans.all] == ["GET /v1/rubrics"]
    assert "reason" not in spans.text


async def test_a_judge_that_becomes_unavailable_marks_the_span_of_its_request(spans: CapturedSpans) -> None:
    async with judges(None) as served, api_of(*served) as api:
        asked = plans(api, "Yes.", of=criteria("Alpha."))
        served[0].process.judge = None
        await collect(api.judge(asked, await deadline_after(0.2)))
        served[0].process.judge = served[0].judge
    assert "JudgeNotReady" in {one.status.description for one in spans.named("judge_request")}


async def test_without_an_exporter_there_are_no_spans_and_no_headers(serve: Serve) -> None:
    with log_context(request_id="me"), span("anything", calls=3) as made:
        assert not made.is_recording()
        assert not trace.get_current_span().get_span_context().is_valid
        assert propagation_headers() == {"X-Request-Id": "me"}
    assert (await (await serve()).post("/v1/rewards", json=request())).status_code == 200
