"""A service with a ledger, and requests that wait until the ledger has them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2

from judge_server.api.app import create_app
from judge_server.api.service import Service
from judge_server.ledger import Recorder
from judge_server.scoring.judge import Judge
from rubric_store import RubricStore, RubricTexts, SQLLedger
from tests.fixtures.short_intervals import RECORDER_TIMES


@asynccontextmanager
async def recording(
    store: RubricStore, folder: Path, tracker_url: str | None = None, **judges: Judge
) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of a service with a ledger beside its rubrics, and with these judges."""
    ledger = SQLLedger(f"sqlite+aiosqlite:///{folder / 'rubrics.db'}")
    recorder = Recorder(ledger, folder / "spool", times=RECORDER_TIMES)
    service = Service(
        rubrics=store,
        rubric_texts=RubricTexts(),
        judges=dict(judges),
        names=tuple(judges),
        recorder=recorder,
        ledger=ledger,
        labels=ledger,
        tracker_url=tracker_url,
    )
    transport = httpx2.ASGITransport(create_app(service), raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://adjudge.test") as http:
        yield http
    await asyncio.to_thread(recorder.close)
    await ledger.close()


async def post(http: httpx2.AsyncClient, body: dict[str, Any], path: str = "/v1/rewards", **options: Any) -> Any:
    """Send a request, and return its answer once the ledger has it."""
    answer = await http.post(path, json=body, **options)
    assert answer.status_code == 200, answer.text
    for _ in range(2000):
        if not (await http.get("/v1/ledger")).json()["waiting"]:
            return answer
        await asyncio.sleep(0.01)
    raise AssertionError("the answer was not written to the ledger")


async def verdicts(http: httpx2.AsyncClient, **params: Any) -> list[dict[str, Any]]:
    """All matching verdicts, three per page."""
    found: list[dict[str, Any]] = []
    while True:
        page = (await http.get("/v1/verdicts", params=params | {"limit": 3})).json()
        assert len(page["verdicts"]) <= 3
        found += page["verdicts"]
        if page["next_cursor"] is None:
            return found
        params["after"] = page["next_cursor"]


async def get(http: httpx2.AsyncClient, path: str, **params: Any) -> dict[str, Any]:
    """The answer to one GET."""
    answer = await http.get(path, params=params)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body
