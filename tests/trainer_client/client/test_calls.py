"""What the clients send for judging, and what they refuse to send."""

import json
from contextlib import suppress
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer_client.fake_service import (
    COMPARISONS,
    CRITERION,
    REWARDS,
    VERDICTS,
    VERSION,
    ScriptedReply,
    problem,
    rewarded,
)
from trainer_client import (
    AdjudgeError,
    AsyncClient,
    Client,
    Criterion,
    Group,
    InvalidRequest,
    LengthPenalty,
    Message,
    OverlongPenalty,
    Pair,
    Response,
    RubricContent,
)

GROUP = {"id": "q17", "prompt": "x?", "responses": ["42", "43"]}


def test_both_clients_have_the_same_methods():
    offered, blocking = ({name for name in dir(each) if not name.startswith("_")} for each in (AsyncClient, Client))
    assert blocking - {"close", "base_url", "run"} == offered - {"aclose", "from_settings"}


class TestRewards:
    def test_the_answer_is_typed_and_separates_failures_from_zeros(self, service, connect):
        service.script(ScriptedReply(body=REWARDS))
        answer = connect(service.url).rewards([GROUP], "r", "points")
        scored, unscored = answer.groups[0].responses
        assert (scored.reward, scored.status) == (1.0, "scored")
        assert (unscored.reward, unscored.verdicts[0].failure.kind) == (None, "timeout")

    def test_models_work_like_mappings(self, service, connect):
        service.script(ScriptedReply(body=REWARDS))
        client = connect(service.url)
        for rubric in (RubricContent(criteria=(Criterion(**CRITERION),)), {"criteria": [CRITERION]}):
            client.rewards([Group(**GROUP)], rubric)
        assert service.asked[0].json == service.asked[1].json
        assert service.asked[0].json["rubric"] == {"criteria": [CRITERION]}

    def test_unknown_fields_of_a_newer_service_are_ignored(self, service, connect):
        service.script(ScriptedReply(body=REWARDS | {"weather": "fine", "usage": {"judge_calls": 2, "joules": 3}}))
        assert connect(service.url).rewards([GROUP], "r").usage.judge_calls == 2

    @pytest.mark.parametrize(
        ("groups", "options", "field"),
        [
            ([], {"rubric": "r"}, "groups"),
            ([GROUP], {}, "rubric"),
            ([GROUP | {"respones": []}], {"rubric": "r"}, "groups.0.respones"),
            ([{"id": "q", "prompt": "p", "responses": []}], {"rubric": "r"}, "groups.0.responses"),
            ([GROUP], {"rubric": "r", "mode": "median"}, "reward.mode"),
            ([GROUP], {"rubric": "r", "mode": "stepwise", "protocol": "binary"}, "protocol"),
            ([GROUP], {"rubric": "r", "deadline_s": 0}, "deadline_s"),
            ([GROUP], {"rubric": {"criteria": []}}, "criteria"),
            ([GROUP], {"rubric": "r", "votes": 3, "temperature": 0}, "temperature"),
            ([GROUP], {"rubric": "r", "length_penalty": {}}, "tokens"),
        ],
    )
    def test_an_invalid_request_is_refused_before_it_is_sent(self, service, connect, groups, options, field):
        with pytest.raises(InvalidRequest, match=field) as raised:
            connect(service.url).rewards(groups, **options)
        assert (raised.value.status, raised.value.request_id, service.asked) == (None, None, [])

    def test_a_request_with_thousands_of_errors_lists_the_first_ones(self, service, connect):
        with pytest.raises(InvalidRequest, match=r"and \d+ more\nsee ") as raised:
            connect(service.url).rewards([{"id": "q"}] * 2000, "r")
        assert len(str(raised.value)) < 2000
        assert len(raised.value.errors) == 20


ALONE = {"id": "q17", "prompt": "x?", "responses": ["42"]}


CONVERSATION_PAIR = {"id": "q17", "prompt": "x?", "a": "42", "b": [{"role": "assistant", "content": "43"}]}


