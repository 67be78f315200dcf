"""An endpoint that keeps an answer back, breaks it off or sends an error instead: its failure, never the judge's."""

import contextlib
import gzip
import json
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from judge_server.engines.openai.calls import read_answer
from judge_server.engines.openai.completions import ChatCompletion, ModelList, TokenCounts, parse_body
from judge_server.engines.openai.engine import OpenAIEngine
from judge_server.engines.openai.http import retry_after_s
from judge_server.errors import EngineNotReady, EngineStartError
from judge_server.ports import (
    Call,
    CallFailure,
    JsonOutput,
    LabelChoice,
    Option,
    Reasoning,
    Reply,
    SamplingOptions,
    TextOutput,
    TokenChoice,
)
from tests.judge_server import support
from tests.judge_server.conftest import Serve
from tests.judge_server.engines.fixtures import YES_NO, answers, asked
from tests.judge_server.engines.servers.dialects import (
    KINDS,
    DialectServer,
    ServerKind,
    chunks,
    complete,
    dialect_server,
    openai_error,
    streamed,
)

Change = Callable[[dict[str, Any]], Any]


def message(**changes: Any) -> Change:
    """A completion with these fields of its message changed."""

    def change(completion: dict[str, Any]) -> dict[str, Any]:
        completion["choices"][0]["message"] |= changes
        return completion

    return change


def choice(content: Any = None, **changes: Any) -> Change:
    """A completion with these fields of its choice changed, and this content without log-probabilities."""

    def change(completion: dict[str, Any]) -> dict[str, Any]:
        completion["choices"][0] |= {"logprobs": None} | changes
        completion["choices"][0]["message"]["content"] = content
        return completion

    return change


CALLED = [{"id": "1", "type": "function", "function": {"name": "search", "arguments": "{}"}}]
FILTERED = {"hate": {"filtered": False}, "violence": {"filtered": True, "severity": "medium"}}

WITHHELD: dict[str, tuple[Change, str]] = {
    "filter": (choice(finish_reason="content_filter"), "withheld the answer (finish_reason 'content_filter')"),
    "azure": (choice(finish_reason="content_filter", content_filter_results=FILTERED), "violence"),
    "gemini": (choice("", finish_reason="SAFETY"), "withheld"),
    "recitation": (choice("Yes", finish_reason="RECITATION"), "withheld"),
    "zhipu": (choice("", finish_reason="sensitive"), "withheld"),
    "bedrock": (choice("Blocked.", finish_reason="guardrail_intervened"), "withheld"),
    "refusal": (message(content=None, refusal="I cannot judge this."), "refused to answer: I cannot judge this."),
    "refusal-part": (message(content=[{"type": "refusal", "refusal": "Not this."}]), "refused to answer: Not this."),
    "anthropic": (choice("", finish_reason="refusal"), "withheld"),
    "tool": (choice(None, finish_reason="tool_calls"), "called a tool"),
    "tool-only": (message(content=None, tool_calls=CALLED), "called a tool"),
    "tool-part": (message(content=[{"type": "tool_use", "id": "1", "name": "search"}]), "called a tool"),
    "function": (message(content=None, function_call={"name": "search"}), "called a tool"),
    "error": (choice("Yes", finish_reason="error"), "broke the answer off (finish_reason 'error')"),
    "deepseek": (choice("", finish_reason="insufficient_system_resource"), "broke the answer off"),
    "aborted": (choice("Ye", finish_reason="abort"), "broke the answer off"),
    "null": (choice(None, finish_reason="stop"), "an answer without a text"),
    "no-parts": (choice(content=[], finish_reason="stop"), "an answer without a text"),
    "choice-error": (
        choice("", finish_reason="error", error={"code": 502, "message": "upstream died"}),
        "upstream died",
    ),
    "choices-null": (lambda _: {"error": {"code": 502, "message": "no provider"}, "choices": None}, "no provider"),
    "error-beside": (lambda whole: whole | {"error": {"message": "GPU lost"}}, "GPU lost"),
    "error-text": (lambda _: {"error": "model crashed"}, "model crashed"),
    "error-object": (lambda _: {"object": "error", "message": "CUDA error", "code": 500}, "CUDA error"),
    "error-raw": (
        lambda _: {
            "error": {"code": 400, "message": "Provider returned error", "metadata": {"raw": "schema too deep"}}
        },
        "schema too deep",
    ),
    "choices-missing": (lambda _: {"id": "x", "base_resp": {"status_msg": "unknown"}}, "unknown"),
    "choices-empty": (lambda whole: whole | {"choices": []}, "not a chat completion"),
    "message-missing": (lambda whole: whole | {"choices": [{"finish_reason": "content_filter"}]}, "content_filter"),
    "message-null": (lambda whole: whole | {"choices": [{"message": None}]}, "an answer without a text"),
    "blocked": (
        lambda whole: whole | {"choices": [], "prompt_feedback": {"block_reason": "OTHER"}},
        "not a chat completion",
    ),
    "page": (lambda _: "<html>Sign in</html>", "not a chat completion"),
}
for name in ("choice-error", "error-beside", "filter", "refusal", "tool-only"):
    WITHHELD[f"{name}-streamed"] = WITHHELD[name]

