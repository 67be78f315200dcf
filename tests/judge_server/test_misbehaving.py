"""The misbehaving server itself: it answers correctly until it is triggered."""

import asyncio
import json
import sys
from typing import Any

import httpx2
import pytest

from tests.judge_server import openai_fixtures
from tests.judge_server.misbehaving import TRIGGER
from tests.judge_server.misbehaviours import GOES_WRONG, MASSES
from tests.judge_server.openai_fixtures import MisbehavingServer

pytestmark = pytest.mark.asyncio(loop_scope="session")

misbehaving = openai_fixtures.misbehaving


def chat(words: str) -> dict[str, Any]:
    """A request that any chat API server answers."""
    messages = [{"role": "user", "content": words}]
    return {"messages": messages, "max_tokens": 2, "temperature": 0, "logprobs": True, "top_logprobs": 20}


@pytest.mark.parametrize("name", sorted(GOES_WRONG))
async def test_a_misbehaving_endpoint_answers_correctly_until_it_is_triggered(
    misbehaving: MisbehavingServer, name: str
) -> None:
    url = f"{misbehaving.url('itself', name)}/chat/completions"
    async with httpx2.AsyncClient(timeout=0.5) as http:
        before = (await http.post(url, json=chat("Is it?"), timeout=20)).text
        answer = json.loads(before)
        assert answer["choices"][0]["message"]["content"] == "Yes,"
        assert len(answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]) == len(MASSES)
        if not name.startswith("slow") and name != "endless":
            try:
                wrong = await http.post(url, json=chat(TRIGGER))
            except httpx2.HTTPError:
                return
            assert wrong.status_code != 200 or wrong.text != before


async def test_the_server_exits_when_its_standard_input_closes() -> None:
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.judge_server.misbehaving", stdin=pipe, stdout=pipe
    )
    await asyncio.wait_for(child.communicate(b""), 30)
    assert child.returncode == 0