@pytest.mark.parametrize(
    ("method", "path", "options", "sent", "answer"),
    [
        (
            "rewards",
            "/v1/rewards",
            {"mode": "stepwise", "on_failure": "skip", "format_weight": 0.2},
            {"groups": [GROUP], "reward": {"mode": "stepwise", "format_weight": 0.2}, "on_failure": "skip"},
            REWARDS,
        ),
        (
            "verdicts",
            "/v1/verdicts",
            {"rationale": True, "protocol": "graded"},
            {"groups": [ALONE], "judging": {"rationale": True, "protocol": "graded"}},
            VERDICTS,
        ),
        (
            "compare",
            "/v1/comparisons",
            {"question": "Which is right?", "think_tokens": 64},
            {"pairs": [CONVERSATION_PAIR], "question": "Which is right?", "judging": {"think_tokens": 64}},
            COMPARISONS,
        ),
    ],
)
def test_a_request_follows_the_contract(service, connect, method, path, options, sent, answer):
    service.script(ScriptedReply(body=answer))
    client = connect(service.url, "run-3")
    items = sent.get("groups") or sent["pairs"]
    getattr(client, method)(items, "math/quadratics@3", deadline_s=5, step=7, **options)
    [asked] = service.asked
    assert (asked.method, asked.target, asked.headers["Content-Type"]) == ("POST", path, "application/json")
    assert asked.json == {"run": "run-3", "step": 7, "rubric": "math/quadratics@3", "deadline_s": 5.0} | sent


def test_verdicts_and_comparisons_are_typed(service, connect):
    service.script(ScriptedReply(body=VERDICTS), ScriptedReply(body=COMPARISONS))
    client = connect(service.url)
    [response] = client.verdicts([ALONE], "r").groups[0].responses
    assert (response.verdicts[0].score, response.verdicts[0].rationale) == (1.0, "It says 42.")
    answer = client.compare([Pair.model_validate(CONVERSATION_PAIR)])
    assert (answer.win_rate, answer.pairs[0].preferred, answer.pairs[0].consistent) == (0.5, "tie", False)
    assert [order.first for order in answer.pairs[0].orders] == ["a", "b"]
    assert service.asked[1].json == {"deadline_s": 60.0, "pairs": [CONVERSATION_PAIR]}


def test_invalid_verdict_requests_and_comparisons_are_refused_before_they_are_sent(service, connect):
    with pytest.raises(InvalidRequest, match="rubric"):
        connect(service.url).verdicts([ALONE])
    with pytest.raises(InvalidRequest, match=r"pairs\.0\.b"):
        connect(service.url).compare([{"id": "q17", "prompt": "x?", "a": "42"}])
    assert service.asked == []


MEASURED = {"id": "q17", "prompt": "x?", "responses": [{"text": "42", "tokens": 3, "stopped": True}]}

PAIR = {"id": "q17", "prompt": "x?", "a": "42", "b": "43"}

COMPARISON = {
    "rationale": True,
    "think_tokens": 64,
    "reasoning": "keep",
    "grounding_characters": 900,
    "template": "v1",
}

JUDGING = COMPARISON | {
    "protocol": "binary",
    "criteria_per_call": "all",
    "votes": 3,
    "temperature": 0.5,
    "truncate": True,
}

REWARD = {
    "kinds": ["point"],
    "format_weight": 0.2,
    "gate_fraction": 0.75,
    "length_penalty": {"coefficient": 0.001, "target_tokens": 100},
    "overlong_penalty": {"limit_tokens": 900, "buffer_tokens": 100},
    "truncation_factor": 0.5,
}


def test_each_option_goes_to_its_part_of_the_request(service, connect):
    service.script(
        ScriptedReply(body=rewarded),
        ScriptedReply(body=rewarded),
        ScriptedReply(body=VERDICTS),
        ScriptedReply(body=COMPARISONS),
    )
    client = connect(service.url)
    client.rewards([MEASURED], "r", "gate", **REWARD, **JUDGING)
    list(client.stream_rewards([MEASURED], "r", "gate", **REWARD, **JUDGING))
    client.verdicts([MEASURED], "r", **JUDGING)
    client.compare([PAIR], **COMPARISON)
    rewards, streamed, verdicts, compared = [asked.json for asked in service.asked]
    assert (rewards["judging"], rewards["reward"]) == (JUDGING, {"mode": "gate"} | REWARD)
    assert streamed == rewards
    assert verdicts["judging"] == JUDGING
    assert compared["judging"] == COMPARISON