SCHEMA = json.dumps({"type": "object", "properties": {}, "required": []})
REASONING = Reasoning(20, "So, yes or no?")
VOTE = SamplingOptions(0.7, 1)
CALLS: dict[str, Call] = {
    "probabilities": Call("Is it?", YES_NO),
    "vote": Call("Is it?", YES_NO, sample=VOTE),
    "label": Call("Is it?", LabelChoice(("1", "2"))),
    "json": Call("Is it?", JsonOutput(SCHEMA, 40)),
    "text": Call("Is it?", TextOutput(40)),
    "thoughts": Call("Is it?", YES_NO, think_tokens=20),
    "reasons": Call("Is it?", YES_NO, REASONING),
    "then": Call("Is it?", TokenChoice(YES_NO.options, LabelChoice(("1", "2"), ", step ", ask="Which step?"))),
}


@asynccontextmanager
async def serving(kind: ServerKind = ServerKind()) -> AsyncIterator[tuple[DialectServer, OpenAIEngine]]:  # noqa: B008
    """A server of a kind, and an engine over it that is not started."""
    async with dialect_server(kind) as server:
        engine = OpenAIEngine(server.url, model=kind.named)
        yield server, engine
        await engine.close()


def with_words(kind: ServerKind, change: Change, *, streams: bool) -> ServerKind:
    """The kind with an answer changed, as the events of a stream if it `streams`."""

    def frame(content: Any) -> bytes:
        if isinstance(content, str):
            return content.encode()
        if streams and content.get("choices"):
            first = content["choices"][0]
            events = chunks(content)
            events[-2]["choices"][0] |= {"error": first["error"]} if "error" in first else {}
            events[1]["choices"][0]["delta"] |= {n: v for n, v in first["message"].items() if n != "role"}
            events[-1] |= {"error": content["error"]} if "error" in content else {}
            return "".join(f"data: {json.dumps(event)}\n\n" for event in events).encode() + b"data: [DONE]\n\n"
        return json.dumps(content).encode()

    return replace(kind, shape=change, frame=frame)


@pytest.mark.parametrize("path", CALLS)
@pytest.mark.parametrize("name", WITHHELD)
async def test_an_answer_that_the_endpoint_withholds_is_its_failure_on_every_path(name: str, path: str) -> None:
    change, words = WITHHELD[name]
    async with serving() as (server, engine):
        await engine.start()
        server.kind = with_words(server.kind, change, streams=name.endswith("-streamed"))
        (outcome,) = await answers(engine, replace(asked("?"), calls=(CALLS[path],)))
    assert isinstance(outcome, CallFailure), outcome
    assert outcome.kind == "engine"
    assert words in outcome.detail


