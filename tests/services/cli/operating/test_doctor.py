"""`adjudge doctor` on an installation, and on a deployment of several processes: queue, operations, keys, judges."""

import asyncio
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
import redis

from adjudge_services.cli.operating import doctor
from adjudge_services.cli.output import out
from adjudge_services.settings import Settings
from judge_server.scoring.rubrics import PROJECT_ID
from rubric_store import SQLOperations
from rubric_store.operations.rows import NewChunk, NewOperation
from tests.fixtures.ports import unused_port
from tests.fixtures.redis_process import RedisProcess
from tests.judge_server.engines.systemone.decision_answers import Answer, LyingDecisionServer, llamacpp, vllm
from tests.services.command import adjudge
from tests.services.processes import listening
from trainer_client import Client


@pytest.fixture(autouse=True)
def _installation(migrated: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sound installation, whose table is not wrapped."""
    monkeypatch.setenv("ADJUDGE_ENGINE_URL", "scripted://yes")
    monkeypatch.setattr(out, "width", 600)


def row(check: str, code: int = 0) -> tuple[str, str]:
    """Return result and text of one check; the command exits with `code`."""
    result = adjudge("doctor")
    assert result.exit_code == code, result.output
    (found,) = [line for line in result.stdout.splitlines() if line.startswith(f"│ {check} ")]
    _, _, outcome, seen, _ = [cell.strip() for cell in found.split("│")]
    return outcome, seen


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[RedisProcess]:
    """A broker that is set in the environment, but not started."""
    made = RedisProcess()
    monkeypatch.setenv("ADJUDGE_QUEUE_URL", made.url)
    yield made
    made.kill()


def test_doctor_accepts_a_sound_installation() -> None:
    result = adjudge("doctor", exit_code=0)
    assert result.stdout.count(" ok ") == 8
    assert "wrong" not in result.stdout


@pytest.mark.parametrize(
    ("name", "value", "check"),
    [
        ("DATABASE_URL", "mysql://u:hunter2@db/x", "rubric store"),
        ("DATABASE_URL", "postgresql+psycopg://u:hunter2@127.0.0.1:PORT/x?connect_timeout=2", "rubric store"),
        ("CACHE_URL", "memcached://x", "verdict cache"),
        ("ENGINE_URL", "scripted://maybe", "judge"),
        ("ENGINE_URL", "llamacpp:///no/such/model.gguf", "judge"),
    ],
)
def test_doctor_names_the_broken_part_and_hides_passwords(
    name: str, value: str, check: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"ADJUDGE_{name}", value.replace("PORT", str(unused_port())))
    result = adjudge("doctor", exit_code=1)
    wrong = [line for line in result.stdout.splitlines() if " wrong " in line]
    assert len(wrong) == 1
    assert check in wrong[0]
    assert "hunter2" not in result.output


def test_without_a_broker_the_service_runs_operations_itself() -> None:
    assert row("queue") == ("ok", "memory://: the service runs operations itself")


@pytest.mark.redis
def test_an_unreachable_broker_is_wrong_and_one_that_loses_or_refuses_messages_when_full_gets_a_warning(
    broker: RedisProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADJUDGE_CACHE_URL", broker.url)
    outcome, seen = row("queue", 1)
    assert (outcome, "Check ADJUDGE_QUEUE_URL" in seen) == ("wrong", True)
    broker.start()
    with redis.Redis.from_url(broker.url) as server:
        outcome, seen = row("queue")
        assert (outcome, ", 0 queued" in seen) == ("ok", True)
        server.config_set("maxmemory", "100mb")
        for policy, found in (("allkeys-lru", "may evict any key"), ("noeviction", "holds the verdict cache too")):
            server.config_set("maxmemory-policy", policy)
            outcome, seen = row("queue")
            assert (outcome, found in seen) == ("warning", True)
        server.config_set("maxmemory-policy", "volatile-lru")
        assert row("queue")[0] == "ok"


async def _submitted(at: datetime) -> None:
    store = SQLOperations(Settings().store_url, clock=lambda: at)
    await store.create(NewOperation("op-1", PROJECT_ID, "score", {}, [NewChunk(1, {})], at))
    await store.close()


def test_operations_that_wait_for_long_get_a_warning() -> None:
    assert row("operations")[1] == "0 chunks are waiting; no model writes rubrics (ADJUDGE_WRITER_URL is not set)"
    asyncio.run(_submitted(datetime.now(UTC) - timedelta(hours=2)))
    outcome, seen = row("operations")
    expected = "1 chunks are waiting, the oldest for 120 minutes; start more workers"
    assert (outcome, expected in seen) == ("warning", True)


def test_an_unreachable_writer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADJUDGE_WRITER_URL", f"openai+http://127.0.0.1:{unused_port()}/v1")
    outcome, seen = row("operations", 1)
    assert (outcome, seen.startswith("the model that writes rubrics: "), "ADJUDGE_WRITER_URL" in seen) == (
        "wrong",
        True,
        True,
    )


def test_off_loopback_a_key_must_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    assert row("keys") == ("ok", "not required on 127.0.0.1")
    monkeypatch.setenv("ADJUDGE_HOST", "0.0.0.0")
    outcome, seen = row("keys", 1)
    assert (outcome, "adjudge keys create --scope score" in seen) == ("wrong", True)
    adjudge("keys", "create", "--scope", "score", exit_code=0)
    assert row("keys") == ("ok", "required on 0.0.0.0, and a usable one exists")


def test_a_decision_model_is_asked_and_its_choice_mass_may_be_unknown() -> None:
    async def asked(answer: Answer) -> str:
        server = LyingDecisionServer(answer)
        url = f"systemone+{await server.start()}"
        try:
            return await doctor._judge(Settings(engine_url=url))
        finally:
            await server.close()

    assert asyncio.run(asked(llamacpp)) == "jev-1: P(yes) 0.75, choice mass unknown"
    assert asyncio.run(asked(vllm)) == "jev-1: P(yes) 0.75, choice mass 0.80"


def test_checks_that_need_a_store_are_skipped_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADJUDGE_DATABASE_URL", "mysql://db/x")
    assert row("operations", 1) == row("keys", 1) == ("not checked", "needs the rubric store")


@pytest.mark.processes
def test_remote_judges_are_asked_and_those_of_one_name_must_be_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = f"http://127.0.0.1:{unused_port()}"
    start = ("judge", "--port", "0", "--engine")
    with listening(*start, "scripted://yes") as one, listening(*start, "scripted://yes?context=500") as other:
        for service in (one, other):
            service.wait_until_ready(Client(service.url))
        monkeypatch.setenv("ADJUDGE_JUDGES", one.url)
        assert row("judges") == ("ok", f"default at {one.url}: scripted")
        monkeypatch.setenv("ADJUDGE_JUDGES", json.dumps({"default": f"{one.url} {other.url}", "small": gone}))
        outcome, seen = row("judges", 1)
        assert outcome == "wrong"
        assert "the judge processes of 'default' differ" in seen
        assert f"no answer from the judge at {gone}" in seen
        monkeypatch.setenv("ADJUDGE_JUDGES", json.dumps({"default": one.url, "other": other.url}))
        assert row("judges")[0] == "ok"
