"""No client takes an answer that is not its question's: whatever is lost, added, repeated or somebody else's raises."""

import copy
import json
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer_client.fake_service import DIGEST, VERSION, ScriptedReply, stream
from trainer_client import Client, MismatchedAnswer, ServerError

IDS = ["one", "two", "three"]

RUBRIC = [{"id": id_, "description": f"is {id_}"} for id_ in IDS]

GROUPS = [{"id": f"q{n}", "prompt": "x?", "responses": ["42", "43", "44"][: n + 1]} for n in range(3)]

PAIRS = [{"id": f"q{n}", "prompt": "x?", "a": "42", "b": "43"} for n in range(2)]

ABOUT = {
    "request_id": "req-1",
    "run": "mine",
    "step": 7,
    "mode": "weighted_mean",
    "on_failure": "null",
    "judge": {"model": "m", "protocol": "binary", "fingerprint": "f"},
    "rubrics": [{"digest": DIGEST}],
    "usage": {},
}


def verdicts_on(ids: list[str]) -> list[dict[str, Any]]:
    return [{"criterion": id_, "status": "ok", "score": 1.0} for id_ in ids]


def right_answer(ids: list[str] = IDS) -> dict[str, Any]:
    """The answer to a request for the rewards of `GROUPS`; without the rewards, it is one to a request for verdicts."""
    groups = [
        {
            "id": group["id"],
            "rubric": DIGEST,
            "responses": [
                {"reward": 1.0, "status": "scored", "verdicts": verdicts_on(ids)} for _ in group["responses"]
            ],
        }
        for group in GROUPS
    ]
    return {**ABOUT, "groups": groups}


def verdict_lists(answer: Any) -> list[Any]:
    return [response["verdicts"] for group in answer["groups"] for response in group["responses"]]


def every_response(answer: Any, change: Any) -> None:
    for verdicts in verdict_lists(answer):
        change(verdicts)


SPOILT: dict[str, tuple[Any, str]] = {
    "lost response": (lambda a: a["groups"][2]["responses"].pop(), "group 'q2' has 2 responses, and 3 were sent"),
    "extra response": (
        lambda a: a["groups"][1]["responses"].append(a["groups"][1]["responses"][0]),
        "group 'q1' has 3 responses, and 2 were sent",
    ),
    "lost group": (lambda a: a["groups"].pop(1), "it lacks the group 'q1' of the 3 that were sent"),
    "repeated group": (lambda a: a["groups"].append(a["groups"][0]), "the group 'q0' more often than the request"),
    "unknown group": (lambda a: a["groups"][0].update(id="q9"), "a group 'q9', which the request does not have"),
    "swapped ids": (
        lambda a: (a["groups"][0].update(id="q1"), a["groups"][1].update(id="q0")),
        "group 'q1' has 1 responses, and 2 were sent",
    ),
    "lost verdict": (lambda a: verdict_lists(a)[-1].pop(), "group 'q2': response 2 lacks a verdict on 'three'"),
    "lost verdicts": (lambda a: every_response(a, lambda v: v.pop(0)), "response 0 lacks a verdict on 'one'"),
    "other criterion": (
        lambda a: verdict_lists(a)[1][0].update(criterion="four"),
        "group 'q1': response 0 has a verdict on 'four', which was not asked for",
    ),
    "repeated verdict": (
        lambda a: verdict_lists(a)[0].append(verdict_lists(a)[0][0]),
        "response 0 has a verdict on 'one' more often than it was asked for",
    ),
    "swapped verdicts": (lambda a: verdict_lists(a)[0].reverse(), "in another order than was asked for"),
    "other run": (lambda a: a.update(run="theirs"), "its run is 'theirs', and 'mine' was asked for"),
    "other step": (lambda a: a.update(step=8), "its step is 8, and 7 was asked for"),
}


def lines_of(answer: Any) -> ScriptedReply:
    summary = {name: value for name, value in answer.items() if name != "groups"}
    return stream(*[{"group": group} for group in answer["groups"]], {"summary": summary})


