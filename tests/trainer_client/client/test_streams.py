"""Streamed answers: groups as they arrive, how they end, and how they are closed."""

import asyncio
import gc
import json

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer_client.fake_service import GROUP_LINE, REWARDS, SUMMARY_LINE, ScriptedReply, problem, stream
from trainer_client import (
    AdjudgeError,
    AsyncClient,
    Client,
    ConnectionFailed,
    InvalidRequest,
    JudgingFailed,
    NotReady,
    ServerError,
    TimedOut,
)

GROUP = {"id": "q17", "prompt": "x?", "responses": ["42", "43"]}

OVERLOADED = problem("overloaded", 429, retryable=True)


def asked_groups(*ids):
    """Groups of these ids, with as many responses as the scripted ones."""
    return [GROUP | {"id": id_} for id_ in ids]


def group_line(id_="q17", **more):
    return {"group": GROUP_LINE["group"] | {"id": id_} | more}


def problem_line(kind, status, *, retryable=False):
    return {"problem": problem(kind, status, retryable=retryable).body}


def test_groups_arrive_as_they_finish_followed_by_the_summary(service, connect):
    service.script(stream(group_line("b"), group_line("a"), SUMMARY_LINE))
    groups = connect(service.url, "run-3").stream_rewards(asked_groups("a", "b"), "r", "points", step=7)
    assert [group.id for group in groups] == ["b", "a"]
    assert groups.summary.usage.judge_calls == 2
    assert next(groups, None) is None
    [asked] = service.asked
    assert (asked.method, asked.target, asked.headers["Accept"]) == ("POST", "/v1/rewards", "application/x-ndjson")
    assert asked.json["run"] == "run-3"


def test_a_group_is_available_before_the_next_one_arrives(service, connect):
    service.script(stream(group_line("first"), b'{"group": {"id": "second"', hang=True))
    with connect(service.url).stream_rewards(asked_groups("first", "second"), "r") as groups:
        assert next(groups).id == "first"


def test_the_request_equals_that_of_rewards_and_is_validated_at_once(service, connect):
    service.script(stream(group_line(), SUMMARY_LINE), ScriptedReply(body=REWARDS))
    client = connect(service.url)
    assert len(list(client.stream_rewards([GROUP], "r", "stepwise", format_weight=0.2, deadline_s=5))) == 1
    client.rewards([GROUP], "r", "stepwise", format_weight=0.2, deadline_s=5)
    assert service.asked[0].body == service.asked[1].body
    with pytest.raises(InvalidRequest, match="rubric"):
        client.stream_rewards([GROUP])


def test_nothing_is_sent_before_the_first_group_is_requested(service, connect):
    connect(service.url).stream_rewards([GROUP], "r").close()
    assert service.asked == []


@pytest.mark.parametrize("read", [0, 1])
def test_before_the_end_there_is_no_summary(service, connect, read):
    service.script(stream(group_line("a"), group_line("b"), SUMMARY_LINE))
    with connect(service.url).stream_rewards(asked_groups("a", "b"), "r") as groups:
        for _ in range(read):
            next(groups)
        with pytest.raises(RuntimeError, match="no summary before its end"):
            _ = groups.summary


@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
def test_lines_are_assembled_from_pieces_of_any_size_and_end_at_line_feeds_only(service, connect, piece):
    odd = "\u2028\u2029\x85\x0b\x0c\x1c 🙂"
    verdict = {"criterion": "c1", "status": "ok", "score": 1.0, "rationale": odd}
    response = {"reward": 1.0, "status": "scored", "verdicts": [verdict]}
    line = json.dumps(group_line(responses=[response]), ensure_ascii=False).encode() + b"\r\n"
    service.script(stream(line, b"\n", SUMMARY_LINE, piece=piece))
    [group] = connect(service.url).stream_rewards([GROUP | {"responses": ["42"]}], "r")
    assert group.responses[0].verdicts[0].rationale == odd


def test_a_line_may_have_megabytes(service, connect):
    verdict = {"criterion": "c1", "status": "ok", "score": 1.0, "rationale": "x" * 8_000_000}
    response = {"reward": 1.0, "status": "scored", "verdicts": [verdict]}
    service.script(stream(group_line(responses=[response]), SUMMARY_LINE, piece=65_536))
    [group] = connect(service.url).stream_rewards([GROUP | {"responses": ["42"]}], "r")
    assert len(group.responses[0].verdicts[0].rationale) == 8_000_000


