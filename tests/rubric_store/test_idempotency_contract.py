"""The contract of idempotency keys: a key stands for one request, one execution and one answer for a day."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import pytest
from sqlalchemy import func, select

from rubric_store import SQLIdempotencyKeys
from rubric_store.idempotency import idempotency_keys
from rubric_store.tenants.rows import IDEMPOTENCY_KEY_TTL, KeyClaim, StoredAnswer
from tests.rubric_store.operation_rows import NOW

ASKED, OTHER = b"a" * 32, b"b" * 32
ANSWER = StoredAnswer(201, "/v1/rubrics/a@1", '{"name": "\u00e4"}'.encode() * 100)


@dataclass
class Clock:
    """A clock that stands still until it is moved."""

    now: datetime = field(default=NOW)

    def __call__(self) -> datetime:
        return self.now

    def pass_(self, **some: float) -> None:
        self.now += timedelta(**some)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def keys(migrated_url: str, clock: Clock) -> AsyncIterator[SQLIdempotencyKeys]:
    opened = SQLIdempotencyKeys(migrated_url, clock=clock)
    yield opened
    await opened.close()


async def count(keys: SQLIdempotencyKeys) -> int:
    rows = await keys._read(select(func.count()).select_from(idempotency_keys))
    return int(rows[0][0])


async def test_a_new_key_is_claimed_and_its_answer_is_returned_afterwards(
    keys: SQLIdempotencyKeys, clock: Clock
) -> None:
    assert await keys.claim("p", "k", ASKED, hold_s=10) == KeyClaim(NOW)
    await keys.store_answer("p", "k", ANSWER)
    clock.pass_(hours=23)
    for _ in range(2):
        assert await keys.claim("p", "k", ASKED, hold_s=10) == KeyClaim(NOW, ANSWER)


async def test_an_answer_without_a_location_is_stored_unchanged(keys: SQLIdempotencyKeys) -> None:
    await keys.claim("p", "k", ASKED, hold_s=10)
    answer = StoredAnswer(200, None, b"")
    await keys.store_answer("p", "k", answer)
    assert (await keys.claim("p", "k", ASKED)).answer == answer


async def test_a_key_used_for_another_request_is_refused_answered_or_not(keys: SQLIdempotencyKeys) -> None:
    await keys.claim("p", "k", ASKED, hold_s=10)
    with pytest.raises(ValueError, match="used for a different request"):
        await keys.claim("p", "k", OTHER, hold_s=10)
    await keys.store_answer("p", "k", ANSWER)
    with pytest.raises(ValueError, match="use a new key"):
        await keys.claim("p", "k", OTHER, hold_s=10)


async def test_projects_and_keys_are_separate(keys: SQLIdempotencyKeys) -> None:
    await keys.claim("p", "k", ASKED, hold_s=10)
    await keys.store_answer("p", "k", ANSWER)
    assert await keys.claim("q", "k", OTHER) == KeyClaim(NOW)
    assert await keys.claim("p", "K", OTHER) == KeyClaim(NOW)


async def test_a_claim_expires_even_if_the_clock_is_set_back(keys: SQLIdempotencyKeys, clock: Clock) -> None:
    await keys.claim("p", "k", ASKED, hold_s=10)
    clock.pass_(days=-2)
    assert (await keys.claim("p", "k", ASKED, hold_s=10)).wait_s == 0
    clock.pass_(seconds=4)
    assert (await keys.claim("p", "k", ASKED, hold_s=10)).wait_s == 6.0


async def test_a_claim_of_an_hour_is_kept_from_other_callers(keys: SQLIdempotencyKeys, clock: Clock) -> None:
    await keys.claim("p", "k", ASKED, hold_s=3600)
    clock.pass_(minutes=1)
    for _ in range(2):
        assert (await keys.claim("p", "k", ASKED)).wait_s == 3540.0


async def test_an_expired_claim_passes_to_the_next_caller(keys: SQLIdempotencyKeys, clock: Clock) -> None:
    await keys.claim("p", "k", ASKED, hold_s=10)
    clock.pass_(seconds=10)
    assert await keys.claim("p", "k", ASKED, hold_s=10) == KeyClaim(NOW)
    clock.pass_(seconds=5)
    assert await keys.claim("p", "k", ASKED, hold_s=10) == KeyClaim(NOW, wait_s=5.0)


async def test_a_key_claimed_without_a_hold_is_free_at_once_and_keeps_its_first_time(
    keys: SQLIdempotencyKeys, clock: Clock
) -> None:
    assert await keys.claim("p", "k", ASKED) == KeyClaim(NOW)
    clock.pass_(microseconds=1_234_567)
    assert await keys.claim("p", "k", ASKED) == KeyClaim(NOW)


async def test_a_released_claim_is_forgotten_and_an_answered_one_is_not(keys: SQLIdempotencyKeys) -> None:
    await keys.claim("p", "k", ASKED, hold_s=10)
    await keys.release("p", "k")
    assert await keys.claim("p", "k", OTHER, hold_s=10) == KeyClaim(NOW)
    await keys.store_answer("p", "k", ANSWER)
    await keys.release("p", "k")
    assert (await keys.claim("p", "k", OTHER)).answer == ANSWER


async def test_a_key_expires_after_a_day_and_expired_answers_are_purged(keys: SQLIdempotencyKeys, clock: Clock) -> None:
    for key in ("k", "l"):
        await keys.claim("p", key, ASKED, hold_s=10)
        await keys.store_answer("p", key, ANSWER)
    clock.now += IDEMPOTENCY_KEY_TTL
    assert await keys.claim("p", "k", OTHER, hold_s=10) == KeyClaim(clock.now)
    assert await count(keys) == 1


async def test_only_one_of_concurrent_claims_succeeds(keys: SQLIdempotencyKeys) -> None:
    claims = await asyncio.gather(*(keys.claim("p", "k", ASKED, hold_s=10) for _ in range(8)))
    assert sorted(claim.wait_s for claim in claims) == [0.0] + [10.0] * 7


async def test_all_but_one_of_concurrent_claims_for_different_requests_are_refused(keys: SQLIdempotencyKeys) -> None:
    asked = [bytes([number]) * 32 for number in range(6)]
    claims = await asyncio.gather(*(keys.claim("p", "k", a, hold_s=10) for a in asked), return_exceptions=True)
    assert sum(isinstance(claim, KeyClaim) for claim in claims) == 1
    assert sum(isinstance(claim, ValueError) for claim in claims) == 5