def test_omitted_and_none_options_are_not_sent_to_stay_compatible_with_older_services(service, connect):
    service.script(ScriptedReply(body=rewarded))
    client = connect(service.url)
    client.rewards([MEASURED], "r")
    client.rewards([MEASURED], "r", protocol=None, length_penalty=None, template=None)
    sent = {
        "rubric": "r",
        "reward": {"mode": "weighted_mean"},
        "on_failure": "null",
        "deadline_s": 60.0,
        "groups": [MEASURED],
    }
    assert [asked.json for asked in service.asked] == [sent, sent]


def test_penalties_may_be_models(service, connect):
    service.script(ScriptedReply(body=rewarded))
    connect(service.url).rewards(
        [MEASURED],
        "r",
        length_penalty=LengthPenalty(excess_only=True),
        overlong_penalty=OverlongPenalty(limit_tokens=9, buffer_tokens=2),
    )
    assert service.asked[0].json["reward"] == {
        "mode": "weighted_mean",
        "length_penalty": {"excess_only": True},
        "overlong_penalty": {"limit_tokens": 9, "buffer_tokens": 2},
    }


@pytest.mark.parametrize(
    ("method", "items", "option", "closest"),
    [
        ("rewards", [MEASURED], "protocl", "protocol"),
        ("rewards", [MEASURED], "on_failur", "on_failure"),
        ("rewards", [MEASURED], "model", "mode"),
        ("stream_rewards", [MEASURED], "format_wait", "format_weight"),
        ("verdicts", [MEASURED], "rational", "rationale"),
        ("verdicts", [MEASURED], "prioriti", "priority"),
        ("verdicts", [MEASURED], "deadline", "deadline_s"),
        ("compare", [PAIR], "questions", "question"),
        ("compare", [PAIR], "think_token", "think_tokens"),
    ],
)
def test_an_unknown_option_is_refused_with_the_closest_known_one(connect, service, method, items, option, closest):
    with pytest.raises(TypeError, match=rf"^{method}\(\) has no option '{option}'.*'{closest}'\?$"):
        getattr(connect(service.url), method)(items, "r", **{option: 1})
    assert service.asked == []


@pytest.mark.parametrize(
    ("method", "option"), [("verdicts", "format_weight"), ("verdicts", "mode"), ("compare", "votes"), ("rewards", "")]
)
def test_an_option_of_another_call_is_refused(connect, service, method, option):
    with pytest.raises(TypeError, match=rf"has no option '{option}'"):
        getattr(connect(service.url), method)([], "r", **{option: 1})


@pytest.mark.parametrize(("method", "items"), [("rewards", [MEASURED]), ("verdicts", [MEASURED]), ("compare", [PAIR])])
def test_a_priority_is_sent_at_the_top_level_and_only_where_it_is_given(connect, service, method, items):
    service.script(ScriptedReply(body={}))
    for priority in ("bulk", None):
        with suppress(AdjudgeError):
            getattr(connect(service.url), method)(items, "r", priority=priority)
    bulk, usual = [asked.json for asked in service.asked]
    assert bulk["priority"] == "bulk"
    assert usual == {name: value for name, value in bulk.items() if name != "priority"}


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        ("𝔸🙂é\0\u2028", "𝔸🙂é\0\u2028"),
        ("\ud7ff\ue000", "\ud7ff\ue000"),
        ("4\ud800 2", "4\ufffd 2"),
        ("\ud83d\ude00", "\ufffd\ufffd"),
        ("🙂\udfff", "🙂\ufffd"),
    ],
    ids=["any planes", "beside the surrogates", "the first half", "both halves, apart", "after a whole pair"],
)
def test_text_arrives_unchanged_except_for_lone_surrogates(service, connect, text, sent):
    service.script(ScriptedReply(body=rewarded))
    connect(service.url).rewards([GROUP | {"prompt": text, "responses": [text, "43"], "grounding": text}], "r")
    [group] = service.asked[0].json["groups"]
    assert group == GROUP | {"prompt": sent, "responses": [sent, "43"], "grounding": sent}


@given(st.text(st.characters(codec=None, exclude_categories=())))
def test_text_keeps_its_number_of_code_points_and_only_lone_surrogates_change(text):
    asked = []

    def answer(request):
        asked.append(request)
        return httpx2.Response(200, json=rewarded(json.loads(request.content)))

    transport = httpx2.MockTransport(answer)
    with Client("http://judge", transport=transport) as client:
        client.rewards([GROUP | {"responses": [text]}], "r")
    [arrived] = json.loads(asked[0].content)["groups"][0]["responses"]
    assert len(arrived) == len(text)
    assert all(a == ("\ufffd" if "\ud800" <= b <= "\udfff" else b) for a, b in zip(arrived, text, strict=True))