@given(st.lists(st.text(min_size=1, max_size=256), min_size=1, max_size=5), st.lists(st.integers(1, 40), min_size=1))
def test_the_same_groups_arrive_however_the_answer_is_split(ids, sizes):
    lines = [*(group_line(id_) for id_ in ids), SUMMARY_LINE]
    sent = b"".join(json.dumps(line, ensure_ascii=False).encode() + b"\n" for line in lines)

    def pieces():
        rest, number = sent, 0
        while rest:
            size = sizes[number % len(sizes)]
            yield rest[:size]
            rest, number = rest[size:], number + 1

    answer = httpx2.Response(200, headers={"Content-Type": "application/x-ndjson"}, content=pieces())
    with Client("http://judge", transport=httpx2.MockTransport(lambda _: answer)) as client:
        groups = client.stream_rewards(asked_groups(*ids), "r")
        assert [group.id for group in groups] == ids
    assert groups.summary.request_id == "req-1"


@pytest.mark.parametrize(
    "line",
    [{"progress": {"done": 3}}, {}, {"group": None}, b"\n", b" \r\n"],
    ids=["unknown kind", "empty", "null", "blank", "space"],
)
def test_unknown_lines_are_ignored(service, connect, line):
    service.script(stream(line, group_line() | {"weather": "fine"}, line, SUMMARY_LINE, line))
    groups = connect(service.url).stream_rewards([GROUP], "r")
    assert len(list(groups)) == 1
    assert groups.summary.request_id == "req-1"


@pytest.mark.parametrize(
    "line",
    [b"<html>\n", b"[]\n", b"7\n", b'{"group": {"id": "q17"\n', b"\xff\n", {"group": {"id": 3}}, {"problem": "no"}],
    ids=["HTML", "a list", "a number", "half a line, ended", "no UTF-8", "no group", "no problem document"],
)
def test_a_line_that_violates_the_contract_is_a_server_error_that_quotes_it(service, connect, time, line):
    service.script(stream(group_line(), line, SUMMARY_LINE))
    groups = connect(service.url).stream_rewards([GROUP], "r")
    assert next(groups).id == "q17"
    with pytest.raises(ServerError) as raised:
        next(groups)
    quoted = line.decode(errors="replace").strip() if isinstance(line, bytes) else json.dumps(line)
    assert quoted in str(raised.value)
    assert (raised.value.status, raised.value.request_id) == (200, "req-8")
    assert next(groups, None) is None


@pytest.mark.parametrize(
    ("kind", "status", "error"),
    [("judging-failed", 502, JudgingFailed), ("not-ready", 503, NotReady), ("internal", 500, ServerError)],
)
def test_a_problem_after_some_groups_is_raised_as_its_class_and_ends_the_stream(service, connect, kind, status, error):
    service.script(stream(group_line("a"), group_line("b"), problem_line(kind, status, retryable=True)))
    groups = connect(service.url).stream_rewards(asked_groups("a", "b", "c"), "r", on_failure="error")
    assert [next(groups).id, next(groups).id] == ["a", "b"]
    with pytest.raises(AdjudgeError, match=f"{kind} happened") as raised:
        next(groups)
    assert type(raised.value) is error
    assert (raised.value.status, raised.value.request_id, len(service.asked)) == (status, "req-7", 1)
    assert next(groups, None) is None


@pytest.mark.parametrize("end", [b"", b'{"summary": {"req', json.dumps(SUMMARY_LINE).encode()])
@pytest.mark.parametrize("drop", [False, True], ids=["ended", "broken"])
def test_an_answer_truncated_before_its_summary_is_a_failed_connection_and_not_retried(service, connect, end, drop):
    service.script(stream(group_line(), *([end] if end else []), drop=drop))
    groups = connect(service.url).stream_rewards([GROUP], "r")
    assert next(groups).id == "q17"
    with pytest.raises(ConnectionFailed) as raised:
        next(groups)
    assert (raised.value.retryable, len(service.asked)) == (True, 1)
    with pytest.raises(RuntimeError):
        _ = groups.summary


def test_a_connection_that_breaks_after_the_summary_loses_nothing(service, connect):
    service.script(stream(group_line(), SUMMARY_LINE, drop=True))
    groups = connect(service.url).stream_rewards([GROUP], "r")
    assert len(list(groups)) == 1
    assert groups.summary.request_id == "req-1"


@pytest.mark.parametrize(
    "failure",
    [
        OVERLOADED,
        ScriptedReply(502, "<html>bad gateway</html>"),
        ScriptedReply(drop=True),
        stream(drop=True),
        stream(),
        stream(problem_line("not-ready", 503, retryable=True)),
    ],
    ids=["problem", "proxy", "broken connection", "broken before a line", "ended before a line", "a problem at once"],
)
def test_transient_errors_are_retried_until_the_first_group(service, connect, time, failure):
    service.script(failure, failure, stream(group_line(), SUMMARY_LINE))
    assert len(list(connect(service.url).stream_rewards([GROUP], "r"))) == 1
    assert (len(service.asked), len(time.waits)) == (3, 2)
    assert service.asked[0].body == service.asked[2].body


