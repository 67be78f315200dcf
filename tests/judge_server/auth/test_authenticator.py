"""The authenticator: which requests pass, what a wrong key costs, and how soon a revoked key stops working."""

import asyncio
from datetime import timedelta

import pytest

from judge_server.auth.authenticator import require_scope
from judge_server.auth.keys import CACHE_TTL_S, STALE_TTL_S, ApiKeyCache, make_key
from judge_server.errors import Forbidden, NotReady, RateLimited, Unauthorized
from judge_server.ports import ANONYMOUS
from tests.judge_server.auth.keyed import START, InMemoryApiKeyStore
from trainer_client.wire.tenants import Limits


def bearer(text: str) -> str:
    return f"Bearer {text}"


async def test_a_key_gives_its_project_its_scopes_and_its_limits() -> None:
    key_store, limits = InMemoryApiKeyStore(), Limits(tokens_per_day=5)
    key = key_store.add("score", project_id="b", limits=limits)
    for header in (f"Bearer {key.text}", f"bearer  {key.text} "):
        identity = await key_store.authenticator().identify(header)
        assert (identity.project_id, identity.actor, identity.limits) == ("b", f"key {key.id}", limits)
        assert identity.permissions == {"read", "score"}


@pytest.mark.parametrize(
    ("scope", "permissions"),
    [
        ("read", {"read"}),
        ("rubrics:write", {"read", "rubrics:write"}),
        ("labels:write", {"read", "labels:write"}),
        ("judges:write", {"read", "judges:write"}),
        ("metrics", {"metrics"}),
        ("admin", {"read", "score", "rubrics:write", "labels:write", "admin"}),
        ("invented", set()),
    ],
)
async def test_a_scope_grants_its_permissions_and_no_others(scope: str, permissions: set[str]) -> None:
    key_store = InMemoryApiKeyStore()
    identity = await key_store.authenticator().identify(bearer(key_store.add(scope).text))
    for wanted in ("read", "score", "rubrics:write", "labels:write", "judges:write", "metrics", "admin"):
        if wanted in permissions:
            require_scope(identity, wanted)
        else:
            with pytest.raises(Forbidden, match=f"scope '{wanted}'"):
                require_scope(identity, wanted)


@pytest.mark.parametrize("header", [None, "", "Basic YTpi", "Bearer", "Bearer ", "adj_x", "Bearer nonsense"])
async def test_where_keys_are_required_anything_else_is_refused(header: str | None) -> None:
    with pytest.raises(Unauthorized, match="Authorization: Bearer"):
        await InMemoryApiKeyStore().authenticator().identify(header)


async def test_an_unknown_key_and_a_wrong_secret_get_the_same_answer() -> None:
    key_store = InMemoryApiKeyStore()
    key = key_store.add("score")
    said = []
    for text in (make_key().text, key.text[:-1] + ("A" if key.text[-1] != "A" else "B"), "adj_short"):
        with pytest.raises(Unauthorized) as refused:
            await key_store.authenticator().identify(bearer(text))
        said.append(refused.value.detail)
    assert len(set(said)) == 1


async def test_a_key_is_refused_from_the_moment_it_expires() -> None:
    key_store = InMemoryApiKeyStore()
    key, authenticator = key_store.add("score", expires_at=START + timedelta(seconds=2)), key_store.authenticator()
    await authenticator.identify(bearer(key.text))
    key_store.seconds = 2.0
    with pytest.raises(Unauthorized, match="expired"):
        await authenticator.identify(bearer(key.text))


async def test_a_revoked_key_is_refused_once_its_cache_entry_is_old() -> None:
    key_store = InMemoryApiKeyStore()
    key, authenticator = key_store.add("score"), key_store.authenticator()
    await authenticator.identify(bearer(key.text))
    key_store.revoke(key.id)
    key_store.seconds = CACHE_TTL_S - 0.1
    await authenticator.identify(bearer(key.text))
    key_store.seconds = CACHE_TTL_S
    with pytest.raises(Unauthorized, match="revoked"):
        await authenticator.identify(bearer(key.text))


async def test_many_requests_with_one_key_look_it_up_once_per_cache_period() -> None:
    key_store = InMemoryApiKeyStore()
    key, authenticator = key_store.add("score"), key_store.authenticator()
    await asyncio.gather(*(authenticator.identify(bearer(key.text)) for _ in range(50)))
    assert key_store.reads == 1
    key_store.seconds = CACHE_TTL_S
    await authenticator.identify(bearer(key.text))
    assert key_store.reads == 2


