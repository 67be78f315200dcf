"""What the OpenAI chat API engine detects at startup, against a server process with many behaviours."""

import pytest

from judge_server.engines.openai.engine import OpenAIEngine
from judge_server.errors import EngineNotReady, EngineStartError
from judge_server.ports import Reply
from tests.fixtures.ports import unused_port
from tests.judge_server.engines.openai import fixtures as openai_fixtures
from tests.judge_server.engines.openai.fixtures import Endpoint, batch, outcomes

pytestmark = pytest.mark.asyncio(loop_scope="session")

endpoint = openai_fixtures.endpoint

KEY = "sk-only-for-tests"


async def test_capabilities_are_what_the_endpoint_demonstrates_and_not_what_it_accepts(endpoint: Endpoint) -> None:
    _, able = await endpoint.started("good")
    assert (able.capabilities.logprobs, able.capabilities.json_schema, able.capabilities.seeds) == (True, True, True)
    assert not able.capabilities.prefix_in_flight
    assert not able.capabilities.prompt_logprobs
    assert able.decoding == "greedy; top 20"
    for name in ("plain", "refusing"):
        _, poor = await endpoint.started(name)
        assert not poor.capabilities.logprobs
        assert not poor.capabilities.json_schema
        assert poor.decoding == "greedy; text"
    assert not poor.capabilities.seeds


async def test_seeds_that_do_not_reproduce_a_sample_are_not_a_capability(endpoint: Endpoint) -> None:
    _, identity = await endpoint.started("forgetful")
    assert not identity.capabilities.seeds
    assert identity.capabilities.json_schema


async def test_probabilities_that_are_always_one_are_not_a_capability(endpoint: Endpoint) -> None:
    _, identity = await endpoint.started("certain")
    assert not identity.capabilities.logprobs
    assert identity.capabilities.json_schema


async def test_prompt_probabilities_and_prefixes_in_flight_are_detected_on_vllm(endpoint: Endpoint) -> None:
    _, identity = await endpoint.started("vllm")
    assert identity.capabilities.prompt_logprobs
    assert identity.capabilities.prefix_in_flight
    assert identity.context_tokens == 4096
    assert identity.engine == "OpenAI chat API of vllm (misbehaving)"


async def test_fewer_log_probabilities_are_requested_where_twenty_are_refused(endpoint: Endpoint) -> None:
    engine, identity = await endpoint.started("few")
    assert identity.capabilities.logprobs
    assert identity.decoding == "greedy; top 5"
    (reply,) = await outcomes(engine, batch("Is it?"))
    assert isinstance(reply, Reply)
    assert reply.masses == pytest.approx((0.625, 0.25))


async def test_the_token_limit_uses_the_field_that_the_endpoint_expects(endpoint: Endpoint) -> None:
    assert isinstance(await endpoint.only("new", "Is it?"), Reply)
    (asked,) = endpoint.chats(of="Is it?")
    assert asked["max_completion_tokens"] == 1
    assert "max_tokens" not in asked


async def test_the_identity_marks_the_weights_as_declared_by_the_endpoint(endpoint: Endpoint) -> None:
    _, identity = await endpoint.started("good")
    assert identity.model == "judge-1"
    assert identity.weights_digest == "declared by the endpoint: judge-1 (fp_1)"
    assert identity.context_tokens == 8192
    _, told = await endpoint.started("vllm", context_tokens=700)
    assert told.context_tokens == 700


async def test_a_model_that_is_not_served_is_refused_with_the_served_ones(endpoint: Endpoint) -> None:
    with pytest.raises(EngineStartError, match=r"does not serve 'judge-9' but judge-1; .*\?model="):
        await endpoint.started("good", model="judge-9")
    with pytest.raises(EngineStartError, match=r"serves judge-1, judge-2, .*judge-10, …; .*\?model=NAME"):
        await endpoint.started("many")
    with pytest.raises(EngineStartError, match=r"lists no models; .*\?model=NAME"):
        await endpoint.started("unlisted")


async def test_an_endpoint_that_lists_no_models_judges_with_the_configured_one(endpoint: Endpoint) -> None:
    engine, identity = await endpoint.started("unlisted", model="judge-1")
    assert identity.model == "judge-1"
    assert await engine.ready()


async def test_an_unusable_endpoint_fails_at_startup_with_a_fix(endpoint: Endpoint) -> None:
    with pytest.raises(EngineStartError, match=r"requires a key \(HTTP 401\); set ADJUDGE_ENGINE_API_KEY"):
        await endpoint.started("locked")
    with pytest.raises(EngineStartError, match="refused the key") as refused:
        await endpoint.started("locked", api_key=KEY)
    assert KEY not in str(refused.value)
    with pytest.raises(EngineStartError, match=r"does not return a list of models .* usually in /v1"):
        await endpoint.started("page")
    nobody = OpenAIEngine(f"http://127.0.0.1:{unused_port()}/v1")
    with pytest.raises(EngineNotReady, match="start the server, or correct the engine URL"):
        await nobody.start()
    await nobody.close()


@pytest.mark.parametrize(
    ("behaviour", "options", "may_come"),
    [
        ("waking", {}, True),
        ("locked", {}, False),
        ("locked", {"api_key": KEY}, False),
        ("good", {"model": "judge-9"}, False),
        ("page", {}, False),
    ],
)
async def test_a_server_that_is_still_starting_is_not_ready_and_a_refusal_is_final(
    endpoint: Endpoint, behaviour: str, options: dict[str, str], may_come: bool
) -> None:
    with pytest.raises(EngineStartError) as refused:
        await endpoint.started(behaviour, **options)
    assert isinstance(refused.value, EngineNotReady) == may_come


async def test_a_temporary_failure_at_startup_is_not_mistaken_for_a_missing_capability(endpoint: Endpoint) -> None:
    with pytest.raises(EngineStartError, match="HTTP 503"):
        await endpoint.started("waking")