def test_each_lone_surrogate_inside_messages_becomes_one_replacement_character(service, connect):
    service.script(ScriptedReply(body=rewarded))
    call = {"function": {"name": "f", "arguments": {"\udc00": [None, "\ud800"]}}}
    connect(service.url).rewards([GROUP | {"responses": [[{"role": "assistant", "tool_calls": [call]}]]}], "r")
    [[message]] = service.asked[0].json["groups"][0]["responses"]
    assert message["tool_calls"][0]["function"]["arguments"] == {"\ufffd": [None, "\ufffd"]}


def test_responses_may_be_texts_messages_or_mappings_with_their_lengths(service, connect):
    service.script(ScriptedReply(body=rewarded))
    messages = [
        {"role": "assistant", "content": "42", "reasoning_content": "6 * 7"},
        {"role": "tool", "content": "ok"},
    ]
    responses = ["42", messages, {"text": "43", "tokens": 5, "stopped": False}, {"text": messages, "tokens": 9}]
    connect(service.url).rewards([GROUP | {"responses": responses}], "r")
    assert service.asked[0].json["groups"][0]["responses"] == responses


def test_responses_may_be_models(service, connect):
    service.script(ScriptedReply(body=rewarded))
    responses = (Response(text="42", tokens=3), (Message(role="assistant", content="43"),))
    connect(service.url).rewards([Group(id="q17", prompt="x?", responses=responses)], "r")
    [group] = service.asked[0].json["groups"]
    assert group["responses"] == [{"text": "42", "tokens": 3}, [{"role": "assistant", "content": "43"}]]


KEY = "Idempotency-Key"

OPERATION = {
    "id": "op-1",
    "project_id": "default",
    "kind": "score",
    "request": {},
    "state": "queued",
    "revision": 1,
    "progress": {},
    "usage": {},
    "tries": 1,
    "created_at": "2025-01-01T00:00:00Z",
}

MAKING = {
    "publish": (lambda client: client.publish_rubric("math/quadratics", [CRITERION]), VERSION),
    "submit": (
        lambda client: client.submit(
            {"kind": "score", "groups": [ALONE], "rubric": {"criteria": [{"id": "a", "description": "b"}]}}
        ),
        OPERATION,
    ),
    "retry": (lambda client: client.retry_operation("op-1"), OPERATION),
}

JUDGED_BY = {
    "rewards": (lambda client, **given: client.rewards([ALONE], "r", **given), rewarded),
    "verdicts": (lambda client, **given: client.verdicts([ALONE], "r", **given), VERDICTS),
    "stream_rewards": (lambda client, **given: list(client.stream_rewards([ALONE], "r", **given)), rewarded),
}


def keys(service: Any) -> list[str | None]:
    """The received keys, in order."""
    return [{name.lower(): value for name, value in asked.headers.items()}.get(KEY.lower()) for asked in service.asked]


@pytest.mark.parametrize("name", MAKING)
def test_a_creating_call_keeps_its_key_over_retries_and_the_next_call_gets_a_new_one(service, connect, name):
    call, answer = MAKING[name]
    service.script(ScriptedReply(drop=True), problem("in-progress", 409, retryable=True), ScriptedReply(body=answer))
    client = connect(service.url)
    call(client)
    call(client)
    first, again, third, other = keys(service)
    assert first == again == third != other
    assert len(first) == len(other) == 32


@pytest.mark.parametrize("name", JUDGED_BY)
def test_a_judging_call_has_a_key_only_where_the_caller_gives_one(service, connect, name):
    call, answer = JUDGED_BY[name]
    service.script(ScriptedReply(drop=True), ScriptedReply(body=answer))
    call(connect(service.url), idempotency_key="step-120-q17")
    assert keys(service) == ["step-120-q17"] * 2
    call(connect(service.url))
    assert keys(service)[2] is None


def test_reading_and_cancelling_send_no_key(service, connect):
    service.script(ScriptedReply(body=OPERATION))
    client = connect(service.url)
    client.operation("op-1")
    client.cancel_operation("op-1")
    assert keys(service) == [None, None]
