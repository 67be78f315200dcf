"""The gate: who is let in, what a key that is wrong costs, and how fast a revoked one stops."""

import asyncio
from datetime import timedelta

import pytest

from judge_server.access import KEYLESS, known
from judge_server.access.gate import insist
from judge_server.access.keys import make_key
from judge_server.access.known import AWAY_S, FRESH_S
from judge_server.errors import Forbidden, NotReady, RateLimited, Unauthorized
from tests.judge_server.access.keyed import START, Ring
from trainer_client.wire.tenants import Limits


def bearer(text: str) -> str:
    return f"Bearer {text}"


async def test_a_key_gives_its_project_its_scopes_and_its_limits() -> None:
    ring, limits = Ring(), Limits(tokens_per_day=5)
    key = ring.add("score", project_id="b", limits=limits)
    for header in (f"Bearer {key.text}", f"bearer  {key.text} "):
        identity = await ring.gate().identify(header)
        assert (identity.project_id, identity.actor, identity.limits) == ("b", f"key {key.id}", limits)
        assert identity.opens == {"read", "score"}


@pytest.mark.parametrize(
    ("scope", "opens"),
    [
        ("read", {"read"}),
        ("rubrics:write", {"read", "rubrics:write"}),
        ("metrics", {"metrics"}),
        ("admin", {"read", "score", "rubrics:write", "admin"}),
        ("invented", set()),
    ],
)
async def test_a_scope_opens_what_it_says_and_nothing_else(scope: str, opens: set[str]) -> None:
    ring = Ring()
    identity = await ring.gate().identify(bearer(ring.add(scope).text))
    for wanted in ("read", "score", "rubrics:write", "metrics", "admin"):
        if wanted in opens:
            insist(identity, wanted)
        else:
            with pytest.raises(Forbidden, match=f"scope '{wanted}'"):
                insist(identity, wanted)


@pytest.mark.parametrize("header", [None, "", "Basic YTpi", "Bearer", "Bearer ", "adj_x", "Bearer nonsense"])
async def test_where_keys_are_needed_anything_else_is_refused(header: str | None) -> None:
    with pytest.raises(Unauthorized, match="Authorization: Bearer"):
        await Ring().gate().identify(header)


async def test_an_unknown_key_and_a_wrong_secret_are_answered_alike() -> None:
    ring = Ring()
    key = ring.add("score")
    said = []
    for text in (make_key().text, key.text[:-1] + ("A" if key.text[-1] != "A" else "B"), "adj_short"):
        with pytest.raises(Unauthorized) as refused:
            await ring.gate().identify(bearer(text))
        said.append(refused.value.detail)
    assert len(set(said)) == 1


async def test_a_key_that_expires_opens_nothing_from_that_moment_on() -> None:
    ring = Ring()
    key, gate = ring.add("score", expires_at=START + timedelta(seconds=2)), ring.gate()
    await gate.identify(bearer(key.text))
    ring.seconds = 2.0
    with pytest.raises(Unauthorized, match="expired"):
        await gate.identify(bearer(key.text))


async def test_a_revoked_key_opens_nothing_once_what_is_known_of_it_is_old() -> None:
    ring = Ring()
    key, gate = ring.add("score"), ring.gate()
    await gate.identify(bearer(key.text))
    ring.revoke(key.id)
    ring.seconds = FRESH_S - 0.1
    await gate.identify(bearer(key.text))
    ring.seconds = FRESH_S
    with pytest.raises(Unauthorized, match="revoked"):
        await gate.identify(bearer(key.text))


async def test_many_requests_with_one_key_look_it_up_once_in_a_few_seconds() -> None:
    ring = Ring()
    key, gate = ring.add("score"), ring.gate()
    await asyncio.gather(*(gate.identify(bearer(key.text)) for _ in range(50)))
    assert ring.reads == 1
    ring.seconds = FRESH_S
    await gate.identify(bearer(key.text))
    assert ring.reads == 2


