"""`adjudge runs monitor`: its output for a gamed run in the database, and its exit status."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from adjudge_services.settings import Settings
from rubric_store import SQLLedger, migrations
from rubric_store.ledger.rows import LedgerRows, MonitoredRun, RequestRow, ResponseRow, SignalRow
from tests.judge_server.ledger.monitoring.histories import history, ramp
from tests.services.command import outcome

AT = datetime(2026, 5, 1, tzinfo=UTC)


def rows(run: str, name: str, monitored: MonitoredRun) -> Iterator[LedgerRows]:
    """Yield the rows that sum to a history, one request per step."""
    for number, step in enumerate(monitored.steps):
        key = number.to_bytes(16, "big")
        digest = key + key
        asked = RequestRow(
            "default", run, key, "r", step.step, "points", "binary", None, None, 1, 0, 0, 0, 0, 0, 0.1, AT
        )
        responses = [
            ResponseRow(
                "default", run, key, place, "g", place, None, digest, digest, None, None, None, True, None,
                float(place < step.reward_sum), "scored",
            )
            for place in range(step.responses)
        ]  # fmt: skip
        of_step = [one for one in getattr(monitored, name) if one.step == step.step]
        signals = [SignalRow("default", run, key, one.signal, one.name, *one[2:]) for one in of_step]
        yield LedgerRows([], [], [asked], responses, [], signals)


@pytest.fixture
def runs(data_dir: Path) -> None:
    """A gamed run and a healthy one in the database of the settings."""
    url = Settings().store_url
    data_dir.mkdir(parents=True, exist_ok=True)
    migrations.upgrade(url)
    ledger = SQLLedger(url)
    gamed = history(50, reward=ramp(0.4, 0.8, 20, 45), shadow=ramp(0.7, 0.2, 20, 45))
    for run, name, monitored in (
        ("gamed", "signals", gamed),
        ("gamed/gold", "gold", gamed),
        ("healthy", "signals", history(50)),
    ):
        ledger.write(LedgerRows.concat([*rows(run, name, monitored)]))


@pytest.mark.usefixtures("runs")
def test_a_gamed_run_is_reported_and_fails_the_command() -> None:
    status, said = outcome("runs", "monitor", "gamed")
    assert status == 1
    for words in ("critical", "shadow_divergence", "'right'", "Stop the run", "gold judge"):
        assert words in said
    assert outcome("runs", "monitor", "gamed", "--fail-on", "never")[0] == 0
    assert outcome("runs", "monitor", "gamed", "--until-step", "19")[0] == 0


@pytest.mark.usefixtures("runs")
def test_json_output_has_the_report() -> None:
    status, said = outcome("runs", "monitor", "gamed", "--json")
    told = json.loads(said)
    assert (status, told["run"], told["last_step"]) == (1, "gamed", 49)
    (finding,) = told["findings"]
    assert 15 <= finding["began"] <= 30
    assert len(told["gold"]) == 10
    assert told["thresholds"]["z"] == 4.0


@pytest.mark.usefixtures("runs")
def test_a_healthy_run_passes_and_thresholds_can_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    assert outcome("runs", "monitor", "healthy", "--fail-on", "warning")[0] == 0
    monkeypatch.setenv("ADJUDGE_MONITORS", '{"z": 19.5}')
    assert outcome("runs", "monitor", "gamed")[0] == 0


@pytest.mark.usefixtures("runs")
def test_a_run_without_steps_is_an_error() -> None:
    status, said = outcome("runs", "monitor", "nobody")
    assert status == 1
    assert "adjudge runs" in said
