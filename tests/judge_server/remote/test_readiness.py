"""Readiness of a judge process: with its cache, or of the judge alone where the probe asks for that."""

import httpx2
import pytest

from judge_server.api.judge_process import JudgeProcess, create_judge_app
from judge_server.engines.scripted import ScriptedEngine
from tests.judge_server import support


async def test_without_its_cache_a_judge_is_ready_only_for_probes_of_the_judge_alone(
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