async def test_a_burst_of_wrong_keys_costs_few_look_ups_and_locks_no_key_in_use_out() -> None:
    ring = Ring()
    key, gate = ring.add("score"), ring.gate()
    await gate.identify(bearer(key.text))
    refused = []
    for _ in range(1000):
        with pytest.raises((Unauthorized, RateLimited)) as error:
            await gate.identify(bearer(make_key().text))
        refused.append(error.type)
    assert ring.reads <= 101
    assert refused.count(RateLimited) == 1000 - 99
    ring.seconds = FRESH_S + 1  # its key is looked up again, among a few more tries than were waited for
    for _ in range(1000):
        with pytest.raises((Unauthorized, RateLimited)):
            await gate.identify(bearer(make_key().text))
    assert (await gate.identify(bearer(key.text))).project_id == "default"


async def test_wrong_keys_push_no_key_in_use_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known, "_MOST", 3)
    ring = Ring()
    key, gate = ring.add("score"), ring.gate()
    await gate.identify(bearer(key.text))
    for _ in range(10):
        with pytest.raises(Unauthorized):
            await gate.identify(bearer(make_key().text))
    reads = ring.reads
    await gate.identify(bearer(key.text))
    assert ring.reads == reads


async def test_one_wrong_key_tried_again_and_again_is_looked_up_once_in_a_few_seconds() -> None:
    ring, wrong = Ring(), make_key().text
    gate = ring.gate()
    for _ in range(500):
        with pytest.raises(Unauthorized):
            await gate.identify(bearer(wrong))
    assert ring.reads == 1


async def test_a_key_seen_lately_goes_on_while_the_store_is_away_and_others_wait() -> None:
    ring = Ring()
    key, other, gate = ring.add("score"), ring.add("score"), ring.gate()
    await gate.identify(bearer(key.text))
    ring.broken, ring.seconds = True, AWAY_S - 1
    assert (await gate.identify(bearer(key.text))).opens == {"read", "score"}
    with pytest.raises(NotReady, match="store does not answer"):
        await gate.identify(bearer(other.text))
    ring.seconds = AWAY_S
    with pytest.raises(NotReady):
        await gate.identify(bearer(key.text))
    ring.broken = False
    await gate.identify(bearer(other.text))


async def test_without_need_of_keys_all_are_let_in_and_a_key_still_counts() -> None:
    ring = Ring()
    gate = ring.gate(required=False)
    for header in (None, "Basic YTpi", "Bearer of-a-proxy"):
        assert await gate.identify(header) == KEYLESS
    assert (await gate.identify(bearer(ring.add("read", project_id="b").text))).project_id == "b"
    with pytest.raises(Unauthorized):
        await gate.identify(bearer(make_key().text))


async def test_a_project_may_send_a_minutes_worth_of_requests_at_once_and_then_as_many_a_minute() -> None:
    ring = Ring()
    gate = ring.gate()
    keys = [ring.add("score", project_id="b", limits=Limits(requests_per_minute=3)) for _ in range(2)]
    identities = [await gate.identify(bearer(key.text)) for key in keys]
    for identity in (identities[0], identities[1], identities[0]):
        await gate.admit(identity)
    for identity in identities:
        with pytest.raises(RateLimited, match="3 requests a minute") as refused:
            await gate.admit(identity)
        assert refused.value.retry_after_s == 20
    await gate.admit(KEYLESS)
    ring.seconds += 20
    await gate.admit(identities[0])
    with pytest.raises(RateLimited):
        await gate.admit(identities[1])


async def test_when_a_key_was_used_is_kept_by_the_minute() -> None:
    ring = Ring()
    key, gate = ring.add("score"), ring.gate()
    for seconds in (0, 30, 59, 61):
        ring.seconds = seconds
        await gate.identify(bearer(key.text))
        await gate.usage.flush()
        assert ring.last_used[key.id] == START + timedelta(seconds=61 if seconds == 61 else 0)