@pytest.mark.parametrize("path", ["reasons", "then"])
async def test_a_later_turn_that_is_withheld_fails_the_call(path: str) -> None:
    async with serving() as (server, engine):
        await engine.start()
        before = len(server.asked)

        def second_is_filtered(completion: dict[str, Any]) -> Any:
            return WITHHELD["filter"][0](completion) if len(server.asked) == before + 2 else completion

        server.kind = replace(server.kind, shape=second_is_filtered)
        (outcome,) = await answers(engine, replace(asked("?"), calls=(CALLS[path],)))
        assert len(server.asked) == before + 2
    assert isinstance(outcome, CallFailure)
    assert "content_filter" in outcome.detail


@pytest.mark.parametrize(
    "judging", [{}, {"votes": 3, "rationale": True}, {"think_tokens": 9}, {"criteria_per_call": "all"}], ids=str
)
@pytest.mark.parametrize("name", ["filter", "refusal", "tool-only", "error", "choices-null"])
async def test_what_the_endpoint_withholds_is_no_reward_under_zero_unparseable(
    name: str, judging: dict[str, Any], serve: Serve
) -> None:
    async with serving() as (server, engine):
        http = await serve(engine)
        server.kind = replace(server.kind, shape=WITHHELD[name][0])
        body = {
            "rubric": {"criteria": [{"id": "a", "description": "Is it?"}]},
            "groups": [{"id": "g", "prompt": "Is 7 prime?", "responses": ["Yes."]}],
            "reward": {"mode": "weighted_mean"},
            "on_failure": "zero_unparseable",
            "judging": judging,
        }
        answer = await http.post("/v1/rewards", json=body)
    assert answer.status_code == 200, answer.text
    (response,) = answer.json()["groups"][0]["responses"]
    assert (response["reward"], response["policy_applied"]) == (None, None)
    assert [verdict["failure"]["kind"] for verdict in response["verdicts"]] == ["engine"]


# Quotas and waiting

QUOTAS = {
    "openai": (429, {"error": {"message": "You exceeded your current quota.", "code": "insufficient_quota"}}, {}),
    "openai-with-wait": (429, {"error": {"message": "Quota.", "type": "insufficient_quota"}}, {"Retry-After": "1"}),
    "deepseek": (402, {"error": {"message": "Insufficient Balance"}}, {}),
    "anthropic": (400, {"error": {"message": "Your credit balance is too low to access the API."}}, {}),
    "litellm": (
        400,
        {"error": {"message": "Budget has been exceeded! Current cost: 2", "type": "budget_exceeded"}},
        {},
    ),
    "moonshot": (429, {"error": {"message": "Please check.", "type": "exceeded_current_quota_error"}}, {}),
    "dashscope": (400, {"code": "Arrearage", "message": "Make sure your account is in good standing."}, {}),
    "in-200": (200, {"error": {"message": "This request requires more credits", "code": 402}}, {}),
}
RATES = {
    "openai": (
        429,
        {"error": {"message": "Rate limit reached", "code": "rate_limit_exceeded"}},
        {"retry-after-ms": "250"},
    ),
    "gemini": (429, {"error": {"message": "You exceeded your current quota. Please retry in 21.5s."}}, {}),
    "vertex": (
        429,
        {"error": {"message": "Quota exceeded for requests per minute", "status": "RESOURCE_EXHAUSTED"}},
        {},
    ),
    "anthropic": (529, {"error": {"type": "overloaded_error", "message": "Overloaded"}}, {}),
    "in-200": (200, {"error": {"message": "Rate limit exceeded: free-models-per-day", "code": 429}}, {}),
    "named-in-200": (200, {"error": {"message": "slow down", "type": "rate_limit_error"}}, {}),
}


def refusing(refusal: tuple[int, Any, dict[str, str]]) -> ServerKind:
    """A server that refuses every request."""
    status, body, headers = refusal
    return ServerKind(refuses_value=lambda _: (status, body), headers=headers)


