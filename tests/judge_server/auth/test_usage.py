"""Budgets and usage: usage is stored in batches, visible to every process, and refused above the budget."""

import asyncio
from collections.abc import Mapping
from datetime import date

import pytest

from judge_server.auth.authenticator import MAX_TOKENS_PER_REQUEST, STORED_USAGE_TTL_S
from judge_server.errors import BudgetExhausted, NotReady
from judge_server.ports import Identity
from tests.judge_server.auth.keyed import InMemoryApiKeyStore
from trainer_client.wire.tenants import Limits

TODAY = date(2026, 2, 3)
NOON_TO_MIDNIGHT_S = 12 * 3600


def identity(**limits: int) -> Identity:
    return Identity("b", "key k", frozenset({"score"}), Limits.model_validate(limits))


async def test_usage_is_stored_by_day_in_one_batch() -> None:
    key_store = InMemoryApiKeyStore()
    usage = key_store.authenticator().usage
    for tokens in (10, 0, 5):
        usage.count("b", tokens)
    usage.count("default", 1)
    assert key_store.used == {}
    await usage.flush()
    await usage.flush()
    assert key_store.used == {("b", TODAY): (3, 15), ("default", TODAY): (1, 1)}
    assert key_store.reads == 1
    key_store.seconds = NOON_TO_MIDNIGHT_S
    usage.count("b", 7)
    await usage.flush()
    assert key_store.used["b", date(2026, 2, 4)] == (1, 7)


async def test_an_impossible_count_is_clipped_and_does_not_stop_other_projects_counts() -> None:
    key_store = InMemoryApiKeyStore()
    usage = key_store.authenticator().usage
    for project, tokens in (("a", -(10**9)), ("b", 10**30), ("default", 5)):
        usage.count(project, tokens)
    await usage.flush()
    assert key_store.used == {
        ("a", TODAY): (1, 0),
        ("b", TODAY): (1, MAX_TOKENS_PER_REQUEST),
        ("default", TODAY): (1, 5),
    }
    assert MAX_TOKENS_PER_REQUEST * 1_000_000 < 2**63


async def test_counts_are_kept_while_the_store_is_unreachable_and_none_is_lost() -> None:
    key_store = InMemoryApiKeyStore()
    usage = key_store.authenticator().usage
    key_store.broken = True
    for _ in range(3):
        usage.count("b", 10)
        await usage.flush()
    key_store.broken = False
    await usage.flush()
    assert key_store.used == {("b", TODAY): (3, 30)}


async def test_usage_counted_during_a_flush_is_stored_by_the_next() -> None:
    class SlowKeyStore(InMemoryApiKeyStore):
        async def add_usage(self, day: date, used: Mapping[str, tuple[int, int]]) -> None:
            await super().add_usage(day, used)
            if self.reads == 1:
                usage.count("b", 7)

    key_store = SlowKeyStore()
    usage = key_store.authenticator().usage
    usage.count("b", 10)
    await usage.flush()
    assert key_store.used == {("b", TODAY): (1, 10)}
    await usage.flush()
    assert key_store.used == {("b", TODAY): (2, 17)}


async def test_a_spent_daily_budget_refuses_judging_until_midnight() -> None:
    key_store = InMemoryApiKeyStore()
    usage, of = key_store.authenticator().usage, identity(tokens_per_day=100)
    usage.count("b", 99)
    await usage.check_budget(of)
    usage.count("b", 1)
    with pytest.raises(BudgetExhausted, match="2026-02-04T00:00Z") as refused:
        await usage.check_budget(of)
    assert refused.value.retry_after_s == NOON_TO_MIDNIGHT_S + 1
    await usage.flush()
    with pytest.raises(BudgetExhausted):
        await usage.check_budget(of)
    key_store.seconds = NOON_TO_MIDNIGHT_S
    await usage.check_budget(of)


async def test_a_total_budget_is_not_renewed() -> None:
    key_store = InMemoryApiKeyStore()
    usage, of = key_store.authenticator().usage, identity(tokens_total=100)
    usage.count("b", 60)
    await usage.flush()
    key_store.seconds = NOON_TO_MIDNIGHT_S
    usage.count("b", 40)
    with pytest.raises(BudgetExhausted, match="total budget") as refused:
        await usage.check_budget(of)
    assert refused.value.retry_after_s is None


