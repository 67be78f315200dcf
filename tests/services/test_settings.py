"""Settings come from the environment, and a laptop needs none; the signing secret is made once, for its owner only."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from adjudge_services.settings import Settings, SettingsError
from judge_server.scheduling.admission import QueueRules


def test_the_secret_is_random_stored_and_readable_only_by_its_owner(data_dir: Path, tmp_path: Path) -> None:
    first = Settings().signing_key()
    assert len(first) >= 32
    assert Settings().signing_key() == first
    assert (data_dir / "signing-secret").stat().st_mode & 0o777 == 0o600
    assert Settings(data_dir=tmp_path / "other").signing_key() != first
    assert [path.name for path in data_dir.iterdir()] == ["signing-secret"]


def test_processes_that_start_concurrently_agree_on_the_secret(tmp_path: Path) -> None:
    for attempt in range(20):
        settings = Settings(data_dir=tmp_path / str(attempt))
        with ThreadPoolExecutor(8) as pool:
            seen = set(pool.map(lambda _, settings=settings: settings.signing_key(), range(8)))
        assert len(seen) == 1
        assert len(seen.pop()) == 64


def test_a_secret_in_the_environment_is_used_and_no_file_is_written(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADJUDGE_SIGNING_SECRET", "one secret for all replicas")
    settings = Settings()
    assert settings.signing_key() == b"one secret for all replicas"
    assert not data_dir.exists()
    assert "one secret" not in repr(settings)


def test_a_short_secret_is_refused_with_what_to_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADJUDGE_SIGNING_SECRET", "short")
    with pytest.raises(SettingsError, match="ADJUDGE_SIGNING_SECRET is not valid: write at least 16 characters"):
        Settings()


def test_the_store_is_a_file_in_the_data_folder_unless_the_environment_names_another(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Settings().store_url == f"sqlite+aiosqlite:///{data_dir}/adjudge.db"
    monkeypatch.setenv("ADJUDGE_DATABASE_URL", "postgresql+psycopg://db/x")
    assert Settings().store_url == "postgresql+psycopg://db/x"


def test_the_queue_follows_the_environment(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Settings().queue_rules == QueueRules()
    given = {
        "QUEUE_CALLS": "9",
        "RUN_QUEUE_CALLS": "8",
        "RUN_ENGINE_CALLS": "7",
        "RUN_WEIGHTS": '{"a": 2}',
        "BULK_SHARE": "0.3",
        "ENGINE_BATCHES": "auto",
    }
    for name, value in given.items():
        monkeypatch.setenv(f"ADJUDGE_{name}", value)
    assert Settings().queue_rules == QueueRules(9, 8, 7, {"a": 2.0}, 0.3, "auto")
    monkeypatch.setenv("ADJUDGE_ENGINE_BATCHES", "6")
    assert Settings().queue_rules.batches == 6


@pytest.mark.parametrize("url", ["javascript:alert({run})", "https://wandb.ai/team/project", "wandb.ai/{run}"])
def test_a_trackers_address_needs_a_scheme_of_the_web_and_a_place_for_the_run(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADJUDGE_TRACKER_URL", url)
    with pytest.raises(SettingsError, match="ADJUDGE_TRACKER_URL is not valid: write http:// or https://"):
        Settings()
    monkeypatch.setenv("ADJUDGE_TRACKER_URL", "https://wandb.ai/team/project/runs/{run}")
    assert Settings().tracker_url == "https://wandb.ai/team/project/runs/{run}"


def test_every_setting_is_described() -> None:
    assert [name for name, field in Settings.model_fields.items() if not field.description] == []


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://valkey:6379/1", "redis://:p%40ss%2Fw%3Ard@valkey:6379/1"),
        ("rediss://app@valkey/0?a=b", "rediss://app:p%40ss%2Fw%3Ard@valkey/0?a=b"),
        ("redis://:own@valkey/1", "redis://:own@valkey/1"),
        ("memory://", "memory://"),
    ],
)
def test_a_separate_password_is_put_into_a_url_without_one(
    url: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for store in ("CACHE", "QUEUE"):
        monkeypatch.setenv(f"ADJUDGE_{store}_PASSWORD", "p@ss/w:rd")
        monkeypatch.setenv(f"ADJUDGE_{store}_URL", url)
    monkeypatch.setenv("ADJUDGE_DATABASE_PASSWORD", "other")
    monkeypatch.setenv("ADJUDGE_DATABASE_URL", "postgresql://adjudge@db:5432/adjudge")
    settings = Settings()
    assert settings.cache_url == settings.queue_url == expected
    assert settings.store_url == "postgresql://adjudge:other@db:5432/adjudge"
