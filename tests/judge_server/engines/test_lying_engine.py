"""A lying OpenAI API server: verdicts may fail, without a 500, an invented reward, a lost row or a later failure.

It is honest while the engine starts. Then each example makes it answer every call in one valid or invalid way:
fields changed, missing or duplicated, impossible numbers, other statuses, truncated bodies, or streams.
"""

import asyncio
import json
import math
from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from judge_server.api.app import create_app
from judge_server.api.service import Service
from judge_server.engines.openai.engine import OpenAIEngine
from judge_server.judging.replies import MIN_CHOICE_MASS
from judge_server.ledger import Recorder
from judge_server.ports import MASS_TOLERANCE
from rubric_store import RubricStore, SQLLedger
from tests.fixtures.migrated import NewSQLite
from tests.fixtures.short_intervals import RECORDER_TIMES
from tests.hypothesis_examples import examples
from tests.judge_server import support
from tests.judge_server.engines.servers.misbehaving import MisbehavingServer
from tests.judge_server.engines.servers.misbehaviours import MASSES, MODEL
from tests.judge_server.engines.servers.raw_http import Raw, RawRequest

CRITERIA = [{"id": "a", "description": "Is it?"}, {"id": "b", "description": "Is it not?", "weight": 3}]
HONEST = 0.625 / 0.875
"""The probability of yes in the server's honest answer."""

SPELLINGS = ("Yes", " yes", "no", "No", "true", " False", "maybe", "\u2581yes", "0", "4", " 3", "", "\n", "\ufffd")

junk = st.recursive(
    st.none()
    | st.booleans()
    | st.sampled_from([0, -1, 1, -(10**9), 10**30, 2**63, 0.0, -0.0, 700.0, 1e308, -1e308, 1e-320])
    | st.sampled_from([math.nan, math.inf, -math.inf, "", "yes", "no", MODEL, "stop", "\ud800", "\x00", "x" * 5000])
    | st.integers()
    | st.floats()
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
logprob = st.sampled_from([0.0, -0.0, -40.0, 700.0, 1e308, -1e308, -0.7, 1e-4, math.nan]) | st.floats(-60, 0.01) | junk
top = st.lists(
    st.fixed_dictionaries({"token": st.sampled_from(SPELLINGS), "logprob": logprob}) | junk.map(lambda x: {"token": x}),
    max_size=6,
)
count = st.sampled_from([-(10**9), 10**30, 1e300, 10**400, None, "7", True]) | st.integers() | junk


def answer() -> dict[str, Any]:
    """An honest server's answer."""
    tops = [{"token": token, "logprob": math.log(mass)} for token, mass in MASSES.items()]
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": "Yes"},
        "finish_reason": "length",
        "logprobs": {"content": [{"token": "Yes", "logprob": -0.7, "top_logprobs": tops}]},
    }
    usage = {"prompt_tokens": 100, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 64}}
    return {"model": MODEL, "system_fingerprint": "fp_1", "choices": [choice], "usage": usage}


PLACES: tuple[tuple[str | int, ...], ...] = (
    (),
    ("model",),
    ("system_fingerprint",),
    ("choices",),
    ("choices", 0),
    ("choices", 0, "message"),
    ("choices", 0, "message", "content"),
    ("choices", 0, "finish_reason"),
    ("choices", 0, "logprobs"),
    ("choices", 0, "logprobs", "content"),
    ("choices", 0, "logprobs", "content", 0),
    ("choices", 0, "logprobs", "content", 0, "token"),
    ("choices", 0, "logprobs", "content", 0, "top_logprobs"),
    ("choices", 0, "logprobs", "content", 0, "top_logprobs", 0),
    ("choices", 0, "logprobs", "content", 0, "top_logprobs", 0, "token"),
    ("choices", 0, "logprobs", "content", 0, "top_logprobs", 0, "logprob"),
    ("usage",),
    ("usage", "prompt_tokens"),
    ("usage", "prompt_tokens_details"),
)


def set_at(whole: Any, place: tuple[str | int, ...], value: Any) -> Any:
    """The answer with the value at `place` replaced."""
    if not place:
        return value
    inner: Any = whole
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = value
    return whole


def encoded(whole: Any) -> bytes:
    """The answer as JSON, NaN and integers of any size included."""
    return json.dumps(whole).encode()


def sent(body: bytes, status: int = 200) -> Raw:
    return status, body, {"Content-Type": "application/json"}


