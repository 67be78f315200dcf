"""Whatever a decision server answers, no failed verdict becomes a reward.

The server is honest while the engine starts. Then each example makes it answer every request in one valid or
invalid way: fields changed, missing or duplicated, impossible numbers, refusals, other statuses,
or truncated bodies.
"""

import asyncio
import json
import math
from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack
from typing import Any

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from judge_server.api.app import create_app
from judge_server.api.service import Service
from judge_server.engines.systemone.engine import SystemOneEngine
from rubric_store import RubricStore
from tests.fixtures.migrated import NewSQLite
from tests.hypothesis_examples import examples
from tests.judge_server import support
from tests.judge_server.engines.servers.raw_http import Raw
from tests.judge_server.engines.systemone.decision_answers import (
    MODEL,
    YES,
    LyingDecisionServer,
    openai,
    systemone,
)
from tests.judge_server.engines.test_lying_engine import (
    CRITERIA,
    check,
    encoded,
    junk,
    loop,
    sent,
    set_at,
    strange,
)

__all__ = ["loop"]

ASKED = {
    "binary": {"type": "noul"},
    "graded": {"type": "score", "criteria": ["bad", "poor", "fair", "good", "best"]},
}
QUESTIONS = {
    "binary": {"type": "predicate", "instructions": "?"},
    "graded": {"type": "score", "instructions": "?", "levels": [{"label": str(n)} for n in range(5)]},
}
PLACES: tuple[tuple[str | int, ...], ...] = (
    (),
    ("model",),
    ("answers",),
    ("answers", 0),
    ("answers", 0, "type"),
    ("answers", 0, "name"),
    ("answers", 0, "noul"),
    ("answers", 0, "probability"),
    ("answers", 0, "score"),
    ("answers", 0, "probabilities"),
    ("answers", 0, "probabilities", 0),
    ("answers", 0, "label_mass"),
    ("diagnostics",),
    ("diagnostics", "c0"),
    ("diagnostics", "c0", "label_mass"),
    ("usage",),
    ("usage", "input_tokens"),
    ("usage", "output_tokens"),
)
number = st.sampled_from([0.0, -0.0, 1.0, 1.0001, -1e-9, 0.5, 2, -1, 10**30, 1e308, math.nan, math.inf]) | junk


def answer(dialect: str, protocol: str) -> dict[str, Any]:
    """An honest server's answer about two criteria."""
    if dialect == "decisions":
        return openai({"questions": [QUESTIONS[protocol]] * 2})
    both = {id_: systemone(ASKED[protocol]) for id_ in ("c0", "c1")}
    return {
        "model": MODEL,
        "answers": both,
        "usage": {"input_tokens": 7, "output_tokens": 0},
        "diagnostics": {"c0": {}},
    }


def changed(whole: Any, place: tuple[str | int, ...], value: Any) -> Any:
    """The answer with the value at `place` replaced, if it exists; a number also indexes the entries of an object."""
    named: list[str | int] = []
    inner = whole
    try:
        for step in place:
            named.append(list(inner)[step] if isinstance(step, int) and isinstance(inner, dict) else step)
            inner = inner[named[-1]] if len(named) < len(place) else inner
        return set_at(whole, tuple(named), value)
    except (KeyError, TypeError, IndexError):
        return whole


dialects, protocols = st.sampled_from(["systemone", "decisions"]), st.sampled_from(["binary", "graded"])


@st.composite
def lies(draw: st.DrawFn) -> tuple[str, str, Raw]:
    """A dialect, a protocol, and the server's answer."""
    dialect, protocol = draw(dialects), draw(protocols)
    whole = answer(dialect, protocol)
    for place in draw(st.lists(st.sampled_from(PLACES), min_size=1, max_size=2)):
        if isinstance(whole, dict) and whole:
            whole = changed(whole, place, draw(number))
    body = encoded(whole)
    kind = draw(st.sampled_from(["whole"] * 4 + ["cut", "doubled", "strange", "status"]))
    if kind == "cut":
        body = body[: draw(st.integers(0, len(body)))]
    elif kind == "doubled":
        body = body.replace(b'"c0":', b'"c0": {"type": "noul", "noul": 5}, "c0":', 1)
    elif kind == "strange":
        body = draw(strange)
    elif kind == "status":
        status = draw(st.sampled_from([201, 204, 301, 400, 401, 404, 413, 422, 429, 500, 501, 503, 599]))
        return dialect, protocol, (status, body, {"Retry-After": draw(st.sampled_from(["0", "-1", "soon"]))})
    return dialect, protocol, sent(body)