async def test_a_burst_of_wrong_keys_costs_few_look_ups_and_locks_out_no_key_in_use() -> None:
    key_store = InMemoryApiKeyStore()
    key, authenticator = key_store.add("score"), key_store.authenticator()
    await authenticator.identify(bearer(key.text))
    refused = []
    for _ in range(1000):
        with pytest.raises((Unauthorized, RateLimited)) as error:
            await authenticator.identify(bearer(make_key().text))
        refused.append(error.type)
    assert key_store.reads <= 101
    assert refused.count(RateLimited) == 1000 - 99
    key_store.seconds = CACHE_TTL_S + 1  # the key's cache entry has expired, and it is looked up again
    for _ in range(1000):
        with pytest.raises((Unauthorized, RateLimited)):
            await authenticator.identify(bearer(make_key().text))
    assert (await authenticator.identify(bearer(key.text))).project_id == "default"


async def test_wrong_keys_evict_no_key_in_use() -> None:
    key_store = InMemoryApiKeyStore()
    key, cache = key_store.add("score"), ApiKeyCache(key_store, key_store.clock, max_keys=3)
    await cache.find(key.id)
    for _ in range(10):
        assert await cache.find(make_key().id) is None
    reads = key_store.reads
    assert await cache.find(key.id) is not None
    assert key_store.reads == reads


async def test_a_wrong_key_that_is_repeated_is_looked_up_once_per_cache_period() -> None:
    key_store, wrong = InMemoryApiKeyStore(), make_key().text
    authenticator = key_store.authenticator()
    for _ in range(500):
        with pytest.raises(Unauthorized):
            await authenticator.identify(bearer(wrong))
    assert key_store.reads == 1


async def test_while_the_store_is_unreachable_a_recently_seen_key_works_and_others_get_not_ready() -> None:
    key_store = InMemoryApiKeyStore()
    key, other, authenticator = key_store.add("score"), key_store.add("score"), key_store.authenticator()
    await authenticator.identify(bearer(key.text))
    key_store.broken, key_store.seconds = True, STALE_TTL_S - 1
    assert (await authenticator.identify(bearer(key.text))).permissions == {"read", "score"}
    with pytest.raises(NotReady, match="store does not answer"):
        await authenticator.identify(bearer(other.text))
    key_store.seconds = STALE_TTL_S
    with pytest.raises(NotReady):
        await authenticator.identify(bearer(key.text))
    key_store.broken = False
    await authenticator.identify(bearer(other.text))


async def test_where_keys_are_optional_all_requests_pass_and_a_key_still_counts() -> None:
    key_store = InMemoryApiKeyStore()
    authenticator = key_store.authenticator(required=False)
    for header in (None, "Basic YTpi", "Bearer of-a-proxy"):
        assert await authenticator.identify(header) == ANONYMOUS
    assert (await authenticator.identify(bearer(key_store.add("read", project_id="b").text))).project_id == "b"
    with pytest.raises(Unauthorized):
        await authenticator.identify(bearer(make_key().text))


async def test_a_project_may_burst_a_minutes_requests_and_then_continue_at_that_rate() -> None:
    key_store = InMemoryApiKeyStore()
    authenticator = key_store.authenticator()
    keys = [key_store.add("score", project_id="b", limits=Limits(requests_per_minute=3)) for _ in range(2)]
    identities = [await authenticator.identify(bearer(key.text)) for key in keys]
    for identity in (identities[0], identities[1], identities[0]):
        await authenticator.admit(identity)
    for identity in identities:
        with pytest.raises(RateLimited, match="3 requests a minute") as refused:
            await authenticator.admit(identity)
        assert refused.value.retry_after_s == 20
    await authenticator.admit(ANONYMOUS)
    key_store.seconds += 20
    await authenticator.admit(identities[0])
    with pytest.raises(RateLimited):
        await authenticator.admit(identities[1])


async def test_the_last_use_of_a_key_is_stored_once_a_minute() -> None:
    key_store = InMemoryApiKeyStore()
    key, authenticator = key_store.add("score"), key_store.authenticator()
    for seconds in (0, 30, 59, 61):
        key_store.seconds = seconds
        await authenticator.identify(bearer(key.text))
        await authenticator.usage.flush()
        assert key_store.last_used[key.id] == START + timedelta(seconds=61 if seconds == 61 else 0)
