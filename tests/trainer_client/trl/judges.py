"""An in-process judge with scripted answers, and reward functions that use it."""

import asyncio
import inspect
import json
import selectors
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import httpx2

from trainer_client import AsyncClient
from trainer_client.trl.reward import RubricReward

DIGEST = "sha256:" + "1" * 64
CRITERIA = [{"id": "a", "description": "Is right."}, {"id": "b", "description": "Is short."}]
LARGE_PROMPTS = ["a" * 4_100_000, "b" * 4_100_000]
"""Two prompts that do not fit into one request."""

USAGE = {"judge_calls": 2, "seconds_judging": 0.5, "seconds_queued": 0.25}


def verdict(criterion: str = "a", score: float | None = 1.0, kind: str = "timeout", **more: Any) -> dict[str, Any]:
    """A verdict, failed if it has no score."""
    if score is None:
        more["failure"] = {"kind": kind, "detail": "it took too long"}
    return {"criterion": criterion, "status": "failed" if score is None else "ok", "score": score, **more}


def response(reward: float | None, *verdicts: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A rewarded response."""
    status = "unscored" if reward is None else "scored"
    return {"reward": reward, "status": status, "verdicts": list(verdicts or [verdict(score=reward)]), **more}


def by_text(said: Any) -> dict[str, Any]:
    """A response whose reward is the number in its text."""
    text = said["text"]
    return response(float(text if isinstance(text, str) else text[-1]["content"]))


def groups(body: dict[str, Any], reward: Callable[[Any], dict[str, Any]] = by_text, **more: Any) -> list[Any]:
    """The lines of all requested groups. Every criterion of an inline rubric has a verdict."""
    return [
        {
            "group": {
                "id": g["id"],
                "rubric": DIGEST,
                "responses": [complete(reward(r), g.get("rubric") or body.get("rubric")) for r in g["responses"]],
                **more,
            }
        }
        for g in body["groups"]
    ]


def complete(rewarded: dict[str, Any], rubric: Any) -> dict[str, Any]:
    """The response with a verdict on each criterion of an inline rubric, in its order."""
    if not isinstance(rubric, dict):
        return rewarded
    given = {one["criterion"]: one for one in rewarded["verdicts"]}
    ids = [criterion["id"] for criterion in rubric["criteria"]]
    verdicts = [given.get(id_) or verdict(id_, score=rewarded["reward"]) for id_ in ids]
    return rewarded | {"verdicts": verdicts}


def summary(**fields: Any) -> dict[str, Any]:
    """The summary line."""
    about = {"request_id": "r", "mode": "weighted_mean", "on_failure": "null", "rubrics": [], "usage": USAGE}
    return {"summary": about | fields}


def pinned(name: str, version: int, digest: str = DIGEST) -> dict[str, Any]:
    """A reference to a rubric that was used."""
    return {"name": name, "version": version, "digest": digest}


class LineStream(httpx2.AsyncByteStream):
    """An answer in lines; an exception among them breaks it off, an awaitable is awaited."""

    def __init__(self, *lines: Any) -> None:
        self.lines = lines

    async def __aiter__(self) -> Any:
        for line in self.lines:
            if isinstance(line, Exception):
                raise line
            if inspect.isawaitable(line):
                await line
                continue
            yield line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n"


def stream(*lines: Any) -> httpx2.Response:
    """A streamed answer."""
    return httpx2.Response(200, headers={"Content-Type": "application/x-ndjson"}, stream=LineStream(*lines))


def problem(kind: str, status: int, *, retryable: bool = False) -> httpx2.Response:
    """An RFC 9457 answer."""
    body = {"type": f"urn:adjudge:{kind}", "title": kind, "status": status, "detail": f"{kind} happened"}
    return httpx2.Response(status, json=body | {"request_id": "r", "retryable": retryable})


Answer = Callable[[dict[str, Any]], httpx2.Response | Awaitable[httpx2.Response]]


def obliging(body: dict[str, Any]) -> httpx2.Response:
    """Answer everything that was requested."""
    return stream(*groups(body), summary())


def ranking(body: dict[str, Any]) -> httpx2.Response:
    """Rank the responses of each group by the numbers in their texts: the share of the others that are not greater."""
    lines = []
    for group in body["groups"]:
        worth = [float(said["text"]) for said in group["responses"]]
        others = [[n for n in range(len(worth)) if n != place] for place in range(len(worth))]
        beaten = [[float(worth[place] > worth[n]) for n in others[place]] for place in range(len(worth))]
        responses = [
            response(
                sum(won) / len(won), *[verdict(f"beats_{n}", score=s) for n, s in zip(others[place], won, strict=True)]
            )
            for place, won in enumerate(beaten)
        ]
        lines.append({"group": {"id": group["id"], "rubric": DIGEST, "responses": responses}})
    return stream(*lines, summary(mode="ranking"))


def accept_measures(body: bytes) -> httpx2.Response:
    """Accept a report of measures as the service does."""
    return httpx2.Response(200, content=body)


def ready() -> httpx2.Response:
    """Report that the service is ready."""
    return httpx2.Response(200)


class FakeJudgeTransport(httpx2.AsyncBaseTransport):
    """A service that answers `POST /v1/rewards` by `answers` in order, the last repeated, and reports by `measures`."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers) or [obliging]
        self.asked: list[dict[str, Any]] = []
        self.fetched: list[str] = []
        self.rubrics: dict[str, httpx2.Response] = {}
        self.reported: list[bytes] = []
        self.measures: Callable[[bytes], httpx2.Response | Awaitable[httpx2.Response]] = accept_measures
        self.readiness: list[Callable[[], httpx2.Response]] = [ready]
        """The answers to `GET /readyz` in order, the last repeated."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.url.path == "/readyz":
            return (self.readiness.pop(0) if len(self.readiness) > 1 else self.readiness[0])()
        if request.method == "GET":
            reference = request.url.path.removeprefix("/v1/rubrics/")
            self.fetched.append(reference)
            return self.rubrics[reference]
        if request.url.path == "/v1/measures":
            self.reported.append(await request.aread())
            answer = self.measures(self.reported[-1])
            return await answer if inspect.isawaitable(answer) else answer
        body = json.loads(await request.aread())
        self.asked.append(body)
        answering = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        given = answering(body)
        return await given if inspect.isawaitable(given) else given


def client(judge: httpx2.AsyncBaseTransport, **options: Any) -> AsyncClient:
    """A client of that judge, by default without waits between attempts."""
    return AsyncClient("http://judge.test", "run", transport=judge, **{"sleep": no_wait} | options)


async def no_wait(_: float) -> None:
    """Return at once."""


def rewarding(judge: httpx2.AsyncBaseTransport, rubric: Any = "r", **options: Any) -> RubricReward:
    """A reward function on that judge, by default tolerant of any share of failures, without waiting for it."""
    return RubricReward(client(judge), rubric, **{"max_unscored": 1.0, "wait_for_judge_s": 0.0} | options)


class Trainer:
    """The part of TRL's trainer that a reward function uses."""

    def __init__(self, functions: Sequence[Any] = (), eos: Sequence[int] = (0,), **marks: Any) -> None:
        self.reward_funcs = list(functions)
        self.eos_token_ids = list(eos)
        self.metrics: dict[str, list[float]] = {}
        self.extra: dict[str, list[str]] = {}
        vars(self).update(marks)

    def log_metric(self, name: str, value: float) -> None:
        self.metrics.setdefault(name, []).append(value)

    def log_extra(self, column: str, values: list[str]) -> None:
        self.extra.setdefault(column, []).extend(values)

    @property
    def logs(self) -> dict[str, Any]:
        """The logging functions that TRL passes beside the columns."""
        return {"log_metric": self.log_metric, "log_extra": self.log_extra}


class _NonWaitingSelector(selectors.DefaultSelector):
    """A selector that never waits: with nothing ready, it skips to the next timer."""

    skipped = 0.0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(None if timeout is None else 0)
        if not ready and timeout:
            self.skipped += timeout
        return ready


class SkippingLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock advances only by waiting."""

    def __init__(self) -> None:
        self._clock = _NonWaitingSelector()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.skipped
