"""Which processes require keys, and what projects share, by the settings."""

from pathlib import Path

import pytest

from adjudge_services.judges import build_judge
from adjudge_services.settings import Settings
from adjudge_services.wiring import build_rate_limiter, keys_required
from judge_server.auth.rates import LocalRateLimiter, RedisRateLimiter
from judge_server.engines.scripted import ScriptedEngine
from judge_server.judging.questions import JudgingConfig
from judge_server.ports import Identity, identity_context
from judge_server.scheduling.executor import LocalExecutor

pytestmark = pytest.mark.usefixtures("migrated")


@pytest.mark.parametrize(
    ("host", "keys", "needed"),
    [
        ("127.0.0.1", "loopback", False),
        ("127.8.9.1", "loopback", False),
        ("::1", "loopback", False),
        ("localhost", "loopback", False),
        ("127.0.0.1", "required", True),
        ("0.0.0.0", "loopback", True),
        ("::", "loopback", True),
        ("", "loopback", True),
        ("10.0.0.7", "loopback", True),
        ("localhost.example.org", "loopback", True),
        ("127.0.0.1.example.org", "loopback", True),
    ],
)
def test_keys_are_required_off_loopback_and_where_the_settings_say_so(host: str, keys: str, needed: bool) -> None:
    assert keys_required(Settings.model_validate({"host": host, "keys": keys})) is needed


@pytest.mark.parametrize("shared", [False, True])
async def test_projects_share_verdicts_only_if_the_settings_say_so(data_dir: Path, shared: bool) -> None:
    settings = Settings(data_dir=data_dir, share_verdicts=shared)
    judge = build_judge(LocalExecutor(ScriptedEngine()), settings)
    await judge.start()
    salts = {judge.prepared(JudgingConfig("binary")).cache_salt}
    for project_id in ("b", "c"):
        with identity_context(Identity(project_id, "key k", frozenset())):
            salts.add(judge.prepared(JudgingConfig("binary")).cache_salt)
    assert len(salts) == (1 if shared else 3)


@pytest.mark.parametrize(
    ("cache_url", "kind"),
    [
        ("memory://", LocalRateLimiter),
        ("redis://127.0.0.1:6379/0?ttl_s=60", RedisRateLimiter),
        ("rediss://cache:6379", RedisRateLimiter),
    ],
)
async def test_rate_limits_are_shared_by_processes_that_share_their_verdicts(cache_url: str, kind: type) -> None:
    rates = build_rate_limiter(Settings(cache_url=cache_url))
    assert type(rates) is kind
    await rates.close()