async def test_usage_by_another_process_counts_within_seconds() -> None:
    key_store = InMemoryApiKeyStore()
    one, other, of = key_store.authenticator().usage, key_store.authenticator().usage, identity(tokens_per_day=100)
    await one.check_budget(of)
    other.count("b", 100)
    await other.flush()
    key_store.seconds = STORED_USAGE_TTL_S
    with pytest.raises(BudgetExhausted):
        await one.check_budget(of)


async def test_a_project_without_a_budget_is_never_looked_up() -> None:
    key_store = InMemoryApiKeyStore()
    usage = key_store.authenticator().usage
    usage.count("b", 10**9)
    await usage.check_budget(identity())
    assert key_store.reads == 0


async def test_while_the_store_is_unreachable_a_known_budget_applies_and_an_unknown_one_gets_not_ready() -> None:
    key_store = InMemoryApiKeyStore()
    usage, of = key_store.authenticator().usage, identity(tokens_per_day=100)
    key_store.broken = True
    with pytest.raises(NotReady):
        await usage.check_budget(of)
    key_store.broken = False
    await usage.check_budget(of)
    key_store.broken, key_store.seconds = True, STORED_USAGE_TTL_S
    await usage.check_budget(of)
    usage.count("b", 100)
    with pytest.raises(BudgetExhausted):
        await usage.check_budget(of)


async def test_metrics_show_usage_the_remaining_budget_and_refusals() -> None:
    key_store = InMemoryApiKeyStore()
    authenticator = key_store.authenticator()
    authenticator.usage.count("b", 70)
    await authenticator.usage.check_budget(identity(tokens_per_day=100))
    with pytest.raises(BudgetExhausted):
        await authenticator.usage.check_budget(identity(tokens_total=50))
    for number in range(150):
        authenticator.usage.count(f"p{number}", 1)
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for metric in authenticator.metrics.collect()
        for sample in metric.samples
    }
    assert samples["adjudge_project_prompt_tokens_computed_total", "b"] == 70
    assert samples["adjudge_project_requests_total", "b"] == 1
    assert samples["adjudge_project_tokens_left", "b", "day"] == 30
    assert samples["adjudge_project_tokens_left", "b", "total"] == 0
    assert samples["adjudge_requests_refused_total", "b", "budget"] == 1
    assert samples["adjudge_project_requests_total", "(other)"] == 51


async def test_metrics_show_limits_and_pending_usage_is_stored_when_the_task_ends() -> None:
    key_store = InMemoryApiKeyStore()
    key_store.add("score", project_id="b", limits=Limits(weight=2, tokens_per_day=100))
    authenticator = key_store.authenticator()
    running = asyncio.create_task(authenticator.run())
    await asyncio.sleep(0)
    authenticator.usage.count("b", 5)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    limits = {
        tuple(sample.labels.values()): sample.value
        for metric in authenticator.metrics.collect()
        for sample in metric.samples
        if sample.name == "adjudge_project_limit"
    }
    assert limits == {("b", "weight"): 2, ("b", "tokens_per_day"): 100}
    assert key_store.used == {("b", TODAY): (1, 5)}


async def test_the_background_task_survives_an_unreachable_store(caplog: pytest.LogCaptureFixture) -> None:
    key_store = InMemoryApiKeyStore(broken=True)
    running = asyncio.create_task(key_store.authenticator().run())
    for _ in range(3):
        await asyncio.sleep(0)
    assert not running.done()
    assert "limits of projects cannot be read" in caplog.text
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_count_that_the_store_refuses_does_not_stop_other_projects_counts() -> None:
    class RefusingKeyStore(InMemoryApiKeyStore):
        async def add_usage(self, day: date, used: Mapping[str, tuple[int, int]]) -> None:
            if any(tokens > 100 for _, tokens in used.values()):
                raise ValueError("integer out of range")
            await super().add_usage(day, used)

    key_store = RefusingKeyStore()
    usage = key_store.authenticator().usage
    for project, tokens in (("a", 10), ("b", 101), ("default", 5)):
        usage.count(project, tokens)
    for _ in range(2):
        await usage.flush()
    assert key_store.used == {("a", TODAY): (1, 10), ("default", TODAY): (1, 5)}
