"""Streamed rewards: groups arrive as they finish, errors end the stream, and a disconnect cancels the rest."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from judge_server.engines.scripted import ScriptedEngine, by_hash
from judge_server.judging.results import Judged
from judge_server.ports import Batch, Call, CallFailure, Reply
from judge_server.scoring.judge import Judge
from rubric_store import RubricStore
from tests.judge_server import support
from tests.judge_server.api.recording import post, recording, verdicts
from tests.judge_server.api.test_rewards import rewards
from tests.judge_server.conftest import Serve
from tests.judge_server.support import GatedEngine, http_scope, request
from trainer_client.wire import RewardEvent

ONE = {"criteria": [{"id": "a", "description": "Is right."}]}
NDJSON = {"Accept": "application/x-ndjson"}


def body(*names: str, **fields: Any) -> dict[str, Any]:
    """A request with one group of two responses per name."""
    groups = [{"id": name, "prompt": name, "responses": [f"{name} first", f"{name} second"]} for name in names]
    return request(rubric=ONE, groups=groups) | fields


async def lines(http: httpx2.AsyncClient, sent: dict[str, Any]) -> list[RewardEvent]:
    """All lines of a streamed answer."""
    answer = await http.post("/v1/rewards", json=sent, headers=NDJSON)
    assert answer.status_code == 200, answer.text
    assert answer.headers["Content-Type"] == "application/x-ndjson"
    return [RewardEvent.model_validate_json(line) for line in answer.content.splitlines()]


async def test_a_streamed_answer_has_the_content_of_the_whole_answer(http: httpx2.AsyncClient) -> None:
    whole = await rewards(http, body("x", "y", "z"))
    *groups, last = await lines(http, body("x", "y", "z"))
    assert last.summary is not None
    assert (last.summary.mode, last.summary.judge, last.summary.rubrics) == (whole.mode, whole.judge, whole.rubrics)
    assert last.summary.usage.cached == 6
    streamed = {line.group.id: line.group for line in groups if line.group}
    assert {id_: [r.reward for r in g.responses] for id_, g in streamed.items()} == {
        g.id: [r.reward for r in g.responses] for g in whole.groups
    }


class HoldingEngine(ScriptedEngine):
    """Holds back calls about texts that contain `word` until `others` other batches are answered and read."""

    def __init__(self, word: str, others: int) -> None:
        super().__init__()
        self.word, self.others, self.go = word, others, asyncio.Event()

    async def answer(self, batch: Batch) -> Any:
        """Answer as `ScriptedEngine`, after the wait."""
        if self.word in batch.shared:
            await self.go.wait()
        async for outcome in super().answer(batch):
            yield outcome
        self.others -= 1
        if not self.others:
            self.go.set()


async def test_groups_are_streamed_as_they_finish_and_not_in_request_order(serve: Serve) -> None:
    http = await serve(HoldingEngine("slow second", others=2))
    *groups, last = await lines(http, body("slow", "quick", "other"))
    assert [line.group.id for line in groups if line.group] == ["quick", "other", "slow"]
    assert last.summary is not None


@pytest.mark.parametrize(
    ("sent", "status"),
    [({"groups": []}, 422), (body("x", rubric="unknown/rubric"), 404), (body("x", reward={"mode": "outcome"}), 422)],
    ids=["invalid", "unknown rubric", "unsuitable"],
)
async def test_an_invalid_request_gets_a_problem_instead_of_a_stream(
    http: httpx2.AsyncClient, sent: dict[str, Any], status: int
) -> None:
    answer = await http.post("/v1/rewards", json=sent, headers=NDJSON)
    assert (answer.status_code, answer.headers["Content-Type"]) == (status, "application/problem+json")


def fails_bad_texts(batch: Batch, call: Call) -> Reply | CallFailure:
    """Answer by hash, but fail calls about texts that contain "bad"."""
    return CallFailure("truncated_input", "too long") if "bad" in batch.shared else by_hash(batch, call)


async def test_with_on_failure_error_a_failed_verdict_ends_the_stream_with_a_problem(serve: Serve) -> None:
    http = await serve(ScriptedEngine(fails_bad_texts, concurrent_batches=1))
    good, last = await lines(http, body("good", "bad", on_failure="error"))
    assert good.group is not None
    assert last.problem is not None
    assert (last.problem.type, last.problem.retryable) == ("urn:adjudge:judging-failed", True)
    alone = await http.post("/v1/rewards", json=body("bad", on_failure="error"), headers=NDJSON)
    assert alone.status_code == 502


async def test_a_stream_that_ends_in_a_problem_is_recorded_as_far_as_it_was_sent(
    store: RubricStore, tmp_path: Path
) -> None:
    engine = ScriptedEngine(fails_bad_texts, concurrent_batches=1)
    async with recording(store, tmp_path, default=await support.judge(engine)) as http:
        sent = body("good", "bad", "later", on_failure="error", run="r", step=1)
        good, last = await lines(http, sent)
        assert (good.group is not None, last.problem is not None) == (True, True)
        await post(http, body("other"))  # waits until the ledger has everything
        found = {(one["group"], one["response"]): one["reward"] for one in await verdicts(http, run="r")}
    assert good.group is not None
    rewards = {("good", n): response.reward for n, response in enumerate(good.group.responses)}
    assert found == rewards | {("bad", 0): None, ("bad", 1): None}


async def test_every_line_is_one_json_object_whatever_the_texts(http: httpx2.AsyncClient) -> None:
    odd = "a\u2028b\u0085c\r\nd"
    answer = await http.post("/v1/rewards", json=body(odd, "x"), headers=NDJSON)
    parts = answer.content.split(b"\n")
    assert parts.pop() == b""
    assert {json.loads(part).get("group", {}).get("id") for part in parts} == {odd, "x", None}


async def hang_up(http: httpx2.AsyncClient, sent: dict[str, Any], headers: dict[str, str], engine: GatedEngine) -> None:
    """Send a request and disconnect once the engine is busy with it."""
    app = http._transport.app  # type: ignore[attr-defined]
    content = json.dumps(sent).encode()
    hung_up = asyncio.Event()
    received = iter([{"type": "http.request", "body": content, "more_body": False}])

    async def receive() -> dict[str, Any]:
        for message in received:
            return message
        await hung_up.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        pass

    scope = http_scope("/v1/rewards", content_type="application/json", **headers)
    call = asyncio.create_task(app(scope, receive, send))
    await engine.busy()
    hung_up.set()
    await asyncio.wait_for(call, 10)


@pytest.mark.parametrize("headers", [{}, NDJSON], ids=["whole", "streamed"])
@pytest.mark.parametrize("judged_first", [0, 2], ids=["before the first group", "after the first group"])
async def test_a_disconnect_frees_the_queue_and_stops_further_engine_calls(
    serve: Serve, headers: dict[str, str], judged_first: int
) -> None:
    engine = GatedEngine(concurrent_batches=1)
    http = await serve(engine, queue_calls=4)
    engine.release(judged_first)
    await hang_up(http, body("x", "y"), {name.lower(): value for name, value in headers.items()}, engine)
    began = len(engine.began)
    engine.release(100)
    await asyncio.sleep(0.02)
    assert len(engine.began) == began == judged_first + 1
    answer = await rewards(http, body("x", "y"))
    assert answer.usage.cached == judged_first


async def test_an_unexpected_error_ends_the_stream_with_a_problem(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    http = await serve(ScriptedEngine(concurrent_batches=1))
    judging = Judge.judge

    async def broken(self: Judge, *args: Any, **options: Any) -> AsyncIterator[Judged]:
        async for judged in judging(self, *args, **options):
            yield judged
        raise ZeroDivisionError

    monkeypatch.setattr(Judge, "judge", broken)
    *groups, last = await lines(http, body("x"))
    assert len(groups) == 1
    assert last.problem is not None
    assert last.problem.type == "urn:adjudge:internal"
