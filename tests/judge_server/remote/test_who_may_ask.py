"""A judge without a token, which listens on loopback, answers only who asked for this machine."""

import httpx2
import pytest

from judge_server.remote import JudgeProcess, create_judge_app
from judge_server.remote.link import ROOT
from tests.judge_server import support
from tests.judge_server.remote.judges import TOKEN, Served


@pytest.mark.parametrize(
    ("token", "shown", "host", "status"),
    [
        (None, None, "127.0.0.1:8001", 200),
        (None, None, "localhost", 200),
        (None, None, "evil.example:8001", 403),
        (None, "made up", "evil.example:8001", 403),
        (TOKEN, TOKEN, "judge.internal", 200),
        (TOKEN, "made up", "127.0.0.1", 401),
        (TOKEN, None, "localhost", 401),
    ],
)
async def test_who_shows_the_token_may_ask_or_where_there_is_none_who_means_this_machine(
    token: str | None, shown: str | None, host: str, status: int
) -> None:
    judge = await support.judge()
    headers = {"Host": host} | ({} if shown is None else {"Authorization": f"Bearer {shown}"})
    transport = httpx2.ASGITransport(create_judge_app(Served(judge, token).process))
    async with httpx2.AsyncClient(base_url="http://judge", transport=transport, headers=headers) as http:
        assert (await http.get(f"{ROOT}/judge")).status_code == status
        assert (await http.get("/metrics")).status_code == status
        refused = await http.post(f"{ROOT}/outcomes", json={})
        assert refused.status_code == (422 if status == 200 else status)
    await judge.close()


async def test_metrics_may_be_open_to_who_reaches_a_judge_with_a_token() -> None:
    process = JudgeProcess(TOKEN, open_metrics=True)
    transport = httpx2.ASGITransport(create_judge_app(process))
    async with httpx2.AsyncClient(base_url="http://judge", transport=transport) as http:
        assert (await http.get("/metrics")).status_code == 200
        assert (await http.get(f"{ROOT}/judge")).status_code == 401