@pytest.mark.parametrize("name", QUOTAS)
async def test_an_exhausted_quota_is_named_and_not_asked_again(name: str, serve: Serve) -> None:
    async with serving() as (server, engine):
        http = await serve(engine)
        server.kind = refusing(QUOTAS[name])
        before = len(server.asked)
        answer = await http.post("/v1/rewards", json=support.request("Yes.", rubric=ONE))
        (verdict,) = answer.json()["groups"][0]["responses"][0]["verdicts"]
        assert len(server.asked) == before + 1
    assert verdict["failure"]["kind"] == "engine"
    assert verdict["failure"]["detail"].startswith("the endpoint's quota is exhausted (HTTP 4")


ONE = {"criteria": [{"id": "a", "description": "Is it?"}]}


@pytest.mark.parametrize("name", QUOTAS)
async def test_an_endpoint_with_an_exhausted_quota_cannot_be_started(name: str) -> None:
    async with serving(refusing(QUOTAS[name])) as (server, engine):
        with pytest.raises(EngineStartError, match="quota is exhausted") as refused:
            await engine.start()
        assert not isinstance(refused.value, EngineNotReady)
        assert len(server.asked) == 1


@pytest.mark.parametrize("name", RATES)
async def test_too_many_requests_are_an_overload_even_in_the_words_of_a_quota(name: str) -> None:
    async with serving() as (server, engine):
        await engine.start()
        server.kind = refusing(RATES[name])
        (outcome,) = await answers(engine, asked("Is it?"))
    assert isinstance(outcome, CallFailure)
    assert (outcome.kind, outcome.retry_after_s) == ("overloaded", 0.25 if name == "openai" else None)