other_value = st.builds(lambda place, value: set_at(answer(), place, value), st.sampled_from(PLACES), junk).map(encoded)
left_out = st.sampled_from([place for place in PLACES if place and isinstance(place[-1], str)]).map(
    lambda place: encoded(set_at(answer(), place, "LEFT-OUT")).replace(
        b'"%b": "LEFT-OUT"' % str(place[-1]).encode(), b'"": 0'
    )
)
other_masses = top.map(lambda tops: encoded(set_at(answer(), PLACES[12], tops)))
other_counts = st.builds(
    lambda prompt, written, cached: encoded(
        answer()
        | {
            "usage": {
                "prompt_tokens": prompt,
                "completion_tokens": written,
                "prompt_tokens_details": {"cached_tokens": cached},
            }
        }
    ),
    *[count] * 3,
)
whole_bodies = st.one_of(other_masses, other_masses, other_counts, other_value, left_out)
cut_short = st.builds(lambda body, at: body[: at % (len(body) + 1)], whole_bodies, st.integers(0, 4000))
doubled = whole_bodies.map(
    lambda body: body.replace(b'"model":', b'"model": "x", "model":', 1) + b"{}" * (len(body) % 2)
)
stream = whole_bodies.map(lambda body: b"data: " + body + b"\n\ndata: [DONE]\n\n")
strange = st.sampled_from([b"", b"null", b"[]", b"[" * 20_000, b"\xff\xfe", b'{"a":' * 5000, b"<html>"]) | st.binary(
    max_size=50
)
lies = st.one_of(
    whole_bodies.map(sent),
    whole_bodies.map(sent),
    st.one_of(cut_short, doubled, stream, strange).map(sent),
    st.builds(
        lambda body, status, wait: (status, body, {"Retry-After": wait}),
        whole_bodies | strange,
        st.sampled_from([201, 204, 301, 400, 401, 404, 413, 422, 429, 500, 503, 599]),
        st.sampled_from(["0", "-1", "0.5", "soon", "Sun, 06 Nov 1994 08:49:37 GMT"]),
    ),
)
judging = st.sampled_from(
    [{}, {}, {"rationale": True}, {"criteria_per_call": "all"}, {"protocol": "graded"}, {"protocol": "stepwise"}]
)


class LyingChatServer(MisbehavingServer):
    """Answers chat requests with `lie`, or honestly if there is none."""

    lie: Raw | None = None

    async def respond(self, request: RawRequest) -> Raw | None:
        """Lie about a chat request, or answer honestly."""
        if self.lie is not None and request.target.endswith("/chat/completions"):
            return self.lie
        return await super().respond(request)


@dataclass
class ServiceUnderTest:
    """A service in front of a lying server, and the number of verdicts requested."""

    http: httpx2.AsyncClient
    liar: LyingChatServer
    asked: list[str] = field(default_factory=list, repr=False)
    verdicts: int = 0

    async def score(self, lie: Raw | None, judging: dict[str, Any]) -> httpx2.Response:
        """Score a new response and return the answer."""
        self.liar.lie = lie
        self.asked.append(text := f"Response {len(self.asked)}.")
        body = {
            "run": "lies",
            "rubric": {"criteria": CRITERIA},
            "groups": [{"id": "g", "prompt": "Is 7 prime?", "responses": [text]}],
            "reward": {"mode": "graded_mean" if judging.get("protocol") == "graded" else "weighted_mean"},
            "judging": judging,
            "deadline_s": 20,
        }
        return await self.http.post("/v1/rewards", json=body, timeout=30)


