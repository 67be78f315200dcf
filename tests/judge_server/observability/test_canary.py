"""No log line shows the text of a prompt, a response, a criterion, a rationale or a key, whatever fails."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from judge_server.api.app import create_app
from judge_server.api.judge_process import create_judge_app
from judge_server.api.service import Service
from judge_server.engines.pool import EnginePool
from judge_server.engines.scripted import ScriptedEngine
from judge_server.ledger import Recorder, recorder
from judge_server.ports import Batch, Call, CallFailure, JudgeResult, Reply
from judge_server.remote.executor import JudgeClient, RemoteExecutor
from judge_server.scheduling.pools import PoolRules
from judge_server.scoring.cache import RedisCache
from judge_server.scoring.judge import Judge
from rubric_store import RubricStore
from rubric_store.ledger.rows import LedgerRows
from tests.fixtures.ports import unused_port
from tests.fixtures.short_intervals import RECORDER_TIMES
from tests.judge_server.conftest import Serve
from tests.judge_server.observability.captured import CapturedLogs
from tests.judge_server.remote.judges import judges
from tests.judge_server.support import judge

CANARY = "c4n4ry-sings"


def body(**fields: Any) -> dict[str, Any]:
    """A request with the canary in every text field."""
    group = {
        "id": "g",
        "prompt": f"{CANARY} prompt",
        "responses": [f"{CANARY} response", [{"role": "assistant", "content": f"{CANARY} message"}]],
        "reference_answer": f"{CANARY} reference",
        "grounding": f"{CANARY} grounding",
    }
    rubric = {"criteria": [{"id": "a", "description": f"{CANARY} criterion"}]}
    return {"rubric": rubric, "groups": [group], "deadline_s": 5, **fields}


class FailingEngine(ScriptedEngine):
    """An engine that fails with an error that contains its batch."""

    async def answer(self, batch: Batch) -> AsyncIterator[tuple[int, Reply | CallFailure]]:
        """Raises."""
        yield 0, CallFailure("engine", f"HTTP 500: cannot read {batch.shared}")
        raise ValueError(f"cannot read {batch.shared} and {batch.calls}")


def repeating(batch: Batch, call: Call) -> CallFailure:
    """An endpoint's error that repeats the prompt."""
    return CallFailure("engine", f"HTTP 500: cannot read {batch.shared!r}")


async def test_an_engine_that_fails_with_the_prompt_in_its_message(serve: Serve, lines: CapturedLogs) -> None:
    await (await serve(FailingEngine())).post("/v1/rewards", json=body())
    assert "the engine failed in a batch" in lines.whole
    assert "ValueError" in lines.whole
    assert CANARY not in lines.whole


async def test_an_endpoint_of_a_pool_that_repeats_the_prompt_it_refuses(
    store: RubricStore, lines: CapturedLogs
) -> None:
    for engine in (lambda: ScriptedEngine(repeating), FailingEngine):
        pool = EnginePool({"a": engine, "b": engine})
        made = await judge(pool)  # type: ignore[arg-type]
        app = create_app(Service(rubrics=store, judges={"default": made}))
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://adjudge.test") as http:
            for _ in range(4):
                await http.post("/v1/rewards", json=body(deadline_s=0.3))
        await made.close()
    assert "is out of the pool: calls fail (engine: HTTP 500)" in lines.whole
    assert CANARY not in lines.whole


async def test_an_unreadable_request(http: httpx2.AsyncClient, lines: CapturedLogs) -> None:
    wrong = [
        {"json": body(deadline_s=CANARY)},
        {"json": body(**{CANARY: CANARY})},
        {"json": body(judge=CANARY)},
        {"json": body(rubric=f"{CANARY}@x@y")},
        {"content": f'{{"{CANARY}": ' * 3000},
        {"content": f"{CANARY} is no JSON", "headers": {"Content-Type": "application/json"}},
        {"content": b"\xff" + CANARY.encode()},
    ]
    for one in wrong:
        answer = await http.post("/v1/rewards", **one)  # type: ignore[arg-type]
        assert 400 <= answer.status_code < 500
    await http.post(f"/v1/{CANARY}", params={CANARY: CANARY}, headers={"X-Request-Id": f"{CANARY} "})
    assert len(lines.of("adjudge.access")) == len(wrong) + 1
    assert CANARY not in lines.whole


@pytest.mark.parametrize("error", [RuntimeError, KeyError, OSError, UnicodeError])
async def test_an_unexpected_error(
    serve: Serve, store: RubricStore, monkeypatch: pytest.MonkeyPatch, lines: CapturedLogs, error: type[Exception]
) -> None:
    async def broken(*_: Any, **__: Any) -> None:
        raise error(CANARY) from ValueError(CANARY)

    monkeypatch.setattr(store, "find", broken)
    answer = await (await serve()).post("/v1/rewards", json=body(rubric="any"))
    assert answer.status_code >= 500
    assert error.__name__ in lines.whole
    assert CANARY not in lines.whole


