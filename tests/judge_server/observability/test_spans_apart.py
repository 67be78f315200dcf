"""Spans of background work: chunks of operations, their enqueueing, and writes to the ledger."""

import asyncio
from pathlib import Path

import httpx2
import pytest
from opentelemetry.trace import SpanKind

from judge_server.api.app import create_app
from judge_server.api.probes import create_worker_app
from judge_server.api.service import Service
from judge_server.ledger import Recorder
from judge_server.observability.logs import log_context
from judge_server.observability.metrics import OperationMetrics
from judge_server.observability.tracing import TracingTransport, span, span_headers, span_links
from judge_server.operations.handlers.base import RetryableChunkError, ServiceUnavailableError
from judge_server.operations.runner import ChunkRunner
from rubric_store import RubricStore
from rubric_store.ledger.rows import LedgerRows
from rubric_store.operations.rows import ChunkOutcome, LeasedChunk
from tests.fixtures.short_intervals import RECORDER_TIMES
from tests.judge_server.conftest import Serve
from tests.judge_server.observability.captured import CapturedSpans, attributes
from tests.judge_server.operations.test_runner_and_dispatcher import REF, Store
from tests.judge_server.support import CRITERIA, judge, request

SECRET = "States that 7 is prime."


async def test_probes_of_a_worker_make_no_spans(spans: CapturedSpans) -> None:
    async def nothing() -> dict[str, bool]:
        return {}

    app = create_worker_app(OperationMetrics(), nothing, lambda: False)
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://worker.test") as http:
        for path in ("/healthz", "/readyz", "/metrics"):
            assert (await http.get(path)).status_code == 200
    assert spans.all == ()


async def test_a_workers_requests_are_children_of_its_chunk(serve: Serve, spans: CapturedSpans) -> None:
    inner = (await serve())._transport
    async with httpx2.AsyncClient(transport=TracingTransport(inner), base_url="http://adjudge.test") as asking:
        with log_context(operation_id="op-7", chunk="3"), span("chunk"):
            await asking.post("/v1/rewards", json=request())
    assert spans.path(spans.one("engine")) == ["chunk", "POST", "POST /v1/rewards", "judging", "engine"]
    assert attributes(spans.one("POST /v1/rewards"))["adjudge.operation_id"] == "op-7"


@pytest.mark.parametrize(
    ("error", "ended"),
    [(None, "done"), (RetryableChunkError(SECRET), "retry"), (ServiceUnavailableError(SECRET), "unavailable")],
)
async def test_a_chunk_is_a_separate_trace_with_its_outcome(
    spans: CapturedSpans, error: Exception | None, ended: str
) -> None:
    class Kind:
        has_final_chunk = False

        async def run(self, _: LeasedChunk) -> ChunkOutcome:
            with span("inside"):
                if error is not None:
                    raise error
            return ChunkOutcome()

    with span("enqueue"):
        announced = span_headers()
    runner = ChunkRunner(Store(), {"score": Kind()})  # type: ignore[arg-type,dict-item]
    await runner.run(REF, announced)
    chunk = spans.one("chunk")
    assert (chunk.parent, chunk.kind) == (None, SpanKind.CONSUMER)
    assert [link.context.span_id for link in chunk.links] == [spans.one("enqueue").context.span_id]  # type: ignore[union-attr]
    assert spans.path(spans.one("inside")) == ["chunk", "inside"]
    assert attributes(chunk) == {
        "adjudge.operation_id": REF.operation_id,
        "adjudge.chunk": "0",
        "adjudge.project": "p",
        "adjudge.kind": "score",
        "adjudge.attempt": 1,
        "adjudge.ended": ended,
    } | ({} if error is None else {"error.type": ended})
    assert SECRET not in spans.text


async def test_a_write_to_the_ledger_is_a_span_even_when_it_is_refused(
    store: RubricStore, tmp_path: Path, spans: CapturedSpans
) -> None:
    class Ledger:
        refused = False

        def write(self, rows: LedgerRows) -> None:
            self.refused = not self.refused
            if self.refused:
                raise ConnectionError(SECRET)

    recording = Recorder(Ledger(), tmp_path / "spool", times=RECORDER_TIMES)  # type: ignore[arg-type]
    app = create_app(Service(rubrics=store, judges={"default": await judge()}, recorder=recording))
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://adjudge.test") as http:
        await http.post("/v1/rewards", json=request())
    await asyncio.to_thread(recording.close)
    writes = spans.named("ledger write")
    assert [one.status.description for one in writes] == ["ConnectionError", None]
    assert attributes(writes[1]) == {"adjudge.verdicts": len(CRITERIA)}


async def test_a_span_can_be_linked_to_the_one_in_the_headers(spans: CapturedSpans) -> None:
    with span("enqueue") as announcing:
        headers = span_headers()
    (link,) = span_links(headers)
    assert link.context.span_id == announcing.get_span_context().span_id
    assert span_links({}) == ()
