"""The session headers of OpenAI engine requests, by which routers choose one of several engines."""

from dataclasses import replace
from typing import Any

import pytest

from judge_server.engines.openai.http import SESSION_HEADERS
from judge_server.ports import Batch, Call, Reasoning
from tests.judge_server.engines.openai import fixtures as openai_fixtures
from tests.judge_server.engines.openai.fixtures import YES_NO, Endpoint, outcomes

pytestmark = pytest.mark.asyncio(loop_scope="session")

endpoint = openai_fixtures.endpoint

KEY = "sk-of-this-test"


def about(response: str, *questions: str, images: tuple[str, ...] = ()) -> Batch:
    """Questions about one response."""
    return Batch("Answer yes or no.", f"The response: {response}\n", tuple(Call(q, YES_NO) for q in questions), images)


async def sessions(endpoint: Endpoint, of: str) -> set[str]:
    """The sessions of chats whose text contains `of`; both headers of a chat must agree."""
    found: set[str] = set()
    for asked in endpoint.server.log.asked:
        if of in str(asked["body"]):
            headers: dict[str, Any] = {name.lower(): value for name, value in asked["headers"].items()}
            values = {headers[name.lower()] for name in SESSION_HEADERS}
            assert len(values) == 1
            found |= values
    return found


async def test_the_calls_of_a_response_share_a_session_and_other_responses_have_others(endpoint: Endpoint) -> None:
    engine, _ = await endpoint.started("good")
    await outcomes(engine, about("seven", "Is it prime?", "Is it odd?"))
    await outcomes(engine, about("seven", "Is it brief?"))
    await outcomes(engine, about("eight", "Is it prime?"))
    await outcomes(engine, about("seven", "Is it blue?", images=("data:image/png;base64,AA==",)))
    (seven,) = await sessions(endpoint, "response: seven\\nIs it")
    (eight,) = await sessions(endpoint, "response: eight")
    (picture,) = await sessions(endpoint, "Is it blue?")
    assert len({seven, eight, picture}) == 3


async def test_every_turn_of_a_call_carries_its_session(endpoint: Endpoint) -> None:
    engine, _ = await endpoint.started("good")
    call = Call("Is it odd?", YES_NO, reasoning=Reasoning(20, "So, yes or no?"))
    await outcomes(engine, Batch("Answer yes or no.", "The response: nine\n", (call,)))
    assert len(endpoint.chats(of="nine")) == 2
    assert len(await sessions(endpoint, "nine")) == 1


async def test_processes_with_the_same_key_agree_on_a_session_which_others_cannot_compute(endpoint: Endpoint) -> None:
    prefix = ("system", "shared")
    one, two, other, none, none_either = (
        endpoint.engine("good", api_key=key)._http.session_of(*prefix) for key in (KEY, KEY, "sk-other", None, None)
    )
    assert one == two
    assert len({one, other, none, none_either}) == 4
    assert not {KEY, *prefix} & {one, none}


@pytest.mark.parametrize(("name", "sent"), [("vllm", "project b"), ("good", None)])
async def test_only_vllm_gets_the_cache_salt_which_is_part_of_the_session(
    endpoint: Endpoint, name: str, sent: str | None
) -> None:
    engine, _ = await endpoint.started(name)
    plain = about("salted", "Is it prime?")
    await outcomes(engine, replace(plain, cache_salt="project b"))
    (chat,) = endpoint.chats(of="salted")
    assert chat.get("cache_salt") == sent
    await outcomes(engine, plain)
    assert "cache_salt" not in endpoint.chats(of="salted")[-1]
    assert len(await sessions(endpoint, "salted")) == 2