async def test_an_error_in_the_middle_of_a_stream(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, lines: CapturedLogs
) -> None:
    judging = Judge.judge

    async def broken(self: Judge, *given: Any, **options: Any) -> AsyncIterator[Any]:
        async for judged in judging(self, *given, **options):
            yield judged
        raise RuntimeError(CANARY)

    monkeypatch.setattr(Judge, "judge", broken)
    answer = await (await serve()).post("/v1/rewards", json=body(), headers={"Accept": "application/x-ndjson"})
    assert '"problem"' in answer.text
    assert "RuntimeError" in lines.whole
    assert CANARY not in lines.whole


async def refuse(*command: Any) -> None:
    """Refuse a command as Redis may: with an error that repeats it."""
    raise ResponseError(f"wrong command {command}")


async def test_a_redis_whose_error_repeats_the_value_to_be_stored(
    monkeypatch: pytest.MonkeyPatch, lines: CapturedLogs
) -> None:
    cache = RedisCache(f"redis://:{CANARY}@127.0.0.1:{unused_port()}/0", clock=lambda: 0.0)
    monkeypatch.setattr(Redis, "eval", refuse)
    await cache.put_many({b"d" * 32: JudgeResult(1.0, rationale=f"{CANARY} rationale")})
    assert "1 verdicts were not cached: redis.exceptions.ResponseError" in lines.whole
    assert CANARY not in lines.whole


async def test_an_unreachable_redis_is_named_and_its_password_is_not(lines: CapturedLogs) -> None:
    port = unused_port()
    cache = RedisCache(f"redis://:{CANARY}@127.0.0.1:{port}/0")
    assert await cache.get_many([b"d" * 32]) == {}
    await cache.close()
    assert str(port) in lines.whole
    assert CANARY not in lines.whole


class Ledger:
    """A ledger whose errors contain the refused rows."""

    def __init__(self) -> None:
        self.asked = threading.Event()

    def write(self, rows: LedgerRows) -> None:
        """Raises."""
        self.asked.set()
        raise ValueError(f"no row of mine: {rows}")

    async def ready(self) -> bool:
        """Not used."""
        raise NotImplementedError

    async def close(self) -> None:
        """Nothing to do."""


@pytest.mark.parametrize("at", ["the ledger", "the rows"])
async def test_a_ledger_that_refuses_judged_rows(
    store: RubricStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: CapturedLogs, at: str
) -> None:
    def unmade(entries: Any, **_: Any) -> None:
        ledger.asked.set()
        raise ValueError(f"{CANARY} {entries}")

    ledger = Ledger()
    if at == "the rows":
        monkeypatch.setattr(recorder, "rows_of", unmade)
    recording = Recorder(ledger, tmp_path / "spool", times=RECORDER_TIMES)
    service = Service(rubrics=store, judges={"default": await judge()}, recorder=recording)
    transport = httpx2.ASGITransport(create_app(service))
    async with httpx2.AsyncClient(transport=transport, base_url="http://adjudge.test") as http:
        assert (await http.post("/v1/rewards", json=body())).status_code == 200
    assert await asyncio.to_thread(ledger.asked.wait, 30)
    await asyncio.to_thread(recording.close)
    assert "ValueError" in lines.whole
    assert CANARY not in lines.whole


async def test_an_error_of_the_database_hides_the_parameters_of_its_statement(store: RubricStore) -> None:
    async with store._engine.connect() as connection:
        with pytest.raises(OperationalError, match="no such table") as caught:
            await connection.execute(text("INSERT INTO nowhere VALUES (:text)"), {"text": CANARY})
    assert CANARY not in str(caught.value)


async def test_a_proxy_in_front_of_a_judge_that_repeats_the_request(store: RubricStore, lines: CapturedLogs) -> None:
    async with judges(None) as served:
        real = httpx2.AsyncHTTPTransport()

        class Proxy(httpx2.AsyncBaseTransport):
            async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
                if request.method == "GET":
                    return await real.handle_async_request(request)
                return httpx2.Response(502, text=f"cannot pass on {request.content!r} of {dict(request.headers)}")

        link = JudgeClient(served[0].url, served[0].process.token, transport=Proxy())
        api = Judge(RemoteExecutor([link], PoolRules(interval_s=0.05, health_timeout_s=0.5)), served[0].judge.cache)
        await api.start()
        app = create_app(Service(rubrics=store, judges={"default": api}))
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://adjudge.test") as http:
            await http.post("/v1/rewards", json=body(deadline_s=1))
        await api.close()
    assert "is out of the pool" in lines.whole
    assert "502" in lines.whole
    assert CANARY not in lines.whole
    assert served[0].process.token is not None
    assert served[0].process.token not in lines.whole


async def test_a_request_that_a_judge_cannot_read(lines: CapturedLogs) -> None:
    async with judges(None) as served:
        app = create_judge_app(served[0].process)
        headers = {"Authorization": f"Bearer {served[0].process.token}"}
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://judge.test") as http:
            for path in ("outcomes", "tokens"):
                answer = await http.post(f"/internal/v1/{path}", json={CANARY: CANARY}, headers=headers)
                assert answer.status_code == 422
            refused = await http.post("/internal/v1/outcomes", json={}, headers={"Authorization": f"Bearer {CANARY}"})
            assert refused.status_code == 401
    assert [line["status"] for line in lines.of("adjudge.access")] == [422, 422, 401]
    assert CANARY not in lines.whole