ASK: dict[str, tuple[Any, Any]] = {
    "rewards": (lambda client, **more: client.rewards(GROUPS, step=7, **more), lambda a: ScriptedReply(body=a)),
    "verdicts": (lambda client, **more: client.verdicts(GROUPS, step=7, **more), lambda a: ScriptedReply(body=a)),
    "stream": (lambda client, **more: list(client.stream_rewards(GROUPS, step=7, **more)), lines_of),
    "stream, read whole": (
        lambda client, **more: list(client.stream_rewards(GROUPS, step=7, **more)),
        lambda a: ScriptedReply(body=a),
    ),
}


@pytest.mark.parametrize("how", ASK)
@pytest.mark.parametrize("what", SPOILT)
def test_an_answer_that_is_not_that_of_its_request_is_refused(service, connect, how, what):
    ask, reply = ASK[how]
    spoil, says = SPOILT[what]
    answer = right_answer()
    service.script(reply(answer))
    ask(connect(service.url, "mine"), rubric=RUBRIC)
    spoil(answer)
    service.script(reply(answer))
    with pytest.raises(MismatchedAnswer, match=r"POST /v1/\w+ is not that of this request") as raised:
        ask(connect(service.url, "mine"), rubric=RUBRIC)
    assert says in str(raised.value)
    assert "Nothing of it is used. Check what stands between client and service" in str(raised.value)
    assert (raised.value.status, raised.value.retryable, len(service.asked)) == (200, False, 2)
    assert isinstance(raised.value, ServerError)


def test_groups_of_a_whole_answer_are_in_the_order_of_the_request(service, connect):
    answer = right_answer()
    answer["groups"].reverse()
    service.script(ScriptedReply(body=answer), lines_of(answer))
    with pytest.raises(MismatchedAnswer, match="another order"):
        connect(service.url).rewards(GROUPS, RUBRIC)
    assert len(list(connect(service.url).stream_rewards(GROUPS, RUBRIC))) == 3


def test_groups_of_one_id_are_told_apart_by_their_responses(service, connect):
    asked = [group | {"id": "same"} for group in GROUPS]
    answer = right_answer()
    for group in answer["groups"]:
        group["id"] = "same"
    service.script(ScriptedReply(body=answer), lines_of(answer | {"groups": answer["groups"][::-1]}))
    assert len(connect(service.url).rewards(asked, RUBRIC).groups) == 3
    assert len(list(connect(service.url).stream_rewards(asked, RUBRIC))) == 3


@pytest.mark.parametrize("how", ["rewards", "stream", "verdicts"])
def test_under_a_rubric_by_reference_all_responses_have_the_same_criteria(service, connect, how):
    ask, reply = ASK[how]
    answer = right_answer(["a", "b"])
    service.script(reply(answer))
    ask(connect(service.url), rubric="math")
    verdict_lists(answer)[3].pop()
    service.script(reply(answer))
    with pytest.raises(MismatchedAnswer, match="group 'q2': response 0 lacks a verdict on 'b'"):
        ask(connect(service.url), rubric="math")


@pytest.mark.parametrize(
    ("rubric", "used", "says"),
    [
        ("math@3", {"name": "math", "version": 4}, "it was judged by math@4, and math@3 was asked for"),
        ("math@3", {"name": "law", "version": 3}, "it was judged by law@3, and math@3 was asked for"),
        ("sha256:" + "1" * 64, {}, f"it was judged by the rubric {DIGEST}, and sha256:1"),
    ],
)
@pytest.mark.parametrize("how", ["rewards", "stream", "verdicts"])
def test_an_answer_by_another_rubric_is_refused(service, connect, how, rubric, used, says):
    ask, reply = ASK[how]
    service.script(reply(right_answer() | {"rubrics": [{"digest": DIGEST} | used]}))
    with pytest.raises(MismatchedAnswer, match=says):
        ask(connect(service.url), rubric=rubric)


def ranked(*verdicts: list[str]) -> ScriptedReply:
    responses = [{"reward": 0.5, "status": "scored", "verdicts": verdicts_on(ids)} for ids in verdicts]
    return ScriptedReply(body={**ABOUT, "run": None, "groups": [{"id": "q2", "responses": responses}]})


