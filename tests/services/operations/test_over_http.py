"""`/v1/operations` of a service that runs operations itself."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from judge_server.api.app import example_requests
from judge_server.api.operations import event_stream
from tests.services.command import adjudge
from tests.services.operations.cluster import CRITERIA, groups, score
from tests.services.operations.in_process import Start, end_of, results_of
from trainer_client import AsyncClient, InvalidRequest, NotFound
from trainer_client.wire.operations import Operation


async def key_of(project: str) -> str:
    """Create a key of a project; return its text."""
    command = ["keys", "create", "--scope", "score", "--scope", "rubrics:write", "--project", project]
    return (await asyncio.to_thread(adjudge, *command)).stdout.strip()


async def raw(client: AsyncClient, method: str, path: str, **options: Any) -> httpx2.Response:
    """Send a request; return the raw answer."""
    return await client._http.request(method, path, **options)


async def test_submitting_returns_the_status_of_the_operation_immediately(client: AsyncClient) -> None:
    answer = await raw(client, "POST", "/v1/operations", json=score(1))
    operation = Operation.model_validate_json(answer.content)
    assert (answer.status_code, answer.headers["Location"]) == (202, f"/v1/operations/{operation.id}")
    assert (operation.kind, operation.state, operation.progress.total) == ("score", "queued", 1)
    assert "groups" not in operation.request
    assert (await client.operation(operation.id)).id == operation.id
    assert [one.id async for one in client.operations()] == [operation.id]


async def test_the_documented_example_works(client: AsyncClient) -> None:
    example = example_requests()["submit_operation"]["score"]["value"]
    done = await end_of(client, (await client.submit(example)).id)
    assert (done.state, done.progress.made, done.request["run"]) == ("done", 1, example["run"])


async def test_bulk_scores_equal_those_of_reward_requests(client: AsyncClient) -> None:
    asked = groups(10)
    id_ = (await client.submit(score(10))).id
    done = await end_of(client, id_)
    answer = await client.rewards(asked, {"criteria": CRITERIA})
    results = await results_of(client, id_)
    assert (done.state, done.progress.made, done.usage.judge_calls) == ("done", 10, 160)
    assert [one["id"] for one in results] == [group["id"] for group in asked]
    assert answer.judge is not None
    for result, group in zip(results, answer.groups, strict=True):
        assert [one["reward"] for one in result["responses"]] == [one.reward for one in group.responses]
        assert result["fingerprint"] == answer.judge.fingerprint


async def test_groups_may_be_the_text_of_a_jsonl_file(client: AsyncClient) -> None:
    text = "\n".join(json.dumps(group) for group in groups(3)) + "\n\n"
    id_ = (await client.submit(score(1) | {"groups": text})).id
    assert (await end_of(client, id_)).progress.done == 3


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"groups": '{"id": "q", "prompt": "?", "responses": ["Yes!"]}\nnot json'}, "line 2: not JSON"),
        ({"groups": []}, "needs at least 1"),
        ({"kind": "dance"}, "does not match any of the expected tags"),
        ({"rewards": {}}, "unknown field"),
        ({"rubric": "no/such"}, "no rubric"),
        ({"kind": "evaluate_judge"}, "labels"),
    ],
)
async def test_an_invalid_operation_is_refused_and_not_stored(
    client: AsyncClient, wrong: dict[str, Any], message: str
) -> None:
    answer = await raw(client, "POST", "/v1/operations", json=score(1) | wrong)
    assert answer.status_code in (404, 422)
    assert message in answer.text
    assert [one async for one in client.operations()] == []


async def test_an_operation_uses_the_rubric_version_at_submission(client: AsyncClient) -> None:
    first = await client.publish_rubric("team/primes", CRITERIA)
    id_ = (await client.submit(score(2) | {"rubric": "team/primes"})).id
    assert (await client.operation(id_)).request["rubric"] == "team/primes@1"
    await client.publish_rubric("team/primes", CRITERIA[:1])
    done = await end_of(client, id_)
    assert (done.state, done.problem) == ("done", None)
    assert {one["rubric"] for one in await results_of(client, id_)} == {first.digest}


async def test_the_same_key_is_the_same_submission(client: AsyncClient) -> None:
    ids = {(await client.submit(score(1), idempotency_key="mine")).id for _ in range(3)}
    assert len(ids) == 1
    with pytest.raises(InvalidRequest, match="Idempotency-Key"):
        await client.submit(score(2), idempotency_key="mine")


async def test_the_same_key_is_the_same_submission_after_a_new_rubric_version(
    client: AsyncClient,
) -> None:
    await client.publish_rubric("team/primes", CRITERIA)
    asked = score(2) | {"rubric": "team/primes"}
    id_ = (await client.submit(asked, idempotency_key="mine")).id
    await client.publish_rubric("team/primes", CRITERIA[:1])
    again = await client.submit(asked, idempotency_key="mine")
    assert (again.id, again.request["rubric"]) == (id_, "team/primes@1")
    lines = "\n".join(json.dumps(group) for group in groups(2))
    assert (await client.submit(asked | {"groups": lines}, idempotency_key="mine")).id == id_


async def test_a_large_rubric_is_shown_with_its_operation_and_not_in_lists(client: AsyncClient) -> None:
    large = [{"id": f"c{n}", "description": f"Is right {n}. " + "x" * 1000} for n in range(20)]
    id_ = (await client.submit(score(1) | {"rubric": {"criteria": large}})).id
    assert (await client.operation(id_)).request["rubric"] == {"criteria": large}
    assert [(one.id, one.request) async for one in client.operations()] == [(id_, {})]


async def test_a_rubric_of_more_than_a_mebibyte_must_be_published(client: AsyncClient) -> None:
    criteria = [{"id": f"c{n}", "description": "Is right. " + "x" * 19_000} for n in range(60)]
    with pytest.raises(InvalidRequest, match="above the limit of 1,048,576; if its rubric is that large, publish it"):
        await client.submit(score(1) | {"rubric": {"criteria": criteria}})
    await client.publish_rubric("team/large", criteria)
    assert (await client.submit(score(1) | {"rubric": "team/large"})).state == "queued"


async def test_event_ids_are_revisions_and_events_end_with_the_operation(client: AsyncClient) -> None:
    id_ = (await client.submit(score(4))).id
    done = await end_of(client, id_)
    answer = await raw(client, "GET", f"/v1/operations/{id_}/events")
    assert answer.headers["Content-Type"].startswith("text/event-stream")
    *_, event, end = answer.text.split("\n\n")
    assert end == ""
    assert event.split("\n")[:2] == [f"id: {done.revision}", "event: operation"]
    seen = await raw(client, "GET", f"/v1/operations/{id_}/events", headers={"Last-Event-ID": str(done.revision)})
    assert "data:" not in seen.text
    refused = await raw(client, "GET", f"/v1/operations/{id_}/events", headers={"Last-Event-ID": "x"})
    assert (refused.status_code, "not an event id" in refused.text) == (422, True)


async def test_an_idle_event_stream_sends_heartbeats(client: AsyncClient) -> None:
    done, changed = await end_of(client, (await client.submit(score(1))).id), asyncio.Event()

    async def changes() -> AsyncIterator[Operation]:
        await changed.wait()
        yield done

    stream = event_stream(changes(), asyncio.Event(), heartbeat_s=0.02)
    assert [await anext(stream) for _ in range(5)] == [b": still here\n\n"] * 5
    changed.set()
    event = [line async for line in stream if not line.startswith(b":")]
    assert [line.split(b"\n")[0] for line in event] == [f"id: {done.revision}".encode()]


async def test_results_are_available_as_pages_and_as_lines(client: AsyncClient) -> None:
    id_ = (await client.submit(score(5))).id
    await end_of(client, id_)
    page = (await raw(client, "GET", f"/v1/operations/{id_}/results?limit=2&after=2")).json()
    assert (len(page["results"]), page["next_cursor"]) == (2, "4")
    accept = {"Accept": "application/x-ndjson"}
    lines = await raw(client, "GET", f"/v1/operations/{id_}/results?after=1", headers=accept)
    made = [one["index"] async for one in client.operation_results(id_)]  # chunks may complete in any order
    assert sorted(made) == [0, 1, 2, 3, 4]
    assert [json.loads(line)["index"] for line in lines.text.splitlines()] == made[1:]
    assert lines.headers["Content-Type"].startswith("application/x-ndjson")


async def test_an_unknown_operation_is_not_found(client: AsyncClient) -> None:
    for ask in (client.operation, client.cancel_operation, client.retry_operation):
        with pytest.raises(NotFound, match="there is no operation op-1"):
            await ask("op-1")
    with pytest.raises(NotFound, match="there is no operation op-1"):
        await anext(client.operation_results("op-1"))
    assert (await raw(client, "GET", "/v1/operations/op-1/events")).status_code == 404


async def test_a_cancelled_operation_continues_when_it_is_retried(start: Start) -> None:
    client = await start("scripted://hash?delay_s=0.2&concurrency=1")
    id_ = (await client.submit(score(8))).id
    cancelled = await client.cancel_operation(id_)
    assert (cancelled.state, cancelled.progress.done) == ("cancelled", 0)
    assert (await client.cancel_operation(id_)).revision == cancelled.revision
    again = await client.retry_operation(id_)
    assert (again.state, again.tries) == ("queued", 2)


async def test_an_operation_is_judged_for_the_project_whose_key_submitted_it(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    await asyncio.to_thread(adjudge, "projects", "create", "b")
    ours, theirs = [await key_of("b"), await key_of("default")]
    monkeypatch.setenv("ADJUDGE_API_KEY", ours)
    client = await start(keys="required")
    await client.publish_rubric("team/primes", CRITERIA)
    id_ = (await client.submit(score(2) | {"rubric": "team/primes"})).id
    done = await end_of(client, id_)
    assert (done.state, done.problem, done.project_id) == ("done", None, "b")
    for key, status, seen in ((ours, 200, [id_]), (theirs, 404, [])):
        headers = {"Authorization": f"Bearer {key}"}
        assert (await raw(client, "GET", f"/v1/operations/{id_}", headers=headers)).status_code == status
        listed = (await raw(client, "GET", "/v1/operations", headers=headers)).json()["operations"]
        assert [one["id"] for one in listed] == seen
    assert (await raw(client, "GET", "/v1/operations", headers={"Authorization": ""})).status_code == 401
