"""What an `Idempotency-Key` stands for: one request, one who does it, one answer, for a day; on every database."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import pytest
from sqlalchemy import func, select

from rubric_store import SQLIdempotencyKeys
from rubric_store.idempotency import idempotency_keys
from tests.rubric_store.operation_rows import NOW
from trainer_client.wire.tenants import IDEMPOTENCY_KEY_TTL, KeyClaim, StoredAnswer

ASKED, OTHER = b"a" * 32, b"b" * 32
ANSWER = StoredAnswer(201, "/v1/rubrics/a@1", '{"name": "\u00e4"}'.encode() * 100)


@dataclass
class Clock:
    """What the time is."""

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


async def test_a_key_that_is_new_is_to_be_done_and_its_answer_is_given_ever_after(
    keys: SQLIdempotencyKeys, clock: Clock
) -> None:
    assert await keys.claim("p", "k", ASKED, hold_s=10) == KeyClaim(NOW)
    await keys.store_answer("p", "k", ANSWER)
    clock.pass_(hours=23)
    for _ in range(2):
        assert await keys.claim("p", "k", ASKED, hold_s=10) == KeyClaim(NOW, ANSWER)


async def test_an_answer_without_a_location_is_kept_as_it_is(keys: SQLIdempotencyKeys) -> None:
    await keys.claim("p", "k", ASKED, hold_s=10)
    answer = StoredAnswer(200, None, b"")
    await keys.store_answer("p", "k", answer)
    assert (await keys.claim("p", "k", ASKED)).answer == answer


async def test_a_key_that_came_with_another_request_is_refused_answered_or_not(keys: SQLIdempotencyKeys) -> None:
    await keys.claim("p", "k", ASKED, hold_s=10)
    with pytest.raises(ValueError, match="used for a different request"):
        await keys.claim("p", "k", OTHER, hold_s=10)
    await keys.store_answer("p", "k", ANSWER)
    with pytest.raises(ValueError, match="use a new key"):
        await keys.claim("p", "k", OTHER, hold_s=10)


async def test_projects_and_keys_are_apart(keys: SQLIdempotencyKeys) -> None:
    await keys.claim("p", "k", ASKED, hold_s=10)
    await keys.store_answer("p", "k", ANSWER)
    assert await keys.claim("q", "k", OTHER) == KeyClaim(NOW)
    assert await keys.claim("p", "K", OTHER) == KeyClaim(NOW)


async def test_a_claim_ends_even_if_the_clock_is_set_back(keys: SQLIdempotencyKeys, clock: Clock) -> None:
    await keys.claim("p", "k", ASKED, hold_s=10)
    clock.pass_(days=-2)
    assert (await keys.claim("p", "k", ASKED, hold_s=10)).wait_s == 0
    clock.pass_(seconds=4)
    assert (await keys.claim("p", "k", ASKED, hold_s=10)).wait_s == 6.0


async def test_while_one_does_it_others_are_told_how_long_that_may_take(keys: SQLIdempotencyKeys, clock: Clock) -> None:
    await keys.claim("p", "k", ASKED, hold_s=10)
    clock.pass_(seconds=4)
    assert await keys.claim("p", "k", ASKED, hold_s=10) == KeyClaim(NOW, wait_s=6.0)


async def test_who_does_not_end_in_time_is_taken_for_dead_and_the_next_does_it(
    keys: SQLIdempotencyKeys, clock: Clock
) -> None:
    await keys.claim("p", "k", ASKED, hold_s=10)
    clock.pass_(seconds=10)
    assert await keys.claim("p", "k", ASKED, hold_s=10) == KeyClaim(NOW)
    clock.pass_(seconds=5)
    assert await keys.claim("p", "k", ASKED, hold_s=10) == KeyClaim(NOW, wait_s=5.0)


async def test_a_key_that_is_not_held_is_everybodys_at_once_and_keeps_its_first_moment(
    keys: SQLIdempotencyKeys, clock: Clock
) -> None:
    assert await keys.claim("p", "k", ASKED) == KeyClaim(NOW)
    clock.pass_(microseconds=1_234_567)
    assert await keys.claim("p", "k", ASKED) == KeyClaim(NOW)


async def test_what_failed_is_forgotten_and_what_was_answered_is_not(keys: SQLIdempotencyKeys) -> None:
    await keys.claim("p", "k", ASKED, hold_s=10)
    await keys.release("p", "k")
    assert await keys.claim("p", "k", OTHER, hold_s=10) == KeyClaim(NOW)
    await keys.store_answer("p", "k", ANSWER)
    await keys.release("p", "k")
    assert (await keys.claim("p", "k", OTHER)).answer == ANSWER


async def test_after_a_day_a_key_stands_for_nothing_and_what_it_stood_for_is_swept(
    keys: SQLIdempotencyKeys, clock: Clock
) -> None:
    for key in ("k", "l"):
        await keys.claim("p", key, ASKED, hold_s=10)
        await keys.store_answer("p", key, ANSWER)
    clock.now += IDEMPOTENCY_KEY_TTL
    assert await keys.claim("p", "k", OTHER, hold_s=10) == KeyClaim(clock.now)
    assert await count(keys) == 1


async def test_of_many_at_once_one_is_to_do_it(keys: SQLIdempotencyKeys) -> None:
    claims = await asyncio.gather(*(keys.claim("p", "k", ASKED, hold_s=10) for _ in range(8)))
    assert sorted(claim.wait_s for claim in claims) == [0.0] + [10.0] * 7


async def test_many_at_once_with_different_requests_are_refused_but_for_one(keys: SQLIdempotencyKeys) -> None:
    asked = [bytes([number]) * 32 for number in range(6)]
    claims = await asyncio.gather(*(keys.claim("p", "k", a, hold_s=10) for a in asked), return_exceptions=True)
    assert sum(isinstance(claim, KeyClaim) for claim in claims) == 1
    assert sum(isinstance(claim, ValueError) for claim in claims) == 5