async def serving(folder: Path, url: str) -> AsyncGenerator[ServiceUnderTest]:
    """A service with a separate database and spool."""
    async with AsyncExitStack() as stack:
        liar = LyingChatServer()
        await liar.start()
        engine = OpenAIEngine(liar.url("good"), timeout_s=5.0)
        stack.push_async_callback(liar.close)
        judge = await support.judge(engine)  # type: ignore[arg-type]
        stack.push_async_callback(judge.close)
        store, ledger = RubricStore(url), SQLLedger(url)
        recorder = Recorder(ledger, folder / "spool", times=RECORDER_TIMES)
        service = Service(rubrics=store, judges={"default": judge}, recorder=recorder, ledger=ledger)
        transport = httpx2.ASGITransport(create_app(service), raise_app_exceptions=False)
        http = await stack.enter_async_context(httpx2.AsyncClient(transport=transport, base_url="http://adjudge.test"))
        stack.push_async_callback(store.close)
        stack.push_async_callback(ledger.close)
        stack.push_async_callback(asyncio.to_thread, recorder.close)
        yield ServiceUnderTest(http, liar)


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.Runner]:
    """The event loop shared by all examples."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def service(
    loop: asyncio.Runner, tmp_path_factory: pytest.TempPathFactory, new_sqlite: NewSQLite
) -> Iterator[ServiceUnderTest]:
    """A service that asks a lying server."""
    folder = tmp_path_factory.mktemp("lies")
    made = serving(folder, new_sqlite(folder / "adjudge.db"))
    yield loop.run(made.asend(None))
    loop.run(made.aclose())


def check(response: dict[str, Any]) -> None:
    """Check that the reward follows from the verdicts and that masses and probabilities are valid."""
    failed = [verdict for verdict in response["verdicts"] if verdict["status"] == "failed"]
    for verdict in failed:
        assert verdict["score"] is None
        assert verdict["failure"]["detail"]
    assert (response["reward"] is None) == bool(failed), response
    assert response["status"] == ("unscored" if failed else "scored")
    if not failed:
        scores = [verdict["score"] for verdict in response["verdicts"]]
        assert response["reward"] == pytest.approx((scores[0] + 3 * scores[1]) / 4)
    for verdict in response["verdicts"]:
        if verdict["choice_mass"] is not None:
            assert MIN_CHOICE_MASS <= verdict["choice_mass"] <= 1
        if verdict["probability"] is not None:
            assert 0 <= verdict["probability"] <= 1


def possible(body: bytes) -> bool:
    """Whether the first token's log-probabilities are possible, computed independently of the engine."""
    tops = json.loads(body)["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
    return math.fsum(math.exp(min(t["logprob"], 1.0)) for t in tops) <= 1 + MASS_TOLERANCE


@settings(
    max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, *HealthCheck]
)
@given(lies, judging)
def test_no_lie_turns_a_failed_verdict_into_a_reward_or_breaks_a_later_request(
    loop: asyncio.Runner, service: ServiceUnderTest, lie: Raw, judging: dict[str, Any]
) -> None:
    answered = loop.run(service.score(lie, judging))
    assert answered.status_code == 200, answered.text
    (response,) = answered.json()["groups"][0]["responses"]
    check(response)
    service.verdicts += len(response["verdicts"])
    for name, told in answered.json()["usage"].items():
        assert 0 <= told < 10**6, (name, told)
    honest = loop.run(service.score(None, {}))
    assert honest.status_code == 200, honest.text
    (response,) = honest.json()["groups"][0]["responses"]
    service.verdicts += len(response["verdicts"])
    assert [verdict["probability"] for verdict in response["verdicts"]] == [pytest.approx(HONEST)] * 2
    assert response["reward"] == 1.0


@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(st.sampled_from(SPELLINGS[:8]), st.floats(-60, 5)), min_size=1, max_size=8))
def test_impossible_masses_never_give_a_verdict(
    loop: asyncio.Runner, service: ServiceUnderTest, tops: list[tuple[str, float]]
) -> None:
    body = encoded(set_at(answer(), PLACES[12], [{"token": token, "logprob": value} for token, value in tops]))
    (response,) = loop.run(service.score(sent(body), {})).json()["groups"][0]["responses"]
    check(response)
    service.verdicts += len(response["verdicts"])
    if not possible(body):
        assert response["reward"] is None


async def rows(service: ServiceUnderTest) -> int:
    """The number of verdicts in the ledger, once all pending rows are written."""
    async with asyncio.timeout(60):
        while (await service.http.get("/v1/ledger")).json()["waiting"]:  # noqa: ASYNC110 - another thread writes
            await asyncio.sleep(0.05)
    found, params = 0, {"run": "lies", "limit": "500"}
    while True:
        page = (await service.http.get("/v1/verdicts", params=params)).json()
        found += len(page["verdicts"])
        if page["next_cursor"] is None:
            return found
        params["after"] = page["next_cursor"]


def test_the_ledger_keeps_every_row(loop: asyncio.Runner, service: ServiceUnderTest) -> None:
    loop.run(service.score(None, {}))
    assert loop.run(rows(service)) == service.verdicts + len(CRITERIA)
