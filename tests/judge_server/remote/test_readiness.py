"""When a judge process says that it is ready: with its cache, or without, where the judge alone is asked for."""

import httpx2
import pytest

from judge_server.engines.scripted import ScriptedEngine
from judge_server.remote.serving import JudgeProcess, create_judge_app
from tests.judge_server import support


async def test_a_judge_whose_cache_is_away_is_ready_for_those_who_ask_for_the_judge_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = ScriptedEngine()
    judge = await support.judge(engine)

    async def away() -> bool:
        return False

    monkeypatch.setattr(judge.cache, "ready", away)
    transport = httpx2.ASGITransport(create_judge_app(JudgeProcess(None, judge)))
    async with httpx2.AsyncClient(base_url="http://judge", transport=transport) as http:
        assert (await http.get("/readyz")).status_code == 503
        assert (await http.get("/readyz?only=judge")).json() == {"checks": {"judge": True}}
        await engine.close()
        assert (await http.get("/readyz?only=judge")).status_code == 503
    await judge.close()