@pytest.mark.parametrize(
    ("verdicts", "says"),
    [
        ([["beats_1", "beats_2"], ["beats_0", "beats_2"], ["beats_0"]], "1 and 2 were not compared once"),
        ([["beats_1"], ["beats_0"], []], "some of its responses were not compared"),
        ([["beats_1", "beats_3"], ["beats_0", "beats_2"], ["beats_0", "beats_1"]], "'beats_3', which compares"),
        ([["beats_0"], [], []], "'beats_0', which compares"),
        ([["clarity"], ["clarity"], ["clarity"]], "'clarity', which compares"),
    ],
)
def test_a_ranking_compares_the_responses_of_its_group(service, connect, verdicts, says):
    service.script(ranked(["beats_1", "beats_2"], ["beats_0", "beats_2"], ["beats_0", "beats_1"]))
    connect(service.url).rewards(GROUPS[2:], RUBRIC, "ranking", step=7)
    service.script(ranked(*verdicts))
    with pytest.raises(MismatchedAnswer, match=says):
        connect(service.url).rewards(GROUPS[2:], RUBRIC, "ranking", step=7)


STEPS = [{"number": 0, "start": 0, "end": 9}, {"number": 1, "start": 0, "end": 4}, {"number": 2, "start": 4, "end": 9}]


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda r: r["steps"][2].update(end=10), r"step 2 is \[4, 10\), and the response has 9 characters"),
        (lambda r: r["steps"][2].update(start=3), "its steps 1 and 2 overlap"),
        (lambda r: r["steps"][2].update(number=1), "several steps of the number 1"),
        (lambda r: r["verdicts"][0].update(step=3), "the verdict on 'one' is attributed to step 3"),
    ],
)
def test_steps_are_those_of_the_response(service, connect, spoil, says):
    rewarded = {"reward": 1.0, "status": "scored", "verdicts": verdicts_on(["one"]), "steps": copy.deepcopy(STEPS)}
    rewarded["verdicts"][0]["step"] = 2
    answer = {**ABOUT, "groups": [{"id": "q", "responses": [rewarded]}]}
    asked = [{"id": "q", "prompt": "x?", "responses": ["one. two."]}]
    service.script(ScriptedReply(body=answer))
    connect(service.url).rewards(asked, RUBRIC[:1], "stepwise")
    spoil(rewarded)
    service.script(ScriptedReply(body=answer))
    with pytest.raises(MismatchedAnswer, match=says):
        connect(service.url).rewards(asked, RUBRIC[:1], "stepwise")


def compared(*ids: str, orders: str = "ab") -> ScriptedReply:
    pairs = [
        {"id": id_, "status": "ok", "score": 1.0, "orders": [{"first": one, "status": "ok"} for one in orders]}
        for id_ in ids
    ]
    return ScriptedReply(body={**ABOUT, "run": None, "win_rate": 1.0, "pairs": pairs})


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        (compared("q0"), "lacks an answer to 'q1'"),
        (compared("q1", "q0"), "in another order"),
        (compared("q0", "q1", "q1"), "an answer to 'q1' more often"),
        (compared("q0", "q9"), "an answer to 'q9', which was not asked for"),
        (compared("q0", "q1", orders="aa"), "pair 'q0' was not judged once in each order"),
    ],
)
def test_comparisons_are_those_of_the_pairs(service, connect, reply, says):
    service.script(compared("q0", "q1"), reply)
    client = connect(service.url)
    assert client.compare(PAIRS).win_rate == 1.0
    with pytest.raises(MismatchedAnswer, match=says):
        client.compare(PAIRS)


OPERATION = {
    "id": "op-1",
    "project_id": "default",
    "kind": "score",
    "request": {},
    "state": "done",
    "revision": 3,
    "created_at": "2025-01-01T00:00:00Z",
}

EVENT = ScriptedReply(
    headers={"Content-Type": "text/event-stream"}, pieces=(f"data: {json.dumps(OPERATION)}\n\n".encode(),)
)

PROJECT = {"id": "team", "created_at": "2025-01-01T00:00:00Z"}