NOW = datetime(2022, 11, 6, 8, 49, 37, tzinfo=UTC)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after-ms": "1500"}, 1.5),
        ({"retry-after-ms": "20", "Retry-After": "1"}, 0.02),
        ({"retry-after-ms": "soon", "Retry-After": "2"}, 2),
        ({"x-ms-retry-after-ms": "40"}, 0.04),
        ({"Retry-After": "1.25"}, 1.25),
        ({"Retry-After": "2s"}, 2),
        ({"Retry-After": "Sun, 06 Nov 2022 08:49:48 GMT"}, 11),
        ({"Retry-After": "Sunday, 06-Nov-22 08:49:48 GMT"}, 11),
        ({"Retry-After": "Sun Nov  6 08:49:48 2022"}, 11),
        ({"Retry-After": "2022-11-06T08:49:48Z"}, 11),
        ({"Retry-After": str(int(NOW.timestamp()) + 11)}, 11),
        ({"Retry-After": "Sun, 06 Nov 2022 08:49:00 GMT"}, 0),
        ({"Retry-After": "inf"}, None),
        ({"Retry-After": "-3"}, None),
        ({"retry-after-ms": "9" * 300}, 3600),
    ],
)
def test_every_form_of_a_time_to_wait_is_read(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after_s(httpx2.Headers(headers), NOW) == (None if seconds is None else pytest.approx(seconds))


# What is learnt after the start


async def test_a_schema_that_is_refused_is_sent_once_and_others_still_are() -> None:
    def picky(body: dict[str, Any]) -> Any:
        refused = "prefixItems" in json.dumps(body.get("response_format"))
        return (400, {"error": {"message": "Invalid schema: prefixItems is not permitted"}}) if refused else None

    hard = JsonOutput(json.dumps({"type": "object", "prefixItems": []}), 40)
    async with serving(ServerKind(refuses_value=picky)) as (server, engine):
        await engine.start()
        before = len(server.asked)
        for form in (hard, hard, JsonOutput(SCHEMA, 40), hard):
            (outcome,) = await answers(engine, asked("Is it?", answer=form))
            assert isinstance(outcome, Reply)
        sent = ["response_format" in body for body in server.asked[before:]]
    assert sent == [True, False, False, True, False]


@pytest.mark.parametrize(
    ("refused", "words", "asked_for", "sent"),
    [
        (lambda limit: limit < 256, "max_tokens or model output limit was reached", 12, [12, 16, 64, 256, 256]),
        (
            lambda limit: limit > 8192,
            "max_tokens is too large: 32000. It supports at most 8192",
            32000,
            [32000, 16000, 8000, 8000],
        ),
    ],
    ids=["too-short", "too-long"],
)
async def test_a_token_limit_that_is_refused_later_is_changed_once(
    refused: Callable[[int], bool], words: str, asked_for: int, sent: list[int]
) -> None:
    def refuse(body: dict[str, Any]) -> Any:
        return openai_error(words) if refused(body["max_tokens"]) else None

    async with serving() as (server, engine):
        engine = OpenAIEngine(server.url, context_tokens=10**6)
        await engine.start()
        server.kind = replace(server.kind, refuses_value=refuse, context_tokens=10**6)
        before = len(server.asked)
        for _ in range(2):
            (outcome,) = await answers(engine, asked("Is it?", answer=TextOutput(asked_for)))
            assert isinstance(outcome, Reply), outcome
        assert [body["max_tokens"] for body in server.asked[before:]] == sent
        await engine.close()


async def test_a_limit_that_is_never_taken_fails_the_call() -> None:
    async with serving() as (server, engine):
        await engine.start()
        server.kind = replace(server.kind, refuses_value=lambda _: openai_error("max_tokens is not to our taste"))
        (outcome,) = await answers(engine, asked("Is it?"))
        server.kind = KINDS["as-specified"]
        (later,) = await answers(engine, asked("Is it?"))
    assert isinstance(outcome, CallFailure)
    assert "not to our taste" in outcome.detail
    assert isinstance(later, Reply)
    assert server.asked[-1]["max_tokens"] == 1


async def test_a_temperature_of_votes_that_is_refused_is_reported_in_the_endpoints_words() -> None:
    async with serving() as (server, engine):
        await engine.start()
        server.kind = replace(server.kind, refuses_value=lambda _: openai_error("temperature must be at most 0.5"))
        (outcome,) = await answers(engine, asked("Is it?", answer=TextOutput(9), sample=VOTE))
    assert outcome == CallFailure("engine", "HTTP 400: temperature must be at most 0.5")


async def test_a_wrong_path_says_where_the_api_begins() -> None:
    async with serving() as (server, _):
        engine = OpenAIEngine(server.url.replace("/v1", "/api"), model="judge-1")
        with pytest.raises(EngineStartError, match="ends where the OpenAI API begins, usually in /v1"):
            await engine.start()
        await engine.close()


@pytest.mark.parametrize(
    ("kind", "option"),
    [
        ("newest-openai", "temperature"),
        ("newest-openai", "logprobs"),
        ("no-system-role", "the system role"),
        ("template-raises", "the system role"),
    ],
)
async def test_a_refusal_that_would_change_verdicts_after_the_start_says_to_restart(kind: str, option: str) -> None:
    changed = KINDS[kind]
    if option == "logprobs":
        changed = ServerKind(refuses={"logprobs": changed.refuses["logprobs"]})
    elif option == "temperature":
        changed = ServerKind(refuses_value=changed.refuses_value)
    async with serving() as (server, engine):
        await engine.start()
        server.kind = changed
        (outcome,) = await answers(engine, asked("Is it?"))
    assert isinstance(outcome, CallFailure)
    assert outcome.kind == "engine"
    assert f"refuses {option}, which it accepted when the judge started" in outcome.detail
    assert "restart the judge" in outcome.detail


async def test_models_are_found_by_the_names_that_people_write() -> None:
    for listed, given_name in (
        ("models/judge-1", "judge-1"),
        ("judge-1", "Judge-1"),
        ("judge-1:latest", "judge-1"),
        ("vendor/*", "vendor/judge-1"),
    ):
        async with dialect_server(ServerKind(models=(200, {"data": [{"id": listed}]}))) as server:
            engine = OpenAIEngine(server.url, model=given_name)
            assert (await engine.start()).model == given_name
            assert await engine.ready()
            await engine.close()


async def test_a_list_that_is_forbidden_asks_for_the_models_name() -> None:
    async with serving(replace(KINDS["models-forbidden"], named=None)) as (_, engine):
        with pytest.raises(EngineStartError, match=r"is not allowed \(HTTP 403\); name the model .*\?model=NAME"):
            await engine.start()


async def test_a_redirect_says_where_the_api_is() -> None:
    kind = ServerKind(refuses_value=lambda _: (308, ""), headers={"Location": "https://elsewhere/v1?key=k"})
    async with serving(kind) as (_, engine):
        with pytest.raises(EngineStartError, match=r"redirects to https://elsewhere/v1, and"):
            await engine.start()


# Bodies


def body_of(content: str) -> dict[str, Any]:
    """A completion with this content."""
    made = complete({"messages": [{"role": "user", "content": "?"}], "max_tokens": 9, "logprobs": True}, 0)
    assert isinstance(made, dict)
    made["choices"][0]["message"]["content"] = content
    return made


def read(body: bytes) -> ChatCompletion:
    return ChatCompletion.model_validate(parse_body(body))


@given(st.text(st.characters(codec="utf-8"), max_size=40), st.sampled_from(["\n", "\r\n", "\r"]))
def test_a_stream_reads_as_the_completion_that_it_was_made_of(text: str, line_end: str) -> None:
    whole = body_of(text)
    told = streamed(whole).decode().replace("\n", line_end).encode()
    assert read(told) == read(json.dumps(whole).encode())


@given(st.binary(max_size=60), st.sampled_from([b"data: ", b"data: {", b"event: x\ndata: ", b": c\n\n", b""]))
def test_no_body_breaks_the_reader(body: bytes, lead: bytes) -> None:
    with contextlib.suppress(ValueError):
        parse_body(lead + body)


@pytest.mark.parametrize("end", [-1, -2, -3])
def test_a_stream_that_ends_before_its_answer_is_no_answer(end: int) -> None:
    blocks = streamed(body_of("Yes, it is so, and it is so for a reason")).split(b"\n\n")
    kept = b"\n\n".join(blocks[: end - 1])
    if b'"finish_reason": "' in kept:
        assert read(kept).content.startswith("Yes")
    else:
        with pytest.raises(ValueError, match="ends before the answer does"):
            parse_body(kept)


def test_bytes_that_are_no_text_are_replaced() -> None:
    body = json.dumps(body_of("Yes TAIL")).encode()
    assert read(body.replace(b"TAIL", b"\xe2\x96")).content == "Yes \ufffd"
    assert read(b"\xef\xbb\xbf" + body).content == "Yes TAIL"


def test_a_stream_without_a_reason_to_end_counts_if_it_says_that_it_is_done() -> None:
    told = streamed(body_of("Yes")).replace(b'"finish_reason": "length"', b'"finish_reason": null')
    assert read(told).content == "Yes"
    with pytest.raises(ValueError, match="ends before the answer does"):
        parse_body(told.replace(b"data: [DONE]", b""))


@pytest.mark.parametrize(
    "content",
    [
        "Yes",
        ["Y", "es"],
        [{"type": "output_text", "text": "Yes"}],
        [{"type": "text", "text": {"value": "Yes", "annotations": []}}],
        [{"text": "Ye"}, {"type": "text", "content": "s"}],
        [{"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}, {"type": "text", "text": "Yes"}],
        [{"type": "reasoning", "text": "Hm."}, "Yes"],
        {"type": "text", "text": "Yes"},
    ],
)
def test_every_form_of_content_reads_as_its_text(content: Any) -> None:
    body = body_of("")
    body["choices"][0]["message"]["content"] = content
    assert read(json.dumps(body).encode()).answer_text(thinking=False) == "Yes"


@pytest.mark.parametrize(
    ("answer", "ids"),
    [
        ([{"id": "a"}, {"id": "b"}], ["a", "b"]),
        (["a", "b"], ["a", "b"]),
        ({"models": [{"name": "models/a"}]}, ["models/a"]),
        ({"object": "list", "data": None}, []),
        ({"data": [{"id": "a", "owned_by": 3, "meta": [], "aliases": None, "max_model_len": "long"}]}, ["a"]),
    ],
)
def test_every_form_of_a_list_of_models_is_read(answer: Any, ids: list[str]) -> None:
    assert [card.id for card in ModelList.model_validate(parse_body(json.dumps(answer).encode())).data] == ids


async def test_the_context_is_what_a_hosted_list_says() -> None:
    for name in ("context_length", "context_window", "max_context_length"):
        async with serving(ServerKind(models=(200, {"data": [{"id": "judge-1", name: 32_768}]}))) as (_, engine):
            assert (await engine.start()).context_tokens == 32_768


def masses(completion: ChatCompletion) -> tuple[float, ...] | None:
    return completion.masses(YES_NO, completion.place_of(YES_NO))


def test_an_unknown_first_token_is_not_read_from_the_next_one() -> None:
    body = body_of("Yes it is")
    places = body["choices"][0]["logprobs"]["content"]
    places[0] = None
    assert masses(read(json.dumps(body).encode())) is None
    places[0] = {"token": " yes", "top_logprobs": {" yes": -0.5, "no": -1.0}}
    assert masses(read(json.dumps(body).encode())) == pytest.approx((math.exp(-0.5), math.exp(-1.0)))


def test_candidates_of_probability_0_are_left_out_and_impossible_ones_refused() -> None:
    body = body_of("Yes")
    places = body["choices"][0]["logprobs"]["content"]
    places[0]["top_logprobs"] += [{"token": "x", "logprob": None}, {"token": "y", "logprob": -math.inf}]
    whole = read(json.dumps(body).encode())
    assert masses(whole) == masses(read(json.dumps(body_of("Yes")).encode()))
    places[0]["top_logprobs"] += [{"token": "z", "logprob": math.nan}]
    with pytest.raises(ValueError, match="finite number"):
        read(json.dumps(body).encode())


def with_candidates(**probabilities: float) -> ChatCompletion:
    """A completion whose first token has these candidates."""
    body = body_of("Yes")
    top = [{"token": token, "logprob": math.log(p)} for token, p in probabilities.items()]
    body["choices"][0]["logprobs"]["content"][0] = {"token": top[0]["token"], "top_logprobs": top}
    return read(json.dumps(body).encode())


@pytest.mark.parametrize("yes", ["\nyes", "yes\n", "  Yes", "\tYes", "\u010ayes", "Yes.", '"yes"', "**Yes", "yes:"])
def test_white_space_and_marks_around_a_label_are_no_part_of_it(yes: str) -> None:
    assert masses(with_candidates(**{yes: 0.9, " no": 0.05})) == pytest.approx((0.9, 0.05))


def test_a_digit_with_a_mark_is_not_read_as_a_grade() -> None:
    scale = TokenChoice(tuple(Option(str(grade), (str(grade), f" {grade}")) for grade in range(5)))
    completion = with_candidates(**{"3": 0.5, "3.": 0.2, ".4": 0.2, "\n4": 0.1})
    assert completion.masses(scale, completion.place_of(scale)) == pytest.approx((0, 0, 0, 0.5, 0.1))


def test_labels_of_several_tokens_are_no_verdict_where_their_beginning_is_the_likelier_answer() -> None:
    def reading(**probabilities: float) -> Reply | CallFailure:
        return read_answer(
            Call("Is it?", YES_NO), with_candidates(**probabilities), TokenCounts(1, 0, 1, clipped=False)
        )

    failure = reading(n=0.6, N=0.3, yes=0.05)
    assert isinstance(failure, CallFailure)
    assert (failure.kind, "0.9 on tokens that only begin an answer" in failure.detail) == ("parse", True)
    reply = reading(yes=0.6, n=0.3, no=0.05)
    assert isinstance(reply, Reply)
    assert reply.masses == pytest.approx((0.6, 0.05))


async def test_a_compressed_body_is_bounded_like_any_other() -> None:
    bomb = ServerKind(frame=lambda _: gzip.compress(b" " * 2**24), headers={"Content-Encoding": "gzip"})
    async with serving() as (server, engine):
        await engine.start()
        server.kind = bomb
        (outcome,) = await answers(engine, asked("Is it?"))
    assert isinstance(outcome, CallFailure)
    assert "longer than 4194304 bytes" in outcome.detail