def test_a_partial_line_of_a_failed_attempt_is_dropped(service, connect):
    service.script(stream(b'{"group": ', drop=True), stream(group_line(), SUMMARY_LINE))
    assert len(list(connect(service.url).stream_rewards([GROUP], "r"))) == 1


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        (problem("invalid-request", 422), InvalidRequest),
        (problem("judging-failed", 502), JudgingFailed),
        (ScriptedReply(200, "<html>"), ServerError),
        (ScriptedReply(200, {"not": "it"}), ServerError),
        (ScriptedReply(204, ""), ServerError),
        (ScriptedReply(302, "moved"), ServerError),
        (ScriptedReply(500, "oops", {"Content-Type": "application/x-ndjson"}), ServerError),
    ],
    ids=["invalid", "failed", "HTML", "other JSON", "nothing", "moved", "an error in lines"],
)
def test_an_answer_that_is_not_a_stream_is_raised_before_any_group(service, connect, failure, error):
    service.script(failure)
    with pytest.raises(error):
        next(connect(service.url).stream_rewards([GROUP], "r"))
    assert len(service.asked) == 1


def test_a_service_that_cannot_stream_returns_all_groups_at_once(service, connect):
    service.script(ScriptedReply(body=REWARDS, headers={"Content-Type": "application/json"}))
    groups = connect(service.url).stream_rewards([GROUP], "r")
    assert [group.id for group in groups] == ["q17"]
    assert groups.summary.usage.judge_calls == 2


def test_silence_between_lines_times_out_and_is_not_retried():
    asked = []

    def pieces():
        yield json.dumps(group_line()).encode() + b"\n"
        raise httpx2.ReadTimeout("75 s")

    def answer(request):
        asked.append(request)
        return httpx2.Response(200, headers={"Content-Type": "application/x-ndjson"}, content=pieces())

    with Client("http://judge", transport=httpx2.MockTransport(answer)) as client:
        groups = client.stream_rewards([GROUP], "r")
        assert next(groups).id == "q17"
        with pytest.raises(TimedOut):
            next(groups)
    assert len(asked) == 1


@pytest.fixture
def hanging(service):
    service.script(stream(GROUP_LINE, hang=True))


@pytest.mark.usefixtures("hanging")
def test_close_hangs_up(service, connect):
    groups = connect(service.url).stream_rewards([GROUP], "r")
    next(groups)
    assert not service.hung_up.is_set()
    groups.close()
    assert _hung_up(service)
    groups.close()
    assert next(groups, None) is None


@pytest.mark.usefixtures("hanging")
def test_leaving_a_with_block_hangs_up(service, connect):
    with connect(service.url).stream_rewards([GROUP], "r") as groups:
        for _ in groups:
            break
    assert _hung_up(service)


@pytest.mark.usefixtures("hanging")
def test_leaving_a_loop_hangs_up_once_the_stream_is_unreferenced(service):
    with Client(service.url) as client:
        for _ in client.stream_rewards([GROUP], "r"):
            break
        gc.collect()
        assert _hung_up(service)


@pytest.mark.usefixtures("hanging")
async def test_leaving_an_async_loop_hangs_up_once_the_stream_is_unreferenced(service):
    async with AsyncClient(service.url) as client:
        async for _ in client.stream_rewards([GROUP], "r"):
            break
        gc.collect()
        assert await asyncio.to_thread(_hung_up, service)


@pytest.mark.usefixtures("hanging")
async def test_leaving_an_async_with_block_hangs_up(service):
    async with AsyncClient(service.url) as client:
        async with client.stream_rewards([GROUP], "r") as groups:
            await anext(groups)
        assert await asyncio.to_thread(_hung_up, service)


@pytest.mark.usefixtures("hanging")
async def test_cancelling_the_task_that_waits_for_a_group_hangs_up(service):
    first = asyncio.Event()

    async def go_through(client):
        async for _ in client.stream_rewards([GROUP], "r"):
            first.set()

    async with AsyncClient(service.url) as client:
        task = asyncio.create_task(go_through(client))
        await first.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(_hung_up, service)


def test_fully_read_streams_share_one_connection(service, connect):
    service.script(stream(GROUP_LINE, SUMMARY_LINE))
    client = connect(service.url)
    for _ in range(3):
        list(client.stream_rewards([GROUP], "r"))
    assert (len(service.asked), service.connections) == (3, 1)


def _hung_up(service):
    return service.hung_up.wait(timeout=30)
