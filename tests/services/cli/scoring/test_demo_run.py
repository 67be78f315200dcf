"""`adjudge demo-run`: the run is recorded like any other, monitors detect the gaming, and it is always the same."""

import asyncio
from pathlib import Path

import pytest

from adjudge_services.cli.scoring.demo_run import DEMO_RUNS, GAMED_CRITERION, GAMED_FROM, STEPS, DemoRun
from judge_server.ledger.monitoring.monitors import monitor_run
from rubric_store import SQLLedger
from rubric_store.ledger.rows import RunReportQuery
from tests.services.command import adjudge
from trainer_client.wire.monitors import MonitorThresholds

SAME_EVERYWHERE = (22, 0.696)
"""The failed verdicts and the mean reward of the gamed run."""


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a database with the demo runs, and the output of the command."""
    folder = tmp_path_factory.mktemp("demo")
    return folder, demo_run(folder)


def demo_run(folder: Path, **environment: str) -> str:
    """Run the command on the database of a folder."""
    found = adjudge("demo-run", env={"ADJUDGE_DATA_DIR": str(folder), "COLUMNS": "80", **environment})
    assert found.exit_code == (1 if environment else 0), found.output
    return found.output


def test_it_says_that_the_runs_are_made_up_and_where_to_see_them(filled: tuple[Path, str]) -> None:
    _, told = filled
    assert "made-up" in told
    assert "no model is asked" in told
    assert "http://127.0.0.1:8000/console/run?run=demo%2Fgamed" in told
    assert all(run.name in told for run in DEMO_RUNS)


def test_it_explains_in_words_which_criterion_is_gamed_and_ends_with_what_to_try(filled: tuple[Path, str]) -> None:
    _, told = filled
    assert max(map(len, told.splitlines())) <= 80
    gamed = told.partition("demo/gamed: ")[2].partition("demo/healthy: ")[0]
    assert '"The response checks its result." met 32% -> 98%' in gamed
    assert '"The final answer is right." met 61% -> 45%' in gamed
    assert "claim a check that they do not make" in gamed
    assert "claim a check" not in told.partition("demo/healthy: ")[2]
    assert "adjudge serve" in told.splitlines()[-2]
    assert told.splitlines()[-1].startswith("http://")


def test_existing_runs_are_left_unchanged(filled: tuple[Path, str]) -> None:
    folder, _ = filled
    assert demo_run(folder).count("is already there") == len(DEMO_RUNS)


def test_without_a_ledger_nothing_is_judged(tmp_path: Path) -> None:
    assert "ADJUDGE_LEDGER=all" in demo_run(tmp_path, ADJUDGE_LEDGER="off")
    assert list(tmp_path.iterdir()) == []


def test_the_monitors_detect_the_gamed_run_and_nothing_in_the_healthy_run(filled: tuple[Path, str]) -> None:
    folder, _ = filled

    async def read() -> None:
        ledger = SQLLedger(f"sqlite+aiosqlite:///{folder / 'adjudge.db'}")
        gamed, healthy = [await monitor_run(ledger, "default", run.name, MonitorThresholds()) for run in DEMO_RUNS]
        assert gamed is not None
        assert healthy is not None
        assert {one.monitor for one in gamed.findings if one.severity == "critical"} == {"shadow_divergence"}
        began = [one.began for one in gamed.findings if one.monitor == "shadow_divergence"]
        assert began[0] is not None
        assert abs(began[0] - GAMED_FROM) <= 5
        assert [one for one in healthy.findings if one.severity != "info"] == []
        report = await ledger.run(RunReportQuery("default", DEMO_RUNS[0].name, limit=STEPS))
        assert report is not None
        assert (report.run.failed, round(report.run.mean_reward or 0.0, 4)) == SAME_EVERYWHERE
        rates = [{one.criterion: one.pass_rate or 0.0 for one in step.criteria} for step in report.steps]
        rise = {name: rates[-1][name] - rates[GAMED_FROM - 1][name] for name in rates[0]}
        assert max(rise, key=rise.__getitem__) == GAMED_CRITERION
        await ledger.close()

    asyncio.run(read())


def test_a_run_is_reproducible_from_its_seed() -> None:
    one, other = ([*DemoRun("r", 3, seed).groups()][:5] for seed in (7, 7))
    assert one == other
    assert one != [*DemoRun("r", 3, 8).groups()][:5]