@pytest.mark.parametrize(
    ("ask", "body", "says"),
    [
        (lambda c: c.rubric("law"), VERSION, "its name is 'math/quadratics', and 'law' was asked for"),
        (lambda c: c.rubric("math/quadratics@4"), VERSION, "its version is 3, and 4 was asked for"),
        (lambda c: c.rubric("sha256:" + "1" * 64), VERSION, "its digest is"),
        (lambda c: c.publish_rubric("math/quadratics", RUBRIC), VERSION, "not those that were published"),
        (lambda c: c.publish_rubric("law", VERSION["criteria"]), VERSION, "its name is 'math/quadratics'"),
        (lambda c: c.rubric_aliases("law"), {"name": "math", "aliases": {}}, "its name is 'math'"),
        (
            lambda c: c.move_alias("law", "best", 2, expected=1),
            {"name": "law", "alias": "best", "version": 1},
            "its version is 1, and 2 was asked for",
        ),
        (lambda c: c.tag_rubric("law", []), {"name": "math", "tags": []}, "its name is 'math'"),
        (lambda c: c.operation("op-2"), OPERATION, "its id is 'op-1', and 'op-2' was asked for"),
        (lambda c: c.cancel_operation("op-2"), OPERATION, "its id is 'op-1'"),
        (lambda c: list(c.follow("op-2")), EVENT, "its id is 'op-1'"),
        (lambda c: list(c.operation_results("op-1", 5)), {"results": [{}], "next_cursor": "5"}, "results up to 5"),
        (lambda c: c.project("mine"), PROJECT, "its id is 'team', and 'mine' was asked for"),
        (
            lambda c: c.load_judge_weights("step-2"),
            {"judge": "default", "model": "m", "tag": "t", "version": "step-1"},
            "its version is 'step-1', and 'step-2' was asked for",
        ),
        (lambda c: c.wake_judge("r"), {"judge": "other", "state": "awake"}, "its judge is 'other'"),
        (lambda c: c.report_measures(3, {"a": 1.0}), {"run": "r", "step": 4, "measures": {"a": 1.0}}, "its step is 4"),
        (
            lambda c: list(c.recompute("r")),
            stream({"start": {"run": "s", "requests": 1, "verdicts": 1}}),
            "its run is 's', and 'r' was asked for",
        ),
    ],
)
def test_whatever_else_is_read_is_what_was_asked_for(service, connect, ask, body, says):
    service.script(body if isinstance(body, ScriptedReply) else ScriptedReply(body=body))
    with pytest.raises(MismatchedAnswer, match=says):
        ask(connect(service.url, "r"))


@given(st.data())
def test_no_other_answer_of_the_same_form_passes(data):
    """Whatever request an answer belongs to, it only passes for one with the same groups, counts and criteria."""
    counts = st.lists(st.integers(1, 3), min_size=1, max_size=3)
    ids = st.lists(st.sampled_from("abc"), min_size=1, max_size=3, unique=True)
    mine, theirs = data.draw(st.tuples(counts, ids)), data.draw(st.tuples(counts, ids))

    def groups(sizes: list[int]) -> list[dict[str, Any]]:
        return [{"id": f"q{n}", "prompt": "x?", "responses": ["42"] * size} for n, size in enumerate(sizes)]

    def answer(sizes: list[int], criteria: list[str]) -> dict[str, Any]:
        response = {"reward": 1.0, "status": "scored", "verdicts": verdicts_on(criteria)}
        return {**ABOUT, "groups": [{"id": f"q{n}", "responses": [response] * size} for n, size in enumerate(sizes)]}

    transport = httpx2.MockTransport(lambda _: httpx2.Response(200, json=answer(*theirs)))
    with Client("http://judge", transport=transport) as client:
        rubric = [{"id": id_, "description": "x"} for id_ in mine[1]]
        if mine == theirs:
            assert len(client.rewards(groups(mine[0]), rubric).groups) == len(mine[0])
        else:
            with pytest.raises(MismatchedAnswer):
                client.rewards(groups(mine[0]), rubric)