class LyingDecisionService:
    """A service with two judges, one for each dialect of its server."""

    def __init__(self, http: httpx2.AsyncClient, servers: dict[str, LyingDecisionServer]) -> None:
        self.http = http
        self.servers = servers
        self.asked = 0

    async def score(self, dialect: str, protocol: str, lie: Raw | None) -> httpx2.Response:
        """Score a new response and return the answer."""
        self.servers[dialect].lie = lie
        self.asked += 1
        body = {
            "judge": dialect,
            "rubric": {"criteria": CRITERIA},
            "groups": [{"id": "g", "prompt": "Is 7 prime?", "responses": [f"Response {self.asked}."]}],
            "reward": {"mode": "graded_mean" if protocol == "graded" else "weighted_mean"},
            "judging": {"protocol": protocol},
            "deadline_s": 20,
        }
        return await self.http.post("/v1/rewards", json=body, timeout=30)


async def serving(url: str) -> AsyncGenerator[LyingDecisionService]:
    """A service in front of two decision servers."""
    async with AsyncExitStack() as stack:
        servers = {"systemone": LyingDecisionServer(), "decisions": LyingDecisionServer(openai)}
        judges = {}
        for dialect, server in servers.items():
            engine = SystemOneEngine(f"{await server.start()}/v1/{dialect}", timeout_s=5.0)
            stack.push_async_callback(server.close)
            judges[dialect] = await support.judge(engine)  # type: ignore[arg-type]
            stack.push_async_callback(judges[dialect].close)
        store = RubricStore(url)
        stack.push_async_callback(store.close)
        service = Service(rubrics=store, judges=judges, names=tuple(judges))
        transport = httpx2.ASGITransport(create_app(service), raise_app_exceptions=False)
        http = await stack.enter_async_context(httpx2.AsyncClient(transport=transport, base_url="http://adjudge.test"))
        yield LyingDecisionService(http, servers)


@pytest.fixture(scope="module")
def service(
    loop: asyncio.Runner, tmp_path_factory: pytest.TempPathFactory, new_sqlite: NewSQLite
) -> Iterator[LyingDecisionService]:
    """A service that asks lying servers."""
    made = serving(new_sqlite(tmp_path_factory.mktemp("decisions") / "adjudge.db"))
    yield loop.run(made.asend(None))
    loop.run(made.aclose())


def impossible(dialect: str, protocol: str, body: bytes) -> bool:
    """Whether the first yes-or-no answer cannot be a probability, computed independently of the engine."""
    if protocol != "binary":
        return False
    try:
        answers = json.loads(body)["answers"]
        value = answers[0]["probability"] if dialect == "decisions" else answers["c0"]["noul"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return True
    return isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1


@settings(max_examples=examples(200), deadline=None, suppress_health_check=list(HealthCheck))
@given(lies())
def test_no_lie_turns_a_failed_verdict_into_a_reward_or_breaks_a_later_request(
    loop: asyncio.Runner, service: LyingDecisionService, told: tuple[str, str, Raw]
) -> None:
    dialect, protocol, lie = told
    answered = loop.run(service.score(dialect, protocol, lie))
    assert answered.status_code == 200, answered.text
    (response,) = answered.json()["groups"][0]["responses"]
    check(response)
    if lie[0] != 200 or impossible(dialect, protocol, lie[1]):
        assert response["reward"] is None
    for name, figure in answered.json()["usage"].items():
        assert 0 <= figure < 2**40, (name, figure)
    honest = loop.run(service.score(dialect, "binary", None))
    assert honest.status_code == 200, honest.text
    (response,) = honest.json()["groups"][0]["responses"]
    assert [verdict["probability"] for verdict in response["verdicts"]] == [pytest.approx(YES)] * 2
    assert [verdict["choice_mass"] for verdict in response["verdicts"]] == [None] * 2
    assert response["reward"] == 1.0
